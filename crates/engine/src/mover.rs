//! One task of a mover: what it needs, and what it reports.
use dmover_local::error::{CallFailed, denied};
use dmover_local::listing::NameBuffer;
use dmover_local::pair::Pair;
use dmover_local::session::Session;
use dmover_model::{
    Carried, EntryError, EntryKind, Identity, Metadata, Operation, Outcome, PathBytes, Side, Task,
    TreePath, Work,
};
use dmover_observe::{Activity, Counter, Slot, activity};
use dmover_schedule::time::Instant;
use dmover_tree::Permit;
use std::cell::RefCell;
use std::time::Duration;

use crate::context::Engine;
use crate::control::StopReason;
use crate::copied_names::CopiedFiles;
use crate::directory_pair::DirectoryPair;
use crate::finding::{self, Unrepaired};
use crate::mover_report::ReportItem;
use crate::queue::{Lease, Queue};
use crate::task_report::TaskReport;
use crate::waiting_files::WaitingFiles;

mod strategy;

pub(crate) use strategy::Strategy;

/// The use of a task's budget so far.
#[derive(Debug)]
pub(crate) struct BudgetUse {
    pub entries: u64,
    pub bytes: u64,
    since: Instant,
}

impl BudgetUse {
    fn work(&self) -> Work {
        let elapsed_ms = self.since.elapsed().as_millis() as u64;
        Work { entries: self.entries, bytes: self.bytes, elapsed_ms }
    }
}

/// One task of one thread.
pub(crate) struct Mover<'a> {
    pub engine: &'a Engine,
    pub queue: &'a dyn Queue,
    pub lease: &'a Lease,
    pub thread: Thread<'a>,
    /// Its work at the destination.
    pub session: Session<'a>,
    pub report: TaskReport<'a>,
    pub spent: BudgetUse,
    pub entry: PresentEntry,
    pub clearing: Clearing,
    pub seen: SeenDirectories,
    /// Files with delayed renames.
    pub waiting: WaitingFiles,
}

/// What a thread works with.
pub(crate) struct Thread<'a> {
    /// Where it records its entry in progress.
    pub slot: &'a Slot,
    /// Buffers for reading directories, reused; more than one only for nested reads.
    pub readers: &'a mut Vec<NameBuffer>,
    /// The directory that was last searched for leftovers.
    pub cleaned: &'a mut Option<Identity>,
    /// What it does with entries.
    pub strategy: &'static dyn Strategy,
    /// What a repair does with them.
    pub repairs: &'static dyn Strategy,
}

/// What is known of the present entry.
#[derive(Default)]
pub(crate) struct PresentEntry {
    /// The next file to compare, if it is already open.
    pub pair: Option<Pair>,
    /// A difference that is not repaired, until it is known whether another attempt follows.
    pub unrepaired: Option<Unrepaired>,
    /// How many names of the inode are known to be the job's own.
    pub names_here: u64,
    /// One of these names is doubtful.
    pub is_doubtful: bool,
    /// The last copied inode and its content for the manifest, which its further names share.
    pub carried: Option<Carried>,
}

/// The removal of a directory that is in the way.
#[derive(Default)]
pub(crate) struct Clearing {
    /// The task removes such a directory.
    pub is_on: bool,
    /// An entry in it that a rule keeps.
    pub spared: Option<PathBytes>,
}

/// Directories that the task has dealt with.
#[derive(Default)]
pub(crate) struct SeenDirectories {
    /// The last directory that received a moved entry, narrowed with all directories above it.
    pub narrowed: RefCell<Option<TreePath>>,
    /// The last directory that was reported as written to.
    pub touched: Option<Identity>,
    /// Files of which the source is asked once more.
    pub copied: CopiedFiles,
}

impl<'a> Mover<'a> {
    /// A mover with a task that it has not begun.
    pub fn new(
        engine: &'a Engine,
        (queue, lease): (&'a dyn Queue, &'a Lease),
        session: Session<'a>,
        thread: Thread<'a>,
    ) -> Self {
        Self {
            engine,
            queue,
            lease,
            thread,
            session,
            report: TaskReport::new(queue, lease, engine.reports.coordinator.is_remote()),
            spent: BudgetUse { entries: 0, bytes: 0, since: Instant::now() },
            entry: PresentEntry::default(),
            clearing: Clearing::default(),
            seen: SeenDirectories::default(),
            waiting: WaitingFiles::default(),
        }
    }

