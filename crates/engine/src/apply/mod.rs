//! The apply half: it makes planned entries so at the destination.
//!
//! It gets batches of records without descriptors, each with its decision; it gets content from the source half only
//! when an entry needs it. Every entry is retried, timed, counted and reported here.
use dmover_local::error::is_locked_out;
use dmover_local::session::WriteError;
use dmover_local::source::Opened;
use dmover_model::{Action, EntryError, EntryKind, Event, Item, Operation, Side, Verb, When};
use dmover_observe::{Counter, activity};
use dmover_plan::decide::Decision;
use dmover_plan::itemize;
use dmover_schedule::time::Instant;

use crate::alike;
use crate::catalog_survey;
use crate::context::Engine;
use crate::extra;
use crate::file;
use crate::inspect;
use crate::level;
use crate::level::{Level, TargetDirectory};
use crate::made;
use crate::mover::Mover;
use crate::plan_entry;
use crate::planned::{CopyResult, Planned};
use crate::snapshot;

pub(crate) mod deferred_rename;

/// Applies a batch of planned entries of one directory. [`Self::announce`] comes first if they are many and the source is
/// read through messages.
pub(crate) fn apply(mover: &mut Mover<'_>, level: &Level, batch: Vec<Planned>) {
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
pub(crate) fn announce(engine: &Engine, level: &Level, batch: &[Planned]) {
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
    level.source.announce(&names, level::follows(&engine.spec, level));
}

/// Copies one entry, with retries. Returns whether it is in place afterwards.
pub(crate) fn apply_one(mover: &mut Mover<'_>, level: &Level, planned: Planned) -> bool {
    apply_opened(mover, level, planned, None)
}

/// Copies one entry whose file the source half has already opened.
pub(crate) fn apply_opened(
    mover: &mut Mover<'_>,
    level: &Level,
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
        let lifted = is_locked_out(error.errno) && level::lift_directory(engine, level);
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

/// Carries out the decision for an entry.
pub(crate) fn bring(
    mover: &mut Mover<'_>,
    level: &Level,
    planned: &Planned,
    opened: Option<Opened>,
) -> Result<CopyResult, WriteError> {
    let record = &planned.record;
    if let Decision::Refuse(class, words) = planned.decision {
        let path = level.target_path(record.destination_name().as_bytes());
        let operation = Operation::Create;
        return Err(EntryError::plain(Side::Destination, operation, class, path, words).into());
    }
    match planned.decision {
        Decision::Skip => return Ok(made::digest_of_skipped(mover, level, record)?),
        Decision::Clear if !mover.engine.spec.policy.dry_run => {
            extra::delete::clear(mover, level, planned);
            return Ok(CopyResult::otherwise(Decision::Clear));
        }
        Decision::Clear if !extra::delete::clear(mover, level, planned) => {
            return Ok(CopyResult::otherwise(Decision::Clear));
        }
        Decision::Clear => {
            let instead = Some(Decision::Replace);
            return Ok(CopyResult { instead, ..would_move(mover.engine, level, planned) });
        }
        Decision::Compare => {
            if let Some(decision) = inspect::compare_with_source(mover, level, planned)? {
                return bring_instead(mover, level, planned, decision);
            }
            if mover.engine.spec.verb != Verb::Sync {
                // What is equal keeps its attributes, whatever they are.
                let kept = made::digest_of_skipped(mover, level, record)?;
                return Ok(CopyResult { instead: Some(Decision::Skip), ..kept });
            }
            return inspect(mover, level, planned);
        }
        Decision::Inspect => return inspect(mover, level, planned),
        _ => {}
    }
    let target = match &level.target {
        Some(target) if !mover.engine.spec.policy.dry_run => target,
        _ if planned.is_in_base() => {
            return Ok(CopyResult::otherwise(Decision::Share));
        }
        _ => return Ok(would_move(mover.engine, level, planned)),
    };
    mover.check_lease(level, record.destination_name().as_bytes())?;
    if let Some(moved) = snapshot::take_from_base(mover, level, target, planned)? {
        return Ok(moved);
    }
    let result = match record.metadata.kind {
        EntryKind::File => file::bring_file(mover, level, target, planned, opened),
        _ => file::bring_other(mover, level, target, record, planned.decision).map_err(Into::into),
    };
    result.map_err(|e| WriteError { error: explain(mover, target, planned, e.error), ..e })
}

/// Carries out another decision than the planned one.
fn bring_instead(
    mover: &mut Mover<'_>,
    level: &Level,
    planned: &Planned,
    decision: Decision,
) -> Result<CopyResult, WriteError> {
    let planned = Planned { decision, ..planned.clone() };
    let moved = bring(mover, level, &planned, None)?;
    Ok(CopyResult { instead: Some(decision), ..moved })
}

/// Sets the attributes of an entry with the right content.
fn inspect(
    mover: &mut Mover<'_>,
    level: &Level,
    planned: &Planned,
) -> Result<CopyResult, WriteError> {
    let needed = inspect::dress_if_unlike(mover, level, planned)?;
    if needed == Decision::Replace {
        return bring_instead(mover, level, planned, needed);
    }
    // What is left as it was counts for a manifest like anything that was skipped.
    let kept = made::digest_of_skipped(mover, level, &planned.record);
    // Other attributes have moved the change time, so another attempt would skip the entry.
    let in_place = needed == Decision::Inspect;
    let kept = kept.map_err(|error| WriteError { error, in_place })?;
    Ok(CopyResult { instead: Some(needed), ..kept })
}

fn explain(
    mover: &Mover<'_>,
    target: &TargetDirectory,
    planned: &Planned,
    error: EntryError,
) -> EntryError {
    const EEXIST: i32 = 17;
    let create = error.operation == Operation::Create && planned.decision == Decision::Create;
    if error.errno == EEXIST && create {
        return mover.session.taken(target, planned.record.destination_name().as_bytes());
    }
    error
}

/// Counts, times and reports the action on an entry.
pub(crate) fn account(
    mover: &mut Mover<'_>,
    level: &Level,
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
        Decision::Inspect => Action::Dressed,
        Decision::UpdateInPlace => Action::Updated,
        Decision::Replace => Action::Replaced,
        Decision::Share => Action::Shared,
        _ => Action::Created,
    };
    if planned.existing.is_some() && planned.decision != Decision::Clear {
        extra::note_had(mover, 1);
    }
    let kept_its_name = matches!(action, Action::Replaced | Action::Updated | Action::Dressed);
    if kept_its_name && kind == EntryKind::File {
        catalog_survey::tell_renewed(mover, level, record);
    } else if action != Action::Skipped {
        catalog_survey::tell_touched(mover, level);
        if kind == EntryKind::File {
            catalog_survey::doubt_if_exchanged(mover.engine, level, record);
        }
    }
    if action == Action::Skipped {
        engine.reports.count(Counter::EntriesSkipped);
        if alike::is_dressed_otherwise(mover.engine, planned) {
            engine.reports.count(Counter::EntriesUnlike);
        }
        if let Some(old) = &planned.existing {
            alike::count_other_owner(mover.engine, &record.metadata, old);
        }
        if kind == EntryKind::File {
            engine.reports.add(Counter::BytesSkipped, record.metadata.size);
        }
    } else if action == Action::Dressed {
        engine.reports.count(Counter::EntriesDressed);
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
        let kept = action == Action::Skipped && !made::is_equal_there(mover.engine, level, planned);
        made::tell_made(mover, level, record, (action, moved), kept, started.elapsed());
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

/// The bytes that a dry run reports for an entry; holes are not copied.
fn would_move(engine: &Engine, level: &Level, planned: &Planned) -> CopyResult {
    let record = &planned.record;
    let size = match record.metadata.kind {
        EntryKind::File => record.metadata.size,
        _ => return CopyResult::default(),
    };
    let has_holes = record.metadata.may_have_holes()
        && level.source.facts.local
        && level.root.range.is_none()
        && engine.spec.policy.sparse != When::Never;
    if !has_holes {
        return CopyResult::bytes(size);
    }
    // What cannot be opened will be an error of the copy.
    let follows = level::follows(&engine.spec, level);
    CopyResult::bytes(level.source.data_in(record.name.as_bytes(), follows, size))
}

fn counter_of(kind: EntryKind) -> Counter {
    match kind {
        EntryKind::File => Counter::FilesCopied,
        EntryKind::Directory => Counter::DirectoriesCreated,
        EntryKind::Symlink => Counter::SymlinksCopied,
        _ => Counter::SpecialsCopied,
    }
}
