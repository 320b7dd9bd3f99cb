//! Random passes beside rsync: edits of both sides between passes, kills, every file system, root and not.
//!
//! Each seed keeps two destinations that meet the same fate: one is brought up to date by the program, the other one by
//! rsync. What the independent comparer finds in the program's destination in the end is a failure; whether rsync
//! leaves the same difference is said beside it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rustix::fs::{Gid, Uid};

use super::check::leftovers;
use super::live;
use super::run::{Dmover, Run};
use super::{LaneOptions, LaneReport, MEANT, rng, stage};
use crate::compare::{CompareOptions, Difference, compare};
use crate::image::FileSystem;
use crate::python::python;
use crate::tree::{self, Features, HardTree, TreeOptions};

const MUTATE: &str = include_str!("../../python/mutate_tree.py");
const SIZE: u64 = 512 << 20;
/// Ordinary entries at the start, beside the hard cases.
const ENTRIES: u64 = 40;
/// Edits between two passes at most.
const STEPS: u64 = 60;
/// The user of the seeds without privilege.
const USER: u32 = 54_321;

/// Runs seeds over every ordered pair of file systems.
///
/// # Errors
/// What keeps it from running at all.
pub fn differential(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("differential");
    let all = [FileSystem::Ext4, FileSystem::Xfs, FileSystem::Tmpfs, FileSystem::Btrfs];
    let mut grounds = Vec::new();
    for mounted in report.images(&all, SIZE) {
        let features = Features::probe(mounted.path())?;
        grounds.push((mounted, features));
    }
    if grounds.is_empty() {
        return Ok(report);
    }
    report.each_seed(options, |seed, report| {
        let turn = seed as usize;
        let (from, source_features) = &grounds[turn % grounds.len()];
        let (to, features) = &grounds[turn / grounds.len() % grounds.len()];
        let sides = [from.path(), to.path()];
        let experiment = Experiment::new(options, seed, sides, source_features.common(features))?;
        let failures = experiment.run(report);
        experiment.remove()?;
        let user = if experiment.privileged { "root" } else { "a user" };
        let names = format!("{} to {}, {user}", from.file_system(), to.file_system());
        Ok(failures?.into_iter().map(|failure| format!("{names}: {failure}")).collect())
    });
    Ok(report)
}

struct Experiment {
    seed: u64,
    dmover: Dmover,
    privileged: bool,
    features: Features,
    places: [PathBuf; 2],
    source: PathBuf,
    copy: PathBuf,
    /// What rsync keeps.
    control: PathBuf,
}

impl Experiment {
    fn new(
        options: &LaneOptions,
        seed: u64,
        sides: [&Path; 2],
        features: Features,
    ) -> Result<Self> {
        let privileged = !seed.is_multiple_of(3);
        let dmover = Dmover::new(&options.program)?;
        let dmover = if privileged { dmover } else { dmover.unprivileged(USER)? };
        let place = |side: &Path, name: &str| -> Result<PathBuf> {
            let place = side.join(format!("differential-{seed}-{name}"));
            std::fs::create_dir(&place).with_context(|| place.display().to_string())?;
            if !privileged {
                rustix::fs::chown(&place, Some(Uid::from_raw(USER)), Some(Gid::from_raw(USER)))?;
            }
            Ok(place)
        };
        let places = [place(sides[0], "from")?, place(sides[1], "to")?];
        let source = places[0].join("source");
        let (copy, control) = (places[1].join("copy"), places[1].join("control"));
        Ok(Self { seed, dmover, privileged, features, places, source, copy, control })
    }

    fn remove(&self) -> Result<()> {
        self.places.iter().try_for_each(|place| tree::remove(place))
    }

    fn run(&self, report: &mut LaneReport) -> Result<Vec<String>> {
        let mut rng = rng("differential", self.seed);
        self.plant(&mut rng)?;
        let words = self.words(&mut rng);
        let (mut failures, mut whole) = (Vec::new(), Duration::from_millis(60));
        for _ in 0..rng.random_range(1..=4) {
            if rng.random_bool(0.3) {
                let delay = whole.mul_f64(rng.random_range(0.0..1.1));
                let run = self.dmover.start(&words)?.kill_after(delay)?;
                report.add("kills_that_hit", u64::from(run.signal() == Some(9)));
            } else {
                let run = self.pass(&words, report)?;
                whole = run.elapsed;
                failures.extend(unexpected(&run));
                self.rsync()?;
            }
            let steps = rng.random_range(0..STEPS);
            report.add("edits", self.edit(&self.source, rng.random(), steps)?);
            if rng.random_bool(0.4) && self.copy.exists() && self.control.exists() {
                let (edits, steps) = (rng.random(), rng.random_range(1..10));
                report.add("edits_of_destinations", self.edit(&self.copy, edits, steps)?);
                self.edit(&self.control, edits, steps)?;
            }
        }
        let run = self.pass(&words, report)?;
        failures.extend(unexpected(&run));
        self.rsync()?;
        failures.extend(self.differences(report)?);
        failures.extend(leftovers(&self.copy)?.iter().map(|left| format!("left: {left:?}")));
        if !failures.is_empty() {
            failures.push(format!("that was {words:?}"));
        }
        Ok(failures)
    }

