//! Runs passes over reported changes until the job is stopped.
//!
//! The first pass scans everything while the feed is already listening; later passes scan only reported paths. A full
//! scan is repeated if that is not enough: the feed has lost events, a name belongs to an inode with several names, an
//! entry failed, or the last full scan was long ago.
use dmover_journal::{Ask, JobPhase, StateDirectory};
use dmover_local::fanotify_feed::{PLACES_MAX, TOO_MANY};
use dmover_local::named_directory::{DirectoryObject, real_path};
use dmover_model::{
    ChangeFeed, DeleteWhen, Fatal, FeedBatch, FeedError, JobSpec, PathBytes, TreePath,
};
use dmover_observe::{Counter, Counters};
use dmover_plan::debounce::{Patience, Pending};
use dmover_schedule::time::Instant;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::control::{StopReason, stop_words};
use crate::driver::{Job, JobFiles, Then, run_job};
use crate::job_identity::job_id;
use crate::job_list::JobList;
use crate::report::{JobReport, JobState};

/// A file that is being written and was not closed is scanned after this time in any case; no path waits longer than
/// the second time.
const WRITTEN_MS: u64 = 1000;
const MOST_MS: u64 = 15_000;
/// After a problem, full scans are repeated: first after the first time, and at least as often as the second.
const TROUBLE_MS: u64 = 60_000;
const TROUBLE_MOST_MS: u64 = 3_600_000;
/// Full scans for single entries may take at most one part in this many of the time.
const SHARE: u32 = 20;

/// How often requests of other processes are checked.
const LISTEN_EVERY: Duration = Duration::from_millis(500);

/// The intervals of a watch.
#[derive(Debug, Clone, Copy)]
pub struct WatchOptions {
    /// A path is scanned after this time without further changes, in milliseconds.
    pub rest_ms: u64,
    /// The interval of full scans, in milliseconds; 0: never.
    pub reconcile_ms: u64,
}

