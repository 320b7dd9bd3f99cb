//! Large files: one open, chunks on all free movers, one seal.
use dmover_local::digest_tap::{Made, Tap};
use dmover_local::entry_attributes;
use dmover_local::error::{cancelled, is_absent};
use dmover_local::file::Unfinished;
use dmover_local::large_file::{Begun, LargePart, PartOrder, Removal, Start};
use dmover_local::session::WriteError;
use dmover_local::source::{Content, OpenedSource};
use dmover_model::{
    Budget, ByteRange, ChunkTask, DoneParts, EntryError, EntryKind, EntryRecord, ErrorClass,
    FileRef, HashedPieces, LargeFile, LargeNews, Name, NewNode, NewTask, Operation, Outcome,
    Parent, SealTask, Side, TaskKind, Timestamp,
};
use dmover_observe::Counter;
use dmover_plan::decide::Decision;
use dmover_plan::{chunk, retry};
use dmover_schedule::time::Instant;
use std::time::Duration;

use crate::apply;
use crate::context::Engine;
use crate::control::StopReason;
use crate::directory_pair::{self, DirectoryPair, TargetDirectory};
use crate::file;
use crate::manifest_attributes;
use crate::mover::Mover;
use crate::plan_entry;
use crate::planned::{CopyResult, Planned};
use crate::project;
use crate::queue::Class;
use crate::sum::{self, in_order};
use crate::task_report::TELL_EVERY;
use crate::written_parts::{PART_TIME, Part, SHARED_PART_TIME};

pub(crate) mod partial;

/// The result of a chunk.
struct Written {
    pieces: Option<HashedPieces>,
    /// The parts that are on storage now, and when the temporary file was last changed.
    flushed: Option<(DoneParts, Option<Timestamp>)>,
}

/// Whether the next run may continue a large file that a stop has interrupted, by what else has failed. Parts on
/// record are on storage, and the next run checks that the source has the same version.
pub(crate) fn may_be_continued(engine: &Engine, failure: &EntryError) -> bool {
    let is_unread = failure.side == Side::Source
        && !matches!(
            failure.class,
            ErrorClass::Changed | ErrorClass::Vanished | ErrorClass::Fenced
        );
    (engine.control.is_stopping() || engine.is_source_lost())
        && engine.control.reason() != Some(StopReason::Cancelled)
        && (failure.class == ErrorClass::Cancelled || is_unread)
}

/// Reports a large file that a stop has interrupted.
pub(crate) fn tell_interrupted(engine: &Engine, large: &LargeFile, failure: &EntryError) {
    let (at, last) = (&large.file.directory, large.file.destination_name.as_bytes());
    let path = engine.destination_path(at.root, &at.path, last);
    engine.error(if failure.class != ErrorClass::Cancelled {
        let path = if failure.path.0.is_empty() { path } else { failure.path.clone() };
        EntryError { path, attempt: large.round, ..failure.clone() }
    } else if engine.control.reason() == Some(StopReason::Cancelled) {
        cancelled(path)
    } else {
        let (side, class) = (Side::Destination, ErrorClass::Cancelled);
        let words = "incomplete; the next run continues it";
        EntryError::plain(side, Operation::Attempt, class, path, words)
    });
}

/// Starts a large file.
pub(crate) fn run_open(mover: &mut Mover<'_>, file: &FileRef, round: u32) {
    let level = match directory_pair::open_level(mover.engine, &file.directory) {
        Ok(level) => level,
        Err(error) => return mover.engine.error(error),
    };
    for attempt in round.. {
        mover.entry.unrepaired = None;
        let begun = mover.thread.strategy.large_file(mover, &level, (file, round));
        let Err(WriteError { error, in_place }) = begun else { return };
        if in_place || !mover.engine.may_pass(&error, attempt) {
            mover.engine.error(EntryError { attempt, ..error });
            mover.tell_unrepaired();
            return;
        }
    }
}

