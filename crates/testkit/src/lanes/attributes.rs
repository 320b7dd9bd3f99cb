//! One change of one attribute of one entry, on either side, between two passes: `verify` and `sync --check` see it, the next
//! pass sets it right, and nothing else changes.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use super::check::leftovers;
use super::run::{Dmover, Run};
use super::{LaneOptions, LaneReport, MEANT, rng};
use crate::compare::{CompareOptions, compare};
use crate::image::{FileSystem, Mounted};
use crate::python::python;
use crate::skip::skipped;
use crate::tree;

const SIZE: u64 = 300 << 20;
/// Changes of one seed, each followed by a pass.
const ROUNDS: u32 = 4;
/// Attributes that entries begin with.
const FIRST: u32 = 24;
/// A user without privilege.
const USER: u32 = 65_534;

/// What entries of a tree there are; the first is the top.
const ENTRIES: [(&str, Kind); 11] = [
    ("", Kind::Directory),
    ("dir", Kind::Directory),
    ("dir/below", Kind::Directory),
    ("empty", Kind::Directory),
    ("file", Kind::File),
    ("dir/file", Kind::File),
    ("dir/linked", Kind::File),
    ("link", Kind::Symlink),
    ("dir/link", Kind::Symlink),
    ("fifo", Kind::Special),
    ("dir/device", Kind::Special),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
    Symlink,
    Special,
}

/// Runs passes between which one attribute changes, on one file system after the other.
///
/// # Errors
/// What keeps it from running at all.
pub fn attributes(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("attributes");
    if !rustix::process::geteuid().is_root() {
        skipped("lane attributes", "needs root");
        report.add("skipped", 1);
        return Ok(report);
    }
    let all = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Tmpfs, FileSystem::Btrfs];
    let grounds = report.images(&all, SIZE);
    if grounds.is_empty() {
        return Ok(report);
    }
    report.each_seed(options, |seed, report| {
        let ground = &grounds[seed as usize % grounds.len()];
        let place = tempfile::tempdir_in(ground.path())?;
        let failures = Experiment::new(options, seed, ground, place.path())?.run(report);
        for side in ["source", "copy"] {
            tree::remove(&place.path().join(side)).ok();
        }
        let name = ground.file_system();
        Ok(failures?.into_iter().map(|failure| format!("{name}: {failure}")).collect())
    });
    Ok(report)
}

struct Experiment {
    rng: ChaCha8Rng,
    place: PathBuf,
    file_system: FileSystem,
    dmover: Dmover,
    privileged: bool,
    words: Vec<OsString>,
    /// What was done since the last pass.
    log: Vec<String>,
}

impl Experiment {
    fn new(options: &LaneOptions, seed: u64, ground: &Mounted, place: &Path) -> Result<Self> {
        let mut rng = rng("attributes", seed);
        let privileged = rng.random_range(0..4) > 0;
        let mut dmover = Dmover::new(&options.program)?.patience(Duration::from_mins(2));
        if !privileged {
            dmover = dmover.unprivileged(USER)?;
        }
        let mut words: Vec<OsString> = vec![format!("-j{}", rng.random_range(1..=3)).into()];
        if rng.random_bool(0.4) {
            words.push("--inplace".into());
        }
        if rng.random_bool(0.3) {
            words.extend(["--delete".into(), MEANT.into()]);
        }
        let file_system = ground.file_system();
        let (place, log) = (place.to_owned(), Vec::new());
        Ok(Self { rng, place, file_system, dmover, privileged, words, log })
    }

