//! The state that all movers of one job in one process share.
use dmover_journal::{Failures, KnownPaths, OpenFiles};
use dmover_local::destination_lock::DestinationLock;
use dmover_local::directory::{SourceDirectory, TargetDirectory};
use dmover_local::end::{Local, LocalEnd, Rules};
use dmover_local::error::is_absent;
use dmover_local::object::LayerObject;
use dmover_local::root::OverlappingRoots;
use dmover_model::{
    Carried, EntryError, ErrorClass, Identity, JobSpec, LossKind, Operation, PathBytes, Side,
    Times, TreePath, Verb,
};
use dmover_observe::{Counter, Counters, Monitor, Slowest, lock};
use dmover_plan::breaker::Breaker;
use dmover_plan::filter::Filter;
use dmover_plan::history::History;
use dmover_plan::idmap::IdentityMap;
use dmover_plan::retry;
use dmover_plan::settable::Unprivileged;
use dmover_plan::temporary::TemporaryNames;
use dmover_schedule::sync::{Mutex, RwLock};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::bounds::Bounds;
use crate::control::Control;
use crate::coordinator_client::CoordinatorClient;
use crate::delete_guard::Guard;
use crate::following::Following;
use crate::hash_guesses::Guesses;
use crate::limits::RateLimits;
use crate::mover_report::ReportItem;
use crate::recheck::Doubtful;
use crate::recorder::Recorder;
use crate::sharing::Sharing;
use crate::trust::Trust;
use crate::written_parts::WrittenParts;

mod lost_source;
mod reports;
mod roots;
mod verb;

pub(crate) use roots::RootTable;
pub(crate) use verb::CHECKED;

/// The first wait for an entry that another host has created; each further wait is twice as long. The second value
/// limits it.
const SEEN_AGAIN: Duration = Duration::from_millis(20);
const SEEN_WITHIN: Duration = Duration::from_secs(5);
/// After an entry has not become visible, no further entry is waited for while such cases are more frequent than this.
const UNSEEN_FOR: Duration = Duration::from_secs(10);

/// Counts of errors and losses by kind, for the report.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    pub errors: BTreeMap<ErrorClass, u64>,
    pub losses: BTreeMap<LossKind, u64>,
}