    /// Flushes what the task has written, and returns its last report and how long it took.
    pub fn end(mut self) -> (Outcome, Duration) {
        self.make_durable();
        let work = self.spent.work();
        (Outcome { work, ..self.report.outcome }, self.spent.since.elapsed())
    }

    /// The permission of this task for the ends.
    pub fn permit(&self) -> &'a dyn Permit {
        self.session.permit
    }
}

impl Mover<'_> {
    /// Lets `read` use a buffer for the names of a directory. It may read other directories meanwhile.
    pub(crate) fn with_buffer<T>(
        &mut self,
        read: impl FnOnce(&mut Self, &mut NameBuffer) -> T,
    ) -> T {
        let mut buffer = self.thread.readers.pop().unwrap_or_default();
        let result = read(self, &mut buffer);
        self.thread.readers.push(buffer);
        result
    }

    pub(crate) fn count_found(&self, metadata: &Metadata) {
        self.engine.reports.count(Counter::EntriesFound);
        if metadata.kind == EntryKind::File {
            self.engine.reports.add(Counter::BytesFound, metadata.size);
        }
    }

    /// Checks that this mover still has the lease of the task, before a step that cannot be undone.
    pub(crate) fn check_lease(&self, level: &DirectoryPair, name: &[u8]) -> Result<(), EntryError> {
        if let Some(target) = &level.target {
            return self.session.check_commit(target, name);
        }
        let path = if name.is_empty() { level.own_target_path() } else { level.target_path(name) };
        let at = (Side::Destination, Operation::Attempt);
        self.permit().may_commit().map_err(|why| denied(why, at, path))
    }

    /// Records the entry that this thread works on, for the display of the oldest entry.
    pub(crate) fn note_entry(&self, level: &DirectoryPair, name: &[u8], begun: Instant) {
        let root = &level.root.source.display().0;
        // A root that is a single entry is its own path.
        let below: [&[u8]; 2] = [level.path.as_bytes(), name];
        let [directory, name] = if level.root.is_directory { below } else { Default::default() };
        self.thread.slot.begin(begun, [root, directory, name]);
    }

    /// Reports differences that were not repaired, when no further attempt follows.
    pub(crate) fn tell_unrepaired(&mut self) {
        if let Some(Unrepaired { path, kind, finding }) = self.entry.unrepaired.take() {
            finding::tell_finding(self.engine, path, kind, finding, Some(false));
        }
    }

    pub fn budget_is_spent(&self) -> bool {
        let budget = &self.lease.task.budget;
        self.lease.is_wanted_back()
            || self.spent.entries >= budget.entries
            || self.spent.bytes >= budget.bytes
            || self.spent.since.elapsed() >= Duration::from_millis(budget.time_ms)
    }

    /// Flushes everything that this task has written before its end is reported.
    fn make_durable(&mut self) {
        let Some(flusher) = &self.engine.end.flusher else { return };
        activity::at(Activity::TargetData);
        // The kernel reports a write-back error only once.
        let earlier = self.waiting.unflushed.take();
        for mount in self.session.take_written() {
            let flushed = flusher.flush(mount).map_err(CallFailed::from);
            if let Err(error) = flushed.and(earlier.map_or(Ok(()), Err)) {
                let path = self.engine.spec.destination.clone();
                let error = error.at((Side::Destination, Operation::Sync), path);
                let class = error.class;
                self.engine.error(error);
                // What is not on storage must not go on record as done.
                self.report.forget_unflushed();
                let reason = StopReason::Systemic(class);
                self.engine.reports.coordinator.tell(|| ReportItem::Stop(reason));
                self.engine.control.stop(reason);
            }
        }
    }

    /// Whether a name was left by an earlier run, or by a mover that has lost this task or one above it.
    pub fn is_leftover(&self, name: &[u8]) -> bool {
        let temporaries = &self.engine.temporaries;
        let is_lost = |lease| temporaries.is_of_lease(name, lease);
        temporaries.is_leftover(name) || self.lease.task.lost_leases().any(is_lost)
    }

    /// Whether an earlier run of this task has returned a name, so that another task has it.
    pub fn has_given(&self, level: &DirectoryPair, name: &[u8]) -> bool {
        let Task { resumed, given, .. } = &self.lease.task;
        *resumed && !given.is_empty() && given.binary_search(&level.path.join(name)).is_ok()
    }
}
