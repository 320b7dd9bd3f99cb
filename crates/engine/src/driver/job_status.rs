//! The present state of a job, for its status file and other displays.
use dmover_journal::now_ms;
use dmover_model::{JobId, Limit};
use dmover_observe::{Board, JobView, MoverView};
use dmover_schedule::time::Instant;
use std::sync::Arc;
use std::time::Duration;

use super::{Executor, Job};
use crate::context::Engine;

/// The greatest age of the published state.
const SHOW_EVERY: Duration = Duration::from_millis(500);

/// State that is computed only when it is needed.
pub(super) struct Standing<'a> {
    pub hands: &'a Executor,
    pub tasks_left: u64,
}

impl Standing<'_> {
    /// The limit of the job's speed.
    pub fn limit(&self) -> Option<Limit> {
        match self.hands {
            Executor::Here(crew, _) => crew.limit().cloned(),
            Executor::Elsewhere(fleet) => fleet.limit(),
        }
    }

    /// The remote movers of the job.
    pub fn movers(&self) -> Option<Vec<MoverView>> {
        match self.hands {
            Executor::Here(..) => None,
            Executor::Elsewhere(fleet) => Some(fleet.movers()),
        }
    }
}

/// A board on which the state is published.
pub(super) struct Shown {
    board: Arc<Board<Option<JobView>>>,
    job: String,
    verb: String,
    begun_ms: i64,
    last: Option<Instant>,
}

impl Shown {
    pub fn new(job: &Job, id: &JobId) -> Option<Self> {
        let (job, verb) = (job.observers.board.clone()?, job.spec.verb.word().to_owned());
        Some(Self { board: job, job: id.0.clone(), verb, begun_ms: now_ms(), last: None })
    }

    /// Publishes the state at intervals.
    pub fn turn(&mut self, engine: &Engine, standing: &Standing<'_>, paused: bool) {
        if self.last.is_none_or(|then| then.elapsed() >= SHOW_EVERY) {
            self.last = Some(Instant::now());
            self.show(engine, standing, paused);
        }
    }

    /// Publishes the state.
    pub fn show(&self, engine: &Engine, standing: &Standing<'_>, paused: bool) {
        let errors = engine.reports.tally().errors;
        self.board.put(Some(JobView {
            job: self.job.clone(),
            verb: self.verb.clone(),
            paused,
            begun_ms: self.begun_ms,
            tasks_left: standing.tasks_left,
            counters: engine.reports.counters.snapshot(),
            errors: errors.iter().map(|(class, count)| (class.word(), *count)).collect(),
            limit: standing.limit().map(|limit| limit.what.word()),
            connections: engine.connections(),
            movers: standing.movers(),
        }));
    }
}
