//! Sources on other hosts whose connection was lost.
use dmover_model::{ConnectionReport, EntryError, ErrorClass, Fatal, PathBytes, StopReason};

use super::Engine;

impl Engine {
    /// Why the job cannot go on, if it stops because a host of its source cannot be reached any more.
    pub(crate) fn lost_source(&self) -> Option<Fatal> {
        self.lost().filter(|_| self.control.is_stopping())
    }

    /// What is known of the connections to the hosts of the source.
    pub(crate) fn connections(&self) -> Vec<(PathBytes, ConnectionReport)> {
        let roots = self.places.roots.ids().filter_map(|id| self.root(id).ok());
        roots.filter_map(|root| Some(root.source.remote()?.connections())).flatten().collect()
    }

    fn lost(&self) -> Option<Fatal> {
        self.places.roots.ids().find_map(|id| self.root(id).ok()?.source.remote()?.lost())
    }

    /// Whether the connection to a host of the source was lost.
    pub(crate) fn is_source_lost(&self) -> bool {
        self.spec.sources_are_remote && self.lost().is_some()
    }

    /// An error, unless the connection to a host of the source was lost: then the entry was not attempted, nothing is wrong
    /// with it, and the job stops.
    pub(super) fn unless_lost(&self, error: EntryError) -> EntryError {
        if !self.is_source_lost() {
            return error;
        }
        // A job that is about to end with an error of its own counts nothing.
        self.control.stop_now(StopReason::Systemic(ErrorClass::Io));
        EntryError { class: ErrorClass::Cancelled, ..error }
    }
}
