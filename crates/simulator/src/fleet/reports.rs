//! Reports of movers on their way to the coordinator.
use dmover_model::Outcome;
use std::collections::HashMap;

/// A report about a task.
#[derive(Debug)]
pub(super) struct SentReport {
    /// The task has ended.
    pub ended: bool,
    /// What the mover has done.
    pub outcome: Outcome,
    /// The numbers of entries and large files that the task ended.
    pub done: (u64, u64),
}

/// Reports that are sent and not yet received. A report that arrives twice is received once.
#[derive(Debug, Default)]
pub(super) struct SentReports {
    /// The number of reports so far.
    sent: u64,
    /// Reports by number.
    waiting: HashMap<u64, SentReport>,
}

impl SentReports {
    /// Sends a report. Returns its number.
    pub fn send(&mut self, report: SentReport) -> u64 {
        self.sent += 1;
        self.waiting.insert(self.sent, report);
        self.sent
    }

    /// Receives a report. `None`: it was received before.
    pub fn receive(&mut self, number: u64) -> Option<SentReport> {
        self.waiting.remove(&number)
    }
}
