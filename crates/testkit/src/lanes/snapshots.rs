//! Snapshots of a tree that changes, some of them killed on the way: each has what the source had when it was made, as cp
//! has copied it then, also after later ones were made and some were removed.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::live::{Mutator, plant};
use super::run::Dmover;
use super::{LaneOptions, LaneReport, rng};
use crate::compare::{CompareOptions, compare};
use crate::image::{FileSystem, Mounted};
use crate::tree;

const SIZE: u64 = 512 << 20;
const OWN: &str = ".dmover-snapshots";

/// Makes and removes snapshots, on one file system after the other.
///
/// # Errors
/// What keeps it from running at all.
pub fn snapshots(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("snapshots");
    let all = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Tmpfs, FileSystem::Btrfs];
    let grounds = report.images(&all, SIZE);
    if grounds.is_empty() {
        return Ok(report);
    }
    report.each_seed(options, |seed, report| {
        let turn = seed as usize;
        let ground = &grounds[turn % grounds.len()];
        let other = &grounds[(turn + turn / grounds.len() % grounds.len()) % grounds.len()];
        let failures = one(options, seed, (ground, other), report)?;
        let names = format!("{} to {}", ground.file_system(), other.file_system());
        Ok(failures.into_iter().map(|failure| format!("{names}: {failure}")).collect())
    });
    Ok(report)
}

/// Regular files below a directory, in order.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Changes that a look at size and time alone does not see: a name gets an inode of its own, a mode is another, two
/// files of the same size and time change places.
fn change_quietly(rng: &mut ChaCha8Rng, source: &Path) -> Result<()> {
    let all = files(source)?;
    for path in &all {
        let found = fs::symlink_metadata(path)?;
        let aside = source.join("aside");
        match rng.random_range(0..20) {
            0..8 if found.nlink() > 1 => {
                fs::write(&aside, fs::read(path)?)?;
                fs::set_permissions(&aside, found.permissions())?;
                fs::File::open(&aside)?.set_modified(found.modified()?)?;
                fs::rename(&aside, path)?;
            }
            8 => fs::set_permissions(path, PermissionsExt::from_mode(0o640))?,
            9 => {
                let name = source.join(format!("l{}", rng.random::<u32>()));
                fs::hard_link(path, name)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The snapshots that there are, by name.
fn names(directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() && name != OWN {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn one(
    options: &LaneOptions,
    seed: u64,
    (ground, other): (&Mounted, &Mounted),
    report: &mut LaneReport,
) -> Result<Vec<String>> {
    let mut rng = rng("snapshots", seed);
    let (place, there) =
        (tempfile::tempdir_in(ground.path())?, tempfile::tempdir_in(other.path())?);
    let (source, directory) = (place.path().join("source"), there.path().join("snapshots"));
    fs::create_dir(&directory)?;
    plant(&mut rng, &source)?;
    let dmover = Dmover::new(&options.program)?.patience(Duration::from_mins(2));
    let mut words: Vec<OsString> =
        ["snapshot", "create", "--json"].iter().map(OsString::from).collect();
    words.push(format!("-j{}", rng.random_range(1..=4)).into());
    let clones = matches!(other.file_system(), FileSystem::Xfs | FileSystem::Btrfs);
    if clones && rng.random_bool(0.4) {
        words.push("--share=reflink".into());
    }
    words.extend([source.clone().into_os_string(), directory.clone().into_os_string()]);
    let maps = ground.file_system() != FileSystem::Tmpfs;
    // Every snapshot of a quiet tree, with the copy that cp has made of it.
    let mut quiet: Vec<(String, PathBuf)> = Vec::new();
    let mut failures = Vec::new();
    for round in 0..rng.random_range(2..5) {
        let mutator = Mutator::start(&source, seed * 10 + round, maps)?;
        if rng.random_bool(0.5) {
            let run = dmover.run(&words)?;
            report.add("snapshots_of_a_live_tree", 1);
            if !matches!(run.code(), Some(0 | 2 | 3 | 4)) {
                failures.push(run.tell());
            }
        }
        report.add("changes", mutator.stop()?);
        change_quietly(&mut rng, &source)?;
        let copied = place.path().join(format!("copy{round}"));
        let status = Command::new("cp").arg("-a").args([&source, &copied]).status()?;
        ensure!(status.success(), "cp failed");
        for _ in 0..rng.random_range(0..3) {
            let moment = Duration::from_micros(rng.random_range(0..60_000));
            let run = dmover.start(&words)?.kill_after(moment)?;
            report.add("kills_that_hit", u64::from(run.signal() == Some(9)));
        }
        let run = dmover.run(&words)?;
        report.add("snapshots", 1);
        if run.code() != Some(0) {
            failures.push(format!("quiet: {}", run.tell()));
            break;
        }
        let newest = names(&directory)?.pop().context("a snapshot")?;
        quiet.push((newest, copied));
        if rng.random_bool(0.3) {
            let prune = ["snapshot", "prune", "-qq", "--keep-last", "2"].map(OsString::from);
            let run = dmover.run(prune.iter().chain([&directory.clone().into_os_string()]))?;
            if run.code() != Some(0) {
                failures.push(format!("prune: {}", run.tell()));
            }
            report.add("prunes", 1);
        }
    }
    let left = names(&directory)?;
    for (name, copied) in quiet.iter().filter(|(name, _)| left.contains(name)) {
        let differences = compare(copied, &directory.join(name), &CompareOptions::default())?;
        failures.extend(differences.iter().map(|difference| format!("{name}: {difference}")));
        report.add("snapshots_compared", 1);
        for path in files(&directory.join(name))? {
            report.add("files", 1);
            let shared = fs::symlink_metadata(&path)?.nlink() > 1;
            report.add("files_with_other_names", u64::from(shared));
        }
    }
    for entry in fs::read_dir(directory.join(OWN))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with("unfinished") || name.starts_with("removed-") {
            failures.push(format!("left: {name}"));
        }
    }
    tree::remove(place.path())?;
    fs::create_dir(place.path())?;
    Ok(failures)
}
