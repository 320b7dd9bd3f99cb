//! The loop of a mover: it leases tasks, runs each by what it is, and reports the outcome.
use dmover_local::content::Tools;
use dmover_local::session::{Session, Temporaries};
use dmover_model::{DirectoryRef, Task, TaskKind};
use dmover_observe::{Activity, Counter, CurrentActivity, Quantity, activity};
use std::sync::Arc;
use std::time::Duration;

use crate::apply;
use crate::catalog_survey;
use crate::context::Engine;
use crate::directory;
use crate::directory_pair;
use crate::extra;
use crate::large;
use crate::links;
use crate::mover::{Mover, Thread};
use crate::permit::MoverPermit;
use crate::queue::{Class, Queue};
use crate::rename;
use crate::scan;
use crate::sum;
use crate::verbs::{REPAIRS, strategy_of};
use crate::verify;

/// Removes temporary files of an earlier run in the directory of this task, where no other task searches for them.
fn clean_up(mover: &mut Mover<'_>, task: &Task) {
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
        let Ok(level) = directory_pair::open_level(mover.engine, place) else { continue };
        let Some(target) = &level.target else { continue };
        let source = Some(&level.source.metadata);
        if let Err(error) = directory::remove_leftovers(mover, target, source) {
            mover.engine.error(error);
        }
    }
}

fn run(mover: &mut Mover<'_>, task: &Task) {
    if task.resumed {
        clean_up(mover, task);
    }
    run_kind(mover, task);
    apply::deferred_rename::settle_later(mover);
    catalog_survey::ask_about_copied(mover);
    // A name that could not be given may stand for a directory by now.
    large::hand_on_as_inherited(mover);
}

fn run_kind(mover: &mut Mover<'_>, task: &Task) {
    match &task.kind {
        TaskKind::Scan { directory, names } => scan::run(mover, directory, names.clone()),
        TaskKind::Open { file, round } => large::run_open(mover, file, *round),
        TaskKind::Chunk(chunk) => large::run_chunk(mover, chunk),
        TaskKind::Seal(seal) => large::run_seal(mover, seal),
        TaskKind::Links(groups) => links::run(mover, groups),
        TaskKind::Finish(directories) => directory::run_finish(mover, directories),
        TaskKind::Delete(extra) => extra::delete::run(mover, extra),
        TaskKind::Revisit(directories) => catalog_survey::run_revisit(mover, directories),
        TaskKind::Rename(moves) => rename::run(mover, moves),
        TaskKind::Catalog(directories) => catalog_survey::run_catalog(mover, directories),
        TaskKind::CatalogNames(places) => catalog_survey::run_catalog_names(mover, places),
        TaskKind::Pairs(pairs) => scan::list::run_pairs(mover, pairs),
        TaskKind::Sums(items) => sum::run_sums(mover, items),
        TaskKind::Hash(task) => sum::run_hash(mover, task),
        TaskKind::FinishHash(task) => sum::run_finish_hash(mover, task),
        TaskKind::Records(task) => verify::records::run(mover, task),
        TaskKind::Compare(task) => verify::content::run(mover, task),
        TaskKind::FinishCompare(task) => verify::run_finish_compare(mover, task),
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
            let run = std::panic::AssertUnwindSafe(|| run(&mut mover, &lease.task));
            if std::panic::catch_unwind(run).is_err() {
                engine.panicked(&lease.task);
                // What ends the file has to know that a part of it is missing.
                mover.report.fail_part("internal error in dmover during a part of it");
            }
            slot.end();
            let (outcome, elapsed) = mover.end();
            engine.reports.count(Counter::TasksDone);
            engine.reports.measure(Quantity::of_tasks(class), elapsed.as_micros() as u64);
            queue.complete(&lease, outcome);
            activity::at(Activity::Idle);
        }
    }
}
