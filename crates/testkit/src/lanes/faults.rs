//! Faults in any operation of the source or the destination, then the same command without them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

use super::check::{Fingerprint, LinkGroups, Trees, leftovers, unexplained};
use super::lines::ReportItem;
use super::run::{Dmover, Run};
use super::stage::{OldVersions, plant_old_versions, source, torn_files};
use super::{LaneOptions, LaneReport, rng};
use crate::compare::{CompareOptions, Difference, compare};
use crate::faultfs::{Action, Config, FaultFs, FaultFsHandle, Op, Rule, When};
use crate::image::base_directory;
use crate::skip::skipped;
use crate::tree::{self, Features};

const ENTRIES: u64 = 15;
/// Groups of hard cases that are left out, since each entry costs many requests.
const WITHOUT: [&str; 7] = ["names", "deep", "long-path", "huge", "sizes", "times", "owners"];
/// Seeds that share a source.
const SEEDS_PER_SOURCE: u64 = 40;

const ERRORS: [i32; 8] = [
    libc::EIO,
    libc::EIO,
    libc::ENOSPC,
    libc::EDQUOT,
    libc::ESTALE,
    libc::EINTR,
    libc::EACCES,
    libc::EROFS,
];

/// What a copier asks of the tree that it reads.
const READING: [Op; 14] = [
    Op::Lookup,
    Op::Getattr,
    Op::Readlink,
    Op::Open,
    Op::Read,
    Op::Read,
    Op::Lseek,
    Op::Flush,
    Op::Release,
    Op::Opendir,
    Op::Readdir,
    Op::Statfs,
    Op::Getxattr,
    Op::Listxattr,
];

/// One directory behind a fault file system.
struct Side {
    backing: PathBuf,
    handle: FaultFsHandle,
}

/// Both sides behind fault file systems that stay mounted; each seed has its own rules.
struct Ground {
    source: Side,
    destination: Side,
    features: Features,
    source_seed: Option<u64>,
    // Dropped last: the mounts lie in it.
    _directory: TempDir,
}

/// Runs copies under random faults.
pub fn faults(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("faults");
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        report.add("skipped", 1);
        skipped("lane faults", "needs root and /dev/fuse");
        return Ok(report);
    }
    let mut ground = Ground::new()?;
    report.each_seed(options, |seed, report| {
        ground.prepare(seed / SEEDS_PER_SOURCE)?;
        let experiment = Experiment::new(options, seed, &ground)?;
        let failures = experiment.run(report).unwrap_or_else(|error| vec![format!("{error:#}")]);
        let told = (!failures.is_empty()).then(|| format!("that was {}", experiment.tell()));
        ground.clean()?;
        Ok(failures.into_iter().chain(told).collect())
    });
    Ok(report)
}

impl Side {
    fn new(base: &Path, name: &str) -> Result<Self> {
        let backing = base.join(name);
        // Beside the other's backing directory, never in it.
        let mount = base.join(format!("{}-faulty", name.replace('/', "-")));
        std::fs::create_dir_all(&backing)?;
        std::fs::create_dir(&mount)?;
        let config = Config { threads: 8, ..Config::default() };
        let handle = FaultFs::mount(&backing, &mount, config)?;
        Ok(Self { backing, handle })
    }

    fn faulty(&self) -> &Path {
        self.handle.mountpoint()
    }

    fn fired(&self) -> u64 {
        self.handle.counters().rules_fired.iter().sum()
    }
}

impl Ground {
    fn new() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("faults-").tempdir_in(base_directory()?)?;
        let source = Side::new(directory.path(), "destination/source")?;
        let destination = Side::new(directory.path(), "destination")?;
        let plain = Features::probe(&source.backing)?;
        let features = plain.common(&Features::probe(source.faulty())?);
        Ok(Self { source, destination, features, source_seed: None, _directory: directory })
    }

    fn prepare(&mut self, source_seed: u64) -> Result<()> {
        if self.source_seed == Some(source_seed) {
            return Ok(());
        }
        let tree = self.source.backing.join("tree");
        if self.source_seed.take().is_some() {
            tree::remove(&tree)?;
        }
        source(&tree, source_seed, &self.features, ENTRIES, &WITHOUT)?;
        self.source_seed = Some(source_seed);
        Ok(())
    }

    fn without_faults(&self) -> Result<()> {
        for side in [&self.source, &self.destination] {
            side.handle.release_hangs();
            side.handle.set_rules(&[])?;
        }
        Ok(())
    }

    fn clean(&self) -> Result<()> {
        self.without_faults()?;
        let copy = self.destination.backing.join("copy");
        if std::fs::symlink_metadata(&copy).is_ok() {
            tree::remove(&copy)?;
        }
        Ok(())
    }
}

