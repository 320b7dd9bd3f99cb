//! A mover: it leases tasks, runs them, and reports outcomes.
use dmover_model::{
    Carried, DirectoryRef, EntryError, ErrorClass, Identity, MountId, NewNode, Operation, Outcome,
    PathBytes, Side, Task, TaskKind, TreePath, Work,
};
use dmover_observe::{Activity, Counter, Slot, Spread, Station, station};
use dmover_sys::Errno;
use dmover_sys::directory::DirectoryReader;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backup::BackupNumbers;
use crate::context::Engine;
use crate::control::StopReason;
use crate::later::Later;
use crate::level::{Level, TargetDirectory};
use crate::mover_report::{MoverReport, ReportItem};
use crate::permit::MoverPermit;
use crate::queue::{Class, Lease, Queue};
use crate::verify::{Pair, Unrepaired};
use dmover_local::content::Tools;
use dmover_local::error::entry_error;

/// The most reports in one message to a remote coordinator.
const TOLD_MAX: usize = 512;
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
    pub tools: &'a mut Tools,
    /// Buffers for reading directories, reused; more than one only for nested reads.
    pub readers: &'a mut Vec<DirectoryReader>,
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
    /// The names of the last directory that was asked for an exact name, where case is ignored.
    pub exact_names: RefCell<Option<(Identity, HashSet<Vec<u8>>)>>,
    /// The numbers of backups in the last directory that was asked for them.
    pub backups: RefCell<Option<(Identity, BackupNumbers)>>,
    /// The present entry looks complete at the destination: after an error, another attempt would find it equal and
    /// skip it.
    pub in_place: bool,
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
    /// An entry that is normally compared is now copied.
    pub is_copying: bool,
    /// File systems that this task has written to.
    pub written: RefCell<BTreeSet<MountId>>,
    /// Files with delayed renames.
    pub later: Later,
    /// Files of the present batch may be delayed.
    pub puts_off: bool,
    /// A flush has failed, so no waiting file may be renamed.
    pub unflushed: Option<Errno>,
    /// Nodes reported under this lease.
    nodes: usize,
    /// The number of temporary names that this lease has used.
    temporaries: Cell<u32>,
    /// The time of the last report.
    told: Cell<Instant>,
}

impl<'a> Mover<'a> {
    /// The permission of this task for the ends.
    pub fn permit(&self) -> MoverPermit<'a> {
        let engine = self.engine;
        MoverPermit { control: &engine.control, limits: &engine.limits, lease: self.lease }
    }
}

