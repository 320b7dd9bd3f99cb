//! Opens both sides of a file and compares their bytes.
use dmover_local::error::changed;
use dmover_local::pair::Pair;
use dmover_local::rights::Sides;
use dmover_model::{ByteRange, EntryError, EntryRecord, Metadata, Side};
use dmover_tree::Permit;

use crate::context::Engine;
use crate::directory_pair::DirectoryPair;
use crate::mover::Mover;
use crate::rights;

/// The directories of a file and of its copy, which was found there.
fn sides_of_copy<'l>(
    engine: &Engine,
    level: &'l DirectoryPair,
    record: &EntryRecord,
) -> Result<Sides<'l>, EntryError> {
    let last = record.destination_name().as_bytes();
    let gone = || changed(Side::Destination, level.target_path(last));
    Ok(rights::sides(engine, level, level.target.as_ref().ok_or_else(gone)?))
}

/// Opens both sides of a file in the versions that were found.
pub(crate) fn open_pair(
    engine: &Engine,
    level: &DirectoryPair,
    record: &EntryRecord,
    found: &Metadata,
    permit: &dyn Permit,
) -> Result<Pair, EntryError> {
    let sides = sides_of_copy(engine, level, record)?;
    engine.local().open_pair(sides, (record, found), engine.spec.reads_stored(), permit)
}

/// Compares a range that both sides have. Both must stay unchanged meanwhile.
pub(crate) fn compare_range(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    record: &EntryRecord,
    pair: &Pair,
    range: ByteRange,
) -> Result<Vec<ByteRange>, EntryError> {
    let source_shown = || level.source_path(record.name.as_bytes());
    let shown = || level.target_path(record.destination_name().as_bytes());
    dmover_local::pair::compare(&mut mover.session, pair, range, [&source_shown, &shown])
}
