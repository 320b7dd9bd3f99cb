//! Progress of a job: two lines on a terminal, otherwise a plain line at intervals.
use dmover_model::{Limit, Verb};
use dmover_observe::{Amount, Counter, Counters, Total};
use dmover_schedule::sync::{Mutex, MutexGuard};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

mod figures;
mod layout;
mod title;

use self::figures::{Figures, Follower};
pub(crate) use self::figures::{Part, done};
use self::layout::Form;
use self::title::Title;
use super::Sizes;
use super::screen::{self, Screen};
use crate::args::{OutputArgs, ProgressArg};

/// How often lines on a terminal are redrawn.
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// Shows the progress of a job until [`Progress::end`].
pub(crate) struct Progress {
    screen: Screen,
    follower: Mutex<Follower>,
    form: Form,
    started: Instant,
    json: bool,
    ended: AtomicBool,
    /// A question is on the screen.
    asks: AtomicBool,
    limit: Mutex<Option<Limit>>,
    title: Option<Title>,
}

impl Progress {
    /// Starts to show progress as the options demand.
    pub fn start(
        args: &OutputArgs,
        verb: Verb,
        sizes: Sizes,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        let wanted = match args.progress {
            ProgressArg::Auto | ProgressArg::Json => args.quiet == 0,
            ProgressArg::Always => true,
            ProgressArg::Never => false,
        };
        let draws = wanted && screen::is_there() && args.progress != ProgressArg::Json;
        let progress = Arc::new(Self {
            screen: Screen::default(),
            follower: Mutex::new(Follower::new(Part::Job(verb), counters)),
            form: Form { sizes, is_utf8: crate::config::speaks_utf8() },
            started: Instant::now(),
            json: args.progress == ProgressArg::Json,
            ended: AtomicBool::new(false),
            asks: AtomicBool::new(false),
            limit: Mutex::default(),
            title: draws.then(Title::begin),
        });
        let every = if draws { DRAW_EVERY } else { Duration::from_millis(args.stats) };
        let shown = Arc::clone(&progress);
        // Without this thread the job runs, but shows no progress.
        let _ = thread::Builder::new().name("progress".into()).spawn(move || {
            let every = Some(every).filter(|every| wanted && !every.is_zero());
            shown.run(draws, every);
        });
        progress
    }

    /// Samples the job, and draws or prints at intervals.
    fn run(&self, draws: bool, every: Option<Duration>) {
        let mut next = every;
        while !self.ended.load(Ordering::Relaxed) {
            thread::sleep(every.unwrap_or(DRAW_EVERY).min(DRAW_EVERY));
            self.follower().sample();
            if draws {
                self.draw();
            } else if let (Some(then), Some(every)) = (next, every)
                && self.started.elapsed() >= then
            {
                next = Some(then + every);
                self.status_line();
            }
        }
    }

    fn draw(&self) {
        let figures = self.figures();
        self.screen.draw(&self.form.lines(&figures, screen::columns()));
        if let Some(title) = &self.title {
            title.show(&figures);
        }
    }

    fn figures(&self) -> Figures {
        self.follower().figures(self.started.elapsed(), self.limit())
    }

    /// Prints one status line; SIGUSR1 does this too.
    pub fn status_line(&self) {
        if self.ended.load(Ordering::Relaxed) || self.is_asking() {
            return;
        }
        let figures = self.figures();
        if self.json {
            self.say(&self.json_line(&figures));
        } else {
            self.say(&format!("dmover: {}", self.form.line(&figures)));
        }
    }

    /// Follows a further pass of the same job, which has its own counters.
    pub fn again(&self, counters: Arc<Counters>) {
        let mut follower = self.follower();
        *follower = Follower::new(follower.part(), counters);
    }

    /// Follows the reading back of what the job wrote.
    pub fn reading_back(&self, counters: Arc<Counters>) {
        let mut follower = self.follower();
        let get = |counter| follower.counters().get(counter);
        let bytes = get(Counter::BytesCopied) + get(Counter::BytesShared);
        let entries = [
            Counter::FilesCopied,
            Counter::DirectoriesCreated,
            Counter::SymlinksCopied,
            Counter::SpecialsCopied,
            Counter::HardLinksCreated,
        ];
        let entries = entries.into_iter().map(get).sum();
        counters.outlook().expect(Total::About(Amount { entries, bytes }));
        *follower = Follower::new(Part::ReadingBack, counters);
    }

    fn follower(&self) -> MutexGuard<'_, Follower> {
        self.follower.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what limits the speed of the job now.
    pub fn note_limit(&self, limit: &Limit) {
        *self.limit.lock().unwrap_or_else(PoisonError::into_inner) = Some(limit.clone());
    }

    fn limit(&self) -> Option<Limit> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Prints a line on standard error above the progress lines.
    pub fn say(&self, text: &str) {
        self.beside(|| super::say(text));
    }

    /// Calls a function that prints on the terminal.
    pub fn beside<T>(&self, print: impl FnOnce() -> T) -> T {
        self.screen.beside(print)
    }

    /// Calls a function that asks the user. Nothing is drawn over the question.
    pub fn asking<T>(&self, ask: impl FnOnce() -> T) -> T {
        self.asks.store(true, Ordering::SeqCst);
        let answer = self.beside(ask);
        self.asks.store(false, Ordering::SeqCst);
        answer
    }

    /// Whether a question is on the screen: a thread that prints would wait for the answer.
    pub fn is_asking(&self) -> bool {
        self.asks.load(Ordering::SeqCst)
    }

    /// Ends the progress for good.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.screen.end();
        if let Some(title) = &self.title {
            title.end();
        }
    }

    fn json_line(&self, figures: &Figures) -> String {
        let (counters, part) = {
            let follower = self.follower();
            (Arc::clone(follower.counters()), follower.part())
        };
        let mut object = serde_json::Map::new();
        let mut put = |name: &str, value: Value| _ = object.insert(name.into(), value);
        put("type", "status".into());
        put("schema", super::json::SCHEMA.into());
        put("time", jiff::Timestamp::now().to_string().into());
        put("phase", if part == Part::ReadingBack { "read_back" } else { "job" }.into());
        put("stage", counters.outlook().stage().word().into());
        put("elapsed_s", self.started.elapsed().as_secs_f64().into());
        let (known, total) = match figures.whole {
            Total::Unknown => ("unknown", None),
            Total::AtLeast(total) => ("at_least", Some(total)),
            Total::About(total) => ("about", Some(total)),
        };
        put("total", known.into());
        if let Some(total) = total {
            put("entries_total", total.entries.into());
            put("bytes_total", total.bytes.into());
        }
        if let Some(estimate) = &figures.estimate {
            put("percent", (estimate.fraction * 100.0).into());
            put("eta_s", json!(estimate.left_s.map(|(low, high)| [low, high])));
        }
        put("rate_bytes_per_s", figures.rate_now.into());
        if let Some((path, age)) = &figures.oldest {
            let path = dmover_model::PathBytes(path.clone()).to_path();
            let fields = super::json::path_fields(&path);
            let age = [("age_s".to_owned(), age.as_secs_f64().into())];
            put("oldest", Value::Object(fields.chain(age).collect()));
        }
        if let Some(limit) = &figures.limit {
            put("limit", super::json::limit_value(limit));
        }
        let counts = counters.snapshot();
        object.extend(counts.iter().map(|(c, value)| (c.name().to_owned(), value.into())));
        Value::Object(object).to_string()
    }
}