impl Mover<'_> {
    /// Adds a node to the report and returns its number in this task.
    pub fn report(&mut self, node: NewNode) -> usize {
        self.outcome.nodes.push(node);
        self.nodes += 1;
        self.nodes - 1
    }

    /// Sends collected reports to a remote coordinator if they are many or old.
    pub fn tell_much(&self) {
        let is_old = || self.engine.desk.is_some() && self.told.get().elapsed() >= TELL_EVERY;
        if MoverReport::waiting() >= TOLD_MAX || is_old() {
            self.told.set(Instant::now());
            self.queue.report(self.lease, Outcome::default());
        }
    }

    /// Reports that the part of a large file in this task failed.
    fn fail_part(&mut self, words: &str) {
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

    /// Records that the task writes to a directory.
    pub fn writes_to(&self, target: &TargetDirectory) {
        if let Some(flusher) = &self.engine.flusher
            && self.written.borrow_mut().insert(target.metadata.identity.mount)
        {
            flusher.know(target.metadata.identity.mount, &target.fd);
        }
    }

    /// Flushes everything that this task has written before its end is reported.
    fn make_durable(&mut self) {
        let Some(flusher) = &self.engine.flusher else { return };
        station::at(Activity::TargetData);
        // The kernel reports a write-back error only once.
        let earlier = self.unflushed.take();
        for mount in std::mem::take(&mut *self.written.borrow_mut()) {
            if let Err(error) = flusher.flush(mount).and(earlier.map_or(Ok(()), Err)) {
                let path = self.engine.spec.destination.clone();
                let error = entry_error(Side::Destination, Operation::Sync, path, error);
                let class = error.class;
                self.engine.error(error);
                // What is not on storage must not go on record as done.
                self.outcome.survey.clear();
                self.outcome.large.clear();
                let reason = StopReason::Systemic(class);
                self.engine.tell(|| ReportItem::Stop(reason));
                self.engine.control.stop(reason);
            }
        }
    }

    /// A temporary name that no other mover uses.
    pub fn temporary_name(&self) -> dmover_model::Name {
        let number = self.temporaries.get();
        self.temporaries.set(number + 1);
        self.engine.temporaries.of_lease(self.lease.number, number)
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

    /// Removes temporary files of an earlier run in the directory of this task, where no other task searches for them.
    fn clean_up(&mut self, task: &Task) {
        let places: Vec<&DirectoryRef> = match &task.kind {
            TaskKind::Scan { directory, names } if !names.names().is_empty() => vec![directory],
            TaskKind::Open { file, .. } => vec![&file.directory],
            TaskKind::Links(groups) => groups
                .iter()
                .flat_map(|group| std::iter::once(&group.first).chain(&group.rest))
                .map(|file| &file.directory)
                .collect(),
            _ => Vec::new(),
        };
        for place in places {
            // A directory that cannot be opened is reported by the task itself.
            let Ok(level) = self.engine.open_level(place) else { continue };
            let Some(target) = &level.target else { continue };
            let shown = || level.own_target_path();
            let source = Some(&level.source.metadata);
            if let Err(error) = self.remove_leftovers(target, source, &shown) {
                self.engine.error(error);
            }
        }
    }

    fn run(&mut self, task: &Task) {
        if task.resumed {
            self.clean_up(task);
        }
        self.run_kind(task);
        self.settle_later();
        // A name that could not be given may stand for a directory by now.
        self.hand_on_as_inherited();
    }

    fn run_kind(&mut self, task: &Task) {
        match &task.kind {
            TaskKind::Scan { directory, names } => self.run_scan(directory, names.clone()),
            TaskKind::Open { file, round } => self.run_open(file, *round),
            TaskKind::Chunk(chunk) => self.run_chunk(chunk),
            TaskKind::Seal(seal) => self.run_seal(seal),
            TaskKind::Links(groups) => self.run_links(groups),
            TaskKind::Finish(directories) => self.run_finish(directories),
            TaskKind::Delete(extra) => self.run_delete(extra),
            TaskKind::Revisit(directories) => self.run_revisit(directories),
            TaskKind::Rename(moves) => self.run_rename(moves),
            TaskKind::Catalog(directories) => self.run_catalog(directories),
            TaskKind::CatalogNames(places) => self.run_catalog_names(places),
            TaskKind::Pairs(pairs) => self.run_pairs(pairs),
            TaskKind::Sums(items) => self.run_sums(items),
            TaskKind::Hash(task) => self.run_hash(task),
            TaskKind::Conclude(task) => self.run_conclude(task),
            TaskKind::Records(task) => self.run_records(task),
            TaskKind::Compare(task) => self.run_compare(task),
            TaskKind::Judge(task) => self.run_judge(task),
        }
    }
}

/// Runs tasks until the queue is closed.
pub(crate) fn run_mover(engine: &Engine, queue: &dyn Queue, place: &Arc<Station>) {
    place.take();
    let mut tools = Tools::new((engine.buffer_bytes, engine.ring_bytes), engine.limits.has_rate());
    let mut readers = Vec::new();
    // Beyond one task: thousands of sources may go into one directory. The job's lock rules out new leftovers.
    let mut cleaned = None;
    let slot = engine.counters.outlook().slot();
    while !queue.is_closed() {
        for lease in queue.lease(1, Duration::from_millis(500)) {
            let mut mover = Mover {
                engine,
                slot: &slot,
                queue,
                lease: &lease,
                tools: &mut tools,
                readers: &mut readers,
                outcome: Outcome::default(),
                deferred: Vec::new(),
                spent: BudgetUse { entries: 0, bytes: 0, since: Instant::now() },
                clearing: false,
                spared: None,
                narrowed: RefCell::default(),
                cleaned: &mut cleaned,
                exact_names: RefCell::new(None),
                backups: RefCell::new(None),
                in_place: false,
                carried: None,
                pair: None,
                unrepaired: None,
                names_here: 0,
                is_doubtful: false,
                touched: None,
                is_copying: false,
                written: RefCell::default(),
                later: Later::default(),
                puts_off: false,
                unflushed: None,
                nodes: 0,
                temporaries: Cell::new(0),
                told: Cell::new(Instant::now()),
            };
            let class = Class::of(&lease.task) as usize;
            station::begin(class);
            // After a panic, the task must not stay leased to a dead thread.
            let run = std::panic::AssertUnwindSafe(|| mover.run(&lease.task));
            if std::panic::catch_unwind(run).is_err() {
                engine.panicked(&lease.task);
                // What ends the file has to know that a part of it is missing.
                mover.fail_part("internal error in dmover during a part of it");
            }
            slot.end();
            mover.make_durable();
            let (work, elapsed) = (mover.spent.work(), mover.spent.since.elapsed());
            let outcome = Outcome { work, ..std::mem::take(&mut mover.outcome) };
            engine.count(Counter::TasksDone);
            engine.spread(Spread::of_tasks(class), elapsed.as_micros() as u64);
            queue.complete(&lease, outcome);
            station::at(Activity::Idle);
        }
    }
}