/// An event of a watch.
#[derive(Debug)]
pub enum Watched<'a> {
    /// A full scan begins, for this reason.
    Begins(&'a str),
    /// A full scan has ended.
    Everything(&'a JobReport),
    /// Changed paths were scanned.
    Changes {
        /// The report of the pass.
        report: &'a JobReport,
        /// The number of paths.
        places: usize,
        /// The age of the oldest change, in milliseconds.
        lag_ms: u64,
    },
}

/// Runs passes until the job is stopped or cannot continue. Returns the last report; `None`: it was stopped before the
/// first one.
///
/// # Errors
/// A pass or the feed cannot continue.
pub fn watch(
    job: Job,
    feed: &mut dyn ChangeFeed,
    options: WatchOptions,
    tell: &mut dyn FnMut(Watched<'_>),
) -> Result<Option<JobReport>, Fatal> {
    let Some(state) = job.files.state.clone() else {
        let hint = "omit --no-state, or choose a directory with --state-dir";
        return Err(Fatal::refused("--watch needs a state directory", hint));
    };
    let id = job_id(&job.spec, &JobList::None, Some(&state))?;
    let lock = Arc::new(state.lock(&id)?);
    let own = own_place(&job, &state);
    let ends = WatchedEnds::of(job.spec.sources.first());
    let patience = Patience {
        rest_ms: options.rest_ms,
        written_ms: WRITTEN_MS.max(options.rest_ms),
        most_ms: MOST_MS,
    };
    let mut watch = Watch {
        job: Job { files: JobFiles { lock: Some(lock), ..job.files }, then: Then::Watching, ..job },
        state,
        id,
        own,
        ends,
        patience,
        options,
        began: Instant::now(),
        pending: Pending::default(),
        position: 0,
        due: Some((0, "the watch starts".into())),
        troubles: 0,
        paused: false,
        last: None,
        last_whole: None,
    };
    let ended = watch.run(feed, tell);
    if let Err(error) = &ended {
        watch.state.tell_failure(&watch.id, error.to_string(), error.exit_code().code());
    }
    ended
}

/// The state directory, if it is inside the source: changes there must be ignored.
fn own_place(job: &Job, state: &StateDirectory) -> Option<TreePath> {
    let source = real_path(&job.spec.sources.first()?.to_path())?;
    let own = state.real_path()?;
    TreePath::new(own.strip_prefix(source).ok()?.as_os_str().as_bytes()).ok()
}

fn object_of(directory: Option<&PathBytes>) -> Option<DirectoryObject> {
    DirectoryObject::at(&directory?.to_path())
}

fn real_path_of(directory: Option<&PathBytes>) -> Option<PathBuf> {
    real_path(&directory?.to_path())
}

/// The directories at both ends when the watch began.
struct WatchedEnds {
    source: Option<DirectoryObject>,
    /// The canonical path of the source, which is a part of the job's identity.
    source_path: Option<PathBuf>,
    /// The destination directory, after the first full scan.
    target: Option<DirectoryObject>,
}

impl WatchedEnds {
    fn of(source: Option<&PathBytes>) -> Self {
        Self { source: object_of(source), source_path: real_path_of(source), target: None }
    }

    /// Checks that both sides are still the same directories. A rename, mount or unmount at or above them is not
    /// reported by the feed.
    fn check(&self, spec: &JobSpec) -> Result<(), Fatal> {
        let source = spec.sources.first();
        let (directory, what) =
            if object_of(source) != self.source || real_path_of(source) != self.source_path {
                (source, "dmover watched")
            } else if self.target.is_some() && object_of(Some(&spec.destination)) != self.target {
                (Some(&spec.destination), "dmover updated")
            } else {
                return Ok(());
            };
        let shown = directory.map(PathBytes::to_path).unwrap_or_default();
        Err(Fatal::Watch {
            message: format!("'{}' is no longer the directory that {what}", shown.display()),
            hint: "check that it is mounted; if it is the right directory, run the same command \
                again"
                .into(),
        })
    }
}

struct Watch {
    job: Job,
    state: StateDirectory,
    id: dmover_model::JobId,
    /// The state directory, if it is inside the source: changes there are ignored.
    own: Option<TreePath>,
    ends: WatchedEnds,
    patience: Patience,
    options: WatchOptions,
    began: Instant,
    pending: Pending,
    position: u64,
    /// When a full scan is due, and why.
    due: Option<(u64, String)>,
    troubles: u32,
    paused: bool,
    last: Option<JobReport>,
    /// The duration of the last full scan.
    last_whole: Option<Duration>,
}

impl Watch {
    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn run(
        &mut self,
        feed: &mut dyn ChangeFeed,
        tell: &mut dyn FnMut(Watched<'_>),
    ) -> Result<Option<JobReport>, Fatal> {
        loop {
            self.hear(feed.collect(Duration::ZERO).map_err(unheard)?);
            if !self.paused && !self.job.control.is_stopping() {
                let stopped = self.turn(tell)?;
                feed.acknowledge(self.position).map_err(unheard)?;
                if stopped.is_some() {
                    return Ok(stopped);
                }
            }
            self.listen()?;
            if let (Some(_), None) = (self.job.control.reason(), &self.last) {
                return Ok(None);
            }
            if let (Some(reason), Some(last)) = (self.job.control.reason(), &self.last) {
                let cancelled = reason == StopReason::Cancelled;
                let phase = if cancelled { JobPhase::Cancelled } else { JobPhase::Stopped };
                let report = JobReport { state: JobState::Stopped(reason), ..last.clone() };
                let code = report.process_code(report.exit_code());
                self.state.tell_phase(&self.id, phase, Some((stop_words(reason), code)));
                return Ok(Some(report));
            }
            let wait = feed.collect(self.wait()).map_err(unheard)?;
            self.hear(wait);
        }
    }

    fn hear(&mut self, batch: FeedBatch) {
        let now = self.now_ms();
        self.position = batch.position;
        for place in batch.places {
            let own = self.own.as_ref().is_some_and(|own| is_below(own, &place.path));
            if !own {
                self.pending.add(place, now);
            }
        }
        if self.pending.len() > PLACES_MAX {
            self.pending.take_all();
            self.look_at_all(now, TOO_MANY.into());
        }
        if let Some(why) = batch.lost {
            self.look_at_all(now, why);
        }
        if let Some(why) = batch.elsewhere {
            self.look_at_all(now + self.until_worth_it(), why);
        }
    }

    /// How long a full scan for single paths is delayed, in milliseconds.
    fn until_worth_it(&self) -> u64 {
        let all = self.last_whole.unwrap_or_default() * SHARE;
        (all.as_millis() as u64).max(1000)
    }

    /// Schedules a full scan at this time or earlier.
    fn look_at_all(&mut self, at_ms: u64, why: String) {
        if self.due.as_ref().is_none_or(|(due, _)| *due > at_ms) {
            self.due = Some((at_ms, why));
        }
    }

    /// The time until the next step.
    fn wait(&self) -> Duration {
        let due = self.due.as_ref().map(|(at, _)| *at);
        let next = self.pending.next_ms(&self.patience).into_iter().chain(due).min();
        let wait =
            next.map_or(LISTEN_EVERY, |at| Duration::from_millis(at.saturating_sub(self.now_ms())));
        if self.paused { LISTEN_EVERY } else { wait.min(LISTEN_EVERY) }
    }

    fn pause(&mut self, paused: bool) {
        self.paused = paused;
        let phase = if paused { JobPhase::Paused } else { JobPhase::Watching };
        self.state.tell_phase(&self.id, phase, None);
    }

    fn listen(&mut self) -> Result<(), Fatal> {
        self.ends.check(&self.job.spec)?;
        match self.state.asked(&self.id) {
            Some(Ask::Pause) => self.pause(true),
            Some(Ask::Resume) => self.pause(false),
            Some(Ask::Cancel) => {
                self.job.control.stop(StopReason::Cancelled);
            }
            None => {}
        }
        let most = self.job.spec.limits.duration_max_ms;
        if most.is_some_and(|most| self.now_ms() >= most) {
            self.job.control.stop(StopReason::Duration);
        }
        Ok(())
    }

    /// Performs the steps that are due. Returns the report of the last pass.
    fn turn(&mut self, tell: &mut dyn FnMut(Watched<'_>)) -> Result<Option<JobReport>, Fatal> {
        let now = self.now_ms();
        if self.due.as_ref().is_some_and(|(at, _)| *at <= now) {
            let why = self.due.take().map(|(_, why)| why).unwrap_or_default();
            return self.everything(&why, tell);
        }
        let since = self.pending.since_ms().unwrap_or(now);
        let places = self.pending.take_due(now, &self.patience);
        if places.is_empty() {
            return Ok(None);
        }
        let count = places.len();
        self.job.list = JobList::Changed(places.into());
        let report = self.pass()?;
        tell(Watched::Changes { report: &report, places: count, lag_ms: self.now_ms() - since });
        self.take_over(&report, now);
        Ok(self.ended(report))
    }

    fn everything(
        &mut self,
        why: &str,
        tell: &mut dyn FnMut(Watched<'_>),
    ) -> Result<Option<JobReport>, Fatal> {
        tell(Watched::Begins(why));
        self.pending.take_all();
        self.job.list = JobList::None;
        let report = self.pass()?;
        tell(Watched::Everything(&report));
        self.last_whole = Some(report.elapsed);
        self.ends.target = object_of(Some(&self.job.spec.destination));
        let now = self.now_ms();
        if self.options.reconcile_ms > 0 {
            self.look_at_all(
                now + self.options.reconcile_ms,
                "the --reconcile interval is over".into(),
            );
        }
        if let Some(again) = &report.needs_all {
            // What cannot be put in order waits like anything else that fails.
            let wait = if again == why { TROUBLE_MS } else { 0 };
            self.look_at_all(now + wait, again.clone());
        }
        if report.resumed {
            // The results of an interrupted run may have changed since, without a report.
            self.look_at_all(now, "an interrupted pass was resumed".into());
        }
        self.note_trouble(&report, now);
        Ok(self.ended(report))
    }

    fn pass(&mut self) -> Result<JobReport, Fatal> {
        self.ends.check(&self.job.spec)?;
        self.job.observers.counters = Arc::new(Counters::default());
        let asked = self.job.spec.policy.sync.as_ref().and_then(|sync| sync.delete.clone());
        if let Some(delete) =
            self.job.spec.policy.sync.as_mut().and_then(|sync| sync.delete.as_mut())
            && matches!(self.job.list, JobList::Changed(_))
            && delete.when == DeleteWhen::After
        {
            // `after` would scan all names of both sides again.
            delete.when = DeleteWhen::Delay;
        }
        let report = run_job(&self.job);
        if let Some(sync) = &mut self.job.spec.policy.sync {
            sync.delete = asked;
        }
        let report = report?;
        self.last = Some(report.clone());
        Ok(report)
    }

    /// Handles paths that a pass over changes could not process.
    fn take_over(&mut self, report: &JobReport, now: u64) {
        if let Some(why) = &report.needs_all {
            self.look_at_all(now + self.until_worth_it(), why.clone());
        }
        self.note_trouble(report, now);
    }

    fn note_trouble(&mut self, report: &JobReport, now: u64) {
        // A file that vanished or kept changing is reported again when that ends.
        let moved_on = report.counters.get(Counter::SourceErrors);
        let errors = report.counters.get(Counter::Errors).saturating_sub(moved_on);
        if errors == 0 && report.withheld.is_none() {
            if matches!(self.job.list, JobList::None) {
                self.troubles = 0;
            }
            return;
        }
        let wait = TROUBLE_MS.saturating_mul(1 << self.troubles.min(10)).min(TROUBLE_MOST_MS);
        self.troubles += 1;
        self.look_at_all(now + wait, "entries failed".into());
    }

    /// Whether a pass is the last one, because it was stopped or its deletes were withheld.
    fn ended(&self, report: JobReport) -> Option<JobReport> {
        use dmover_model::WithheldReason::{Limit, Unmeant};
        let limited =
            report.withheld.as_ref().is_some_and(|w| matches!(w.reason, Limit(_) | Unmeant(..)));
        if limited {
            let code = report.exit_code().code();
            let words = report.withheld.as_ref().map(|withheld| withheld.reason.words());
            let end = Some((words.unwrap_or_default(), code));
            self.state.tell_phase(&self.id, JobPhase::Stopped, end);
        }
        (report.state != JobState::Finished || limited).then_some(report)
    }
}

fn is_below(upper: &TreePath, path: &TreePath) -> bool {
    let rest = path.as_bytes().strip_prefix(upper.as_bytes());
    rest.is_some_and(|rest| upper.is_root() || rest.is_empty() || rest[0] == b'/')
}

fn unheard(error: FeedError) -> Fatal {
    Fatal::Watch { message: error.message, hint: error.hint }
}
