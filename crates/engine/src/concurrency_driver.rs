//! Controls the number of movers for each class of tasks: it samples their activity, lets `plan` decide, and finds the
//! limit.
use dmover_host::processors::Times;
use dmover_local::root::Root;
use dmover_model::{Event, Limit};
use dmover_observe::{Activity, CLASSES, Counter, CurrentActivity};
use dmover_plan::bottleneck::Profile;
use dmover_plan::concurrency::{Bounds, Controller, Window};
use dmover_plan::line_limit::LineFacts;
use dmover_plan::stragglers::Done;
use dmover_schedule::time::Instant;
use std::sync::Arc;
use std::time::Duration;

use crate::context::Engine;
use crate::queue::{Class, Gate};
use crate::source_lines::SourceLines;

/// Time between two samples.
pub(crate) const SAMPLE: Duration = Duration::from_millis(5);
/// The length of a window: long enough for some hundred small files, short enough to reach many movers in a second.
const WINDOW: Duration = Duration::from_millis(100);
/// A window may end after this time if much was done in it: a step without gain is then undone sooner.
const QUICK_WINDOW: Duration = Duration::from_millis(40);
const QUICK_ENTRIES: u64 = 400;
/// Movers that read from another host are at least so many, because each waits for round trips, and share one connection:
/// fewer would not relieve it.
const FAR_MOVERS: usize = 4;
/// At the begin there are more of them on a long line: this many for each millisecond of a round trip, as each asks for a directory
/// of short files at a time (1 MB of 100 files of 10 KiB), and 1 Gbit/s carries 125 kB in that time. Then they are adapted.
const FAR_MOVERS_PER_MS: f64 = 0.6;
/// What takes longer is no line but a slow file system.
const FAR_ROUND_TRIP_MAX: Duration = Duration::from_millis(300);
/// The length of their windows: several round trips of a long line.
const FAR_WINDOW: Duration = Duration::from_millis(500);
/// From this share on, processors count as saturated for the controllers; a window has few ticks.
const SATURATED: f64 = 0.95;
/// At least this share must be our own: other processes at low priority yield to more movers.
const OWN_PART: f64 = 0.3;
/// With this few movers, a trial with fewer is costly.
const FEW: usize = 2;
/// The interval at which the limit is determined again.
const NAMING: Duration = Duration::from_secs(1);
/// The number of movers without `-j` on hosts with up to that many processors; larger hosts get one for each processor,
/// up to the second number.
const MOVERS: (usize, usize) = (64, 256);
/// The same for content of large files: more movers are worth their buffers only while storage can accept more at a
/// time.
const LARGE_MOVERS: (usize, usize) = (16, 64);

/// How many movers may run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    /// The most of both classes together.
    pub most: usize,
    /// The user set the number.
    pub fixed: bool,
    /// Movers wait for another host most of the time, and this long for each answer; `None`: the source is of this host.
    pub round_trip: Option<Duration>,
}

impl Allowance {
    /// The number that the user set (0: none), or many more than processors, because most movers wait.
    pub fn new(asked: usize) -> Self {
        let round_trip = None;
        match asked {
            0 => {
                let cores = dmover_host::processors::available();
                Self { most: cores.clamp(MOVERS.0, MOVERS.1), fixed: false, round_trip }
            }
            most => Self { most, fixed: true, round_trip },
        }
    }

    /// The same for a job that reads these roots.
    pub fn reading<'a>(self, roots: impl IntoIterator<Item = &'a Root>) -> Self {
        let far = roots.into_iter().filter_map(|root| root.source.remote());
        Self { round_trip: far.map(|tree| tree.round_trip()).max(), ..self }
    }

    /// How many movers begin with names and short files.
    fn first(self, cores: usize) -> usize {
        let more = self.round_trip.map_or(0.0, |time| {
            time.min(FAR_ROUND_TRIP_MAX).as_secs_f64() * 1e3 * FAR_MOVERS_PER_MS
        });
        (cores + more as usize).min(self.most)
    }

    /// The least and the usual number of movers.
    fn few(self, cores: usize) -> (usize, usize) {
        match self {
            Self { most, fixed: true, .. } => (most, cores.min(FEW)),
            Self { round_trip: Some(_), most, .. } => (FAR_MOVERS.min(most), FAR_MOVERS.min(most)),
            _ => (1, cores.min(FEW)),
        }
    }

    fn window(self) -> (Duration, Duration) {
        if self.round_trip.is_some() { (FAR_WINDOW, FAR_WINDOW) } else { (WINDOW, QUICK_WINDOW) }
    }
}

