//! What became of a job.
use dmover_model::{ErrorClass, ExitCode, JobId, Limit, LossKind, LossSet};
use dmover_observe::{Counter, Slow, Snapshot};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::control::StopReason;
use crate::state::{ErrorList, JobPhase};
use crate::sync::{Withheld, WithheldReason};

/// How a job stands at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// Every task has ended.
    Finished,
    /// It was stopped; the same command goes on.
    Stopped(StopReason),
}

/// The end of a job, in numbers.
#[derive(Debug, Clone)]
pub struct JobReport {
    /// Which job.
    pub job: JobId,
    /// How it stands.
    pub state: JobState,
    /// Nothing was written.
    pub dry_run: bool,
    /// The destination was taken for the name of the copy, not for the directory that holds it, without
    /// a flag that says so.
    pub meant_as_name: bool,
    /// All counters.
    pub counters: Snapshot,
    /// Failed entries by class.
    pub errors: BTreeMap<ErrorClass, u64>,
    /// Where each of them is listed.
    pub error_list: ErrorList,
    /// Lost attributes by kind, accepted ones included.
    pub losses: BTreeMap<LossKind, u64>,
    /// Losses that the job accepts.
    pub allowed_losses: LossSet,
    /// What earlier runs of the job lost, and this one did not try again, by kind.
    pub earlier_losses: BTreeMap<LossKind, u64>,
    /// What the run that was interrupted had failed at, if this one went on with its pass.
    pub earlier_failures: Failed,
    /// The slowest entries.
    pub slowest: Vec<Slow>,
    /// It went on with what an earlier run had left.
    pub resumed: bool,
    /// What was not deleted, and why.
    pub withheld: Option<Withheld>,
    /// What kept it from being faster.
    pub limit: Limit,
    /// Wall-clock time.
    pub elapsed: Duration,
    /// Why this pass is not enough, and everything has to be looked at, or once more.
    pub needs_all: Option<String>,
    /// Peak resident memory of the process in bytes.
    pub peak_memory_bytes: u64,
    /// Whether the ledger had to use its file.
    pub spilled: bool,
}

/// Entries that an interrupted run of a pass has failed at. The run that goes on does not try them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Failed {
    /// They vanished from the source, or did not stop changing.
    pub moved_on: u64,
    /// They could not be read.
    pub unseen: u64,
    /// They could not be brought over.
    pub there: u64,
}

impl Failed {
    /// How many there are.
    pub fn all(self) -> u64 {
        self.moved_on + self.unseen + self.there
    }
}

impl JobReport {
    /// How the job stands after this, and why.
    pub(crate) fn ending(&self) -> (JobPhase, Option<String>) {
        let (phase, reason) = match self.state {
            JobState::Finished => (JobPhase::Finished, None),
            JobState::Stopped(StopReason::Cancelled) => (JobPhase::Cancelled, None),
            JobState::Stopped(reason) => (JobPhase::Stopped, Some(reason.words())),
        };
        (phase, reason.or_else(|| self.withheld.as_ref().map(|w| w.reason.words())))
    }

    /// What a shell says of the process that ends with this code, or by the signal that has stopped it.
    pub fn process_code(&self, code: ExitCode) -> u8 {
        match self.state {
            JobState::Stopped(StopReason::Signal(signal)) => 128 + signal as u8,
            _ => code.code(),
        }
    }

    /// The exit code; a signal is for the caller to re-raise.
    pub fn exit_code(&self) -> ExitCode {
        let get = |counter| self.counters.get(counter);
        let mut code = ExitCode::Done;
        let earlier = self.earlier_failures;
        if get(Counter::SourceErrors) + earlier.moved_on > 0 {
            code = ExitCode::SourceMoved;
        }
        let own = get(Counter::Errors) > get(Counter::SourceErrors);
        let lost = get(Counter::Losses) > 0 || !self.earlier_losses.is_empty();
        let own = own || earlier.unseen + earlier.there > 0;
        if own || lost || get(Counter::NotAttempted) > 0 {
            code = ExitCode::Partial;
        }
        match self.withheld.as_ref().map(|withheld| &withheld.reason) {
            // Errors are not hidden by a question.
            Some(WithheldReason::Unmeant(..) | WithheldReason::Refused { .. })
                if code != ExitCode::Partial =>
            {
                code = ExitCode::Usage;
            }
            Some(WithheldReason::Limit(_)) => code = code.merge(ExitCode::Limit),
            Some(_) => code = code.merge(ExitCode::Partial),
            None => {}
        }
        if self.errors.contains_key(&ErrorClass::Integrity) {
            code = ExitCode::Integrity;
        }
        match self.state {
            // 3 and 4 speak of jobs that were finished.
            JobState::Stopped(StopReason::Errors | StopReason::Duration) => ExitCode::Limit,
            JobState::Stopped(StopReason::Output | StopReason::Manifest) => ExitCode::Fatal,
            // Given up, as was asked: what is there is there.
            JobState::Stopped(_) => code.merge(ExitCode::Partial),
            JobState::Finished => code,
        }
    }
}
