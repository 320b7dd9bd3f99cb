//! The control files of a running job: its status for other processes, and their requests.
use dmover_journal::{
    Ask, Failures, JobFile, JobLock, JobPhase, JobStatus, StateDirectory, now_ms,
};
use dmover_model::{JobId, Limit};
use dmover_observe::{Amount, Counter, Counters, Total};
use dmover_schedule::time::Instant;
use std::time::Duration;

use super::{Job, Standing};
use crate::context::Engine;
use crate::control::StopReason;
use crate::precount;
use crate::report::{JobReport, JobState};

/// The greatest age of the status file.
const WRITE_EVERY: Duration = Duration::from_secs(2);
/// How often the job checks for requests.
const LISTEN_EVERY: Duration = Duration::from_millis(200);

/// What follows after a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Then {
    /// Nothing: the job ends.
    #[default]
    Nothing,
    /// The job waits for changes.
    Watching,
    /// The caller continues the job and records its final state.
    More,
}

fn in_words(limit: &Limit) -> String {
    format!("{} ({})", limit.what.word(), limit.evidence)
}

/// What a job has found so far, and what is done of that.
fn found_and_settled(counters: &Counters) -> (Amount, Amount) {
    let get = |counter| counters.get(counter);
    let settled = precount::SETTLED.into_iter().map(get).sum();
    let (entries, bytes) = (get(Counter::EntriesFound), get(Counter::BytesFound));
    (Amount { entries, bytes }, Amount { entries, bytes: settled })
}

/// The files of a job that other processes read and write.
#[derive(Debug)]
pub(super) struct Outside {
    state: StateDirectory,
    job: JobId,
    begun_ms: i64,
    resumed: bool,
    written: Instant,
    listened: Instant,
    paused: bool,
    then: Then,
    /// What the run selects, if it sees all of that.
    selection: Option<String>,
    /// This run is a part of another job.
    is_part: bool,
    /// Set if the job is visible only while it runs, in a directory of its own.
    _passing: Option<Passing>,
}

/// A directory in the state directory that is removed with this value.
#[derive(Debug)]
struct Passing {
    state: StateDirectory,
    job: JobId,
    lock: JobLock,
}

impl Drop for Passing {
    fn drop(&mut self) {
        if let Err(error) = self.state.forget(&self.job.0, &self.lock) {
            tracing::warn!(%error, "cannot remove the status files of an ended job");
        }
    }
}

impl Outside {
    /// Publishes the start of the job. `None`: the job has no control files.
    pub fn of(job: &Job, id: &JobId, run: u64, engine: &Engine) -> Option<Self> {
        if let Some((state, whole)) = &job.files.part_of {
            return Some(Self::part(state, whole, engine));
        }
        if let Some(state) = job.files.shown_in.as_ref().filter(|_| job.files.state.is_none()) {
            return Self::passing(state, job, &JobId(format!("{id}-{run:016x}")), engine);
        }
        let state = job.files.state.as_ref().filter(|_| !job.spec.policy.dry_run)?;
        let selection = precount::selection_of(&job.spec, &job.list);
        let whole = Self::part(state, id, engine);
        let outside = Self { then: job.then, is_part: false, selection, ..whole };
        outside.begin(job, id, engine);
        Some(outside)
    }

    /// Control files of a job that writes nothing: they are removed at the end, and several runs may exist at the same
    /// time.
    fn passing(state: &StateDirectory, job: &Job, id: &JobId, engine: &Engine) -> Option<Self> {
        state.forget_passed();
        let lock = state.lock(id).inspect_err(
            |error| tracing::warn!(%error, "cannot lock the job; 'dmover jobs' does not list it"),
        );
        let passing = Passing { state: state.clone(), job: id.clone(), lock: lock.ok()? };
        let whole = Self::part(state, id, engine);
        let outside = Self { then: job.then, is_part: false, _passing: Some(passing), ..whole };
        outside.begin(job, id, engine);
        Some(outside)
    }

    fn begin(&self, job: &Job, id: &JobId, engine: &Engine) {
        let file = JobFile {
            job: id.0.clone(),
            verb: job.spec.verb.word().into(),
            sources: job.spec.sources.clone(),
            sources_are_remote: job.spec.sources_are_remote,
            destination: job.spec.destination.clone(),
            created_ms: now_ms(),
            ..job.files.description.clone()
        };
        if let Err(error) = self.state.describe(id, &file) {
            tracing::warn!(%error, "cannot write the description of the job");
        }
        self.write(&JobStatus { tasks_left: 1, ..self.status(engine) });
    }

