//! What all movers of one job in one process share.
use dmover_model::{
    EntryError, ErrorClass, Event, Identity, JobSpec, LossKind, Metadata, Note, Operation,
    PathBytes, Side, Timestamp, TreePath,
};
use dmover_observe::{Counter, Counters, Monitor, Slowest, Spread};
use dmover_plan::breaker::Breaker;
use dmover_plan::filter::Filter;
use dmover_plan::idmap::IdentityMap;
use dmover_plan::retry;
use dmover_plan::settable::Unprivileged;
use dmover_plan::temporary::TemporaryNames;
use dmover_sys::{Errno, stat};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::bounds::Bounds;
use crate::capability::CapabilityCache;
use crate::control::{Control, StopReason};
use crate::desk::Desk;
use crate::flush::Flusher;
use crate::large::WrittenParts;
use crate::layout::LayoutHook;
use crate::limits::RateLimits;
use crate::made::{Carried, Recorder};
use crate::mounts::MountTable;
use crate::root::Meetings;
use crate::roots::RootTable;
use crate::snapshot::Sharing;
use crate::state::OpenFiles;
use crate::storage::Trust;
use crate::sum::Guesses;
use crate::sync::{Doubtful, Following, Guard};
use crate::told::Said;
use crate::unflushed::Unflushed;
use crate::verify::{Known, Times};

/// The number of EPERM, which entries' errors carry.
pub(crate) const EPERM: i32 = 1;
const EACCES: i32 = 13;
/// What another host has made is looked for once more after so long, then after twice as long, and so on; and no longer than that.
const SEEN_AGAIN: Duration = Duration::from_millis(20);
const SEEN_WITHIN: Duration = Duration::from_secs(5);
/// After something has not come into sight, nothing else is waited for as long as such things come more often than this.
const UNSEEN_FOR: Duration = Duration::from_secs(10);

/// Whether an error may be that of a directory in which nothing may be changed now.
pub(crate) fn is_locked_out(errno: i32) -> bool {
    matches!(errno, EPERM | EACCES)
}

/// Who this process is and what it may do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Privilege {
    /// It may set any owner and ignores permission bits.
    pub privileged: bool,
    /// Attributes of the namespace `trusted.` are shown to it.
    pub sees_trusted: bool,
    pub uid: u32,
    pub gid: u32,
    /// The creation mask that the person had, for entries whose mode is not preserved.
    pub umask: u32,
}

impl Privilege {
    pub fn of_process(privileged: bool, umask: u32) -> Self {
        let (uid, gid) =
            (dmover_sys::process::effective_uid(), dmover_sys::process::effective_gid());
        let sees_trusted = dmover_sys::process::sees_trusted();
        Self { privileged, sees_trusted, uid, gid, umask }
    }
}

/// Errors and losses of a job by kind, for the report.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    pub errors: BTreeMap<ErrorClass, u64>,
    pub losses: BTreeMap<LossKind, u64>,
}

