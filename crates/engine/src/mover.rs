//! A mover: it leases tasks, runs them, and reports outcomes.
use dmover_local::error::{CallFailed, denied};
use dmover_local::listing::NameBuffer;
use dmover_local::pair::Pair;
use dmover_local::session::Session;
use dmover_model::{
    Carried, DirectoryRef, EntryError, EntryKind, ErrorClass, Identity, LinkName, Metadata,
    NewNode, Operation, Outcome, PathBytes, Side, Task, TaskKind, TreePath, Work,
};
use dmover_observe::{Activity, Counter, Slot, activity};
use dmover_schedule::time::Instant;
use dmover_tree::Permit;
use std::cell::{Cell, RefCell};
use std::time::Duration;

use crate::context::Engine;
use crate::control::StopReason;
use crate::finding::Unrepaired;
use crate::level::Level;
use crate::mover_report::{self, ReportItem};
use crate::queue::{Lease, Queue};
use crate::waiting_files::WaitingFiles;

mod strategy;

pub(crate) use strategy::Strategy;

/// The most reports in one message to a remote coordinator.
const TOLD_MAX: usize = 512;
/// How many linked names are reported at once.
const LINKS_MAX: usize = 256;
/// How often a remote coordinator receives the progress of a running task.
pub(crate) const TELL_EVERY: Duration = Duration::from_secs(2);

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
    /// Where this thread records its entry in progress.
    pub slot: &'a Slot,
    /// Its work at the destination.
    pub session: Session<'a>,
    /// Buffers for reading directories, reused; more than one only for nested reads.
    pub readers: &'a mut Vec<NameBuffer>,
    /// The next report.
    pub outcome: Outcome,
    /// New tasks that belong to the present directory.
    pub deferred: Vec<TaskKind>,
    pub spent: BudgetUse,
    /// The task removes a directory that is in the way.
    pub clearing: bool,
    /// An entry in it that a rule keeps.
    pub spared: Option<PathBytes>,
    /// The last directory that received a moved entry, narrowed with all directories above it.
    pub narrowed: RefCell<Option<TreePath>>,
    /// The directory that was last searched for leftovers.
    pub cleaned: &'a mut Option<Identity>,
    /// The last copied inode and its content for the manifest, which its further names share.
    pub carried: Option<Carried>,
    /// The next file to compare, if it is already open.
    pub pair: Option<Pair>,
    /// A difference that is not repaired, until it is known whether another attempt follows.
    pub unrepaired: Option<Unrepaired>,
    /// How many names of the present inode are known to be the job's own.
    pub names_here: u64,
    /// One of these names is doubtful.
    pub is_doubtful: bool,
    /// The last directory that was reported as written to.
    pub touched: Option<Identity>,
    /// What it does with entries.
    pub strategy: &'static dyn Strategy,
    /// What a repair does with them.
    pub repairs: &'static dyn Strategy,
    /// Files with delayed renames.
    pub waiting: WaitingFiles,
    /// Files of the present batch may be delayed.
    pub puts_off: bool,
    /// A flush has failed, so no waiting file may be renamed.
    pub unflushed: Option<CallFailed>,
    /// Nodes reported under this lease.
    nodes: usize,
    /// The time of the last report.
    told: Cell<Instant>,
}

/// What a thread works with.
pub(crate) struct Thread<'a> {
    pub slot: &'a Slot,
    pub readers: &'a mut Vec<NameBuffer>,
    pub cleaned: &'a mut Option<Identity>,
    pub strategy: &'static dyn Strategy,
    pub repairs: &'static dyn Strategy,
}

impl<'a> Mover<'a> {
    /// A mover with a task that it has not begun.
    pub fn new(
        engine: &'a Engine,
        (queue, lease): (&'a dyn Queue, &'a Lease),
        session: Session<'a>,
        Thread { slot, readers, cleaned, strategy, repairs }: Thread<'a>,
    ) -> Self {
        Self {
            engine,
            queue,
            lease,
            slot,
            session,
            readers,
            outcome: Outcome::default(),
            deferred: Vec::new(),
            spent: BudgetUse { entries: 0, bytes: 0, since: Instant::now() },
            clearing: false,
            spared: None,
            narrowed: RefCell::default(),
            cleaned,
            carried: None,
            pair: None,
            unrepaired: None,
            names_here: 0,
            is_doubtful: false,
            touched: None,
            strategy,
            repairs,
            waiting: WaitingFiles::default(),
            puts_off: false,
            unflushed: None,
            nodes: 0,
            told: Cell::new(Instant::now()),
        }
    }

