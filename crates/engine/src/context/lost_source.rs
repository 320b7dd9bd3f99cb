//! Sources on other hosts whose connection was lost.
use dmover_model::{EntryError, ErrorClass, Fatal, Side, StopReason};

use super::Engine;

impl Engine {
    /// Why the job cannot go on, if it stops because a host of its source cannot be reached any more.
    pub(crate) fn lost_source(&self) -> Option<Fatal> {
        self.lost().filter(|_| self.control.is_stopping())
    }

    fn lost(&self) -> Option<Fatal> {
        self.roots.ids().find_map(|id| self.root(id).ok()?.source.remote()?.lost())
    }

    /// An error of the source, unless the connection to its host was lost: then the entry was not attempted, nothing is
    /// wrong with it, and the job stops.
    pub(super) fn unless_lost(&self, error: EntryError) -> EntryError {
        let may_be = self.spec.sources_are_remote && error.side == Side::Source;
        if !may_be || self.lost().is_none() {
            return error;
        }
        // A job that is about to end with an error of its own counts nothing.
        self.control.stop_now(StopReason::Systemic(ErrorClass::Io));
        EntryError { class: ErrorClass::Cancelled, ..error }
    }
}