pub(crate) fn open_large(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    file: &FileRef,
    round: u32,
) -> Result<(), WriteError> {
    let engine = mover.engine;
    announce(mover, level, &file.name);
    let record = plan_entry::look(mover, level, &file.name)?;
    let Some(planned) = plan_entry::plan_record(mover, level, record) else { return Ok(()) };
    let wanted =
        matches!(planned.decision, Decision::Create | Decision::Replace) && !planned.is_in_base();
    let is_file = planned.record.metadata.kind == EntryKind::File;
    let Some(target) = level.target.as_ref().filter(|_| wanted && is_file) else {
        // Something else by now: equal, refused, or of another type.
        partial::discard_partial(mover, level);
        apply::apply(mover, level, vec![planned]);
        hand_on_as_inherited(mover);
        return Ok(());
    };
    let supply = file::supply(engine, level, &planned.record, mover.permit())?;
    let last = file.destination_name.as_bytes();
    let begun = match partial::continue_partial(mover, level, target, file, &supply)? {
        Some(continued) => continued,
        None => {
            let order = file::order(mover.engine, level, target, &planned);
            match mover.session.begin_large(order, &supply)? {
                Start::Parts(begun) => begun,
                Start::Shared(unfinished, tap) => {
                    return end_shared(mover, level, &planned, &supply, (unfinished, tap));
                }
            }
        }
    };
    let size = supply.metadata.size;
    let Begun { temporary, unfinished, done, patched, is_new } = begun;
    let large = LargeFile {
        file: file.clone(),
        temporary,
        temporary_identity: unfinished.metadata.identity,
        version: supply.metadata.version(),
        round,
        replaces: planned.decision == Decision::Replace,
        opened_ms: engine.reports.started.elapsed().as_millis() as u64,
        shape: mover.session.local.rules.digest_shape(size),
        patched,
    };
    let policy = &engine.spec.policy;
    let chunk_bytes = match &large.shape {
        Some(shape) => sum::hash_chunk(engine, shape),
        None => chunk::chunk_bytes(size, engine.chunk_takers(), policy.split_bytes),
    };
    // Where tasks are to take longer, because there are so many movers, chunks are larger; what is left of them is shared.
    let times = match policy.split_bytes {
        None => (mover.lease.task.budget.time_ms / Budget::USUAL.time_ms).max(1),
        Some(_) => 1,
    };
    let chunk_bytes = chunk_bytes.map(|bytes| bytes.saturating_mul(times));
    // Only this mover knows of the temporary until its report is accepted, so it removes it if the report is not.
    if is_new && let Some(removal) = Removal::of(target, &large.temporary) {
        mover.lease.unless_said(move || removal.carry_out());
    }
    unfinished.leave(last)?;
    if !done.ranges.is_empty() {
        engine.written_parts.note_recorded(&large.temporary);
    }
    report_chunks(mover, &large, chunk_bytes.unwrap_or(size.max(1)), done);
    Ok(())
}

/// Has a source on another host open a file while the answer about it is on its way.
fn announce(mover: &Mover<'_>, level: &DirectoryPair, name: &Name) {
    level.source.announce(&[name.as_bytes()], directory_pair::follows(&mover.engine.spec, level));
}

/// Returns tasks that came up in a task without a frame of its own.
pub(crate) fn hand_on_as_inherited(mover: &mut Mover<'_>) {
    let parent = Parent::Inherited;
    let kinds = std::mem::take(&mut mover.report.deferred);
    mover.report.outcome.tasks.extend(kinds.into_iter().map(|kind| NewTask { parent, kind }));
}

fn report_chunks(mover: &mut Mover<'_>, large: &LargeFile, chunk_bytes: u64, done: DoneParts) {
    let seal = SealTask { large: large.clone(), failure: None, pieces: Vec::new() };
    let finish = TaskKind::Seal(Box::new(seal));
    let missing = chunk::missing(&done.ranges, large.version.size);
    let number = mover.report.add_node(NewNode { parent: Parent::Inherited, finish, done });
    for part in missing {
        for ByteRange { start, end } in chunk::chunks(part.len(), chunk_bytes) {
            let range = ByteRange { start: part.start + start, end: part.start + end };
            let kind = TaskKind::Chunk(Box::new(ChunkTask { large: large.clone(), range }));
            mover.report.outcome.tasks.push(NewTask { parent: Parent::New(number), kind });
        }
    }
}

