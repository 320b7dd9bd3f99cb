//! Collects changes for the journal.
use super::Change;

/// The changes since the journal last took them.
#[derive(Debug, Default)]
pub(super) struct ChangeLog {
    /// `None`: there is no journal.
    changes: Option<Vec<Change>>,
    /// The present change is recorded even though the job stops: a part of a large file is done.
    keeps_part: bool,
}

impl ChangeLog {
    /// Records changes from now on.
    pub fn open(&mut self) {
        self.changes = Some(Vec::new());
    }

    /// Whether there is a journal.
    pub fn is_open(&self) -> bool {
        self.changes.is_some()
    }

    /// Adds a change, unless there is no journal or the job stops: the run that resumes the job repeats everything that
    /// happens after a stop.
    pub fn record(&mut self, is_stopping: bool, change: impl FnOnce() -> Change) {
        let counts = !is_stopping || self.keeps_part;
        if let Some(changes) = self.changes.as_mut().filter(|_| counts) {
            changes.push(change());
        }
    }

    /// Sets whether changes are recorded even though the job stops. Returns whether they were before.
    pub fn keep_part(&mut self, keeps_part: bool) -> bool {
        std::mem::replace(&mut self.keeps_part, keeps_part)
    }

    /// The changes since the last call.
    pub fn take(&mut self) -> Vec<Change> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
