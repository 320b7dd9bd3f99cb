//! Turns the counters of a job into figures for the progress lines.
use dmover_model::{Limit, Verb};
use dmover_observe::{Amount, Counter, Counters, Stage, Total};
use dmover_plan::eta::{Done, Estimate, Estimator};
use dmover_schedule::time::Instant;
use std::sync::Arc;
use std::time::Duration;

/// The interval between samples, so that rates and estimates do not follow each jump.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// The weight of a new sample in the present rate.
const FRESH: f64 = 0.3;
/// An entry in progress for this long is shown.
const LONG: Duration = Duration::from_mins(1);
/// The same while nothing moves.
const LONG_IN_A_STALL: Duration = Duration::from_secs(5);

/// Bytes that a job has copied to the destination, or kept there in a changed file.
const COPIED: [Counter; 3] = [Counter::BytesCopied, Counter::BytesShared, Counter::BytesKept];

/// The purpose of a run of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The job itself.
    Job(Verb),
    /// Reading back what a copy has written.
    ReadingBack,
}

/// The state of a job at one moment.
#[derive(Debug, Clone)]
pub(super) struct Figures {
    /// What the job does now, such as `copying`.
    pub doing: &'static str,
    /// Whether the fields below describe the whole job, not a step at its end.
    pub is_main: bool,
    pub done: Amount,
    pub total: Total,
    /// The total of the whole job, whatever it does now.
    pub whole: Total,
    pub estimate: Option<Estimate>,
    pub rate_now: u64,
    pub rate_mean: u64,
    /// Bytes that were unchanged and did not have to be copied.
    pub unchanged: u64,
    pub errors: u64,
    pub retries: u64,
    pub elapsed: Duration,
    pub limit: Option<Limit>,
    /// The oldest entry in progress and its age, if it takes long.
    pub oldest: Option<(Vec<u8>, Duration)>,
}

/// Follows one run of the engine.
pub(super) struct Follower {
    part: Part,
    counters: Arc<Counters>,
    begun: Instant,
    sampled: Option<Instant>,
    /// When a sample last showed progress.
    moved: Instant,
    last: Done,
    /// Bytes that were copied at the last sample.
    copied: u64,
    estimator: Estimator,
    rate: f64,
    doing: &'static str,
}

impl Follower {
    pub fn new(part: Part, counters: Arc<Counters>) -> Self {
        let doing = match part {
            Part::ReadingBack => "reading back",
            Part::Job(Verb::Sum) => "hashing",
            Part::Job(Verb::Verify) => "comparing",
            Part::Job(Verb::Copy | Verb::Sync) => "scanning",
        };
        Self {
            part,
            counters,
            begun: Instant::now(),
            sampled: None,
            moved: Instant::now(),
            last: Done::default(),
            copied: 0,
            estimator: Estimator::default(),
            rate: 0.0,
            doing,
        }
    }

    pub fn part(&self) -> Part {
        self.part
    }

    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Takes a sample if the last one is old enough.
    pub fn sample(&mut self) {
        let now = Instant::now();
        if self.sampled.is_some_and(|then| now - then < SAMPLE_EVERY) {
            return;
        }
        let done = self.done();
        let passed = self.sampled.map_or_else(|| done.at_s, |_| done.at_s - self.last.at_s);
        let moved = done.moved.saturating_sub(self.last.moved);
        if let Part::Job(Verb::Copy | Verb::Sync) = self.part {
            self.doing = self.fills(moved, done.entries.saturating_sub(self.last.entries));
        }
        if moved > 0 || done.entries > self.last.entries {
            self.moved = now;
        }
        let rate = moved as f64 / passed.max(0.001);
        let fresh = if self.sampled.is_some() { FRESH } else { 1.0 };
        self.rate += (rate - self.rate) * fresh;
        (self.sampled, self.last) = (Some(now), done);
        self.estimator.sample(done);
    }