fn end_shared(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    planned: &Planned,
    supply: &OpenedSource,
    (unfinished, tap): (Unfinished<'_>, Option<Box<Tap>>),
) -> Result<(), WriteError> {
    let (started, size) = (Instant::now(), supply.metadata.size);
    let order = file::order(mover.engine, level, unfinished.target, planned);
    let made = mover.session.end_shared(order, supply, unfinished, tap)?;
    let version = Some(supply.metadata.clone());
    let extended = manifest_attributes::extended_to_keep(mover.engine, &supply.attributes);
    let moved = CopyResult { bytes: size, made, version, extended, ..CopyResult::default() };
    apply::account(mover, level, planned, moved, started);
    Ok(())
}

/// Copies one chunk. The seal handles a failure.
pub(crate) fn run_chunk(mover: &mut Mover<'_>, task: &ChunkTask) {
    let mut task = task.clone();
    match copy_chunk(mover, &mut task) {
        Ok(Written { pieces, flushed }) => {
            mover.spent.bytes += task.range.len();
            mover.report.outcome.pieces = pieces;
            let temporary = task.large.temporary.clone();
            let news =
                flushed.map(|(done, changed)| LargeNews::Flushed { temporary, done, changed });
            mover.report.outcome.large.extend(news);
            mover.report.outcome.covered = Some(task.range);
            mover.engine.reports.count(Counter::ChunksCopied);
            mover.engine.reports.progress();
        }
        Err(error) => {
            let error = for_another_round(mover, error);
            if another_may_try(mover.engine, &error) {
                // It must know what is left of it.
                let kind = TaskKind::Chunk(Box::new(task));
                mover.report.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
            }
            mover.report.outcome.chunk_failure = Some(Box::new(error));
        }
    }
}

/// Whether a chunk that has failed here may succeed on another host.
fn another_may_try(engine: &Engine, error: &EntryError) -> bool {
    if engine.facts.flushes_chunks {
        // The host that ends the file has its own connection to the source, and its own rights at the destination. A failed
        // flush is reported only once.
        let is_flush = matches!(error.operation, Operation::Sync | Operation::Close);
        let is_stop = error.class == ErrorClass::Cancelled && error.side == Side::Destination;
        return !is_flush && !is_stop && error.class != ErrorClass::Fenced;
    }
    engine.reports.coordinator.is_remote() && error.may_be_the_hosts()
}

/// Adapts an error for the next attempt: the temporary file of an earlier run may have vanished or changed, so the
/// file is started again.
fn for_another_round(mover: &Mover<'_>, error: EntryError) -> EntryError {
    let lost = error.side == Side::Destination
        && (error.class == ErrorClass::Escaped || is_absent(&error));
    let class = if mover.lease.task.resumed && lost { ErrorClass::Fenced } else { error.class };
    EntryError { class, ..error }
}

/// Copies the range of a chunk, which becomes shorter if other movers take a part of it.
fn copy_chunk(mover: &mut Mover<'_>, task: &mut ChunkTask) -> Result<Written, EntryError> {
    let (engine, begun, whole) = (mover.engine, Instant::now(), task.range);
    let large = task.large.clone();
    let level = directory_pair::open_level(engine, &large.file.directory)?;
    mover.note_entry(&level, large.file.name.as_bytes(), begun);
    let target = target_of(mover.engine, &level, &large)?;
    mover.session.writes_to(target);
    let source = source_again(mover, &level, &large)?;
    let unfinished = open_temporary(mover, target, &large)?;
    let order = PartOrder {
        from: &level.source,
        name: large.file.name.as_bytes(),
        to: target,
        last: large.file.destination_name.as_bytes(),
        patched: large.patched,
    };
    let digested = (large.shape, task.range.start);
    let mut open = LargePart::new(order, source, unfinished, digested);
    if mover.lease.task.resumed {
        open = open.resumed(engine.local(), task.range);
        // Also what other tasks get of the range.
        task.large.patched = open.is_compared();
    }
    if large.replaces {
        open = open.with_older(engine.local());
    }
    let copied = copy_in_steps(mover, task, &open);
    let checked = copied.and_then(|()| open.check_source(engine.local()));
    let digests = open.take_digests();
    let pieces = digests.map(|digests| HashedPieces { start: task.range.start, digests });
    let (temporary, is_last) = (&large.temporary, task.range != whole);
    let part = Part { temporary, range: task.range, pieces: pieces.clone(), begun, is_last };
    let due = checked.is_ok().then(|| due_parts(mover.engine, &part)).flatten();
    let flushed = match due {
        // The part is recorded as done, and another run may seal the file.
        Some(_) if engine.end.flusher.is_none() || engine.local().flushes_unheard(target) => {
            open.flush()
        }
        _ => Ok(()),
    };
    let may_be_lost = checked.as_ref().is_err_and(|error| {
        error.side == Side::Destination && error.class != ErrorClass::Cancelled
    });
    if may_be_lost || flushed.is_err() {
        // The error may be about earlier parts as well, and is reported only once.
        engine.written_parts.fail(temporary);
    }
    let changed = due.is_some().then(|| open.changed(engine.local())).flatten();
    let closed = open.close();
    if closed.is_err() {
        engine.written_parts.fail(temporary);
    }
    checked?;
    flushed?;
    closed?;
    // Another mover may have met the failure of a flush that was about these parts as well.
    let due = due.filter(|_| !engine.written_parts.has_failed(temporary));
    if due.is_some() {
        engine.written_parts.note_recorded(temporary);
    } else if engine.facts.keeps_parts {
        engine.written_parts.add(part);
    }
    Ok(Written { pieces, flushed: due.map(|due| (due, changed)) })
}

/// The parts to flush and report now, with this one.
fn due_parts(engine: &Engine, part: &Part<'_>) -> Option<DoneParts> {
    if engine.end.flusher.is_some() || engine.facts.flushes_chunks {
        // Whatever a task has written is on storage when it ends.
        let pieces = part.pieces.clone().into_iter().collect();
        return Some(DoneParts { ranges: vec![part.range], pieces });
    }
    engine.facts.keeps_parts.then(|| engine.written_parts.due(part)).flatten()
}

/// Copies step by step. Between two steps, idle movers get the second half of the rest, or all of it if the
/// coordinator wants the task back: so the last chunks of a job do not wait for the slowest mover.
fn copy_in_steps(
    mover: &mut Mover<'_>,
    task: &mut ChunkTask,
    open: &LargePart<'_>,
) -> Result<(), EntryError> {
    let engine = mover.engine;
    let piece = task.large.shape.map_or(1, |shape| shape.piece());
    let (mut start, mut told) = (task.range.start, Instant::now());
    let since = told;
    open.will_read(task.range);
    let shares = engine.facts.shares_chunks;
    let worth_giving = match (open.is_sent_ahead(), shares) {
        (false, _) => chunk::STEP_AT_LEAST,
        (true, false) => chunk::SENT_AHEAD_AT_LEAST,
        (true, true) => chunk::SHARED_AT_LEAST,
    };
    let part_time = if shares { SHARED_PART_TIME } else { PART_TIME };
    while start < task.range.end {
        let usual = mover.session.tools.step.bytes(piece);
        let step = open.compared_at_once().map_or(usual, |bytes| bytes.next_multiple_of(piece));
        let begun = Instant::now();
        let end = task.range.end.min(start.saturating_add(step));
        mover.session.copy_part(open, ByteRange { start, end })?;
        if step == usual {
            let elapsed = begun.elapsed().as_millis() as u64;
            mover.session.tools.step = mover.session.tools.step.after(elapsed);
        }
        start = end;
        if engine.reports.coordinator.is_remote() && told.elapsed() >= TELL_EVERY {
            // A display shows progress of a large chunk on slow storage.
            told = Instant::now();
            mover.queue.report(mover.lease, Outcome::default());
        }
        let left = ByteRange { start, end: task.range.end };
        let others_wait = mover.queue.is_hungry(Class::Large);
        // What is done is flushed and reported, so that another run need not do it again.
        let is_time = engine.facts.keeps_parts
            && (since.elapsed() >= part_time || engine.control.is_stopping());
        let all = is_time || mover.lease.is_wanted_back() || (others_wait && mover.queue.is_slow());
        let given = if all && !left.is_empty() {
            Some(left)
        } else {
            let least = worth_giving.next_multiple_of(piece);
            chunk::half(left, step.max(least)).filter(|_| others_wait)
        };
        if let Some(range) = given {
            task.range.end = range.start;
            let kind = TaskKind::Chunk(Box::new(ChunkTask { range, ..task.clone() }));
            mover.report.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
            mover.report.flush();
        }
    }
    Ok(())
}

fn target_of<'l>(
    engine: &Engine,
    level: &'l DirectoryPair,
    large: &LargeFile,
) -> Result<&'l TargetDirectory, EntryError> {
    level.target.as_ref().ok_or_else(|| partial::without_target(engine, large))
}

