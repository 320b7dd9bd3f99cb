//! Old kernels and containers: system calls that are missing or forbidden, with the same fidelity and safety.

use anyhow::Result;

use super::check::{Fingerprint, leftovers};
use super::run::Dmover;
use super::swap::attack_once;
use super::{LaneOptions, LaneReport};
use crate::compare::{CompareOptions, compare};
use crate::image::{FileSystem, Image, Mounted};
use crate::tree::{self, Features, HardTree, TreeOptions};

const SIZE: u64 = 512 << 20;
const ENTRIES: u64 = 200;

/// What is refused together.
const REFUSED: [&[&str]; 7] = [
    &["openat2"],
    &["statx"],
    &["copy_file_range"],
    &["ficlone", "ficlonerange"],
    &["io_uring_setup"],
    &["openat2", "statx"],
    &["openat2", "statx", "copy_file_range", "ficlone", "ficlonerange", "io_uring_setup"],
];

/// What a kernel without the call says, and what a container says that forbids it.
const ERRORS: [i32; 2] = [libc::ENOSYS, libc::EPERM];

/// Runs each refusal with each error in turn: first for fidelity, then under a swap attack.
pub fn seccomp(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("seccomp");
    let mut grounds = Vec::new();
    for file_system in [FileSystem::Btrfs, FileSystem::Ext4] {
        match Image::create_or_skip("lane seccomp", file_system, SIZE) {
            Some(mounted) => grounds.push(mounted),
            None => report.add("skipped", 1),
        }
    }
    report.each_seed(options, |seed, report| {
        let calls = REFUSED[seed as usize % REFUSED.len()];
        let errno = ERRORS[seed as usize / REFUSED.len() % ERRORS.len()];
        let dmover = || anyhow::Ok(Dmover::new(&options.program)?.denied(calls, errno));
        let mut failures = Vec::new();
        for ground in &grounds {
            let found = fidelity(&dmover()?, seed, ground)?;
            report.add("trees", 1);
            failures
                .extend(found.into_iter().map(|line| format!("{}: {line}", ground.file_system())));
        }
        failures.extend(attack_once(dmover()?, seed, report)?);
        let told = format!("{calls:?} refused with error {errno}");
        Ok(failures.into_iter().map(|failure| format!("{failure} [{told}]")).collect())
    });
    Ok(report)
}

fn fidelity(dmover: &Dmover, seed: u64, ground: &Mounted) -> Result<Vec<String>> {
    let (source, copy) = (ground.path().join("source"), ground.path().join("copy"));
    let features = Features::probe(ground.path())?;
    let options = TreeOptions { entries: ENTRIES, features, without: std::iter::empty().collect() };
    HardTree::generate(&source, seed, &options)?;
    let words = [source.as_os_str(), copy.as_os_str()];
    let mut failures = Vec::new();
    let run = dmover.copy(words)?;
    if run.code() != Some(0) {
        failures.push(run.tell());
    }
    let options = CompareOptions { atime: true, ..CompareOptions::default() };
    let differences = compare(&source, &copy, &options)?;
    failures.extend(differences.iter().map(ToString::to_string));
    let before = Fingerprint::of(&copy)?;
    let again = dmover.copy(words)?;
    if again.code() != Some(0) {
        failures.push(again.tell());
    }
    failures.extend(before.changes(&Fingerprint::of(&copy)?));
    failures.extend(leftovers(&copy)?.iter().map(|path| format!("left over: {}", path.display())));
    tree::remove(&source)?;
    tree::remove(&copy)?;
    Ok(failures)
}
