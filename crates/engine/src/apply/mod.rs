//! The apply half: it makes planned entries so at the destination.
//!
//! It gets batches of records without descriptors, each with its decision; it gets content from the source half only
//! when an entry needs it. Every entry is retried, timed, counted and reported here.
use dmover_local::error::is_locked_out;
use dmover_local::session::WriteError;
use dmover_local::source::Opened;
use dmover_model::{Action, EntryError, EntryKind, Event, Item};
use dmover_observe::{Counter, activity};
use dmover_plan::decide::Decision;
use dmover_plan::itemize;
use dmover_schedule::time::Instant;

use crate::alike;
use crate::catalog_survey;
use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair};
use crate::extra;
use crate::manifest_records;
use crate::mover::Mover;
use crate::plan_entry;
use crate::planned::{CopyResult, Planned};

pub(crate) mod deferred_rename;

/// Applies a batch of planned entries of one directory. [`announce`] comes first if they are many and the source is
/// read through messages.
pub(crate) fn apply(mover: &mut Mover<'_>, level: &DirectoryPair, batch: Vec<Planned>) {
    for planned in batch {
        if mover.engine.control.is_stopping() {
            let path = level.target_path(planned.record.destination_name().as_bytes());
            mover.engine.error(dmover_local::error::cancelled(path));
            continue;
        }
        // Nobody looks at what is in place before the task has ended.
        mover.waiting.puts_off = true;
        apply_one(mover, level, planned);
        mover.waiting.puts_off = false;
        mover.lease.extend();
        mover.report.tell_much();
    }
}

/// Tells a source that is read through messages which files will be opened.
pub(crate) fn announce(engine: &Engine, level: &DirectoryPair, batch: &[Planned]) {
    let only_shows = engine.spec.verb.fills() && engine.spec.policy.dry_run;
    if !level.source.is_remote() || only_shows || engine.control.is_stopping() {
        return;
    }
    let opened = batch.iter().filter(|planned| {
        let passes =
            matches!(planned.decision, Decision::Skip | Decision::Clear | Decision::Refuse(..));
        planned.record.metadata.kind == EntryKind::File && !passes
    });
    let names: Vec<&[u8]> = opened.map(|planned| planned.record.name.as_bytes()).collect();
    level.source.announce(&names, directory_pair::follows(&engine.spec, level));
}

/// Copies one entry, with retries. Returns whether it is in place afterwards.
pub(crate) fn apply_one(mover: &mut Mover<'_>, level: &DirectoryPair, planned: Planned) -> bool {
    apply_opened(mover, level, planned, None)
}

/// Copies one entry whose file the source half has already opened.
pub(crate) fn apply_opened(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    mut planned: Planned,
    mut opened: Option<Opened>,
) -> bool {
    let engine = mover.engine;
    let started = Instant::now();
    mover.note_entry(level, planned.record.name.as_bytes(), started);
    mover.entry.unrepaired = None;
    for attempt in 1.. {
        let result = mover.thread.strategy.entry(mover, level, &planned, opened.take());
        let WriteError { mut error, in_place } = match result {
            Ok(mut moved) => {
                match moved.later.take() {
                    Some(later) => {
                        deferred_rename::put_off(mover, level, planned, (moved, later), started);
                    }
                    None => account(mover, level, &planned, moved, started),
                }
                return true;
            }
            Err(error) => error,
        };
        error.attempt = attempt;
        let lifted = is_locked_out(error.errno) && directory_pair::lift_directory(engine, level);
        if in_place || (!lifted && !engine.may_pass(&error, attempt)) {
            engine.error(error);
            mover.tell_unrepaired();
            return false;
        }
        match plan_entry::look_again(mover, level, &planned.record) {
            Ok(Some(fresh)) => planned = fresh,
            Ok(None) => return true,
            Err(error) => {
                engine.error(EntryError { attempt, ..error });
                mover.tell_unrepaired();
                return false;
            }
        }
    }
    false
}

