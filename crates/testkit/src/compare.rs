//! Comparing two trees with tools that share no code with the program under test.
#![allow(clippy::unnecessary_debug_formatting, reason = "names hold control characters")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use base64::Engine;
use rustix::fs::FileType;
use serde::Deserialize;

use crate::python::python;
use crate::tree::walk;

const SCRIPT: &str = include_str!("../python/compare_trees.py");

/// What [`compare`] looks at.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// Kinds of difference that do not count, such as `flags`, `mtime@symlink` or `mode@top`.
    pub ignore: Vec<String>,
    /// Shell patterns of extended attributes that do not count.
    pub ignore_xattrs: Vec<String>,
    /// Times closer than this are equal; 1 asks for the same nanosecond.
    pub mtime_granularity_ns: u64,
    /// Access times count too.
    pub atime: bool,
    /// Bytes that a destination file may have allocated above the source file.
    pub allocation_slack_bytes: u64,
    /// At most so many differences are returned.
    pub limit: usize,
}

impl Default for CompareOptions {
    fn default() -> Self {
        Self {
            ignore: Vec::new(),
            ignore_xattrs: Vec::new(),
            mtime_granularity_ns: 1,
            atime: false,
            allocation_slack_bytes: 256 << 10,
            limit: 10_000,
        }
    }
}

impl CompareOptions {
    /// The same options, with one more kind of difference that does not count.
    #[must_use]
    pub fn ignoring(mut self, kind: &str) -> Self {
        self.ignore.push(kind.to_owned());
        self
    }
}

/// One way in which an entry of the destination is not what the source has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Path below the roots; empty for the roots themselves.
    pub path: PathBuf,
    /// `file`, `dir`, `symlink`, `fifo`, `socket`, `char` or `block`.
    pub entry_type: String,
    /// What differs: `missing`, `extra`, `leftover`, `type`, `mode`, `uid`, `gid`, `size`, `content`,
    /// `target`, `rdev`, `mtime`, `atime`, `xattr`, `acl`, `capability`, `flags`, `project`, `hardlink`
    /// or `allocation`.
    pub kind: String,
    /// The source's value, for people.
    pub source: String,
    /// The destination's value, for people.
    pub destination: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {:?}: source {}, destination {}",
            self.kind, self.entry_type, self.path, self.source, self.destination
        )
    }
}

/// A line of the script: a difference or, last, the summary.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Difference {
        path_b64: String,
        #[serde(rename = "type")]
        entry_type: String,
        kind: String,
        source: String,
        destination: String,
    },
    Summary {
        summary: serde_json::Value,
    },
}

impl Line {
    fn into_difference(self) -> Result<Option<Difference>> {
        let Self::Difference { path_b64, entry_type, kind, source, destination } = self else {
            return Ok(None);
        };
        let bytes = base64::engine::general_purpose::STANDARD.decode(path_b64)?;
        let path = PathBuf::from(OsString::from_vec(bytes));
        Ok(Some(Difference { path, entry_type, kind, source, destination }))
    }
}

fn script_arguments(source: &Path, destination: &Path, options: &CompareOptions) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["-I".into(), "-".into()];
    arguments.push(format!("--ignore={}", options.ignore.join(",")).into());
    for pattern in &options.ignore_xattrs {
        arguments.push(format!("--ignore-xattr={pattern}").into());
    }
    arguments.push(format!("--mtime-granularity={}", options.mtime_granularity_ns).into());
    arguments.push(format!("--slack={}", options.allocation_slack_bytes).into());
    arguments.push(format!("--limit={}", options.limit).into());
    if options.atime {
        arguments.push("--atime".into());
    }
    arguments.extend(["--".into(), source.into(), destination.into()]);
    arguments
}

/// Compares two trees entry by entry and returns what differs; the source is not touched, not even
/// its access times.
///
/// # Errors
/// When either tree cannot be read completely, so that "no difference" would prove nothing.
pub fn compare(
    source: &Path,
    destination: &Path,
    options: &CompareOptions,
) -> Result<Vec<Difference>> {
    let mut child = python()
        .args(script_arguments(source, destination, options))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start python3")?;
    // The interpreter reads the whole script before it runs any of it.
    child.stdin.take().context("no stdin")?.write_all(SCRIPT.as_bytes())?;
    let output = child.wait_with_output()?;
    let mut differences = Vec::new();
    let mut complete = false;
    for line in output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let line: Line = serde_json::from_slice(line)
            .with_context(|| format!("line {:?}", String::from_utf8_lossy(line)))?;
        if let Line::Summary { summary } = &line {
            complete = summary.is_object();
        }
        differences.extend(line.into_difference()?);
    }
    if !complete || !matches!(output.status.code(), Some(0 | 1)) {
        let errors: Vec<String> =
            differences.iter().filter(|d| d.kind == "error").map(ToString::to_string).collect();
        bail!(
            "comparison of {source:?} and {destination:?} failed ({}): {}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr),
            errors.join("\n")
        );
    }
    Ok(differences)
}

