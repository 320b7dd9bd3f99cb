//! Lanes: the promises of the program as seeded experiments that can run any number of times.
//!
//! A lane takes a range of seeds. Each seed is one experiment: what fails is told with its seed and the command
//! that repeats it, and the lane goes on. `cargo xtask soak NAME` runs them in full, the tests of the command-line
//! program run a sample.

pub mod attributes;
pub mod brokers;
pub mod check;
pub mod corruption;
pub mod differential;
pub mod digests;
pub mod faults;
pub mod filters;
pub mod fleet;
pub mod kill;
pub mod lines;
pub mod live;
pub mod memory;
pub mod outages;
pub mod pairs;
pub mod powercut;
pub mod recorded;
pub mod remote;
pub mod renames;
pub mod resume;
pub mod run;
pub mod seccomp;
pub mod snapshots;
pub mod sparse;
mod stage;
pub mod swap;
pub mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::image::{FileSystem, Image, Mounted};
use crate::skip::skipped;

/// Deletes are meant. Programs that do not ask understand it as well.
pub(crate) const MEANT: &str = "--max-delete=1000000000";

/// How a lane is run.
#[derive(Clone, Debug)]
pub struct LaneOptions {
    /// The program under test.
    pub program: PathBuf,
    /// The first seed.
    pub seed: u64,
    /// How many seeds, each one more than the last.
    pub seeds: u64,
    /// Size of what is measured, relative to the full bar; only some lanes have one.
    pub scale: f64,
    /// A line on standard error for each seed.
    pub verbose: bool,
}

impl LaneOptions {
    /// One run of the first `seeds` seeds at full size.
    pub fn new(program: PathBuf, seeds: u64) -> Self {
        Self { program, seed: 1, seeds, scale: 1.0, verbose: false }
    }

    fn range(&self) -> std::ops::Range<u64> {
        self.seed..self.seed + self.seeds
    }
}

/// What a lane found.
#[derive(Clone, Debug, Default)]
pub struct LaneReport {
    /// Name of the lane.
    pub name: String,
    /// What was done and seen, by name.
    pub counts: BTreeMap<String, u64>,
    /// What went wrong, each with its seed.
    pub failures: Vec<String>,
}

impl LaneReport {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Mounts an image of each of these file systems; what cannot be had is counted as skipped, and told.
    fn images(&mut self, file_systems: &[FileSystem], size_bytes: u64) -> Vec<Mounted> {
        let test = format!("lane {}", self.name);
        let mut images = Vec::new();
        for file_system in file_systems {
            match Image::create_or_skip(&test, *file_system, size_bytes) {
                Some(mounted) => images.push(mounted),
                None => self.add("skipped", 1),
            }
        }
        if images.is_empty() {
            skipped(&test, "no file system");
        }
        images
    }

    /// Adds to a count.
    pub fn add(&mut self, count: &str, amount: u64) {
        *self.counts.entry(count.to_owned()).or_default() += amount;
    }

    /// Keeps the largest value of a measurement.
    pub fn most(&mut self, measurement: &str, value: u64) {
        let known = self.counts.entry(measurement.to_owned()).or_default();
        *known = (*known).max(value);
    }

    /// A count; 0 if nothing was counted.
    pub fn count(&self, count: &str) -> u64 {
        self.counts.get(count).copied().unwrap_or(0)
    }

    /// Panics with what went wrong, or if nothing was done.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.failures.is_empty(), "{self}");
        assert!(!self.counts.is_empty(), "lane {} did nothing", self.name);
    }

    /// Runs one experiment for each seed, and keeps what fails with the way to repeat it.
    fn each_seed(
        &mut self,
        options: &LaneOptions,
        mut experiment: impl FnMut(u64, &mut Self) -> Result<Vec<String>>,
    ) {
        for seed in options.range() {
            let failures =
                experiment(seed, self).unwrap_or_else(|error| vec![format!("{error:#}")]);
            self.add("seeds", 1);
            if options.verbose || !failures.is_empty() {
                let words = if failures.is_empty() { "good" } else { "FAILED" };
                tell(&format!("{} seed {seed}: {words}", self.name));
            }
            if !failures.is_empty() {
                let failures = shortened(failures);
                let message = format!(
                    "seed {seed} (repeat by: cargo xtask soak {} --seed {seed})\n  {}",
                    self.name,
                    failures.join("\n  ")
                );
                tell(&message);
                self.failures.push(message);
            }
        }
    }
}