/// The shared state of a job.
pub struct Engine {
    pub(crate) spec: JobSpec,
    pub(crate) roots: RootTable,
    /// Exactly one task finishes each destination directory.
    pub(crate) directories_apart: bool,
    /// Paths where roots overlap.
    pub(crate) meetings: OverlappingRoots,
    pub(crate) monitor: Arc<dyn Monitor>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) slowest: Slowest,
    pub(crate) filter: Filter,
    pub(crate) ids: IdentityMap,
    /// What the movers of this process know of the file systems of this host.
    pub(crate) end: LocalEnd,
    pub(crate) temporaries: TemporaryNames,
    pub(crate) control: Arc<Control>,
    pub(crate) limits: RateLimits,
    /// The user and groups of a process without privilege.
    pub(crate) unprivileged: Option<Unprivileged>,
    /// Paths in the manifest that a tree is compared with.
    pub(crate) known: Mutex<KnownPaths>,
    /// Times to set on directories after repairs below them.
    pub(crate) kept_times: Mutex<HashMap<TreePath, Times>>,
    /// Which functions digests of 64 digits had so far, in lists that do not name the function.
    pub(crate) guesses: Guesses,
    /// Results of large files with several names, until the other names are linked.
    pub(crate) sealed: Mutex<VecDeque<Carried>>,
    /// Writes a manifest.
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// The greatest possible number of movers.
    pub(crate) movers_max: usize,
    /// How many movers may run now.
    pub(crate) movers: AtomicUsize,
    /// Until when no entry is waited for that is not yet visible, in milliseconds since the start.
    pub(crate) unseen_until_ms: AtomicU64,
    pub(crate) buffer_bytes: usize,
    /// The size of all buffers of a mover's ring.
    pub(crate) ring_bytes: usize,
    /// The most open levels of directories; deeper directories become tasks of their own.
    pub(crate) depth_max: usize,
    /// How many directories movers hold open for delayed renames, and the limit.
    pub(crate) held_for_later: AtomicUsize,
    pub(crate) held_for_later_max: usize,
    pub(crate) started: Instant,
    pub(crate) breaker: Mutex<Breaker>,
    /// An operation has failed since content was last copied.
    pub(crate) troubled: AtomicBool,
    pub(crate) tally: Mutex<Tally>,
    /// The run resumes the work of an earlier run.
    pub(crate) is_resumed: bool,
    /// The job has a journal.
    pub(crate) keeps_journal: bool,
    /// Parts of large files are recorded after they are flushed.
    pub(crate) keeps_parts: bool,
    /// Parts that are not flushed yet.
    pub(crate) written_parts: WrittenParts,
    /// Files that were open for writing when an earlier pass copied them: a write through a mapping (mmap(2)) may not
    /// have changed their times.
    pub(crate) doubtful: Doubtful,
    /// Where a copy without a journal records such files.
    pub(crate) open_files: Option<OpenFiles>,
    /// Where errors are recorded, if not in a journal.
    pub(crate) failures: Option<Failures>,
    /// What earlier passes have seen.
    pub(crate) history: History,
    /// The catalog lacks most directories, so movers report each directory that they enter.
    pub(crate) tells_entered: bool,
    /// Which files of the destination are on storage.
    pub(crate) trust: Trust,
    /// Files whose extents were checked, because nothing else shows whether they are complete.
    pub(crate) files_asked: AtomicU64,
    /// The job has a catalog.
    pub(crate) keeps_catalog: bool,
    /// The state directory of the job.
    pub(crate) state_path: Option<PathBuf>,
    /// Doubtful files of this pass that are not in the journal yet.
    pub(crate) doubts: Mutex<Vec<TreePath>>,
    /// Files with several names that were open for writing.
    pub(crate) writers: Mutex<HashSet<Identity>>,
    /// Errors that are not in the journal yet.
    pub(crate) unrecorded: Mutex<Vec<EntryError>>,
    /// Directories that should be deleted but contain entries that stay.
    pub(crate) held: Mutex<BTreeSet<PathBytes>>,
    /// Why one full scan is not enough.
    pub(crate) looks_again: Mutex<Option<String>>,
    /// The pass scans only paths that a change feed has reported.
    pub(crate) following: Option<Following>,
    /// The pass creates a snapshot.
    pub(crate) sharing: Option<Sharing>,
    /// Guards deletes.
    pub(crate) guard: Guard,
    /// Movers run in other processes than the coordinator.
    pub(crate) is_elsewhere: bool,
    /// The base of relative paths; empty: the working directory.
    pub(crate) base: PathBuf,
    /// The trees and verbs that this mover accepts.
    pub(crate) bounds: Bounds,
    /// Locks of the written directories, in the process of the coordinator.
    pub(crate) destination: DestinationLock,
    /// The connection to the coordinator, if it is another process.
    pub(crate) desk: Option<Arc<dyn CoordinatorClient>>,
    /// Identities of the destination roots, which must never be entered as a source.
    pub(crate) forbidden: RwLock<HashSet<Identity>>,
    /// The same directories as an overlay shows them.
    pub(crate) forbidden_in_layers: RwLock<HashSet<LayerObject>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Engine {
    /// Requests another full scan, because nothing else can correct this.
    pub(crate) fn look_again(&self, why: &str) {
        match &self.following {
            _ if self.tell(|| ReportItem::LookAgain(why.to_owned())) => {}
            Some(following) => following.look_at_all(why),
            None => *lock(&self.looks_again) = Some(why.to_owned()),
        }
    }

    /// Why a full scan is needed.
    pub(crate) fn needs_all(&self) -> Option<String> {
        let again = lock(&self.looks_again).clone();
        again.or_else(|| self.following.as_ref().and_then(Following::needs_all))
    }

    /// The path of an entry below its root.
    fn tree_path(&self, error: &EntryError) -> Option<TreePath> {
        self.roots.ids().find_map(|id| {
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
            self.count(Counter::Retries);
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
        let begun = Instant::now();
        let mut wait = SEEN_AGAIN;
        loop {
            let result = self.insist(&mut action);
            let Err(error) = &result else { return result };
            let is_unseen = error.side == Side::Destination
                && (is_absent(error) || error.class == ErrorClass::Stale);
            let goes_on = self.desk.is_some() && !self.control.is_stopping();
            if !is_unseen || !goes_on {
                return result;
            }
            // If a directory is gone for good, so are many of its entries: they are not all waited for.
            let now_ms = self.started.elapsed().as_millis() as u64;
            let given_up = self.unseen_until_ms.load(Ordering::Relaxed);
            if now_ms < given_up || begun.elapsed() >= SEEN_WITHIN {
                self.unseen_until_ms
                    .fetch_max(now_ms + UNSEEN_FOR.as_millis() as u64, Ordering::Relaxed);
                return result;
            }
            tracing::debug!(
                ?error,
                "retrying, because a change by another mover may not be visible yet"
            );
            self.count(Counter::Retries);
            thread::sleep(wait);
            wait *= 2;
        }
    }

    /// Reports a panic in a mover: its task is named and the job continues.
    pub(crate) fn panicked(&self, task: &dmover_model::Task) {
        let words = format!("internal error in dmover during {:?}; please report it", task.kind);
        let (side, class) = (Side::Destination, ErrorClass::Other);
        let path = self.spec.destination.clone();
        self.error(EntryError::plain(side, Operation::Attempt, class, path, words));
    }

    /// Records that content was copied, so errors are not systemic.
    pub(crate) fn progress(&self) {
        if self.troubled.load(Ordering::Acquire) {
            let mut breaker = lock(&self.breaker);
            self.troubled.store(false, Ordering::Release);
            breaker.success();
        }
    }

    /// This host as an end of the job.
    pub(crate) fn local(&self) -> Local<'_> {
        let rules = Rules {
            policy: &self.spec.policy,
            ids: &self.ids,
            history: &self.history,
            compares: self.spec.verb == Verb::Verify,
            updates: self.spec.verb == Verb::Sync,
            fills: self.spec.verb.fills(),
        };
        Local { end: &self.end, rules, reports: self }
    }

    /// Whether a directory behind a followed link lies below a destination root.
    pub(crate) fn lies_in_destination(&self, directory: &SourceDirectory) -> bool {
        self.end.lies_below(directory, |identity| self.is_forbidden(identity))
    }

    /// Forbids to enter a directory of the destination as a source.
    pub(crate) fn forbid(&self, identity: Identity) {
        self.forbidden.write().unwrap_or_else(PoisonError::into_inner).insert(identity);
    }

    /// Forbids the same directory behind an overlay, which shows it with another device number. This also covers layers
    /// that the options of the overlay do not name.
    pub(crate) fn forbid_in_layers(&self, directory: &TargetDirectory) {
        if let Some(object) = directory.layer_object() {
            self.forbidden_in_layers.write().unwrap_or_else(PoisonError::into_inner).insert(object);
        }
    }

    /// Whether a directory is one of the destination behind an overlay, or the destination is an overlay that writes
    /// into it.
    pub(crate) fn is_forbidden_in_layers(&self, directory: &SourceDirectory) -> bool {
        let known = || self.forbidden_in_layers.read().unwrap_or_else(PoisonError::into_inner);
        directory.layer_object().is_some_and(|object| known().contains(&object))
    }

    pub(crate) fn is_forbidden(&self, identity: Identity) -> bool {
        self.forbidden.read().unwrap_or_else(PoisonError::into_inner).contains(&identity)
    }
}
