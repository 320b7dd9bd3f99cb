//! The state that all movers of one job in one process share.
use dmover_local::directory::SourceDirectory;
use dmover_local::end::{Local, LocalEnd, Rules};
use dmover_local::error::is_absent;
use dmover_model::{EntryError, ErrorClass, JobSpec, Operation, Side, TreePath, Verb};
use dmover_observe::Counter;
use dmover_plan::filter::Filter;
use dmover_plan::retry;
use dmover_plan::temporary::TemporaryNames;
use dmover_schedule::thread;
use std::sync::Arc;
use std::time::Duration;

use crate::control::Control;
use crate::run_facts::RunFacts;
use crate::settable::Settable;
use crate::written_parts::WrittenParts;

mod doubts;
mod lost_source;
mod pass;
mod places;
mod proof;
mod reports;
mod resources;
mod roots;
mod verb;
mod visibility;

pub(crate) use doubts::Doubts;
pub(crate) use pass::Pass;
pub(crate) use places::{Forbidden, Places};
pub(crate) use proof::Proof;
pub(crate) use reports::{Receivers, Reports};
pub(crate) use resources::{Resources, memory_bytes};
pub(crate) use roots::RootTable;
pub(crate) use verb::CHECKED;
pub(crate) use visibility::Visibility;

use visibility::Wait;

/// The shared state of a job.
pub struct Engine {
    pub(crate) spec: Arc<JobSpec>,
    /// What all movers of the run must agree on.
    pub(crate) facts: RunFacts,
    pub(crate) filter: Filter,
    pub(crate) settable: Settable,
    pub(crate) places: Places,
    /// What the movers of this process know of the file systems of this host.
    pub(crate) end: LocalEnd,
    pub(crate) temporaries: TemporaryNames,
    /// Parts of large files that are not flushed yet.
    pub(crate) written_parts: WrittenParts,
    pub(crate) control: Arc<Control>,
    pub(crate) resources: Resources,
    pub(crate) reports: Reports,
    pub(crate) doubts: Doubts,
    pub(crate) proof: Proof,
    pub(crate) pass: Pass,
    pub(crate) visibility: Visibility,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Engine {
    /// The movers here that may take chunks of a large file, and whether others may.
    pub(crate) fn chunk_takers(&self) -> (usize, bool) {
        (self.resources.movers_max, self.facts.shares_chunks)
    }

    /// Reports an entry that failed for good.
    pub(crate) fn error(&self, error: EntryError) {
        let error = self.unless_lost(error);
        // The coordinator decides whether a host's error counts, and informs its guard then.
        if !self.reports.coordinator.is_remote() || !error.may_be_the_hosts() {
            self.pass.guard.heard(&error);
        }
        self.reports.error(error, |error| {
            if self.facts.history.suspect_since.is_some() {
                // It was to be compared, since an earlier pass was cut off, and the end of this one ends that.
                self.doubts.add(self.tree_path(error).unwrap_or_else(TreePath::root));
            }
        });
    }

    /// The path of an entry below its root.
    fn tree_path(&self, error: &EntryError) -> Option<TreePath> {
        self.places.roots.ids().find_map(|id| {
            let root = self.root(id).ok()?;
            // One may lie below the other.
            let side = match error.side {
                Side::Source => root.source.display(),
                Side::Destination => root.destination.as_ref()?.display(),
            };
            error.path.below(side)
        })
    }

    /// Whether a failure may be temporary: then it is counted, and this call waits.
    pub(crate) fn may_pass(&self, error: &EntryError, attempt: u32) -> bool {
        let delay = retry::delay_ms(error, attempt).filter(|_| !self.control.is_stopping());
        if let Some(delay_ms) = delay {
            tracing::debug!(?error, delay_ms, "retrying");
            self.reports.count(Counter::Retries);
            thread::sleep(Duration::from_millis(delay_ms));
        }
        delay.is_some()
    }

    /// Repeats an important step, such as opening a directory, while its failure may be temporary. The step must be
    /// repeatable.
    pub(crate) fn insist<T>(
        &self,
        mut action: impl FnMut() -> Result<T, EntryError>,
    ) -> Result<T, EntryError> {
        let mut attempt = 1;
        loop {
            match action() {
                Err(error) if self.may_pass(&error, attempt) => attempt += 1,
                result => return result.map_err(|error| EntryError { attempt, ..error }),
            }
        }
    }

    /// Waits for an entry that another host has created: a client of a network file system caches absent names (nfs(5),
    /// lookupcache) and stale handles for a while.
    pub(crate) fn until_seen<T>(
        &self,
        mut action: impl FnMut() -> Result<T, EntryError>,
    ) -> Result<T, EntryError> {
        let mut wait = Wait::default();
        loop {
            let result = self.insist(&mut action);
            let Err(error) = &result else { return result };
            let is_unseen = error.side == Side::Destination
                && (is_absent(error) || error.class == ErrorClass::Stale);
            let goes_on = self.reports.coordinator.is_remote() && !self.control.is_stopping();
            if !is_unseen || !goes_on || !self.visibility.wait(&mut wait) {
                return result;
            }
            tracing::debug!(
                ?error,
                "retrying, because a change by another mover may not be visible yet"
            );
            self.reports.count(Counter::Retries);
        }
    }

    /// Reports a panic in a mover: its task is named and the job continues.
    pub(crate) fn panicked(&self, task: &dmover_model::Task) {
        let words = format!("internal error in dmover during {:?}; please report it", task.kind);
        let (side, class) = (Side::Destination, ErrorClass::Other);
        let path = self.spec.destination.clone();
        self.error(EntryError::plain(side, Operation::Attempt, class, path, words));
    }

    /// This host as an end of the job.
    pub(crate) fn local(&self) -> Local<'_> {
        let rules = Rules {
            policy: &self.spec.policy,
            ids: &self.settable.ids,
            history: &self.facts.history,
            compares: self.spec.verb == Verb::Verify,
            updates: self.spec.verb == Verb::Sync,
            fills: self.spec.verb.fills(),
        };
        Local { end: &self.end, rules, reports: &self.reports }
    }

    /// Whether a directory behind a followed link lies below a destination root.
    pub(crate) fn lies_in_destination(&self, directory: &SourceDirectory) -> bool {
        self.end.lies_below(directory, |identity| self.places.forbidden.has(identity))
    }
}
