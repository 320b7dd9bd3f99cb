//! Jobs between hosts over a line with delay, rate and loss that falls silent at a seeded moment, for a while or for good: the same
//! command, repeated, completes the job. The job runs at the near end; two thirds of the seeds have data streams.

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

use super::check::{Fingerprint, leftovers, lying_files};
use super::remote::{is_only, used_streams};
use super::run::{Dmover, Run, Running};
use super::{LaneOptions, LaneReport, MEANT, rng, stage, tell};
use crate::cluster::{FarHost, LineOptions};
use crate::compare::{CompareOptions, compare, rsync_check};
use crate::image::base_directory;
use crate::skip::skipped;
use crate::tree::{self, Features};

/// Ordinary entries in the source, beside the hard cases.
const ENTRIES: u64 = 60;
/// Groups of hard cases that only cost time here.
const WITHOUT: [&str; 3] = ["deep", "long-path", "huge"];
/// A job ends by its heartbeat after a minute of silence, the longest outage takes two; one that takes much longer hangs.
const PATIENCE: Duration = Duration::from_mins(5);
/// How often a job is looked at while the line is good or an outage lasts.
const LOOK: Duration = Duration::from_millis(5);

/// Runs jobs over lines of seeded quality.
///
/// # Errors
/// What keeps it from running at all.
pub fn outages(options: &LaneOptions) -> Result<LaneReport> {
    let mut report = LaneReport::new("outages");
    if let Some(why) = FarHost::missing() {
        skipped("lane outages", &why);
        report.add("skipped", 1);
        return Ok(report);
    }
    report.each_seed(options, |seed, report| {
        let mut experiment = Experiment::new(options, seed)?;
        let failures = experiment.run(report)?;
        let told = experiment.told();
        if options.verbose {
            tell(&format!("outages seed {seed}: {told}"));
        }
        Ok(failures.into_iter().map(|failure| format!("{failure} [{told}]")).collect())
    });
    Ok(report)
}

/// One connection of a data stream that has carried more than a handshake takes is in use.
const HANDSHAKE: u64 = 32 << 10;
/// Data streams are waited for so long, if the outage is meant to be longer.
const IMPATIENCE: Duration = Duration::from_secs(5);
/// An outage from which ssh does not recover if it falls into the login.
const LONG: Duration = Duration::from_secs(10);

/// How long the line is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    Never,
    For(Duration),
    ForGood,
}

/// What a seed does with the line, and what the command line says of it.
#[derive(Clone, Copy, Debug)]
struct Plan {
    has_streams: bool,
    outage: Outage,
    /// `--reconnect-for`.
    patience: Option<Duration>,
}

impl Plan {
    /// Each third seed is silent for good, and the first two are not. Without streams such a seed takes two minutes.
    fn draw(rng: &mut ChaCha8Rng, seed: u64) -> Self {
        let has_streams = (seed + seed / 3) % 3 != 2;
        let outage = match seed % 3 {
            0 => Outage::ForGood,
            1 => Outage::For(Duration::from_millis(rng.random_range(500..10_000))),
            _ => Outage::Never,
        };
        let plan = Self { has_streams, outage, patience: None };
        if !has_streams {
            return plan;
        }
        let second = Duration::from_secs(1);
        match (outage, seed / 3 % 5) {
            (Outage::ForGood, _) => {
                let patience = second * rng.random_range(5..=15);
                Self { patience: Some(patience), ..plan }
            }
            (Outage::For(_), _) if seed % 63 == 16 => {
                Self { outage: Outage::For(120 * second), ..plan }
            }
            (Outage::For(_), 3) => {
                Self { outage: Outage::For(15 * second), patience: Some(60 * second), ..plan }
            }
            (Outage::For(_), 4) => {
                Self { outage: Outage::For(4 * IMPATIENCE), patience: Some(IMPATIENCE), ..plan }
            }
            _ => plan,
        }
    }

    /// The exit codes that a run may have. `is_live`: streams carried data when the line fell silent.
    fn wanted(self, is_live: bool) -> &'static [i32] {
        match (self.outage, self.patience) {
            (Outage::Never, _) => &[0],
            (Outage::ForGood, _) => &[6],
            // The time of `--reconnect-for` counts only if there were streams.
            (Outage::For(time), Some(patience)) if patience < time => {
                if is_live {
                    &[6]
                } else {
                    &[0, 6]
                }
            }
            (Outage::For(time), _) if time >= LONG && !is_live => &[0, 6],
            (Outage::For(_), _) => &[0],
        }
    }
}

