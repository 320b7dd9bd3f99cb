//! The programs that are measured, and how each is told to do the same work.
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cases::{Case, Place};
use super::machine::first_line;
use super::stage::Stage;
use super::{CopyArgs, word};

/// Packages of the registry that some peers come from.
const REGISTRY: [&str; 2] = ["xcp", "cpz"];

/// A program with the arguments for a case.
#[derive(Debug, Clone)]
pub struct Subject {
    pub name: String,
    /// Keeps what `cp -a` keeps, as far as the tree of a case can show it.
    pub faithful: bool,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Dmover {
        program: PathBuf,
        reflink: &'static str,
        arguments: Vec<String>,
    },
    Reference(PathBuf),
    Cp(&'static str),
    /// The same, and then what it wrote is flushed, as dmover flushes large files.
    CpFlushed,
    /// Two of them side by side, each with half of the files.
    CpTwice(&'static str),
    Rsync,
    Tar,
    Fpsync,
    Rclone,
    Xcp(PathBuf, &'static str),
    Cpz(PathBuf),
    /// Nothing but direct writes of zeros, one after the other: what storage takes.
    Floor,
}

/// Where the programs are.
#[derive(Debug)]
pub struct Programs {
    dmover: PathBuf,
    reference: PathBuf,
    peers: PathBuf,
}

impl Programs {
    /// Builds what belongs to this workspace and finds the rest.
    pub fn find(peers: &Path) -> Result<Self> {
        let dmover = crate::soak::program()?;
        let reference = crate::soak::release_build("dmover-testkit", "dmover-reference")?;
        let peers = std::path::absolute(peers)?.join("bin");
        Ok(Self { dmover, reference, peers })
    }

    pub fn versions(&self) -> Value {
        let own = |name: &str| first_line(&word(&self.peers.join(name)), &["--version"]);
        json!({
            "dmover": first_line(&word(&self.dmover), &["--version"]),
            "cp": first_line("cp", &["--version"]),
            "rsync": first_line("rsync", &["--version"]),
            "tar": first_line("tar", &["--version"]),
            "fpsync": first_line("fpart", &["-V"]),
            "rclone": first_line("rclone", &["version"]),
            "xcp": own("xcp"),
            "cpz": own("cpz"),
        })
    }
}

/// Installs the peers that come from the package registry.
pub fn install(peers: &Path) -> Result<()> {
    for package in REGISTRY {
        if peers.join("bin").join(package).is_file() {
            continue;
        }
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status =
            Command::new(cargo).args(["install", package, "--root"]).arg(peers).status()?;
        if !status.success() {
            bail!("'cargo install {package}' failed");
        }
    }
    Ok(())
}

/// Everybody who takes part in a case; dmover is the first.
pub fn of(case: &Case, place: Place, programs: &Programs, args: &CopyArgs) -> Result<Vec<Subject>> {
    let reflink = if case.reflink { "auto" } else { "never" };
    let own: Vec<String> = args.dmover_args.split_whitespace().map(str::to_owned).collect();
    let dmover = |name: &str, program: &Path, more: &[String]| Subject {
        name: name.into(),
        faithful: true,
        kind: Kind::Dmover {
            program: program.to_owned(),
            reflink,
            arguments: [&own[..], more].concat(),
        },
    };
    let mut all = vec![dmover("dmover", &programs.dmover, &[])];
    if let Some(before) = &args.before {
        all.push(dmover("dmover before", before, &[]));
    }
    if let Some((movers, _)) = case.fixed {
        let more = ["-j".into(), movers.to_string()];
        all.push(dmover(&format!("dmover -j {movers}"), &programs.dmover, &more));
    }
    let mut peer = |name: &str, faithful, kind| {
        let wanted = args.with.is_empty() || args.with.iter().any(|n| n == name);
        if wanted {
            all.push(Subject { name: name.into(), faithful, kind });
        }
    };
    peer("cp", true, Kind::Cp(reflink));
    let small = case.loads.iter().all(|load| load.bytes <= 1 << 20);
    if small && !case.reflink && !place.is_slow() {
        peer("reference", false, Kind::Reference(programs.reference.clone()));
    }
    if !place.is_slow() && !case.reflink {
        peer("rsync", true, Kind::Rsync);
        peer("tar", true, Kind::Tar);
        peer("fpsync", true, Kind::Fpsync);
        peer("rclone", false, Kind::Rclone);
    }
    if place.is_slow() {
        peer("fpsync", true, Kind::Fpsync);
    }
    let large = case.loads.iter().all(|load| load.bytes >= LARGE);
    if case.reflink || (large && case.loads.iter().any(|load| load.files > 1)) {
        peer("two-cp", false, Kind::CpTwice(reflink));
    }
    if large {
        peer("cp+sync", true, Kind::CpFlushed);
        peer("floor", false, Kind::Floor);
    }
    peer("xcp", false, Kind::Xcp(programs.peers.join("xcp"), reflink));
    if !place.is_slow() {
        peer("cpz", false, Kind::Cpz(programs.peers.join("cpz")));
    }
    let unknown = args.with.iter().find(|name| !NAMES.contains(&name.as_str()));
    unknown.map_or(Ok(all), |name| bail!("no peer is named '{name}': {}", NAMES.join(", ")))
}

const NAMES: [&str; 11] = [
    "cp",
    "two-cp",
    "cp+sync",
    "reference",
    "floor",
    "rsync",
    "tar",
    "fpsync",
    "rclone",
    "xcp",
    "cpz",
];

/// Files from here on are a matter of storage alone.
const LARGE: u64 = 100 << 20;

impl Subject {
    /// The command that copies the stage's source to its destination, which is not there yet.
    pub fn command(&self, stage: &Stage) -> Vec<String> {
        self.command_from(&stage.source, stage)
    }

    fn command_from(&self, source: &Path, stage: &Stage) -> Vec<String> {
        let (source, destination) = (word(source), word(&stage.destination));
        let inside = |path: &str| format!("{path}/");
        let owned = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        match &self.kind {
            Kind::Dmover { program, reflink, arguments } => {
                let mut words = owned(&[&word(program), "copy", "--quiet", "-T"]);
                words.push(format!("--reflink={reflink}"));
                words.extend(arguments.iter().cloned());
                words.extend([source, destination]);
                words
            }
            Kind::Reference(program) => owned(&[&word(program), &source, &destination]),
            Kind::Cp(reflink) => {
                owned(&["cp", "-a", &format!("--reflink={reflink}"), "-T", &source, &destination])
            }
            Kind::CpFlushed => {
                const FLUSHED: &str = "cp -a --reflink=never -T \"$1\" \"$2\" && sync -f \"$2\"";
                owned(&["sh", "-c", FLUSHED, "cp-sync", &source, &destination])
            }
            Kind::CpTwice(reflink) => {
                // Each would make the directories that it does not find and stumble over the other's.
                const HALVES: &str = "mkdir \"$2\" && cd \"$1\" && \
                    find . -type d -print0 | (cd \"$2\" && xargs -0 mkdir -p) && \
                    find . -type f -print0 | xargs -0 -P 2 -n \"$3\" cp -a --parents \"$4\" -t \"$2\"";
                let half = stage.files.div_ceil(2).to_string();
                let reflink = format!("--reflink={reflink}");
                owned(&["sh", "-c", HALVES, "two-cp", &source, &destination, &half, &reflink])
            }
            Kind::Rsync => owned(&["rsync", "-aHAX", &inside(&source), &inside(&destination)]),
            Kind::Tar => {
                const PIPE: &str = "mkdir \"$2\" && tar -C \"$1\" --acls --xattrs \
                    --xattrs-include='*' --format=posix -cf - . | tar -C \"$2\" --acls --xattrs \
                    --xattrs-include='*' --numeric-owner -xpf -";
                owned(&["sh", "-c", PIPE, "tar-pipe", &source, &destination])
            }
            Kind::Fpsync => {
                let work = word(&stage.scratch().join("fpsync"));
                let options = "-lptgoDHAX --numeric-ids";
                owned(&["fpsync", "-n", "2", "-t", &work, "-o", options])
                    .into_iter()
                    .chain([inside(&source), inside(&destination)])
                    .collect()
            }
            Kind::Rclone => owned(&[
                "rclone",
                "copy",
                "--links",
                "--metadata",
                "--create-empty-src-dirs",
                "--transfers=2",
                &source,
                &destination,
            ]),
            Kind::Xcp(program, reflink) => {
                let reflink = format!("--reflink={reflink}");
                owned(&[&word(program), "-r", "-T", "-w", "2", &reflink, &source, &destination])
            }
            Kind::Cpz(program) => owned(&[&word(program), &source, &destination]),
            Kind::Floor => {
                const ZEROS: &str = "mkdir \"$1\" && seq \"$2\" | xargs -I{} dd if=/dev/zero \
                    of=\"$1/{}\" bs=4M count=\"$3\" iflag=count_bytes oflag=direct status=none";
                let (files, bytes) =
                    (stage.files.to_string(), (stage.bytes / stage.files).to_string());
                owned(&["sh", "-c", ZEROS, "floor", &destination, &files, &bytes])
            }
        }
    }

    /// A command that copies another source and counts its system calls into a file.
    pub fn counting(&self, stage: &Stage, source: &Path, into: &Path) -> Vec<String> {
        let mut words: Vec<String> =
            ["strace", "-f", "-c", "-o"].iter().map(|w| (*w).to_owned()).collect();
        words.push(word(into));
        words.extend(self.command_from(source, stage));
        words
    }

    /// Whether its system calls are counted: those of one process that can be compared.
    pub fn is_counted(&self) -> bool {
        matches!(self.kind, Kind::Dmover { .. } | Kind::Reference(_) | Kind::Cp(_) | Kind::Cpz(_))
    }
}

/// The sum line of `strace -c`.
pub fn total_calls(text: &str) -> Result<u64> {
    let line = text.lines().find(|line| line.trim_end().ends_with(" total"));
    let number = line.and_then(|line| line.split_whitespace().nth(3));
    number.and_then(|n| n.parse().ok()).with_context(|| format!("no total in {text:?}"))
}
