//! Parts of large files: when they are flushed and reported, and how a run continues the temporary file of an earlier
//! one.
use dmover_journal::Unneeded;
use dmover_local::large_file::{self, Begun, remove_temporary};
use dmover_local::source::OpenedSource;
use dmover_model::{
    EntryError, ErrorClass, FileRef, Identity, LargeFile, LargeNews, Operation, SealTask, Side,
    Timestamp,
};

use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair, TargetDirectory};
use crate::large;
use crate::mover::Mover;

/// Continues the work of an earlier run on this file. `None`: it was useless and was removed.
pub(super) fn continue_partial<'t>(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    target: &'t TargetDirectory,
    of: &FileRef,
    supply: &OpenedSource,
) -> Result<Option<Begun<'t>>, EntryError> {
    let Some(partial) = mover.lease.task.partial.as_deref() else { return Ok(None) };
    // The file was open for writing: a write through a mapping need not have changed a time.
    let is_doubtful =
        mover.entry.is_doubtful || mover.engine.doubts.has(&level.path, of.name.as_bytes());
    let begun = if is_doubtful {
        None
    } else {
        let (ends, last) = ((&level.source, target), of.destination_name.as_bytes());
        mover.session.continue_large(ends, last, supply, partial)?
    };
    if partial.fenced || begun.is_none() {
        discard_partial(mover, level);
    }
    Ok(begun)
}

/// Leaves a file that a stop has interrupted to the next run, with what was written of it on storage. `false`:
/// nothing of it is on record.
pub(super) fn leave_to_next_run(
    mover: &mut Mover<'_>,
    task: &SealTask,
) -> Result<bool, EntryError> {
    let (engine, temporary) = (mover.engine, &task.large.temporary);
    let parts = &engine.written_parts;
    let continues =
        task.failure.as_ref().is_some_and(|error| large::may_be_continued(engine, error));
    if !continues || !engine.facts.keeps_parts || parts.has_failed(temporary) {
        return Ok(false);
    }
    // The user waits no longer for a stop that has become a hard one. If the source was lost, nobody waits.
    let has_time = !engine.control.is_over() || engine.is_source_lost();
    if let Some(done) = parts.take(temporary).filter(|_| has_time) {
        let changed = flush_temporary(mover, &task.large).inspect_err(|_| {
            parts.fail(temporary);
        })?;
        let (temporary, changed) = (temporary.clone(), Some(changed));
        mover.report.outcome.large.push(LargeNews::Flushed { temporary, done, changed });
        return Ok(true);
    }
    Ok(parts.is_recorded(temporary))
}

/// Returns the time of the file's last change.
fn flush_temporary(mover: &Mover<'_>, large: &LargeFile) -> Result<Timestamp, EntryError> {
    // Not through the source, whose host may be out of reach.
    let at = &large.file.directory;
    let root = mover.engine.root(at.root)?;
    let target = directory_pair::open_target(mover.engine, &root, &at.path, at.destination)?;
    let target = target.ok_or_else(|| without_target(mover.engine, large))?;
    let unfinished = large::open_temporary(mover, &target, large)?;
    let last = large.file.destination_name.as_bytes();
    mover.engine.local().flush_and_leave(unfinished, last)
}

/// Removes what an earlier run left of this file.
pub(super) fn discard_partial(mover: &mut Mover<'_>, level: &DirectoryPair) {
    let Some(partial) = mover.lease.task.partial.as_deref() else { return };
    let Some(target) = &level.target else { return };
    if remove_temporary(target, &partial.temporary) {
        let temporary = partial.temporary.clone();
        mover.report.outcome.large.push(LargeNews::Ended { temporary });
    }
}

/// The directory of a large file is missing.
pub(super) fn without_target(engine: &Engine, large: &LargeFile) -> EntryError {
    let (at, last) = (&large.file.directory, large.file.destination_name.as_bytes());
    let path = engine.destination_path(at.root, &at.path, last);
    let words = "its parent directory is missing at the destination";
    EntryError::plain(Side::Destination, Operation::Open, ErrorClass::Other, path, words)
}

/// Removes a temporary file that no run needs any more, from a directory that already has its times.
pub(crate) fn remove_unneeded(engine: &Engine, unneeded: &Unneeded) {
    let Unneeded { root, directory, temporary } = unneeded;
    let anywhere = Identity::default();
    let target = engine
        .root(*root)
        .and_then(|root| directory_pair::open_target(engine, &root, directory, anywhere));
    match target {
        Ok(Some(target)) => large_file::remove_unneeded(&target, temporary),
        Ok(None) => {}
        Err(error) => tracing::debug!(?error, ?temporary, "cannot look for a temporary"),
    }
}
