//! The report of a job.
use dmover_journal::{ErrorList, JobPhase};
use dmover_model::{
    ConnectionReport, ErrorClass, ExitCode, Failed, JobId, Limit, LossKind, LossSet, PathBytes,
    WithheldReason,
};
use dmover_observe::{Counter, Slow, Snapshot};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::control::{StopReason, stop_words};
use crate::delete_guard::Withheld;

/// The state of a job at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// Every task has ended.
    Finished,
    /// It was stopped; the same command resumes it.
    Stopped(StopReason),
}

/// The results of a job.
#[derive(Debug, Clone)]
pub struct JobReport {
    /// The id of the job.
    pub job: JobId,
    /// The state of the job.
    pub state: JobState,
    /// Whether it was a dry run.
    pub dry_run: bool,
    /// The destination was taken as the name of the copy, not as the directory that contains it, without an option that
    /// says so.
    pub meant_as_name: bool,
    /// All counters.
    pub counters: Snapshot,
    /// Failed entries by class.
    pub errors: BTreeMap<ErrorClass, u64>,
    /// Where the errors are listed.
    pub error_list: ErrorList,
    /// Lost attributes by kind, accepted ones included.
    pub losses: BTreeMap<LossKind, u64>,
    /// Losses that the job accepts.
    pub allowed_losses: LossSet,
    /// Attributes that earlier runs lost on entries that this run skipped, by kind.
    pub earlier_losses: BTreeMap<LossKind, u64>,
    /// Failures of the interrupted run, if this run resumed its pass.
    pub earlier_failures: Failed,
    /// The slowest entries.
    pub slowest: Vec<Slow>,
    /// It resumed the work of an earlier run.
    pub resumed: bool,
    /// Whether deletes were withheld, and why.
    pub withheld: Option<Withheld>,
    /// What limited its speed.
    pub limit: Limit,
    /// The connections to other hosts, with the SOURCE of each.
    pub connections: Vec<(PathBytes, ConnectionReport)>,
    /// What other hosts that share the destination have copied.
    pub other_hosts: Vec<HostWork>,
    /// Wall-clock time.
    pub elapsed: Duration,
    /// Why another full scan is needed after this pass.
    pub needs_all: Option<String>,
    /// Peak resident memory of the process in bytes.
    pub peak_memory_bytes: u64,
    /// Whether the ledger had to use its file.
    pub spilled: bool,
}

/// What a host has copied for the one that runs the job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostWork {
    /// Its name, as the user has typed it.
    pub host: String,
    /// Chunks of large files.
    pub chunks: u64,
    /// The bytes of these chunks.
    pub bytes: u64,
}

impl JobReport {
    /// The phase of the job after this run, and the reason.
    pub fn ending(&self) -> (JobPhase, Option<String>) {
        let (phase, reason) = match self.state {
            JobState::Finished => (JobPhase::Finished, None),
            JobState::Stopped(StopReason::Cancelled) => (JobPhase::Cancelled, None),
            JobState::Stopped(reason) => (JobPhase::Stopped, Some(stop_words(reason))),
        };
        (phase, reason.or_else(|| self.withheld.as_ref().map(|w| w.reason.words())))
    }

    /// The exit status that a shell shows for the process: the exit code, or 128 plus the signal.
    pub fn process_code(&self, code: ExitCode) -> u8 {
        match self.state {
            JobState::Stopped(StopReason::Signal(signal)) => 128 + signal as u8,
            _ => code.code(),
        }
    }

    /// The exit code. If a signal stopped the job, the caller must raise it again.
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
            // Cancelled by the user: copied entries stay.
            JobState::Stopped(_) => code.merge(ExitCode::Partial),
            JobState::Finished => code,
        }
    }
}
