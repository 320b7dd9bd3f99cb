//! Compares content: both sides of a file, or one side with digests.
use dmover_local::error::changed;
use dmover_model::{Against, ByteRange, CompareTask, EntryError, EntryRecord, Name, Side, Version};
use dmover_plan::chunk;
use dmover_plan::temporary::is_temporary;

use crate::apply;
use crate::compare_content;
use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair};
use crate::mover::Mover;
use crate::plan_entry;
use crate::plan_names;
use crate::verify;

/// The size of the parts in which several movers compare a file, if that is worthwhile.
pub(super) fn compare_chunk(engine: &Engine, length: u64) -> Option<u64> {
    let demanded = engine.spec.policy.split_bytes;
    let bytes = chunk::chunk_bytes(length, engine.chunk_takers(), demanded)?.max(1);
    (bytes < length).then_some(bytes)
}

/// Whether regular files of a directory are opened on both sides before their metadata is known.
pub(crate) fn compares_at_sight(engine: &Engine, level: &DirectoryPair) -> bool {
    let both = level.target.as_ref().is_some_and(|target| !target.fresh);
    both && plan_names::asks_nothing_of_names(engine, level)
        && verify::compares_closely(&engine.spec)
        && engine.spec.verify_policy().since.is_none()
}

/// Compares a regular file that must be opened in any case: fstat is cheaper than stat by name. Returns the name if
/// anything is unusual; the normal way then reports it.
pub(crate) fn compare_at_sight(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    name: Name,
) -> Option<Name> {
    let engine = mover.engine;
    let Some(target) = level.target.as_ref().filter(|_| !engine.control.is_stopping()) else {
        return Some(name);
    };
    if is_temporary(name.as_bytes()) {
        return Some(name);
    }
    let (local, stored) = (engine.local(), engine.spec.reads_stored());
    let bytes = name.as_bytes();
    let Some(pair) = local.open_pair_at_sight(&level.source, target, bytes, stored) else {
        return Some(name);
    };
    let size = pair.source.metadata.size;
    if !pair.is_ordinary() || compare_chunk(engine, size).is_some() {
        return Some(name);
    }
    let (metadata, found) = (pair.source.metadata.clone(), pair.destination.metadata.clone());
    engine.resources.limits.operation(&engine.control, mover.lease);
    mover.count_found(&metadata);
    mover.entry.pair = Some(pair);
    let record = EntryRecord { name, renamed: None, metadata, symlink: None };
    let planned = plan_entry::decide(mover, level, record, Some((found, None)));
    apply::apply_one(mover, level, planned);
    mover.entry.pair = None;
    mover.lease.extend();
    None
}

/// Compares a part of a large file. The last task of the file handles a failure.
pub(crate) fn run(mover: &mut Mover<'_>, task: &CompareTask) {
    let compared = match &task.against {
        Against::Source(version) => compare_part(mover, task, *version),
        Against::Digests(shape, expected) => {
            verify::records::compare_recorded_part(mover, task, shape, expected)
        }
    };
    match compared {
        Ok(ranges) => {
            mover.report.outcome.differing = ranges;
            mover.report.outcome.covered = Some(task.range);
            mover.engine.reports.progress();
        }
        Err(error) => mover.report.outcome.chunk_failure = Some(Box::new(error)),
    }
}

fn compare_part(
    mover: &mut Mover<'_>,
    task: &CompareTask,
    version: Version,
) -> Result<Vec<ByteRange>, EntryError> {
    let engine = mover.engine;
    let level = directory_pair::open_level(engine, &task.file.directory)?;
    let record = plan_entry::look(mover, &level, &task.file.name)?;
    let found =
        plan_entry::plan_record(mover, &level, record.clone()).and_then(|planned| planned.existing);
    let target = || level.target_path(task.file.destination_name.as_bytes());
    let found = found.filter(|found| found.version() == task.destination);
    let found = found.ok_or_else(|| changed(Side::Destination, target()))?;
    if record.metadata.version() != version {
        return Err(changed(Side::Source, level.source_path(record.name.as_bytes())));
    }
    let pair = compare_content::open_pair(engine, &level, &record, &found, mover.permit())?;
    compare_content::compare_range(mover, &level, &record, &pair, task.range)
}
