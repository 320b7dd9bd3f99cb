//! Progress for eyes: two lines on a terminal, a plain line now and then without one.
use dmover_model::{Limit, Verb, units};
use dmover_observe::{Counter, Counters};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Sizes, grouped};
use crate::args::{OutputArgs, ProgressArg};

/// Shows how a job goes on, until it is ended.
pub(crate) struct Progress {
    bar: ProgressBar,
    shown: Mutex<Shown>,
    sizes: Sizes,
    started: Instant,
    json: bool,
    ended: AtomicBool,
    /// Bytes and time of the last look, for the present rate.
    last_bytes: AtomicU64,
    last_ms: AtomicU64,
    limit: Mutex<Option<Limit>>,
}

/// What is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Job(Verb),
    /// What a copy has written, so many bytes, is read back from storage.
    ReadingBack {
        written: u64,
    },
}

/// What progress is made of.
#[derive(Clone)]
struct Shown {
    phase: Phase,
    counters: Arc<Counters>,
    since: Instant,
}

impl Progress {
    /// Starts to show progress as the arguments want it.
    pub fn start(
        args: &OutputArgs,
        verb: Verb,
        sizes: Sizes,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        let terminal = dmover_sys::process::stderr_is_terminal()
            && crate::config::environment("TERM").is_none_or(|term| term != "dumb");
        let wanted = match args.progress {
            ProgressArg::Auto | ProgressArg::Json => args.quiet == 0,
            ProgressArg::Always => true,
            ProgressArg::Never => false,
        };
        let draws = wanted && terminal && args.progress != ProgressArg::Json;
        let target = if draws {
            ProgressDrawTarget::stderr_with_hz(10)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            bar.set_style(style);
        }
        let progress = Arc::new(Self {
            bar,
            shown: Mutex::new(Shown { phase: Phase::Job(verb), counters, since: Instant::now() }),
            sizes,
            started: Instant::now(),
            json: args.progress == ProgressArg::Json,
            ended: AtomicBool::new(false),
            last_bytes: AtomicU64::new(0),
            last_ms: AtomicU64::new(0),
            limit: Mutex::default(),
        });
        let every =
            if draws { Duration::from_millis(100) } else { Duration::from_millis(args.stats) };
        if wanted && !every.is_zero() {
            let shown = Arc::clone(&progress);
            // A thread that cannot be had costs only the progress.
            let _ = std::thread::Builder::new()
                .name("progress".into())
                .spawn(move || shown.run(draws, every));
        }
        progress
    }

