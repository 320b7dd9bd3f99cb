//! The report of a task: sent in parts while the task runs, so that other movers can start on what it has found.
use dmover_model::{
    DirectoryRef, EntryError, ErrorClass, LinkName, NewNode, Operation, Outcome, PathBytes, Side,
    TaskKind,
};
use dmover_schedule::time::Instant;
use std::cell::Cell;
use std::time::Duration;

use crate::mover_report;
use crate::queue::{Lease, Queue};

/// The most reports in one message to a remote coordinator.
const TOLD_MAX: usize = 512;
/// How many linked names are reported at once.
const LINKS_MAX: usize = 256;
/// How often a remote coordinator receives the progress of a running task.
pub(crate) const TELL_EVERY: Duration = Duration::from_secs(2);

/// The report of a task.
pub(crate) struct TaskReport<'a> {
    queue: &'a dyn Queue,
    lease: &'a Lease,
    /// The coordinator is in another process.
    is_remote: bool,
    /// The next part.
    pub outcome: Outcome,
    /// New tasks that belong to the present directory.
    pub deferred: Vec<TaskKind>,
    /// Nodes reported under this lease.
    nodes: usize,
    /// The time of the last report.
    told: Cell<Instant>,
}

impl<'a> TaskReport<'a> {
    /// An empty report. `is_remote`: the coordinator is in another process.
    pub fn new(queue: &'a dyn Queue, lease: &'a Lease, is_remote: bool) -> Self {
        Self {
            queue,
            lease,
            is_remote,
            outcome: Outcome::default(),
            deferred: Vec::new(),
            nodes: 0,
            told: Cell::new(Instant::now()),
        }
    }

    /// Adds a node and returns its number in this task.
    pub fn add_node(&mut self, node: NewNode) -> usize {
        self.outcome.nodes.push(node);
        self.nodes += 1;
        self.nodes - 1
    }

    pub fn mark_dirty(&mut self, directory: &DirectoryRef) {
        if self.outcome.dirty.last() != Some(directory) {
            self.outcome.dirty.push(directory.clone());
        }
    }

    /// Adds a name of an inode with several names.
    ///
    /// The ledger stores them. A mover may read hundreds of thousands of names in one task.
    pub fn record_link(&mut self, name: LinkName) {
        self.outcome.links.push(name);
        if self.outcome.links.len() >= LINKS_MAX {
            self.flush();
        }
    }

    /// Reports that the part of a large file in this task failed.
    pub fn fail_part(&mut self, words: &str) {
        let (side, class) = (Side::Destination, ErrorClass::Other);
        let path = PathBytes::default();
        let error = EntryError::plain(side, Operation::Write, class, path, words);
        self.outcome.chunk_failure.get_or_insert_with(|| Box::new(error));
    }

    /// Removes what must be on storage before it is reported.
    pub fn forget_unflushed(&mut self) {
        self.outcome.survey.clear();
        self.outcome.large.clear();
        if self.outcome.covered.take().is_some() {
            self.outcome.pieces = None;
            self.fail_part("the flush of a part of it failed");
        }
    }

    /// Sends the present part, so that other movers can start on it.
    pub fn flush(&mut self) {
        if !self.outcome.is_empty() {
            self.queue.report(self.lease, std::mem::take(&mut self.outcome));
        }
    }

    /// Sends collected reports to a remote coordinator if they are many or old.
    pub fn tell_much(&self) {
        let is_old = || self.is_remote && self.told.get().elapsed() >= TELL_EVERY;
        if mover_report::waiting() >= TOLD_MAX || is_old() {
            self.told.set(Instant::now());
            self.queue.report(self.lease, Outcome::default());
        }
    }
}