/// The shared state of a job.
pub struct Engine {
    pub(crate) spec: JobSpec,
    pub(crate) roots: RootTable,
    /// No directory at the destination can be two tasks' to finish.
    pub(crate) directories_apart: bool,
    /// Places where roots meet.
    pub(crate) meetings: Meetings,
    pub(crate) monitor: Arc<dyn Monitor>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) slowest: Slowest,
    pub(crate) filter: Filter,
    pub(crate) ids: IdentityMap,
    pub(crate) mounts: MountTable,
    pub(crate) capabilities: CapabilityCache,
    pub(crate) temporaries: TemporaryNames,
    pub(crate) control: Arc<Control>,
    pub(crate) limits: RateLimits,
    pub(crate) privilege: Privilege,
    /// The same, if it has none.
    pub(crate) unprivileged: Option<Unprivileged>,
    pub(crate) layout: Arc<dyn LayoutHook>,
    /// Paths of the manifest that a tree is compared with.
    pub(crate) known: Mutex<Known>,
    /// Times that directories are to have once repairs below them have ended.
    pub(crate) kept_times: Mutex<HashMap<TreePath, Times>>,
    /// What digests of 64 digits were so far whose list does not name the function.
    pub(crate) guesses: Guesses,
    /// Content that could not be flushed into files that stay.
    pub(crate) unflushed: Unflushed,
    /// Content of large files with several names, until the other names are linked.
    pub(crate) sealed: Mutex<VecDeque<Carried>>,
    /// Keeps a manifest.
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// The most movers that there can be.
    pub(crate) movers_max: usize,
    /// How many may work at present.
    pub(crate) movers: AtomicUsize,
    /// Nothing that is not in sight is waited for until then, in milliseconds since the start.
    pub(crate) unseen_until_ms: AtomicU64,
    pub(crate) buffer_bytes: usize,
    /// What the buffers of a mover's ring may have together.
    pub(crate) ring_bytes: usize,
    /// Open directories on the way down; deeper trees continue in a task of their own.
    pub(crate) depth_max: usize,
    /// Directories that movers hold because files in them wait for their names, and how many those may be.
    pub(crate) held_for_later: AtomicUsize,
    pub(crate) held_for_later_max: usize,
    pub(crate) started: Instant,
    pub(crate) breaker: Mutex<Breaker>,
    /// Something has failed since content was last moved.
    pub(crate) troubled: AtomicBool,
    pub(crate) tally: Mutex<Tally>,
    /// Goes on with what an earlier run has left.
    pub(crate) is_resumed: bool,
    /// What is done has to be on storage.
    pub(crate) flusher: Option<Flusher>,
    /// There is a journal.
    pub(crate) keeps_journal: bool,
    /// Parts of large files go on record once they are flushed.
    pub(crate) keeps_parts: bool,
    /// Those that are not flushed yet.
    pub(crate) written_parts: WrittenParts,
    /// Files that were open for writing when an earlier pass brought them over: no time says that they were written to
    /// since, if that was through a mapping (mmap(2)).
    pub(crate) doubtful: Doubtful,
    /// Where a copy notes such files, which has no journal.
    pub(crate) open_files: Option<OpenFiles>,
    /// Whatever was changed at the source before this, an earlier pass has seen.
    pub(crate) seen_before: Option<Timestamp>,
    /// When that pass ended: what was changed at the destination later, others have changed, or passes over less.
    pub(crate) seen_until: Option<Timestamp>,
    /// Whatever was changed at the source after this was perhaps changed during the pass.
    pub(crate) pass_began: Timestamp,
    /// The catalog does not know most directories, so that movers tell which ones they enter.
    pub(crate) tells_entered: bool,
    /// Earlier passes that began then, in seconds since 1970, did not come to their end.
    pub(crate) suspect_since: Option<i64>,
    /// Which files of the destination are on storage.
    pub(crate) trust: Trust,
    /// Files whose extents had to be looked at, because nothing else tells whether they are whole.
    pub(crate) files_asked: AtomicU64,
    /// There is a catalog.
    pub(crate) keeps_catalog: bool,
    /// Where the job keeps what it knows.
    pub(crate) state_path: Option<PathBuf>,
    /// The same of this pass, as far as they are not in the journal yet.
    pub(crate) doubts: Mutex<Vec<TreePath>>,
    /// Files with several names that somebody had open for writing.
    pub(crate) writers: Mutex<HashSet<Identity>>,
    /// Errors that are not in the journal yet.
    pub(crate) unrecorded: Mutex<Vec<EntryError>>,
    /// Directories that would go, and hold what stays.
    pub(crate) held: Mutex<BTreeSet<PathBytes>>,
    /// Why one look at everything is not enough.
    pub(crate) looks_again: Mutex<Option<String>>,
    /// It looks only at what a feed has told of.
    pub(crate) following: Option<Following>,
    /// It makes a snapshot.
    pub(crate) sharing: Option<Sharing>,
    /// Watches over deletes.
    pub(crate) guard: Guard,
    /// Movers are in other processes than their coordinator.
    pub(crate) is_elsewhere: bool,
    /// Where relative paths begin; empty: where the process is.
    pub(crate) base: PathBuf,
    /// What this process does for others, and where.
    pub(crate) bounds: Bounds,
    /// The way to the coordinator, if it is elsewhere.
    pub(crate) desk: Option<Arc<dyn Desk>>,
    /// Identities of the destination roots, never to be entered as a source.
    pub(crate) forbidden: RwLock<HashSet<Identity>>,
    /// What an overlay keeps of them: the end of the inode number and the time of birth.
    pub(crate) forbidden_births: RwLock<HashSet<(u32, (i64, u32))>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("spec", &self.spec).finish_non_exhaustive()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    pub(crate) fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    pub(crate) fn add(&self, counter: Counter, amount: u64) {
        self.counters.add(counter, amount);
        self.tell_count(counter, amount);
    }

    /// Takes note of a value, in microseconds or bytes.
    pub(crate) fn spread(&self, spread: Spread, value: u64) {
        self.counters.note(spread, value);
        self.tell_spread(spread, value);
    }

    /// Something can only be put in order by another look at everything.
    pub(crate) fn look_again(&self, why: &str) {
        match &self.following {
            _ if self.tell(|| Said::LookAgain(why.to_owned())) => {}
            Some(following) => following.look_at_all(why),
            None => *lock(&self.looks_again) = Some(why.to_owned()),
        }
    }

    /// Why everything has to be looked at.
    pub(crate) fn needs_all(&self) -> Option<String> {
        let again = lock(&self.looks_again).clone();
        again.or_else(|| self.following.as_ref().and_then(Following::needs_all))
    }

    /// An entry has failed for good.
    pub(crate) fn error(&self, error: EntryError) {
        // Whether a host's error is believed is for the coordinator to say, whose guard hears it then.
        if self.desk.is_none() || !error.may_be_the_hosts() {
            self.guard.heard(&error);
        }
        if self.tell(|| Said::Error(error.clone())) {
            self.troubled.store(true, Ordering::Release);
            tracing::warn!(path = ?error.path, operation = ?error.operation,
                class = error.class.word(), errno = error.errno, "entry failed");
            return;
        }
        if error.class == ErrorClass::Cancelled {
            self.count(Counter::NotAttempted);
        } else {
            self.count(Counter::Errors);
            if error.class.source_moved_on() && error.side == Side::Source {
                self.count(Counter::SourceErrors);
            }
        }
        let class = error.class;
        let error = self.judged(error);
        *lock(&self.tally).errors.entry(error.class).or_default() += 1;
        // What was not attempted is no error of its entry: the journal has it as a task.
        if self.keeps_journal && error.class != ErrorClass::Cancelled {
            lock(&self.unrecorded).push(error.clone());
            if self.suspect_since.is_some() {
                // It was to be compared, since an earlier pass was cut off, and the end of this one ends that.
                let path = self.tree_path(&error);
                self.doubt(path.unwrap_or_else(TreePath::root));
            }
        }
        tracing::warn!(path = ?error.path, operation = ?error.operation, class = error.class.word(),
            errno = error.errno, attempt = error.attempt, "entry failed");
        self.monitor.event(&Event::Error(error));
        let systemic = lock(&self.breaker).failure(class);
        self.troubled.store(true, Ordering::Release);
        if let Some(class) = systemic
            && self.control.stop(StopReason::Systemic(class))
        {
            let reason = format!("every entry fails alike ({}): {}", class.word(), class.advice());
            self.monitor.event(&Event::Paused { reason });
        }
        let most = self.spec.limits.errors_max;
        if most.is_some_and(|most| self.counters.get(Counter::Errors) >= most.max(1)) {
            self.control.stop(StopReason::Errors);
        }
    }

    /// Where an entry is below the root that it belongs to.
    fn tree_path(&self, error: &EntryError) -> Option<TreePath> {
        self.roots.ids().find_map(|id| {
            let root = self.root(id).ok()?;
            // One may lie below the other.
            let side = match error.side {
                Side::Source => Some(&root.source),
                Side::Destination => root.destination.as_ref(),
            };
            error.path.below(&side?.display)
        })
    }

    /// Whether a failure may pass: then it is counted and waited for.
    pub(crate) fn may_pass(&self, error: &EntryError, attempt: u32) -> bool {
        let delay = retry::delay_ms(error, attempt).filter(|_| !self.control.is_stopping());
        if let Some(delay_ms) = delay {
            tracing::debug!(?error, delay_ms, "trying again");
            self.count(Counter::Retries);
            std::thread::sleep(Duration::from_millis(delay_ms));
        }
        delay.is_some()
    }

    /// Does something that much depends on, such as opening a directory, again while its failure
    /// may pass. It has to be something that can be done twice.
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

    /// Does something with what another host has made, which is perhaps not seen here yet: a client of a network file system
    /// remembers for a while that a name is absent (nfs(5), lookupcache), or a handle that is none any more.
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
                && (stat::is_absent_number(error.errno) || error.class == ErrorClass::Stale);
            let goes_on = self.desk.is_some() && !self.control.is_stopping();
            if !is_unseen || !goes_on {
                return result;
            }
            // Where something is gone for good, much that was in it is: then it is not waited for again and again.
            let now_ms = self.started.elapsed().as_millis() as u64;
            let given_up = self.unseen_until_ms.load(Ordering::Relaxed);
            if now_ms < given_up || begun.elapsed() >= SEEN_WITHIN {
                self.unseen_until_ms
                    .fetch_max(now_ms + UNSEEN_FOR.as_millis() as u64, Ordering::Relaxed);
                return result;
            }
            tracing::debug!(?error, "looking once more for what another mover has made");
            self.count(Counter::Retries);
            std::thread::sleep(wait);
            wait *= 2;
        }
    }

    /// A mover met a fault of the program itself: the task is told and the job goes on.
    pub(crate) fn panicked(&self, task: &dmover_model::Task) {
        let words = format!("a fault in dmover while working on {:?}; please report it", task.kind);
        let (side, class) = (Side::Destination, ErrorClass::Other);
        let path = self.spec.destination.clone();
        self.error(EntryError::plain(side, Operation::Attempt, class, path, words));
    }

    /// Content was moved, so the trouble is not systemic.
    pub(crate) fn progress(&self) {
        if self.troubled.load(Ordering::Acquire) {
            let mut breaker = lock(&self.breaker);
            self.troubled.store(false, Ordering::Release);
            breaker.success();
        }
    }

    /// What the source has, with the owner that the destination is to have.
    pub(crate) fn as_mapped(&self, source: &Metadata) -> Metadata {
        let (uid, gid) = (self.ids.user(source.uid), self.ids.group(source.gid));
        Metadata { uid, gid, ..source.clone() }
    }

    pub(crate) fn note(&self, note: Note, path: impl FnOnce() -> PathBytes) {
        if self.desk.is_some() {
            self.tell(|| Said::Note { path: path(), note });
            return;
        }
        self.count(match note {
            Note::OwnerNotKept => Counter::OwnersNotKept,
            Note::SetIdDropped => Counter::SetIdsDropped,
            Note::PrivilegedAttribute => Counter::PrivilegedAttributes,
            Note::LeftoverRemoved => Counter::LeftoversRemoved,
            Note::TemporarySkipped => Counter::TemporariesSkipped,
            Note::SourceAtimeTouched => Counter::SourceAtimesTouched,
            Note::SystemAttribute => Counter::SystemAttributes,
            Note::OpenForWriting => Counter::FilesOpenForWriting,
        });
        self.monitor.event(&Event::Note { path: path(), note });
    }

    pub(crate) fn loss(&self, kind: LossKind, path: PathBytes, detail: impl Into<String>) {
        let detail = detail.into();
        let (told_path, told_detail) = (&path, &detail);
        let said = || Said::Loss { path: told_path.clone(), kind, detail: told_detail.clone() };
        if self.tell(said) {
            return;
        }
        let allowed = self.spec.policy.allow_loss.has(kind);
        self.count(if allowed { Counter::LossesAllowed } else { Counter::Losses });
        *lock(&self.tally).losses.entry(kind).or_default() += 1;
        self.monitor.event(&Event::Loss { path, kind, detail, allowed });
    }

    /// Whether a directory, reached by a followed link, lies below a destination root.
    pub(crate) fn lies_in_destination(&self, directory: &dmover_sys::OwnedFd) -> bool {
        let mut above = dmover_sys::path::open_directory_at(directory, b"..");
        let mut last = None;
        while let Ok(fd) = &above {
            let Ok(found) = stat::stat_fd(fd) else { return false };
            let identity = self.mounts.identity(&found);
            if self.is_forbidden(identity) {
                return true;
            }
            if last == Some(identity) {
                return false; // the root of all directories is its own parent
            }
            last = Some(identity);
            above = dmover_sys::path::open_directory_at(fd, b"..");
        }
        false
    }

    /// A directory of the destination is not to be entered as a source.
    pub(crate) fn forbid(&self, identity: Identity) {
        self.forbidden.write().unwrap_or_else(PoisonError::into_inner).insert(identity);
    }

    /// The same through an overlay, which gives its directories another device. Layers that its options do not name are
    /// known by this alone.
    pub(crate) fn forbid_in_layers(&self, directory: &dmover_sys::OwnedFd) {
        if let Some(birth) = birth_of(directory) {
            self.forbidden_births.write().unwrap_or_else(PoisonError::into_inner).insert(birth);
        }
    }

    /// Whether an overlay shows a directory of the destination here, or the destination is an overlay that writes here.
    pub(crate) fn is_forbidden_in_layers(&self, directory: &dmover_sys::OwnedFd) -> bool {
        let known = || self.forbidden_births.read().unwrap_or_else(PoisonError::into_inner);
        birth_of(directory).is_some_and(|birth| known().contains(&birth))
    }

    pub(crate) fn is_forbidden(&self, identity: Identity) -> bool {
        self.forbidden.read().unwrap_or_else(PoisonError::into_inner).contains(&identity)
    }
}

/// The number without the bits that an overlay adds to tell layers apart, and the time of birth.
fn birth_of(directory: &dmover_sys::OwnedFd) -> Option<(u32, (i64, u32))> {
    let (found, birth) = stat::stat_born_at(directory, b"").ok()?;
    Some((found.inode as u32, birth?))
}

/// An error of a system call on an entry.
pub(crate) fn entry_error(
    side: Side,
    operation: Operation,
    path: PathBytes,
    error: Errno,
) -> EntryError {
    let errno = error.raw_os_error();
    let class = ErrorClass::from_errno(errno, side);
    let mut detail = String::new();
    // Without write permission it would be EACCES. (New devices are refused for other reasons.)
    let names = [Operation::MakeDirectory, Operation::Rename, Operation::Unlink];
    if error == Errno::PERM && side == Side::Destination && names.contains(&operation) {
        "is it, or its directory, locked by chattr(1) (see lsattr), or somebody else's in a directory with the sticky bit?"
            .clone_into(&mut detail);
    }
    EntryError { side, operation, path, class, errno, detail, attempt: 1 }
}