    fn run(&self, draws: bool, every: Duration) {
        let mut next = every;
        while !self.ended.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(100).min(every));
            if draws {
                self.bar.set_message(format!("{}\n{}", self.first_line(), self.second_line()));
            } else if self.started.elapsed() >= next {
                next += every;
                self.status_line();
            }
        }
    }

    /// One line that says how things stand, also on SIGUSR1.
    pub fn status_line(&self) {
        if self.ended.load(Ordering::Relaxed) {
            return;
        }
        if self.json {
            self.say(&self.json_line());
        } else {
            self.say(&format!("dmover: {}; {}", self.first_line(), self.second_line()));
        }
    }

    /// The same job is done once more, with counters of its own.
    pub fn again(&self, counters: Arc<Counters>) {
        let phase = self.shown().phase;
        self.show(phase, counters);
    }

    /// What was written is read back now.
    pub fn reading_back(&self, counters: Arc<Counters>) {
        let written = self.shown().moved();
        self.show(Phase::ReadingBack { written }, counters);
    }

    fn show(&self, phase: Phase, counters: Arc<Counters>) {
        let shown = Shown { phase, counters, since: Instant::now() };
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = shown;
        self.last_bytes.store(0, Ordering::Relaxed);
        self.last_ms.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn shown(&self) -> Shown {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What keeps the job from being faster now.
    pub fn note_limit(&self, limit: &Limit) {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = Some(limit.clone());
    }

    fn limit(&self) -> Option<Limit> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Prints a line on standard error beside the progress.
    pub fn say(&self, text: &str) {
        self.bar.suspend(|| super::say(text));
    }

    /// No more progress.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.bar.finish_and_clear();
    }

    fn first_line(&self) -> String {
        let shown = self.shown();
        let get = |counter| shown.counters.get(counter);
        let amount = |counter| self.sizes.show(get(counter));
        let moved = shown.moved();
        let compared = get(Counter::BytesCompared);
        let found = amount(Counter::BytesFound);
        let (what, bytes) = match shown.phase {
            Phase::Job(Verb::Copy | Verb::Sync) => {
                let also = |what: &str, bytes: u64| match bytes {
                    0 => String::new(),
                    _ => format!(", {what} {}", self.sizes.show(bytes)),
                };
                let left_alone = also("left alone", get(Counter::BytesSkipped));
                let looked = also("compared", compared);
                let moved_now = self.sizes.show(moved);
                let of = super::of_found(moved, get(Counter::BytesFound), |b| self.sizes.show(b));
                let what = format!("copied {moved_now}{of}{left_alone}{looked}");
                (what, moved + compared)
            }
            Phase::Job(Verb::Sum) => {
                let hashed = get(Counter::BytesHashed);
                (format!("hashed {} of {found} found", self.sizes.show(hashed)), hashed)
            }
            Phase::Job(Verb::Verify) => {
                (format!("compared {} of {found} found", self.sizes.show(compared)), compared)
            }
            Phase::ReadingBack { written } => {
                let [read, written] = [compared, written].map(|bytes| self.sizes.show(bytes));
                (format!("read back {read} of {written} written"), compared)
            }
        };
        let (now, mean) = (self.rate_now(bytes), mean(bytes, shown.since.elapsed()));
        format!(
            "{what}, {}/s now, {}/s mean; {} entries",
            self.sizes.show(now),
            self.sizes.show(mean),
            grouped(shown.entries()),
        )
    }

    fn second_line(&self) -> String {
        let counters = self.shown().counters;
        let get = |counter| counters.get(counter);
        format!(
            "{} elapsed, {} found, {} skipped, {} errors, {} retries",
            units::format_duration(self.started.elapsed().as_secs()),
            grouped(get(Counter::EntriesFound)),
            grouped(get(Counter::EntriesSkipped)),
            grouped(get(Counter::Errors)),
            grouped(get(Counter::Retries)),
        ) + &self.limit().map_or(String::new(), |limit| {
            format!("; limit: {} ({})", limit.what.word(), limit.evidence)
        })
    }

    /// The rate since the last look that is at least a second old.
    fn rate_now(&self, bytes: u64) -> u64 {
        let now_ms = self.started.elapsed().as_millis() as u64;
        let (last, last_ms) =
            (self.last_bytes.load(Ordering::Relaxed), self.last_ms.load(Ordering::Relaxed));
        let passed_ms = now_ms.saturating_sub(last_ms).max(1);
        if passed_ms > 1000 {
            self.last_bytes.store(bytes, Ordering::Relaxed);
            self.last_ms.store(now_ms, Ordering::Relaxed);
        }
        bytes.saturating_sub(last) * 1000 / passed_ms
    }

    fn json_line(&self) -> String {
        let shown = self.shown();
        let fields = shown.counters.snapshot();
        let mut object = serde_json::Map::new();
        object.insert("type".into(), "status".into());
        object.insert("schema".into(), super::json::SCHEMA.into());
        object.insert("time".into(), jiff::Timestamp::now().to_string().into());
        let is_reading_back = matches!(shown.phase, Phase::ReadingBack { .. });
        object.insert("phase".into(), if is_reading_back { "read_back" } else { "job" }.into());
        object.insert("elapsed_s".into(), self.started.elapsed().as_secs_f64().into());
        if let Some(limit) = self.limit() {
            object.insert("limit".into(), super::json::limit_value(&limit));
        }
        object.extend(fields.iter().map(|(c, value)| (c.name().to_owned(), value.into())));
        serde_json::Value::Object(object).to_string()
    }
}

impl Shown {
    /// Bytes of content that have arrived.
    fn moved(&self) -> u64 {
        self.counters.get(Counter::BytesCopied) + self.counters.get(Counter::BytesShared)
    }

    /// Entries that were dealt with.
    fn entries(&self) -> u64 {
        let get = |counter| self.counters.get(counter);
        let entries = [
            Counter::FilesCopied,
            Counter::DirectoriesCreated,
            Counter::SymlinksCopied,
            Counter::SpecialsCopied,
            Counter::HardLinksCreated,
            Counter::EntriesSkipped,
        ];
        let more = match self.phase {
            Phase::Job(Verb::Copy | Verb::Sync) => {
                get(Counter::EntriesDressed) + get(Counter::EntriesDeleted)
            }
            Phase::Job(Verb::Sum) => get(Counter::FilesHashed),
            Phase::Job(Verb::Verify) | Phase::ReadingBack { .. } => get(Counter::EntriesCompared),
        };
        more + entries.into_iter().map(get).sum::<u64>()
    }
}

fn mean(bytes: u64, time: Duration) -> u64 {
    (bytes as f64 / time.as_secs_f64().max(0.001)) as u64
}