    /// Flushes what the task has written, and returns its last report and how long it took.
    pub fn end(mut self) -> (Outcome, Duration) {
        self.make_durable();
        let work = self.spent.work();
        (Outcome { work, ..self.outcome }, self.spent.since.elapsed())
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
        let mut buffer = self.readers.pop().unwrap_or_default();
        let result = read(self, &mut buffer);
        self.readers.push(buffer);
        result
    }

    /// Adds a node to the report and returns its number in this task.
    pub fn report(&mut self, node: NewNode) -> usize {
        self.outcome.nodes.push(node);
        self.nodes += 1;
        self.nodes - 1
    }

    /// Sends collected reports to a remote coordinator if they are many or old.
    pub fn tell_much(&self) {
        let is_old =
            || self.engine.reports.desk.is_remote() && self.told.get().elapsed() >= TELL_EVERY;
        if mover_report::waiting() >= TOLD_MAX || is_old() {
            self.told.set(Instant::now());
            self.queue.report(self.lease, Outcome::default());
        }
    }

    pub(crate) fn mark_dirty(&mut self, directory: &DirectoryRef) {
        if self.outcome.dirty.last() != Some(directory) {
            self.outcome.dirty.push(directory.clone());
        }
    }

    pub(crate) fn count_found(&self, metadata: &Metadata) {
        self.engine.reports.count(Counter::EntriesFound);
        if metadata.kind == EntryKind::File {
            self.engine.reports.add(Counter::BytesFound, metadata.size);
        }
    }

    /// Reports a name of an inode with several names.
    ///
    /// The ledger stores them. A mover may read hundreds of thousands of names in one task.
    pub(crate) fn record_link(&mut self, name: LinkName) {
        self.outcome.links.push(name);
        if self.outcome.links.len() >= LINKS_MAX {
            self.flush();
        }
    }

    /// Checks that this mover still has the lease of the task, before a step that cannot be undone.
    pub(crate) fn check_lease(&self, level: &Level, name: &[u8]) -> Result<(), EntryError> {
        if let Some(target) = &level.target {
            return self.session.check_commit(target, name);
        }
        let path = if name.is_empty() { level.own_target_path() } else { level.target_path(name) };
        let at = (Side::Destination, Operation::Attempt);
        self.permit().may_commit().map_err(|why| denied(why, at, path))
    }

    /// Records the entry that this thread works on, for the display of the oldest entry.
    pub(crate) fn note_entry(&self, level: &Level, name: &[u8], begun: Instant) {
        let root = &level.root.source.display().0;
        // A root that is a single entry is its own path.
        let below: [&[u8]; 2] = [level.path.as_bytes(), name];
        let [directory, name] = if level.root.is_directory { below } else { Default::default() };
        self.slot.begin(begun, [root, directory, name]);
    }

    /// Reports differences that were not repaired, when no further attempt follows.
    pub(crate) fn tell_unrepaired(&mut self) {
        if let Some(Unrepaired { path, kind, finding }) = self.unrepaired.take() {
            self.engine.tell_finding(path, kind, finding, Some(false));
        }
    }

    /// Reports that the part of a large file in this task failed.
    pub fn fail_part(&mut self, words: &str) {
        let (side, class) = (Side::Destination, ErrorClass::Other);
        let path = PathBytes::default();
        let error = EntryError::plain(side, Operation::Write, class, path, words);
        self.outcome.chunk_failure.get_or_insert_with(|| Box::new(error));
    }

    /// Sends the present report, so that other movers can start on it.
    pub fn flush(&mut self) {
        if !self.outcome.is_empty() {
            self.queue.report(self.lease, std::mem::take(&mut self.outcome));
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
        let earlier = self.unflushed.take();
        for mount in self.session.take_written() {
            let flushed = flusher.flush(mount).map_err(CallFailed::from);
            if let Err(error) = flushed.and(earlier.map_or(Ok(()), Err)) {
                let path = self.engine.spec.destination.clone();
                let error = error.at((Side::Destination, Operation::Sync), path);
                let class = error.class;
                self.engine.error(error);
                // What is not on storage must not go on record as done.
                self.outcome.survey.clear();
                self.outcome.large.clear();
                if self.outcome.covered.take().is_some() {
                    self.outcome.pieces = None;
                    self.fail_part("the flush of a part of it failed");
                }
                let reason = StopReason::Systemic(class);
                self.engine.reports.desk.tell(|| ReportItem::Stop(reason));
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
    pub fn has_given(&self, level: &Level, name: &[u8]) -> bool {
        let Task { resumed, given, .. } = &self.lease.task;
        *resumed && !given.is_empty() && given.binary_search(&level.path.join(name)).is_ok()
    }
}