/// Panics with a readable list unless the two trees are the same.
#[track_caller]
pub fn assert_same_trees(source: &Path, destination: &Path, options: &CompareOptions) {
    let differences = compare(source, destination, options).expect("both trees can be read");
    assert!(
        differences.is_empty(),
        "{} differences between {source:?} and {destination:?}:\n{}",
        differences.len(),
        differences.iter().take(40).map(ToString::to_string).collect::<Vec<_>>().join("\n")
    );
}

/// Runs rsync on noatime views of both trees, since it has `--open-noatime` for files only.
const QUIET_RSYNC: &str = r#"
for root; do
    mount --bind "$root" "$root" && mount -o remount,bind,noatime "$root" || exit 125
done
exec rsync $OPTIONS -- "$1/" "$2/"
"#;

const RSYNC_OPTIONS: &str =
    "-aHAXU --checksum --open-noatime --numeric-ids --delete --dry-run --itemize-changes";

/// What `rsync` would still do to make the destination equal, as its itemized lines.
///
/// rsync cannot see paths beyond `PATH_MAX`, inode flags or project ids, compares access times by
/// the second and reads holes; its complaints are returned as lines that start with `rsync`. Without
/// the right to mount it changes the access times of directories and symlinks.
///
/// # Errors
/// When rsync cannot be started, or fails without saying why.
pub fn rsync_check(source: &Path, destination: &Path) -> Result<Vec<String>> {
    let shell = |command: &mut Command, script: &str| {
        command
            .args(["-c", script, "sh"])
            .args([source, destination])
            .env("OPTIONS", RSYNC_OPTIONS)
            .env("LC_ALL", "C")
            .output()
            .context("start rsync")
    };
    let mut output = shell(Command::new("unshare").args(["--mount", "sh"]), QUIET_RSYNC)?;
    if matches!(output.status.code(), Some(1 | 125)) {
        output = shell(&mut Command::new("sh"), r#"exec rsync $OPTIONS -- "$1/" "$2/""#)?;
    }
    let mut lines: Vec<String> = text_lines(&output.stdout).collect();
    lines.extend(
        text_lines(&output.stderr)
            .map(|line| if line.starts_with("rsync") { line } else { format!("rsync: {line}") }),
    );
    if !output.status.success() && lines.is_empty() {
        bail!("rsync ended with {} and said nothing", output.status);
    }
    Ok(lines)
}

fn text_lines(bytes: &[u8]) -> impl Iterator<Item = String> + '_ {
    bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| String::from_utf8_lossy(line).into_owned())
}

/// The access times of a tree at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtimeSnapshot(BTreeMap<PathBuf, (FileType, i128)>);

impl AtimeSnapshot {
    /// Leaves out symlinks: `readlink` always counts as an access, unless the mount has noatime.
    #[must_use]
    pub fn without_symlinks(mut self) -> Self {
        self.0.retain(|_, (file_type, _)| *file_type != FileType::Symlink);
        self
    }

    /// Every path whose access time is not the same in `later`, in words.
    pub fn differences(&self, later: &Self) -> Vec<String> {
        let mut found = Vec::new();
        for (path, (_, before)) in &self.0 {
            match later.0.get(path) {
                Some((_, after)) if after == before => {}
                Some((_, after)) => found.push(format!("{path:?}: {before} became {after}")),
                None => found.push(format!("{path:?}: gone")),
            }
        }
        found.extend(
            later
                .0
                .keys()
                .filter(|path| !self.0.contains_key(*path))
                .map(|p| format!("{p:?}: new")),
        );
        found
    }

    /// Panics with a list of the access times that changed.
    #[track_caller]
    pub fn assert_same(&self, later: &Self) {
        let found = self.differences(later);
        assert!(
            found.is_empty(),
            "{} access times changed:\n{}",
            found.len(),
            found.iter().take(40).cloned().collect::<Vec<_>>().join("\n")
        );
    }
}

/// Records the access time of every entry of a tree without changing any.
pub fn snapshot_atimes(root: &Path) -> Result<AtimeSnapshot> {
    let mut times = BTreeMap::new();
    walk::walk(root, &mut |entry| {
        let stat = &entry.stat;
        let atime = i128::from(stat.st_atime) * 1_000_000_000 + i128::from(stat.st_atime_nsec);
        times.insert(entry.path.to_owned(), (entry.file_type(), atime));
        Ok(())
    })?;
    Ok(AtimeSnapshot(times))
}
