//! `kill -9` at any moment, then the same command again.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::check::{leftovers, lying_files};
use super::run::{Dmover, Run};
use super::stage::{self, OldVersions, plant_old_versions, torn_files};
use super::{LaneOptions, LaneReport, rng};
use crate::compare::{CompareOptions, compare};
use crate::image::FileSystem;
use crate::tree;

const SIZE: u64 = 512 << 20;
/// Ordinary entries in the source, beside the hard cases.
const ENTRIES: u64 = 60;
/// Seeds that share a source.
const SEEDS_PER_SOURCE: u64 = 25;

/// Where copies are killed, and how long a whole one takes there.
struct Ground {
    stage: stage::Ground,
    whole_run: Duration,
    items: u64,
}

/// Kills runs at seeded moments on one file system after the other.
pub fn kill(options: &LaneOptions) -> Result<LaneReport> {
    kill_on(options, &[FileSystem::Ext4, FileSystem::Tmpfs, FileSystem::Xfs, FileSystem::Btrfs])
}

/// Kills runs at seeded moments on these file systems in turn.
pub fn kill_on(options: &LaneOptions, file_systems: &[FileSystem]) -> Result<LaneReport> {
    let mut report = LaneReport::new("kill");
    let mut grounds = Vec::new();
    for mounted in report.images(file_systems, SIZE) {
        let (stage, whole_run) = (stage::Ground::new(mounted)?, Duration::ZERO);
        grounds.push(Ground { stage, whole_run, items: 0 });
    }
    if grounds.is_empty() {
        return Ok(report);
    }
    report.each_seed(options, |seed, report| {
        let turn = seed as usize % grounds.len();
        let ground = &mut grounds[turn];
        ground.prepare(options, seed / SEEDS_PER_SOURCE)?;
        let experiment = Experiment::new(options, seed, ground)?;
        let failures = experiment.run(report);
        experiment.clean()?;
        let name = ground.stage.mounted.file_system();
        Ok(failures?.into_iter().map(|failure| format!("{name}: {failure}")).collect())
    });
    Ok(report)
}

impl Ground {
    /// Makes the source of this group of seeds, and measures a copy that nobody disturbs.
    fn prepare(&mut self, options: &LaneOptions, source_seed: u64) -> Result<()> {
        if !self.stage.renew(source_seed, ENTRIES)? {
            return Ok(());
        }
        let dmover = Dmover::new(&options.program)?;
        let source = self.stage.source().into_os_string();
        let run = self
            .stage
            .measure(|target| dmover.copy(["--split-size=1M".into(), source, target.into()]))?;
        self.whole_run = run.elapsed;
        self.items = run.said()?.items.len() as u64;
        Ok(())
    }
}

/// When a run is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    After(Duration),
    Items(u64),
}

impl Moment {
    fn draw(rng: &mut ChaCha8Rng, ground: &Ground) -> Self {
        if rng.random_bool(0.3) {
            return Self::Items(rng.random_range(1..=ground.items));
        }
        Self::After(ground.whole_run.mul_f64(rng.random_range(0.0..1.1)))
    }
}

/// Lists what is in a directory, each name ended by NUL.
fn list_names(directory: &Path, list: &Path) -> Result<()> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        names.extend(entry?.file_name().as_encoded_bytes());
        names.push(0);
    }
    Ok(std::fs::write(list, names)?)
}

struct Experiment {
    dmover: Dmover,
    words: Vec<OsString>,
    source: PathBuf,
    /// The directory that is the copy of the source.
    copy: PathBuf,
    /// What is removed afterwards.
    place: PathBuf,
    olds: OldVersions,
    in_place: bool,
    first: Moment,
    second: Option<Moment>,
}