/// One class of tasks.
struct Lane {
    controller: Controller,
    /// Busy movers in this window, summed over samples.
    seen: u64,
    /// Busy movers since the start.
    busy: u64,
    /// Work done before the window began.
    work: u64,
}

/// Times of the processors of this host at several moments.
struct ProcessorTimes {
    /// When the job began.
    first: Option<Times>,
    /// When a limit was last named.
    named: Option<Times>,
    /// When the window began.
    window: Option<Times>,
    /// The seconds of this process then.
    window_own_s: f64,
}

impl ProcessorTimes {
    fn now() -> Self {
        let times = dmover_host::processors::times();
        let window_own_s = dmover_host::processors::process_seconds();
        Self { first: times, named: times, window: times, window_own_s }
    }
}

/// The driver's view of its movers.
pub(crate) struct Pace {
    lanes: [Lane; CLASSES],
    allowance: Allowance,
    cores: usize,
    activities: Vec<Arc<CurrentActivity>>,
    sampled: Instant,
    window: Instant,
    samples: u64,
    /// Samples since the last limit, and since the start.
    recent: Profile,
    whole: Profile,
    processors: ProcessorTimes,
    /// Entries that were found before the window.
    window_entries: u64,
    named: Instant,
    line: SourceLines,
    limit: Option<Limit>,
}

impl Pace {
    /// The present limit, once it is known.
    pub fn limit(&self) -> Option<&Limit> {
        self.limit.as_ref()
    }

    pub fn new(allowance: Allowance) -> Self {
        let Allowance { most, fixed, .. } = allowance;
        let cores = dmover_host::processors::available();
        let lane = |class: Class| {
            let (most, start) = match class {
                Class::Small => (most, allowance.first(cores)),
                Class::Large if fixed => (most, most),
                Class::Large => (most.min(cores.clamp(LARGE_MOVERS.0, LARGE_MOVERS.1)), 2 * cores),
            };
            let (least, usual) = allowance.few(cores);
            let bounds = Bounds { least, usual, most };
            Lane { controller: Controller::new(bounds, start), seen: 0, busy: 0, work: 0 }
        };
        let now = Instant::now();
        Self {
            lanes: Class::ALL.map(lane),
            allowance,
            cores,
            activities: Vec::new(),
            sampled: now,
            window: now,
            samples: 0,
            recent: Profile::default(),
            whole: Profile::default(),
            processors: ProcessorTimes::now(),
            window_entries: 0,
            named: now,
            line: SourceLines::now(),
            limit: None,
        }
    }

    /// The work of the movers here since the start.
    pub fn done(&self) -> Done {
        let mut profile = self.whole;
        profile.add(&self.recent);
        Done {
            work: Class::ALL.map(|class| self.work(class as usize)),
            busy: Class::ALL.map(|class| self.lanes[class as usize].busy),
            profile,
        }
    }

    /// How many movers are needed for the present limits of both classes.
    pub fn movers(&self) -> usize {
        let all: usize = self.lanes.iter().map(|lane| lane.controller.width()).sum();
        all.min(self.allowance.most)
    }

    /// Adds a new mover.
    pub fn watch(&mut self, activity: Arc<CurrentActivity>) {
        self.activities.push(activity);
    }

    /// Tells the queue how many movers each class may have.
    pub fn apply(&self, engine: &Engine, gate: &dyn Gate) {
        for class in Class::ALL {
            gate.allow(class, self.lanes[class as usize].controller.width());
        }
        engine.resources.set_movers(self.movers());
    }