    fn run(mut self, report: &mut LaneReport) -> Result<Vec<String>> {
        self.plant()?;
        let first = self.sync(&[])?;
        let mut failures = self.wrong(&first, 0);
        failures.extend(self.differences()?);
        for _ in 0..ROUNDS {
            if !failures.is_empty() {
                break;
            }
            self.log.clear();
            let side = if self.rng.random_bool(0.5) { "source" } else { "copy" };
            self.change(side)?;
            let differs = !self.differences()?.is_empty();
            report.add(if differs { "changes" } else { "changes_of_nothing" }, 1);
            let (found, nothing) = (i32::from(differs), 0);
            failures.extend(self.wrong(&self.start("verify", &["--json"])?, found));
            failures.extend(self.wrong(&self.sync(&["--check"])?, found));
            failures.extend(self.wrong(&self.sync(&[])?, nothing));
            failures.extend(self.differences()?);
            failures.extend(self.wrong(&self.start("verify", &["--json"])?, nothing));
            failures.extend(self.wrong(&self.sync(&["--check"])?, nothing));
            let left = leftovers(&self.side("copy"))?;
            failures.extend(left.iter().map(|left| format!("left: {}", left.display())));
        }
        if !failures.is_empty() {
            failures.push(format!("after: {}", self.log.join("; ")));
        }
        Ok(failures)
    }

    fn side(&self, side: &str) -> PathBuf {
        self.place.join(side)
    }

    fn sync(&self, more: &[&str]) -> Result<Run> {
        let words: Vec<&OsStr> = self.words.iter().map(OsString::as_os_str).collect();
        let more = more.iter().map(OsStr::new);
        self.start(
            "sync",
            &["--json".as_ref()].into_iter().chain(words).chain(more).collect::<Vec<_>>(),
        )
    }

    fn start<S: AsRef<OsStr>>(&self, verb: &str, flags: &[S]) -> Result<Run> {
        let mut words: Vec<OsString> = vec![verb.into()];
        words.extend(flags.iter().map(|flag| flag.as_ref().to_owned()));
        words.extend([self.side("source").into(), self.side("copy").into()]);
        self.dmover.run(&words)
    }

    /// What is wrong if a run did not end with this code.
    fn wrong(&self, run: &Run, code: i32) -> Vec<String> {
        if run.code() == Some(code) {
            return Vec::new();
        }
        vec![format!("not {code}: {}", run.tell())]
    }

    fn differences(&self) -> Result<Vec<String>> {
        let found = compare(&self.side("source"), &self.side("copy"), &CompareOptions::default())?;
        Ok(found.iter().map(ToString::to_string).collect())
    }

    /// Makes the source, with some attributes already.
    fn plant(&mut self) -> Result<()> {
        let source = self.side("source");
        fs::create_dir(&source)?;
        let script = "mkdir -p dir/below empty; head -c 3000 /dev/urandom > file
             head -c 300000 /dev/urandom > dir/file; ln dir/file dir/linked
             ln -s file link; ln -s nowhere dir/link; mkfifo fifo";
        anyhow::ensure!(shell(&source, script)?, "the tree cannot be made");
        if self.privileged {
            anyhow::ensure!(shell(&source, "mknod dir/device c 1 3; ln fifo dir/fifo")?, "mknod");
        } else {
            anyhow::ensure!(shell(&source, "mkfifo dir/device")?, "mkfifo");
            let own = format!("chown -R -h {USER}:{USER} . ; chmod 755 ..; chown {USER} ..");
            anyhow::ensure!(shell(&source, &own)?, "chown");
        }
        for _ in 0..FIRST {
            let (entry, kind) = *ENTRIES.choose(&mut self.rng).context("an entry")?;
            let change = self.one_change(kind, entry.is_empty());
            // Locks would forbid what comes after them.
            if !change.contains("chattr") {
                shell(&source, &change.replace("ENTRY", &quoted(entry)))?;
            }
        }
        Ok(())
    }

    /// Changes one attribute of one entry. What its file system does not hold is not changed.
    fn change(&mut self, side: &str) -> Result<()> {
        let directory = self.side(side);
        for _ in 0..50 {
            let (entry, kind) = *ENTRIES.choose(&mut self.rng).context("an entry")?;
            let change = self.one_change(kind, entry.is_empty());
            let change = change.replace("ENTRY", &quoted(entry));
            if !shell(&directory, &change)? {
                continue;
            }
            self.log.push(format!("{side}: {change}"));
            // What has other content as well gets everything anew, or is written into.
            let written = self.rng.random_bool(0.25) && !change.contains("chattr");
            if kind == Kind::File && written {
                let more = format!("echo more >> {}", quoted(entry));
                if shell(&self.side("source"), &more)? {
                    self.log.push(format!("source: {more}"));
                }
            }
            return Ok(());
        }
        anyhow::bail!("nothing can be changed in {}", directory.display())
    }