/// Opens the source for one of many chunks, after which its version is compared.
fn source_again(
    mover: &Mover<'_>,
    level: &DirectoryPair,
    large: &LargeFile,
) -> Result<Content, EntryError> {
    let named = (large.file.name.as_bytes(), directory_pair::follows(&mover.engine.spec, level));
    if let Some(known) = mover.engine.local().reopened(&level.source, named, &large.version) {
        return Ok(known);
    }
    source_version(mover, level, large).map(|(_, content)| content)
}

/// Looks at the source, opens it and checks that it still has the version with which the file was started.
fn source_version(
    mover: &Mover<'_>,
    level: &DirectoryPair,
    large: &LargeFile,
) -> Result<(EntryRecord, Content), EntryError> {
    announce(mover, level, &large.file.name);
    let record = plan_entry::look(mover, level, &large.file.name)?;
    let content = file::open_source_file(mover.engine, level, &record, mover.permit())?;
    if content.metadata.version() == large.version {
        return Ok((record, content));
    }
    let path = level.source_path(large.file.name.as_bytes());
    let words = "the file changed while it was copied";
    let class = ErrorClass::Changed;
    Err(EntryError::plain(Side::Source, Operation::Check, class, path, words))
}

fn open_temporary<'t>(
    mover: &Mover<'_>,
    target: &'t TargetDirectory,
    large: &LargeFile,
) -> Result<Unfinished<'t>, EntryError> {
    let (name, last) = (&large.temporary, large.file.destination_name.as_bytes());
    let open = || target.open_temporary(name, last);
    // The temporary file of an earlier run may be gone for good.
    let file = if mover.lease.task.resumed { open()? } else { mover.engine.until_seen(open)? };
    mover.engine.end.temporary(target, file, (name, large.temporary_identity), last)
}