    /// A source that both sides can hold, made by whoever runs the passes.
    fn plant(&self, rng: &mut ChaCha8Rng) -> Result<()> {
        if !self.privileged {
            live::plant(rng, &self.source)?;
            return self.give_away();
        }
        let mut without: BTreeSet<String> = stage::WITHOUT.into_iter().map(str::to_owned).collect();
        // Flags that forbid changes would make most edits fail; the lane `attributes` has them.
        without.insert("flags".to_owned());
        let options = TreeOptions { entries: ENTRIES, features: self.features.clone(), without };
        HardTree::generate(&self.source, self.seed, &options).map(|_| ())
    }

    fn give_away(&self) -> Result<()> {
        let owner = format!("{USER}:{USER}");
        let done = Command::new("chown").arg("-R").arg(owner).arg(&self.source).status()?;
        ensure!(done.success(), "chown failed");
        Ok(())
    }

    fn words(&self, rng: &mut ChaCha8Rng) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["sync".into(), "--json".into()];
        let delete = ["--delete", "--delete=during", "--delete=after"][rng.random_range(0..3)];
        words.extend([delete.into(), MEANT.into()]);
        words.push(format!("-j{}", rng.random_range(1..=4)).into());
        for (flag, chance) in [
            ("--inplace", 0.2),
            ("--split-size=1M", 0.3),
            ("--no-renames", 0.2),
            ("--checksum", 0.1),
        ] {
            words.extend(rng.random_bool(chance).then(|| flag.into()));
        }
        words.extend([self.source.clone().into(), self.copy.clone().into()]);
        words
    }

    fn pass(&self, words: &[OsString], report: &mut LaneReport) -> Result<Run> {
        report.add("passes", 1);
        self.dmover.run(words)
    }

    fn as_user(&self, program: Command) -> Command {
        if self.privileged {
            return program;
        }
        let id = USER.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]);
        command.arg(program.get_program()).args(program.get_args());
        command
    }

    /// Makes random changes; answers how many.
    fn edit(&self, root: &Path, seed: u64, steps: u64) -> Result<u64> {
        let mut command = python();
        command.args(["-c", MUTATE]).arg(root).arg(seed.to_string());
        command.args(["nomap", "attributes", &format!("steps={steps}")]);
        let output = self.as_user(command).stdin(Stdio::null()).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the edits failed: {errors}");
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().last().unwrap_or_default().parse().context("a number of changes")
    }

    /// rsync may fail at what it cannot do; then it differs in the end.
    fn rsync(&self) -> Result<()> {
        let mut command = Command::new("rsync");
        command.args(["-aHAXS", "--delete", "--numeric-ids", "--"]);
        command.arg(format!("{}/", self.source.display()));
        command.arg(format!("{}/", self.control.display()));
        let (out, err) = (Stdio::null(), Stdio::null());
        self.as_user(command).stdin(Stdio::null()).stdout(out).stderr(err).status()?;
        Ok(())
    }

    fn differences(&self, report: &mut LaneReport) -> Result<Vec<String>> {
        let options = CompareOptions::default();
        let found = compare(&self.source, &self.copy, &options)?;
        if found.is_empty() && !self.control.exists() {
            return Ok(Vec::new());
        }
        let of_rsync = compare(&self.source, &self.control, &options)?;
        report.add("differences_of_rsync", of_rsync.len() as u64);
        report.add("differences", found.len() as u64);
        let same = |one: &Difference| {
            of_rsync.iter().any(|other| (&one.path, &one.kind) == (&other.path, &other.kind))
        };
        let words = |one: &Difference| if same(one) { "rsync leaves it, too" } else { "not rsync" };
        Ok(found.iter().map(|one| format!("{one} ({})", words(one))).collect())
    }
}

/// A pass over a quiet tree has nothing to complain of.
fn unexpected(run: &Run) -> Option<String> {
    (run.code() != Some(0)).then(|| run.tell())
}
