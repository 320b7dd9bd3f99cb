//! The loop of a mover: it leases tasks, runs each by what it is, and reports the outcome.
use dmover_local::content::Tools;
use dmover_local::session::{Session, Temporaries};
use dmover_model::{DirectoryRef, Task, TaskKind};
use dmover_observe::{Activity, Counter, CurrentActivity, Spread, activity};
use std::sync::Arc;
use std::time::Duration;

use crate::context::Engine;
use crate::mover::{Mover, Thread};
use crate::permit::MoverPermit;
use crate::queue::{Class, Queue};
use crate::verbs::{REPAIRS, strategy_of};

impl Mover<'_> {
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
            let source = Some(&level.source.metadata);
            if let Err(error) = self.remove_leftovers(target, source) {
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
pub(crate) fn run_mover(engine: &Engine, queue: &dyn Queue, place: &Arc<CurrentActivity>) {
    place.take();
    let mut tools = Tools::new(
        (engine.resources.buffer_bytes, engine.resources.ring_bytes),
        engine.resources.limits.has_rate(),
    );
    let mut readers = Vec::new();
    // Beyond one task: thousands of sources may go into one directory. The job's lock rules out new leftovers.
    let mut cleaned = None;
    let slot = engine.reports.counters.outlook().slot();
    while !queue.is_closed() {
        for lease in queue.lease(1, Duration::from_millis(500)) {
            let (control, limits) = (&*engine.control, &engine.resources.limits);
            let permit = MoverPermit { control, limits, lease: &lease };
            let temporaries = Temporaries::new(&engine.temporaries, lease.number);
            let session = Session::new(engine.local(), &permit, &mut tools, temporaries);
            let thread = Thread {
                slot: &slot,
                readers: &mut readers,
                cleaned: &mut cleaned,
                strategy: strategy_of(engine.spec.verb),
                repairs: REPAIRS,
            };
            let mut mover = Mover::new(engine, (queue, &lease), session, thread);
            let class = Class::of(&lease.task) as usize;
            activity::begin(class);
            // After a panic, the task must not stay leased to a dead thread.
            let run = std::panic::AssertUnwindSafe(|| mover.run(&lease.task));
            if std::panic::catch_unwind(run).is_err() {
                engine.panicked(&lease.task);
                // What ends the file has to know that a part of it is missing.
                mover.fail_part("internal error in dmover during a part of it");
            }
            slot.end();
            let (outcome, elapsed) = mover.end();
            engine.reports.count(Counter::TasksDone);
            engine.reports.spread(Spread::of_tasks(class), elapsed.as_micros() as u64);
            queue.complete(&lease, outcome);
            activity::at(Activity::Idle);
        }
    }
}