fn draw_line(rng: &mut ChaCha8Rng) -> LineOptions {
    let loss = [0.0, 0.001, 0.01][rng.random_range(0..3)];
    let rate = [None, NonZeroU64::new(2_000_000), NonZeroU64::new(20_000_000)];
    LineOptions {
        delay: Duration::from_millis(rng.random_range(0..=25)),
        rate_bytes_per_s: rate[rng.random_range(0..rate.len())],
        loss,
        seed: rng.random(),
        queue_bytes: rng.random_range(64 << 10..1 << 20),
        ..LineOptions::default()
    }
}

struct Experiment {
    dmover: Dmover,
    rng: ChaCha8Rng,
    line: LineOptions,
    plan: Plan,
    words: Vec<OsString>,
    is_source_far: bool,
    story: String,
    // Dropped before the directory: agents have files of it open.
    far: FarHost,
    directory: TempDir,
}

impl Experiment {
    fn new(options: &LaneOptions, seed: u64) -> Result<Self> {
        let mut rng = rng("outages", seed);
        let plan = Plan::draw(&mut rng, seed);
        let line = draw_line(&mut rng);
        let directory = tempfile::Builder::new().prefix("outages-").tempdir_in(base_directory()?)?;
        let features = Features::probe(directory.path())?;
        stage::source(&directory.path().join("source"), seed, &features, ENTRIES, &WITHOUT)?;
        let far = FarHost::start(&options.program, &line)?;
        let is_source_far = rng.random_bool(0.5);
        let verb: &[&str] = match rng.random_range(0..3) {
            0 => &["copy", "-T"],
            1 => &["sync"],
            _ => &["sync", "--delete", MEANT],
        };
        let mut words: Vec<OsString> = verb.iter().map(Into::into).collect();
        words.extend(["--json".into(), "--progress=never".into()]);
        words.push(format!("-j{}", rng.random_range(1..=4)).into());
        if rng.random_bool(0.5) {
            words.push("--split-size=1M".into());
        }
        words.extend(["--ssh-command".into(), far.ssh_command().into()]);
        if !plan.has_streams {
            words.push("--streams=0".into());
        }
        if let Some(patience) = plan.patience {
            words.push(format!("--reconnect-for={}s", patience.as_secs()).into());
        }
        if !is_source_far {
            words.extend(["--state-dir".into(), far.state().into()]);
        }
        let near = far.line.near().words();
        let dmover = Dmover::new(&options.program)?.patience(PATIENCE).wrapped(near);
        let story = String::new();
        Ok(Self { dmover, rng, line, plan, words, is_source_far, story, far, directory })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn told(&self) -> String {
        let words = self.words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>();
        let Self { line, plan, is_source_far, story, .. } = self;
        format!("{line}; {plan:?}; source far: {is_source_far}; {}: {story}", words.join(" "))
    }

    fn start(&self, target: &Path) -> Result<Running> {
        let named = |path: &Path, is_far: bool| {
            let mut name = OsString::from(if is_far { "far:" } else { "" });
            name.push(path);
            name
        };
        let mut words = self.words.clone();
        words.push(named(&self.at("source"), self.is_source_far));
        words.push(named(target, !self.is_source_far));
        self.dmover.start(words)
    }

    /// How many bytes pass if the line is good.
    fn measure(&self, report: &mut LaneReport) -> Result<u64> {
        let passed = || self.far.line.counts().iter().map(|counts| counts.bytes).sum::<u64>();
        let (before, target) = (passed(), self.at("measured"));
        let run = self.start(&target)?.finish()?;
        ensure!(run.code() == Some(0), "undisturbed: {} [{}]", run.tell(), self.told());
        if self.plan.has_streams {
            report.add("with_streams", 1);
            report.add("whole_jobs_over_streams", u64::from(used_streams(&run)));
        }
        tree::remove(&target)?;
        Ok(passed() - before)
    }

    fn run(&mut self, report: &mut LaneReport) -> Result<Vec<String>> {
        let (source, place) = (self.at("source"), self.at("place"));
        let state = Fingerprint::of(&source)?.without_blocks();
        let whole = self.measure(report)?;
        let (run, is_live) = self.disturb(whole, &place, report)?;
        let mut failures = Vec::new();
        let is_silent = self.far.line.is_silent();
        // A line that should have fallen silent may have been too late.
        let wanted = match self.plan.outage {
            Outage::ForGood if !is_silent => &[0],
            _ => self.plan.wanted(is_live),
        };
        if !run.code().is_some_and(|code| wanted.contains(&code)) {
            failures.push(format!("wanted exit code {wanted:?}: {}", run.tell()));
        }
        if run.code() == Some(6) {
            let side = if self.is_source_far { "lost_sources" } else { "lost_destinations" };
            report.add(side, 1);
            // The other side notices by itself.
            self.far.wait_quiet()?;
            failures.extend(lying_files(&source, &place)?);
        }
        self.far.line.set_silent(false);
        let run = self.start(&place)?.finish()?;
        if run.code() != Some(0) {
            failures.push(format!("the same command: {}", run.tell()));
        }
        failures.extend(check(&source, &place)?);
        failures.extend(state.changes(&Fingerprint::of(&source)?.without_blocks()));
        for counts in self.far.line.counts() {
            report.add("packets", counts.packets);
            report.add("packets_lost", counts.lost);
            report.add("packets_overflowed", counts.overflowed);
        }
        Ok(failures)
    }

    /// Runs the job on a line that falls silent after a seeded number of bytes. A line that is still silent at the end stays so.
    /// Answers as well whether streams carried data at that moment.
    fn disturb(
        &mut self,
        whole: u64,
        place: &Path,
        report: &mut LaneReport,
    ) -> Result<(Run, bool)> {
        if self.plan.outage == Outage::Never {
            report.add("jobs_without_outage", 1);
            return Ok((self.start(place)?.finish()?, false));
        }
        let at = self.rng.random_range(1..=whole);
        self.far.line.silence_after(at);
        let begin = Instant::now();
        let mut running = self.start(place)?;
        while !self.far.line.is_silent() && !running.has_ended()? && begin.elapsed() < PATIENCE {
            // A poll: packets pass in other threads.
            std::thread::sleep(LOOK);
        }
        let fell_silent = self.far.line.is_silent();
        let carried = if fell_silent { self.far.line.carried_beside_ssh()? } else { 0 };
        let is_live = self.plan.has_streams && carried >= HANDSHAKE;
        if self.plan.has_streams {
            report.add("points_with_streams", u64::from(fell_silent));
            report.add("points_with_live_streams", u64::from(is_live));
        }
        if let Outage::For(time) = self.plan.outage {
            let begin = Instant::now();
            while begin.elapsed() < time && !running.has_ended()? {
                // A poll: the job may end during the outage.
                std::thread::sleep(LOOK);
            }
            report.add("outages", 1);
            self.far.line.set_silent(false);
        }
        let run = running.finish()?;
        let how = run.code().map_or("killed".to_owned(), |code| code.to_string());
        self.story = format!(
            "silent at {at} of {whole} bytes, streams live {is_live}: {how} after {:?}",
            run.elapsed
        );
        Ok((run, is_live))
    }
}

impl Drop for Experiment {
    fn drop(&mut self) {
        // An ordinary removal fails at entries with flags.
        let _ = tree::remove(self.directory.path());
    }
}

/// Both trees are the same, to the comparer and to rsync, and nothing is left.
fn check(source: &Path, place: &Path) -> Result<Vec<String>> {
    if std::fs::symlink_metadata(place).is_err() {
        return Ok(vec!["nothing at DEST".to_owned()]);
    }
    let found = compare(source, place, &CompareOptions::default())?;
    let mut failures: Vec<String> = found.iter().map(ToString::to_string).collect();
    // Access times of what an earlier run has left.
    let lines = rsync_check(source, place)?.into_iter().filter(|line| !is_only(line, "......u.."));
    failures.extend(lines.map(|line| format!("rsync: {line}")));
    failures.extend(leftovers(place)?.iter().map(|path| format!("left over: {}", path.display())));
    Ok(failures)
}