impl fmt::Display for LaneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.name)?;
        for (name, count) in &self.counts {
            write!(f, " {name}={count}")?;
        }
        write!(f, " failures={}", self.failures.len())?;
        for failure in &self.failures {
            write!(f, "\n{failure}")?;
        }
        Ok(())
    }
}

/// A failed seed may fail in a thousand entries for one reason.
fn shortened(mut failures: Vec<String>) -> Vec<String> {
    const MOST: usize = 40;
    let last = failures.pop();
    let more = failures.len().saturating_sub(MOST);
    failures.truncate(MOST);
    failures.extend((more > 0).then(|| format!("and {more} more")));
    failures.extend(last);
    failures
}

/// Writes a line to standard error, past the test harness, so that a killed run still told its seed.
fn tell(line: &str) {
    // Nobody may be listening; the report says it again.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// The random sequence of one seed of a lane.
fn rng(lane: &str, seed: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let stream =
        lane.bytes().fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
    rng.set_stream(stream);
    rng
}

/// A lane as the developer's command runs it.
pub type Lane = fn(&LaneOptions) -> Result<LaneReport>;

/// Every lane by name, with what it shows and how many seeds a full run has.
pub const LANES: &[(&str, &str, u64, Lane)] = &[
    ("pairs", "the hard-case tree between all file systems", 3, pairs::pairs),
    ("faults", "errors, short transfers and hangs in any operation", 2000, faults::faults),
    ("kill", "kill -9 at any moment, then the same command again", 500, kill::kill),
    ("resume", "kill -9 of passes, then the same command goes on", 1000, resume::resume),
    ("fleet", "movers, coordinator and broker killed, stopped, made to forget", 500, fleet::fleet),
    ("remote", "either side killed or the connection cut, then again", 300, remote::remote),
    ("outages", "jobs over a long line that loses packets and falls silent", 30, outages::outages),
    (
        "attributes",
        "one attribute changed on either side between passes",
        2000,
        attributes::attributes,
    ),
    ("brokers", "three brokers killed in turn, without space, one lost", 40, brokers::brokers),
    ("live", "passes over a tree that is changed all the time", 500, live::live),
    (
        "differential",
        "random passes beside rsync, edits of both sides, kills",
        5000,
        differential::differential,
    ),
    ("renames", "names that change places between passes", 500, renames::renames),
    ("snapshots", "snapshots of a tree that changes", 300, snapshots::snapshots),
    ("watch", "a watch over a tree that changes", 300, watch::watch),
    ("powercut", "power cuts at any moment, ext4 and XFS", 100, powercut::powercut),
    ("journal", "power cuts, then passes go on with the journal of before", 200, powercut::journal),
    ("recorded", "power cuts of recorded disks: ext4, XFS, btrfs", 150, recorded::recorded),
    ("swap", "names swapped with ways out of the tree while copies run", 110, swap::swap),
    ("seccomp", "system calls missing or forbidden", 28, seccomp::seccomp),
    ("memory", "a million files, directories and hard links", 3, memory::memory),
    ("filters", "rules as rsync understands them", 500, filters::filters),
    ("sparse", "a file of 1 TiB that holds 100 MiB", 2, sparse::sparse),
    ("corruption", "bytes changed on the device, files cut and grown", 250, corruption::corruption),
    ("digests", "sizes, leaves, ranges, splits and movers", 1000, digests::digests),
];

/// The lane of this name.
pub fn lane(name: &str) -> Option<Lane> {
    LANES.iter().find(|lane| lane.0 == name).map(|lane| lane.3)
}
