//! How many tasks are in the queue and in the ledger.
use dmover_model::TaskKind;

use super::TaskCounts;

/// With this many large files that wait to be started, the scan for more entries waits.
pub(super) const UNOPENED_MAX: usize = 4096;

/// The number of tasks that may be issued, and of those that are issued or shelved.
#[derive(Debug)]
pub(super) struct TaskWindow {
    /// The most tasks that may be issued, counted for large files and for others separately, so that neither delays the
    /// other. At least 1.
    size: usize,
    /// Issued tasks.
    issued: TaskCounts,
    /// Tasks in the ledger.
    shelved: TaskCounts,
    /// The number of shelved large files that no mover has started.
    unopened: usize,
}

impl TaskWindow {
    /// A window for at least one task of each kind.
    pub fn new(size: usize) -> Self {
        let (issued, shelved) = (TaskCounts::default(), TaskCounts::default());
        Self { size: size.max(1), issued, shelved, unopened: 0 }
    }

    /// Changes how many tasks may be issued. More may be issued already.
    pub fn resize(&mut self, size: usize) {
        self.size = size.max(1);
    }

    /// How many more tasks may be issued.
    pub fn room(&self) -> TaskCounts {
        let TaskCounts { large, small } = self.issued;
        let left = |issued: usize| self.size.saturating_sub(issued);
        let mut room = TaskCounts { large: left(large), small: left(small) };
        if self.unopened >= UNOPENED_MAX {
            // Each holds a directory open in memory: the search waits until some are done.
            room.small = 0;
        }
        room
    }

    /// How many shelved tasks to take back now. `is_stopping`: they are not issued, and need no room.
    pub fn wanted(&self, is_stopping: bool) -> TaskCounts {
        let room = self.room();
        let most = |room: usize| if is_stopping { self.size } else { room };
        TaskCounts {
            large: self.shelved.large.min(most(room.large)),
            small: self.shelved.small.min(most(room.small)),
        }
    }

    /// The number of tasks in the ledger.
    pub fn shelved(&self) -> usize {
        self.shelved.total()
    }

    /// Counts a task that is issued.
    pub fn issue(&mut self, kind: &TaskKind) {
        *self.issued.of(kind) += 1;
    }

    /// Counts a task that has ended.
    pub fn end(&mut self, is_large: bool) {
        *self.issued.part(is_large) -= 1;
    }

    /// Counts a task that goes to the ledger.
    pub fn shelve(&mut self, kind: &TaskKind) {
        *self.shelved.of(kind) += 1;
        self.unopened += usize::from(is_unopened(kind));
    }

    /// Counts a task that comes back from the ledger.
    pub fn unshelve(&mut self, kind: &TaskKind) {
        *self.shelved.of(kind) -= 1;
        self.unopened -= usize::from(is_unopened(kind));
    }
}

/// Whether the task starts a large file.
fn is_unopened(kind: &TaskKind) -> bool {
    matches!(kind, TaskKind::Open { .. })
}