/// Ends a large file after all its chunks.
pub(crate) fn run_seal(mover: &mut Mover<'_>, task: &SealTask) {
    let result = match &task.failure {
        None => seal(mover, &task.large, &task.pieces),
        Some(failure) => match partial::leave_to_next_run(mover, task) {
            Ok(false) => Err((**failure).clone().into()),
            Ok(true) => return tell_interrupted(mover.engine, &task.large, failure),
            Err(error) => Err(error.into()),
        },
    };
    let ended = LargeNews::Ended { temporary: task.large.temporary.clone() };
    mover.engine.written_parts.forget(&task.large.temporary);
    let Err(WriteError { mut error, in_place }) = result else {
        mover.report.outcome.large.push(ended);
        return;
    };
    if !mover.lease.holds() {
        return; // the present holder of the lease seals or removes the temporary
    }
    error = for_another_round(mover, error);
    remove_temporary(mover.engine, &task.large);
    mover.report.outcome.large.push(ended);
    let large = &task.large;
    error.attempt = large.round;
    if error.path.0.is_empty() {
        let (at, last) = (&large.file.directory, large.file.destination_name.as_bytes());
        error.path = mover.engine.destination_path(at.root, &at.path, last);
    }
    let again = !in_place && (error.retryable() || error.class == ErrorClass::Fenced);
    let stopping = mover.engine.control.is_stopping();
    if again && large.round < retry::ATTEMPTS_MAX && !stopping {
        mover.engine.reports.count(Counter::Retries);
        let kind = TaskKind::Open { file: large.file.clone(), round: large.round + 1 };
        mover.report.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
    } else {
        mover.engine.error(error);
    }
}

fn seal(
    mover: &mut Mover<'_>,
    large: &LargeFile,
    pieces: &[HashedPieces],
) -> Result<(), WriteError> {
    let level = directory_pair::open_level(mover.engine, &large.file.directory)?;
    let target = target_of(mover.engine, &level, large)?;
    let (record, content) = source_version(mover, &level, large)?;
    let source_path = || level.source_path(large.file.name.as_bytes());
    let mut supply = entry_attributes::supply_of(&mover.engine.local(), content, &source_path)?;
    project::settle_project(mover.engine, &level, EntryKind::File, &mut supply.attributes, true)?;
    let mut made = Vec::new();
    if let Some(shape) = large.shape {
        made.push(Made { shape, at: None, pieces: in_order(pieces, &shape)? });
    }
    let unfinished = open_temporary(mover, target, large)?;
    let last = large.file.destination_name.as_bytes();
    let existing = mover.engine.end.visible(target, last);
    // What was absent at the start has to be absent still.
    let decision = if large.replaces { Decision::Replace } else { Decision::Create };
    let planned = Planned { record, decision, existing, base: None };
    mover.session.seal(file::order(mover.engine, &level, target, &planned), &supply, unfinished)?;
    let elapsed = Duration::from_millis(large.opened_ms);
    let opened = mover.engine.reports.started + elapsed;
    let bytes = supply.metadata.size;
    let extended = manifest_attributes::extended_to_keep(mover.engine, &supply.attributes);
    let version = Some(supply.metadata);
    let moved = CopyResult { bytes, made, version, extended, ..CopyResult::default() };
    apply::account(mover, &level, &planned, moved, opened);
    // Its chunks have counted them.
    mover.spent.bytes -= bytes;
    Ok(())
}

/// Removes the temporary file, without any access to the source, which may have failed.
fn remove_temporary(engine: &Engine, large: &LargeFile) {
    let at = &large.file.directory;
    let target = engine
        .root(at.root)
        .and_then(|root| directory_pair::open_target(engine, &root, &at.path, at.destination));
    let (name, is) = (&large.temporary, large.temporary_identity);
    match target {
        Ok(Some(target)) => _ = engine.end.remove_if_same(&target, name, is),
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(?error, "cannot remove a temporary; the next run removes it");
        }
    }
}