    /// Takes a sample, and decides at the end of a window. Must be called often.
    pub fn turn(&mut self, engine: &Engine, gate: &dyn Gate) {
        if self.sampled.elapsed() < SAMPLE {
            return;
        }
        self.sampled = Instant::now();
        self.sample();
        let elapsed = self.window.elapsed();
        let (window, quick) = self.allowance.window();
        if elapsed < window && (elapsed < quick || !self.has_seen_enough(engine)) {
            return;
        }
        if self.decide(engine) {
            self.apply(engine, gate);
        }
        if self.named.elapsed() >= NAMING {
            self.named = Instant::now();
            self.name(engine);
        }
    }

    /// Whether the window has seen enough: many small entries are conclusive in a short time, large ones are not.
    fn has_seen_enough(&self, engine: &Engine) -> bool {
        let found = engine.reports.counters.get(Counter::EntriesFound) - self.window_entries;
        self.lanes[Class::Large as usize].seen == 0 && found >= QUICK_ENTRIES
    }

    fn work(&self, class: usize) -> u64 {
        self.activities.iter().map(|activity| activity.work(class)).sum()
    }

    fn sample(&mut self) {
        self.samples += 1;
        for current in &self.activities {
            let (activity, class) = current.look();
            let profile = &mut self.recent;
            match activity {
                Activity::Idle => profile.idle += 1,
                Activity::SourceNames => profile.source_names += 1,
                Activity::SourceData => profile.source_data += 1,
                Activity::TargetNames => profile.target_names += 1,
                Activity::TargetData => profile.target_data += 1,
                Activity::KernelCopy => profile.kernel_copy += 1,
                Activity::Capped => profile.capped += 1,
            }
            if activity != Activity::Idle {
                self.lanes[class].seen += 1;
                self.lanes[class].busy += 1;
            }
        }
    }

    /// Ends a window. Returns whether a number has changed.
    fn decide(&mut self, engine: &Engine) -> bool {
        let elapsed_s = self.window.elapsed().as_secs_f64();
        self.window = Instant::now();
        let samples = std::mem::take(&mut self.samples).max(1) as f64;
        let times = dmover_host::processors::times();
        let busy = busy(std::mem::replace(&mut self.processors.window, times), times);
        let own_s = dmover_host::processors::process_seconds();
        let own = own_s - std::mem::replace(&mut self.processors.window_own_s, own_s);
        let is_ours = own >= OWN_PART * elapsed_s * self.cores as f64;
        let saturated = is_ours && busy.is_some_and(|share| share >= SATURATED);
        self.window_entries = engine.reports.counters.get(Counter::EntriesFound);
        let mut changed = false;
        let work = Class::ALL.map(|class| self.work(class as usize));
        for (lane, work) in self.lanes.iter_mut().zip(work) {
            let done = (work - lane.work) as f64;
            lane.work = work;
            let movers = std::mem::take(&mut lane.seen) as f64 / samples;
            let before = lane.controller.width();
            let window = Window { elapsed_s, work: done, movers, saturated };
            changed |= lane.controller.observe(&window) != before;
        }
        changed
    }

    /// Reports the limit if it has changed.
    fn name(&mut self, engine: &Engine) {
        let limit = self.end_stretch(engine);
        let known = self.limit.as_ref().map(|limit| limit.what);
        if known != Some(limit.what) {
            engine.reports.show(Event::Limit(limit.clone()));
        }
        self.limit = Some(limit);
    }

    fn end_stretch(&mut self, engine: &Engine) -> Limit {
        let now = dmover_host::processors::times();
        self.recent.processors_busy = busy(self.processors.named, now);
        self.processors.named = now;
        self.recent.bounded = self.allowance.fixed
            || self.lanes.iter().any(|l| l.controller.is_bounded() && !l.controller.is_settled());
        let limit = limit(&self.recent, self.line.stretch(engine));
        self.whole.add(&self.recent);
        self.recent = Profile::default();
        limit
    }

    /// The limit over the whole job.
    pub fn summary(&mut self, engine: &Engine) -> Limit {
        self.end_stretch(engine);
        self.whole.processors_busy = busy(self.processors.first, dmover_host::processors::times());
        limit(&self.whole, self.line.whole(engine))
    }
}

fn limit(profile: &Profile, line: Option<LineFacts>) -> Limit {
    line.map_or_else(|| profile.limit(), |line| profile.limit_over(&line))
}

fn busy(from: Option<Times>, to: Option<Times>) -> Option<f64> {
    to?.busy_since(&from?)
}