    /// What a copy or sync has done since the last sample.
    fn fills(&mut self, moved: u64, entries: u64) -> &'static str {
        let copied = sum(&COPIED, &|counter| self.counters.get(counter));
        let copies = copied > std::mem::replace(&mut self.copied, copied);
        match (copies, moved > 0, entries > 0) {
            (true, ..) => "copying",
            (false, true, _) => "comparing",
            (false, false, true) => "scanning",
            (false, false, false) => self.doing,
        }
    }

    /// Seconds that `--bwlimit` allows for a byte at least. Shared blocks and what DEST had already are not limited.
    fn byte_s_min(&self, done: &Done) -> f64 {
        let Part::Job(Verb::Copy | Verb::Sync) = self.part else { return 0.0 };
        let is_limited = self.counters.get(Counter::BytesCopied) >= done.moved / 10 * 9;
        let limit = self.counters.outlook().bytes_per_s_max().filter(|_| is_limited);
        limit.map_or(0.0, |per_s| 1.0 / per_s as f64)
    }

    fn done(&self) -> Done {
        let at_s = self.begun.elapsed().as_secs_f64();
        Done { at_s, ..done(self.part, &|counter| self.counters.get(counter)) }
    }

    /// The figures of the job now.
    pub fn figures(&mut self, elapsed: Duration, limit: Option<Limit>) -> Figures {
        let get = |counter| self.counters.get(counter);
        let outlook = self.counters.outlook();
        let done = self.done();
        let stage = outlook.stage();
        let is_main = stage == Stage::Transfer;
        let found = Amount {
            entries: get(Counter::EntriesFound).max(done.entries),
            bytes: get(Counter::BytesFound).max(done.bytes),
        };
        let settled = Amount { entries: done.entries, bytes: done.bytes };
        let whole = outlook.total().corrected(found, settled);
        let (doing, done_now, total) = match (self.part, stage) {
            (Part::ReadingBack, _) | (_, Stage::Transfer) => {
                let total = if whole == Total::Unknown { Total::AtLeast(found) } else { whole };
                (self.doing, settled, total)
            }
            (_, stage) => {
                let count = |entries| Amount { entries, bytes: 0 };
                let done = count(match stage {
                    Stage::Link => get(Counter::HardLinksCreated),
                    Stage::Delete => get(Counter::EntriesDeleted),
                    Stage::Rename => get(Counter::EntriesRenamed),
                    _ => 0,
                });
                (name(stage), done, Total::Unknown)
            }
        };
        let rate_mean = done.moved as f64 / self.begun.elapsed().as_secs_f64().max(0.001);
        let estimate = match total {
            Total::About(total) if is_main || self.part == Part::ReadingBack => {
                Some(self.estimator.estimate(total.entries, total.bytes, self.byte_s_min(&done)))
            }
            _ => None,
        };
        let stalls = self.moved.elapsed() >= LONG_IN_A_STALL;
        let long = if stalls { LONG_IN_A_STALL } else { LONG };
        Figures {
            doing,
            is_main: is_main || self.part == Part::ReadingBack,
            done: done_now,
            total,
            whole,
            estimate,
            rate_now: self.rate as u64,
            rate_mean: rate_mean as u64,
            unchanged: get(Counter::BytesSkipped) + get(Counter::BytesUnchanged),
            errors: get(Counter::Errors),
            retries: get(Counter::Retries),
            elapsed,
            limit,
            oldest: outlook.oldest().filter(|(_, age)| *age >= long),
        }
    }
}

fn sum(all: &[Counter], get: &dyn Fn(Counter) -> u64) -> u64 {
    all.iter().map(|counter| get(*counter)).sum()
}

/// The work that is done, from counters.
pub(crate) fn done(part: Part, get: &dyn Fn(Counter) -> u64) -> Done {
    let (entries, moved, still) = match part {
        Part::Job(Verb::Copy | Verb::Sync) => {
            let compared = get(Counter::BytesCompared);
            // Compared bytes that are equal count as skipped a moment later.
            let equal = get(Counter::BytesSkipped).saturating_sub(compared);
            let still = equal + get(Counter::BytesUnchanged);
            (get(Counter::EntriesFound), sum(&COPIED, get) + compared, still)
        }
        Part::Job(Verb::Sum) => (get(Counter::EntriesFound), get(Counter::BytesHashed), 0),
        Part::Job(Verb::Verify) | Part::ReadingBack => {
            (get(Counter::EntriesCompared), get(Counter::BytesCompared), 0)
        }
    };
    Done { at_s: 0.0, entries, bytes: moved + still, moved }
}

fn name(stage: Stage) -> &'static str {
    match stage {
        Stage::Transfer => "copying",
        Stage::Rename => "renaming",
        Stage::Link => "linking",
        Stage::Delete => "deleting",
        Stage::Seal => "setting directory times",
        Stage::Record => "writing the catalog",
        Stage::Flush => "flushing",
    }
}