    /// Control files of a run that is a part of a job.
    fn part(state: &StateDirectory, job: &JobId, engine: &Engine) -> Self {
        let now = Instant::now();
        Self {
            state: state.clone(),
            job: job.clone(),
            begun_ms: now_ms(),
            resumed: engine.facts.is_resumed,
            written: now,
            listened: now,
            paused: false,
            then: Then::More,
            selection: None,
            is_part: true,
            _passing: None,
        }
    }

    fn write(&self, status: &JobStatus) {
        if self.is_part {
            // The caller has reported the result.
            return self.state.tell_part(&self.job, status);
        }
        if let Err(error) = self.state.put_status(&self.job, status) {
            tracing::warn!(%error, "cannot write the status of the job");
        }
    }

    fn status(&self, engine: &Engine) -> JobStatus {
        let counters = engine.reports.counters.snapshot();
        let counters = counters.iter().map(|(counter, value)| (counter.name().to_owned(), value));
        let errors = engine.reports.tally().errors;
        let outlook = engine.reports.counters.outlook();
        let (found, settled) = found_and_settled(&engine.reports.counters);
        let total = match outlook.total().corrected(found, settled) {
            Total::About(total) => Some((total.entries, total.bytes)),
            Total::AtLeast(_) | Total::Unknown => None,
        };
        JobStatus {
            stage: outlook.stage().word().to_owned(),
            total,
            selection: self.selection.clone(),
            unlisted: engine.reports.failures.as_ref().and_then(Failures::lost),
            phase: if self.paused { JobPhase::Paused } else { JobPhase::Running },
            reason: None,
            exit_code: None,
            pid: std::process::id(),
            host: dmover_host::name(),
            begun_ms: self.begun_ms,
            updated_ms: now_ms(),
            resumed: self.resumed,
            tasks_left: 0,
            counters: counters.collect(),
            errors: errors.iter().map(|(class, n)| (class.word().to_owned(), *n)).collect(),
            limit: None,
            connections: engine.connections(),
            movers: None,
        }
    }

    fn status_now(&self, engine: &Engine, standing: &Standing<'_>) -> JobStatus {
        JobStatus {
            tasks_left: standing.tasks_left,
            limit: standing.limit().as_ref().map(in_words),
            movers: standing.movers(),
            ..self.status(engine)
        }
    }

    /// Handles requests and updates the status at intervals. Returns whether the job is paused.
    pub fn turn(&mut self, engine: &Engine, standing: &Standing<'_>) -> bool {
        if self.listened.elapsed() >= LISTEN_EVERY {
            self.listened = Instant::now();
            let before = self.paused;
            match self.state.asked(&self.job) {
                Some(Ask::Pause) => self.paused = true,
                Some(Ask::Resume) => self.paused = false,
                Some(Ask::Cancel) => {
                    engine.control.stop(StopReason::Cancelled);
                }
                None => {}
            }
            if before != self.paused {
                self.written = Instant::now();
                self.write(&self.status_now(engine, standing));
            }
        }
        if self.written.elapsed() >= WRITE_EVERY {
            self.written = Instant::now();
            self.write(&self.status_now(engine, standing));
        }
        self.paused && !engine.control.is_stopping()
    }

    /// Records how the job has ended.
    pub fn end(&self, engine: &Engine, report: &JobReport, code: u8) {
        let limit = Some(in_words(&report.limit));
        let status = JobStatus { limit, ..self.status(engine) };
        let (phase, reason) = report.ending();
        let (phase, exit_code) = match self.then {
            Then::More => return self.write(&status),
            Then::Watching if report.state == JobState::Finished => (JobPhase::Watching, code),
            Then::Watching | Then::Nothing => (phase, code),
        };
        self.write(&JobStatus { phase, reason, exit_code: Some(exit_code), ..status });
    }

    /// Records that the job could not continue.
    pub fn failed(&self, engine: &Engine, reason: String, code: u8) {
        let status = self.status(engine);
        let (phase, reason) = (JobPhase::Stopped, Some(reason));
        self.write(&JobStatus { phase, reason, exit_code: Some(code), ..status });
    }
}