    /// A command that changes something of ENTRY.
    fn one_change(&mut self, kind: Kind, is_top: bool) -> String {
        let rng = &mut self.rng;
        let (name, value) = (rng.random_range(0..3), rng.random::<u16>());
        let time = format!(
            "@{}.{:09}",
            rng.random_range(1..1_700_000_000),
            rng.random_range(0..1_000_000_000)
        );
        let id = rng.random_range(1..6);
        let permissions = ["r", "rx", "rw", "rwx", "---"].choose(rng).copied().unwrap_or("r");
        // Without privilege the owner has to be able to read.
        let own = match (kind, self.privileged) {
            (_, true) => rng.random_range(0..8),
            (Kind::Directory, false) => *[5, 7].choose(rng).unwrap_or(&7),
            (_, false) => rng.random_range(4..8),
        };
        let (top, rest) =
            (if self.privileged { rng.random_range(0..8) } else { 0 }, rng.random_range(0..64));
        let mut changes =
            vec![format!("touch -h -m -d {time} ENTRY"), format!("touch -h -a -d {time} ENTRY")];
        let xattrs = |namespace: &str| {
            [
                format!("setfattr -h -n {namespace}.{name} -v {value} ENTRY"),
                format!("setfattr -h -x {namespace}.{name} ENTRY"),
            ]
        };
        if self.privileged {
            changes.extend(xattrs("trusted"));
            changes.extend(xattrs("security"));
            changes.push(format!("chown -h {id} ENTRY"));
            changes.push(format!("chgrp -h {id} ENTRY"));
        }
        if matches!(kind, Kind::File | Kind::Directory) {
            changes.extend(xattrs("user"));
        }
        if kind != Kind::Symlink {
            changes.push(format!("chmod {top}{own}{rest:02o} ENTRY"));
            changes.push(format!("setfacl -m u:{id}:{permissions} ENTRY"));
            changes.push(format!("setfacl -m g:{id}:{permissions} ENTRY"));
            changes.push(format!("setfacl -x u:{id} ENTRY"));
            changes.push("setfacl -b ENTRY".into());
        }
        if kind == Kind::Directory {
            changes.push(format!("setfacl -d -m u:{id}:{permissions} ENTRY"));
            changes.push("setfacl -k ENTRY".into());
        }
        if matches!(kind, Kind::File | Kind::Directory) {
            let locks = ["i", "a"].iter().filter(|_| self.privileged);
            let flags: Vec<&str> = ["d", "A", "S", "s", "u"].iter().chain(locks).copied().collect();
            let flag = flags.choose(rng).copied().unwrap_or("d");
            for sign in ["+", "-"] {
                changes.push(format!("chattr {sign}{flag} ENTRY"));
            }
            let holds = matches!(self.file_system, FileSystem::Ext4 | FileSystem::Xfs);
            if self.privileged && holds && !is_top {
                let inherits = u8::from(rng.random_bool(0.5));
                let id = rng.random_range(0..4);
                changes.push(format!("project {id} {inherits} ENTRY"));
                changes.push("project 0 0 ENTRY".into());
            }
        }
        changes.choose(rng).cloned().unwrap_or_default()
    }
}

/// The name of an entry below a tree, as the shell takes it.
fn quoted(entry: &str) -> String {
    format!("./{entry}")
}

const SET_PROJECT: &str = include_str!("../../python/project_of.py");

/// Runs a script in a directory; answers whether it succeeded.
fn shell(directory: &Path, script: &str) -> Result<bool> {
    if let Some(words) = script.strip_prefix("project ") {
        let status = python()
            .args(["-I", "-c", SET_PROJECT])
            .args(words.split(' '))
            .current_dir(directory)
            .stderr(Stdio::null())
            .status()?;
        return Ok(status.success());
    }
    let mut command = Command::new("bash");
    command.args(["-euc", script]).current_dir(directory);
    let output = command.output().with_context(|| script.to_owned())?;
    Ok(output.status.success())
}