/// One fault in an operation of these, of a kind that a reader can notice.
fn draw_rule(rng: &mut ChaCha8Rng, operations: &[Op]) -> Rule {
    const HANG_MS: u64 = 40;
    let errno = *ERRORS.choose(rng).unwrap_or(&libc::EIO);
    let operation = *operations.choose(rng).unwrap_or(&Op::Read);
    let transfer = *[Op::Read, Op::Write, Op::CopyFileRange].choose(rng).unwrap_or(&Op::Read);
    let (operation, action) = match rng.random_range(0..100) {
        0..70 => (operation, Action::Errno(errno)),
        70..78 => (operation, Action::ErrnoAfter(errno)),
        78..86 => (transfer, Action::Errno(errno)),
        86..91 => (Op::Read, Action::ShortRead(rng.random_range(0..70_000))),
        91..96 => (Op::Write, Action::ShortWrite(rng.random_range(1..70_000))),
        _ => (operation, Action::Hang { duration_ms: HANG_MS }),
    };
    let when = match rng.random_range(0..4) {
        0 => When::Always,
        1 => When::Every(rng.random_range(2..30)),
        2 => When::Probability(rng.random_range(0.005..0.3)),
        _ => When::Nth(rng.random_range(1..60)),
    };
    let unlimited = rng.random_bool(0.2) && !matches!(action, Action::Hang { .. });
    let count = if unlimited { 0 } else { rng.random_range(1..6) };
    Rule::new(operation, action).when(when).count(count)
}

fn draw_rules(rng: &mut ChaCha8Rng, operations: &[Op]) -> Vec<Rule> {
    let rules = rng.random_range(1..=3);
    (0..rules).map(|_| draw_rule(rng, operations)).collect()
}

/// Where the faults are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Faulty {
    Source,
    Destination,
    Both,
    /// Both trees lie on one faulty file system, so that copies inside it are possible.
    Same,
}

struct Experiment<'a> {
    ground: &'a Ground,
    dmover: Dmover,
    words: Vec<OsString>,
    /// Rules of the source and of the destination; none at all means that this side is not faulty.
    rules: [Vec<Rule>; 2],
    source: PathBuf,
    destination: PathBuf,
    olds: OldVersions,
    in_place: bool,
}

impl<'a> Experiment<'a> {
    fn new(options: &LaneOptions, seed: u64, ground: &'a Ground) -> Result<Self> {
        let mut rng = rng("faults", seed);
        let where_to = [Faulty::Source, Faulty::Destination, Faulty::Both, Faulty::Same];
        let faulty = *where_to.choose(&mut rng).unwrap_or(&Faulty::Both);
        let read = matches!(faulty, Faulty::Source | Faulty::Both);
        let rules = [
            if read { draw_rules(&mut rng, &READING) } else { Vec::new() },
            if faulty == Faulty::Source { Vec::new() } else { draw_rules(&mut rng, &Op::ALL) },
        ];
        let place = |side: &Side, faulty: bool, name: &str| {
            let root = if faulty { side.faulty() } else { &side.backing };
            root.join(name)
        };
        let source = match faulty {
            Faulty::Same => ground.destination.faulty().join("source/tree"),
            _ => place(&ground.source, read, "tree"),
        };
        let destination = place(&ground.destination, faulty != Faulty::Source, "copy");
        let mut words: Vec<OsString> = vec![format!("-j{}", rng.random_range(1..=4)).into()];
        if rng.random_bool(0.6) {
            words.push("--split-size=1M".into());
        }
        let in_place = rng.random_bool(0.07);
        if in_place {
            words.push("--inplace".into());
        }
        words.push("-T".into());
        words.extend([source.clone().into_os_string(), destination.clone().into_os_string()]);
        let mut olds = OldVersions::new();
        if rng.random_bool(0.4) {
            let (from, to) = (ground.source.backing.join("tree"), ground.copy());
            olds = plant_old_versions(&from, &to, &mut rng)?;
        }
        let dmover = Dmover::new(&options.program)?;
        Ok(Self { ground, dmover, words, rules, source, destination, olds, in_place })
    }

    fn tell(&self) -> String {
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
        format!("{}; source {:?}; destination {:?}", words.join(" "), self.rules[0], self.rules[1])
    }

    fn run(&self, report: &mut LaneReport) -> Result<Vec<String>> {
        let ground = self.ground;
        ground.source.handle.set_rules(&self.rules[0])?;
        ground.destination.handle.set_rules(&self.rules[1])?;
        let before = self.fingerprint()?;
        let run = self.dmover.copy(&self.words)?;
        let fired = ground.source.fired() + ground.destination.fired();
        ground.without_faults()?;
        report.add("runs", 1);
        report.add("faults", fired);
        report.add("runs_with_faults", u64::from(fired > 0));
        let mut failures = if run.code() == Some(2) {
            report.add("refused", 1);
            self.nothing_changed(&run, before.as_ref())?
        } else {
            self.right_or_named(&run, report)?
        };
        let again = self.again(!run.said()?.losses.is_empty())?;
        failures.extend(again.into_iter().map(|failure| format!("without faults: {failure}")));
        Ok(failures)
    }

    fn fingerprint(&self) -> Result<Option<Fingerprint>> {
        let copy = self.ground.copy();
        std::fs::symlink_metadata(&copy).is_ok().then(|| Fingerprint::of(&copy)).transpose()
    }