/// Counts, times and reports the action on an entry.
pub(crate) fn account(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    planned: &Planned,
    moved: CopyResult,
    started: Instant,
) {
    let engine = mover.engine;
    let (kind, record) = (planned.record.metadata.kind, &planned.record);
    mover.spent.entries += 1;
    mover.spent.bytes += moved.bytes;
    let decision = moved.instead.unwrap_or(planned.decision);
    if !engine.spec.verb.fills() || decision == Decision::Clear {
        return;
    }
    if planned.decision != Decision::Skip {
        engine.doubts.settle(false, || level.path.join(record.name.as_bytes()));
    }
    let action = match decision {
        Decision::Skip => Action::Skipped,
        Decision::Inspect => Action::MetadataUpdated,
        Decision::UpdateInPlace => Action::Updated,
        Decision::Replace => Action::Replaced,
        Decision::Share => Action::Shared,
        _ => Action::Created,
    };
    if planned.existing.is_some() && planned.decision != Decision::Clear {
        extra::note_had(mover, 1);
    }
    let kept_its_name =
        matches!(action, Action::Replaced | Action::Updated | Action::MetadataUpdated);
    match kind {
        EntryKind::File if action != Action::Skipped => {
            catalog_survey::tell_copied(mover, level, record, kept_its_name);
        }
        _ if action != Action::Skipped => catalog_survey::tell_touched(mover, level),
        _ => {}
    }
    if action == Action::Skipped {
        engine.reports.count(Counter::EntriesSkipped);
        if alike::needs_owner_or_mode(mover.engine, planned) {
            engine.reports.count(Counter::EntriesUnlike);
        }
        if let Some(old) = &planned.existing {
            alike::count_other_owner(mover.engine, &record.metadata, old);
        }
        if kind == EntryKind::File {
            engine.reports.add(Counter::BytesSkipped, record.metadata.size);
        }
    } else if action == Action::MetadataUpdated {
        engine.reports.count(Counter::MetadataUpdated);
        engine.reports.progress();
    } else if action == Action::Shared {
        engine.reports.count(Counter::FilesUnchanged);
        engine.reports.progress();
    } else {
        engine.reports.count(counter_of(kind));
        if engine.spec.policy.dry_run {
            engine.reports.add(Counter::BytesCopied, moved.bytes);
        }
        if planned.existing.is_some() {
            engine.reports.count(Counter::EntriesReplaced);
        }
        engine.reports.progress();
    }
    activity::did(activity::ENTRY_WORK);
    let moved_bytes = moved.bytes;
    if engine.spec.policy.digest.is_some() {
        let kept = action == Action::Skipped
            && !manifest_records::is_equal_there(mover.engine, level, planned);
        manifest_records::tell_made(mover, level, record, (action, moved), kept, started.elapsed());
    }
    let elapsed_us = started.elapsed().as_micros() as u64;
    let path = || level.source_path(record.name.as_bytes());
    if action != Action::Skipped {
        engine.reports.done(elapsed_us, moved_bytes);
    }
    engine.reports.slow(elapsed_us, moved_bytes, path);
    if engine.reports.wants_items() {
        let old = planned.existing.as_ref();
        engine.reports.show(Event::Item(Item {
            path: path(),
            target: level.target_path(record.destination_name().as_bytes()),
            action,
            kind,
            bytes: moved_bytes,
            elapsed_us,
            itemized: itemize::columns(
                action,
                &engine.settable.as_settable(&record.metadata, old),
                old,
            ),
        }));
    }
}

fn counter_of(kind: EntryKind) -> Counter {
    match kind {
        EntryKind::File => Counter::FilesCopied,
        EntryKind::Directory => Counter::DirectoriesCreated,
        EntryKind::Symlink => Counter::SymlinksCopied,
        _ => Counter::SpecialsCopied,
    }
}
