//! A scratch directory with the program in it, and short words for what tests do there.
// Not every suite needs every word.
#![allow(dead_code)]

pub mod disks;
pub mod guide;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dmover_testkit::compare::{CompareOptions, assert_same_trees};
use dmover_testkit::faultfs::{Config, FaultFs, FaultFsHandle};
use dmover_testkit::image::base_directory;
use dmover_testkit::lanes::check::{Fingerprint, leftovers};
use dmover_testkit::lanes::run::{Dmover, Run};
use tempfile::TempDir;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_dmover");
/// A user without privilege, and without a line in `/etc/passwd` that matters.
pub const NOBODY: u32 = 65534;

/// Polls for a condition, with a limit that only a broken program reaches.
#[track_caller]
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(100);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        // Between two polls.
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a rule has fired.
#[track_caller]
pub fn wait_for_fault(handle: &FaultFsHandle) {
    eventually("a request", || handle.counters().rules_fired.iter().sum::<u64>() > 0);
}

/// Waits until so much time has passed: answers that are older do not count.
pub fn let_pass(time: Duration) {
    let began = Instant::now();
    eventually("time to pass", || began.elapsed() > time);
}

/// A scratch directory; the program runs in it, so that tests may name relative paths.
pub struct Bench {
    pub dmover: Dmover,
    directory: TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let base = base_directory().unwrap();
        let directory = tempfile::Builder::new().prefix("copy-").tempdir_in(base).unwrap();
        Self::around(directory)
    }

    /// A scratch directory on another file system, whose mount has to outlive it.
    pub fn inside(mount: &Path) -> Self {
        Self::around(tempfile::Builder::new().prefix("copy-").tempdir_in(mount).unwrap())
    }

    fn around(directory: TempDir) -> Self {
        let dmover = Dmover::new(PROGRAM).unwrap().in_directory(directory.path());
        Self { dmover, directory }
    }

    /// A bench whose `backing` is seen as `faulty`.
    pub fn faulty() -> Option<(FaultFsHandle, Self)> {
        Self::faulty_by(Config { threads: 8, ..Config::default() })
    }

    /// The same, with another configuration.
    pub fn faulty_by(config: Config) -> Option<(FaultFsHandle, Self)> {
        let bench = Self::new();
        bench.sh("mkdir backing faulty");
        let handle = FaultFs::mount(&bench.at("backing"), &bench.at("faulty"), config).ok()?;
        Some((handle, bench))
    }

    /// The same, where names that differ in case alone are one.
    pub fn folding() -> Option<(FaultFsHandle, Self)> {
        Self::faulty_by(Config { threads: 8, fold_case: true, ..Config::default() })
    }

    /// The same scratch directory for a user without privilege, who owns it.
    pub fn unprivileged(self) -> Self {
        let Self { dmover, directory } = self;
        let dmover = dmover.unprivileged(NOBODY).unwrap();
        let bench = Self { dmover, directory };
        bench.sh(&format!("chown {NOBODY}:{NOBODY} . && chmod 755 ."));
        bench
    }

    /// Changes how the program is started.
    pub fn with(self, change: impl FnOnce(Dmover) -> Dmover) -> Self {
        Self { dmover: change(self.dmover), directory: self.directory }
    }

    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(path)
    }

    /// Runs a shell script in the directory and returns what it printed.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let mut shell = Command::new("bash");
        let output = shell.args(["-euc", script]).current_dir(self.root()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}\n{error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A shell script whose background processes and mounts end with the returned guard.
    pub fn undo(&self, script: &'static str) -> Undo {
        Undo { directory: self.root().to_owned(), script }
    }

    #[track_caller]
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    #[track_caller]
    pub fn read(&self, path: &str) -> String {
        let path = self.at(path);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
    }

    pub fn exists(&self, path: &str) -> bool {
        fs::symlink_metadata(self.at(path)).is_ok()
    }

    #[track_caller]
    pub fn mode(&self, path: &str) -> u32 {
        fs::symlink_metadata(self.at(path)).unwrap().mode() & 0o7777
    }

    #[track_caller]
    pub fn inode(&self, path: &str) -> u64 {
        fs::symlink_metadata(self.at(path)).unwrap().ino()
    }

    /// `dmover copy --json` with words that are separated by blanks.
    #[track_caller]
    pub fn copy(&self, line: &str) -> Run {
        self.dmover.copy(line.split_whitespace()).unwrap()
    }

    /// `dmover copy --json` with words that may hold anything.
    #[track_caller]
    pub fn copy_words<S: AsRef<OsStr>>(&self, words: &[S]) -> Run {
        self.dmover.copy(words).unwrap()
    }

    /// `dmover` as it was typed, without `--json`.
    #[track_caller]
    pub fn dmover(&self, line: &str) -> Run {
        self.dmover.run(line.split_whitespace()).unwrap()
    }

    /// `dmover` as it was typed, with text on standard input.
    #[track_caller]
    pub fn dmover_with(&self, line: &str, input: impl Into<Vec<u8>>) -> Run {
        self.dmover.start_with(line.split_whitespace(), input.into()).unwrap().finish().unwrap()
    }

    /// `dmover` as it was typed, and how often it made each system call (strace(1)).
    #[track_caller]
    pub fn calls(&self, line: &str) -> (Run, BTreeMap<String, u32>) {
        let log = self.at("calls");
        let mut strace: Vec<OsString> = ["strace", "-f", "-c", "-o"].map(OsString::from).into();
        strace.push(log.clone().into());
        let running = self.dmover.start_behind(&strace, line.split_whitespace()).unwrap();
        let run = running.finish().unwrap().expect_code(0);
        let text = fs::read_to_string(log).unwrap();
        let of_line = |line: &str| {
            // The share, seconds, microseconds a call, calls, errors if there are any, the name.
            let words: Vec<&str> = line.split_whitespace().collect();
            let count = words.get(3)?.parse().ok()?;
            words.last().filter(|name| **name != "total").map(|name| ((*name).to_owned(), count))
        };
        (run, text.lines().filter_map(of_line).collect())
    }

    /// Both trees are the same in everything, and nothing was left behind.
    #[track_caller]
    pub fn assert_same(&self, source: &str, destination: &str) {
        let options = CompareOptions::default();
        assert_same_trees(&self.at(source), &self.at(destination), &options);
        assert_eq!(leftovers(&self.at(destination)).unwrap(), Vec::<PathBuf>::new());
    }
}

/// Runs a script when it is dropped, whatever happened.
pub struct Undo {
    directory: PathBuf,
    script: &'static str,
}

impl Drop for Undo {
    fn drop(&mut self) {
        let mut shell = Command::new("bash");
        shell.args(["-c", self.script]).current_dir(&self.directory).stderr(Stdio::null());
        let _ = shell.status();
    }
}

/// Everything about a tree that would change if anything in it were touched.
#[track_caller]
pub fn snapshot(path: &Path) -> Fingerprint {
    Fingerprint::of(path).unwrap()
}

/// Bytes that are not zero and differ from place to place.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251 + at / 251 % 4) as u8 + 1).collect()
}

/// Appends to a file, which changes its size and time.
pub fn append(path: &Path, text: &str) {
    let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