    /// A refused job has to say why, and to have changed nothing.
    fn nothing_changed(&self, run: &Run, before: Option<&Fingerprint>) -> Result<Vec<String>> {
        let mut failures = Vec::new();
        if !run.stderr.contains("error") {
            failures.push(format!("refused without a word: {}", run.tell()));
        }
        let changes = match (before, self.fingerprint()?) {
            (None, None) => Vec::new(),
            (Some(before), Some(after)) => before.changes(&after),
            _ => vec!["the destination was made or removed".to_owned()],
        };
        failures.extend(changes.into_iter().map(|change| format!("refused, yet {change}")));
        Ok(failures)
    }

    fn right_or_named(&self, run: &Run, report: &mut LaneReport) -> Result<Vec<String>> {
        let said = run.said()?;
        let mut failures = Vec::new();
        if said.summary.is_none() {
            failures.push(format!("no summary: {}", run.tell()));
        }
        report.add("errors_named", said.errors.len() as u64);
        report.add("losses_named", said.losses.len() as u64);
        report.add("paused", said.paused.len() as u64);
        if std::fs::symlink_metadata(self.ground.copy()).is_err() {
            if said.errors.is_empty() || run.code() == Some(0) {
                failures.push(format!("nothing arrived and nothing was said: {}", run.tell()));
            }
            return Ok(failures);
        }
        let (left, differences) = self.differences()?;
        let explained = self.left_behind_for_a_reason();
        report.add("left_over_for_a_reason", u64::from(!left.is_empty() && explained));
        if !explained {
            failures.extend(left.iter().map(ToString::to_string));
        }
        let trees = Trees { source: &self.source, destination: &self.destination };
        let groups = LinkGroups::of(&self.ground.source.backing.join("tree"))?;
        let unnamed = unexplained(&differences, &said, trees, &groups);
        report.add("silent_differences", unnamed.len() as u64);
        failures.extend(unnamed);
        if run.code() == Some(0) && !(differences.is_empty() && quiet(&said)) {
            failures.push(format!("exit code 0 in spite of {} differences", differences.len()));
        }
        if !self.in_place {
            let tree = self.ground.source.backing.join("tree");
            failures.extend(torn_files(&tree, &self.ground.copy(), &self.olds)?);
        }
        if !failures.is_empty() {
            failures.push(format!("ended with {:?}; said {}", run.code(), said.tell()));
        }
        Ok(failures)
    }

    /// Temporaries that were left behind, and all other differences.
    fn differences(&self) -> Result<(Vec<Difference>, Vec<Difference>)> {
        let mut options = CompareOptions::default();
        if self.in_place {
            options = options.ignoring("allocation");
        }
        let tree = self.ground.source.backing.join("tree");
        let differences = compare(&tree, &self.ground.copy(), &options)?;
        Ok(differences.into_iter().partition(|difference| difference.kind == "leftover"))
    }

    /// Whether a fault may have hit the removal of a temporary, or the look before it.
    fn left_behind_for_a_reason(&self) -> bool {
        let needed = [Op::Unlink, Op::Lookup, Op::Getattr, Op::Open, Op::Opendir];
        self.rules[1].iter().any(|rule| rule.operation.is_some_and(|op| needed.contains(&op)))
    }

    /// Without faults the same command makes everything right, whatever the first run left. An attribute
    /// that was lost is still missing where the entry is equal otherwise: that has to be said, and
    /// `--overwrite=always` has to help.
    fn again(&self, lost: bool) -> Result<Vec<String>> {
        let mut run = self.dmover.copy(&self.words)?;
        let mut failures = Vec::new();
        let said = run.said()?;
        let earlier = said.summary.as_ref().and_then(|line| line.0.get("earlier_losses_by_kind"));
        let told =
            earlier.and_then(|kinds| kinds.as_object()).is_some_and(|kinds| !kinds.is_empty());
        if lost && told && quiet(&said) && run.code() == Some(3) {
            let words = self.words.iter().cloned().chain(["--overwrite=always".into()]);
            run = self.dmover.copy(words)?;
        }
        if run.code() != Some(0) {
            failures.push(format!("ended with {:?}; said {}", run.code(), run.said()?.tell()));
        }
        if std::fs::symlink_metadata(self.ground.copy()).is_err() {
            failures.push(format!("nothing arrived: {}", run.tell()));
            return Ok(failures);
        }
        let (left, differences) = self.differences()?;
        failures.extend(left.iter().chain(&differences).map(ToString::to_string));
        let left = leftovers(&self.ground.copy())?;
        failures.extend(left.iter().map(|path| format!("left over: {}", path.display())));
        Ok(failures)
    }
}

impl Ground {
    /// The copy, seen without faults.
    fn copy(&self) -> PathBuf {
        self.destination.backing.join("copy")
    }
}

fn quiet(said: &ReportItem) -> bool {
    said.errors.is_empty() && said.losses.is_empty() && said.paused.is_empty()
}