impl Experiment {
    fn new(options: &LaneOptions, seed: u64, ground: &Ground) -> Result<Self> {
        let mut rng = rng("kill", seed);
        let source = ground.stage.source();
        let place = ground.stage.mounted.path().join("place");
        let mut words: Vec<OsString> = vec![format!("-j{}", rng.random_range(1..=6)).into()];
        if rng.random_bool(0.8) {
            words.push("--split-size=1M".into());
        }
        // btrfs takes "no copy on write" for an empty file only, so in place it is lost, and named.
        let in_place =
            rng.random_bool(0.1) && ground.stage.mounted.file_system() != FileSystem::Btrfs;
        if in_place {
            words.push("--inplace".into());
        }
        // The four ways to mean a place; all but the first can be filled before the first run.
        let how = rng.random_range(0..4);
        let (copy, mut olds) = match how {
            0 => (place.clone(), OldVersions::new()),
            1 => {
                std::fs::create_dir(&place)?;
                (place.join("source"), OldVersions::new())
            }
            2 => {
                words.push("-T".into());
                (place.clone(), OldVersions::new())
            }
            _ => {
                let list = ground.stage.mounted.path().join("list");
                list_names(&source, &list)?;
                words.extend(["-0".into(), "--files-from".into(), list.into_os_string()]);
                (place.clone(), OldVersions::new())
            }
        };
        if how > 0 && rng.random_bool(0.7) {
            olds = plant_old_versions(&source, &copy, &mut rng)?;
        }
        words.extend([source.clone().into_os_string(), place.clone().into_os_string()]);
        let first = Moment::draw(&mut rng, ground);
        let second = rng.random_bool(0.4).then(|| Moment::draw(&mut rng, ground));
        let dmover = Dmover::new(&options.program)?;
        Ok(Self { dmover, words, source, copy, place, olds, in_place, first, second })
    }

    fn clean(&self) -> Result<()> {
        if std::fs::symlink_metadata(&self.place).is_ok() {
            tree::remove(&self.place)?;
        }
        Ok(())
    }

    fn run(&self, report: &mut LaneReport) -> Result<Vec<String>> {
        let mut failures = self.kill_once(self.first, report)?;
        if let Some(moment) = self.second {
            report.add("kills_of_reruns", 1);
            failures.extend(self.kill_once(moment, report)?);
        }
        failures.extend(self.finish()?);
        let told = format!("{:?}, then {:?}, {:?}", self.first, self.second, self.words);
        Ok(failures.into_iter().map(|failure| format!("{failure} [{told}]")).collect())
    }

    fn kill_once(&self, moment: Moment, report: &mut LaneReport) -> Result<Vec<String>> {
        let running = self.dmover.start_copy(&self.words)?;
        let run = match moment {
            Moment::After(delay) => running.kill_after(delay)?,
            Moment::Items(count) => {
                running.wait_for_stdout("\"type\":\"item\"", count as usize);
                running.kill()?
            }
        };
        report.add("kills", 1);
        report.add("kills_that_hit", u64::from(run.signal() == Some(9)));
        let there = std::fs::symlink_metadata(&self.copy).is_ok();
        let mut failures = lying_files(&self.source, &self.copy).context("look for lies")?;
        if there && !self.in_place {
            failures.extend(torn_files(&self.source, &self.copy, &self.olds)?);
        }
        report.add("kills_that_left_temporaries", u64::from(!leftovers(&self.place)?.is_empty()));
        Ok(failures.into_iter().map(|failure| format!("after a kill: {failure}")).collect())
    }

    /// The same command once more finishes the job, in the same place.
    fn finish(&self) -> Result<Vec<String>> {
        let run: Run = self.dmover.copy(&self.words)?;
        let mut failures = Vec::new();
        if run.code() != Some(0) {
            failures.push(run.tell());
        }
        if std::fs::symlink_metadata(&self.copy).is_err() {
            failures.push(format!("nothing at {}", self.copy.display()));
            return Ok(failures);
        }
        let mut options = CompareOptions::default();
        if self.in_place {
            options = options.ignoring("allocation");
        }
        let differences = compare(&self.source, &self.copy, &options)?;
        failures.extend(differences.iter().map(ToString::to_string));
        let left = leftovers(&self.place)?;
        failures.extend(left.iter().map(|path| format!("left over: {}", path.display())));
        Ok(failures)
    }
}
