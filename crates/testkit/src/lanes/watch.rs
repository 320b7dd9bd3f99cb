//! `sync --watch` over a tree that somebody changes all the time, killed, held and begun again: once the tree is quiet, both
//! sides are equal.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use rand::Rng;

use super::live::{Mutator, plant};
use super::run::{Dmover, Running};
use super::{LaneOptions, LaneReport, MEANT, rng};
use crate::compare::{CompareOptions, Difference, compare};
use crate::image::{FileSystem, Mounted};
use crate::tree;

const SIZE: u64 = 512 << 20;
/// So long both sides may differ once nothing changes any more.
const PATIENCE: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Watches trees that change, on one file system after the other.
///
/// # Errors
/// What keeps it from running at all.
pub fn watch(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("watch");
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

/// Waits until both sides are equal; answers what still differs if they never are.
fn settle(source: &Path, copy: &Path) -> Result<Vec<Difference>> {
    let until = Instant::now() + PATIENCE;
    loop {
        // What comes or goes while it is looked at is no error of anybody's.
        let differences = compare(source, copy, &CompareOptions::default());
        match differences {
            Ok(differences) if differences.is_empty() => return Ok(differences),
            differences if Instant::now() >= until => return differences,
            _ => std::thread::sleep(LOOK_EVERY),
        }
    }
}

fn one(
    options: &LaneOptions,
    seed: u64,
    (ground, other): (&Mounted, &Mounted),
    report: &mut LaneReport,
) -> Result<Vec<String>> {
    let mut rng = rng("watch", seed);
    let (place, there) =
        (tempfile::tempdir_in(ground.path())?, tempfile::tempdir_in(other.path())?);
    let (source, copy) = (place.path().join("source"), there.path().join("copy"));
    plant(&mut rng, &source)?;
    let dmover = Dmover::new(&options.program)?.patience(Duration::from_mins(3));
    let mut words: Vec<OsString> =
        ["sync", "--watch", "-q", "--delete", MEANT, "--watch-delay=50ms"]
            .iter()
            .map(OsString::from)
            .collect();
    words.push(format!("-j{}", rng.random_range(1..=4)).into());
    words.extend([source.clone().into_os_string(), copy.clone().into_os_string()]);
    let maps = ground.file_system() != FileSystem::Tmpfs;
    let mut running: Option<Running> = Some(dmover.start(&words)?);
    let mut failures = Vec::new();
    for round in 0..rng.random_range(1..4) {
        let mutator = Mutator::start(&source, seed * 10 + round, maps)?;
        std::thread::sleep(Duration::from_millis(rng.random_range(50..600)));
        if rng.random_bool(0.4) {
            if let Some(running) = running.take() {
                let run = running.kill_after(Duration::ZERO)?;
                if run.signal() != Some(9) {
                    failures.push(format!("it had ended by itself: {}", run.tell()));
                }
                report.add("kills", 1);
            }
            std::thread::sleep(Duration::from_millis(rng.random_range(0..200)));
            running = Some(dmover.start(&words)?);
            std::thread::sleep(Duration::from_millis(rng.random_range(0..300)));
        }
        report.add("changes", mutator.stop()?);
        if rng.random_bool(0.7) {
            let differences = settle(&source, &copy)?;
            report.add("times_equal", 1);
            failures.extend(differences.iter().map(|d| format!("round {round}: {d}")));
            if !failures.is_empty() {
                break;
            }
        }
    }
    if failures.is_empty() {
        let differences = settle(&source, &copy)?;
        failures.extend(differences.iter().map(|difference| format!("in the end: {difference}")));
    }
    if let Some(running) = running {
        let run = running.kill_after(Duration::ZERO)?;
        if run.signal() != Some(9) {
            failures.push(format!("it had ended by itself: {}", run.tell()));
        }
    }
    tree::remove(&source)?;
    Ok(failures)
}
