//! Rights that attributes of the source would give to a file of the destination.
use dmover_local::rights::Sides;
use dmover_model::{EntryRecord, Metadata};
use dmover_plan::decide::Decision;

use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair, TargetDirectory};
use crate::mover::Mover;

/// The directory of the source, and this one at the destination or in the previous snapshot.
pub(crate) fn sides<'l>(
    engine: &Engine,
    level: &'l DirectoryPair,
    to: &'l TargetDirectory,
) -> Sides<'l> {
    Sides { from: &level.source, to, follows: directory_pair::follows(&engine.spec, level) }
}

/// Whether a decision that keeps the inode would give it rights that its present owner does not have.
pub fn would_grant(
    mover: &Mover<'_>,
    decision: Decision,
    level: &DirectoryPair,
    (record, old): (&EntryRecord, &Metadata),
) -> bool {
    let keeps = [Decision::Inspect, Decision::Compare, Decision::UpdateInPlace];
    keeps.contains(&decision) && level.root.range.is_none() && grants(mover, level, record, old)
}

/// Whether attributes of the source would give rights to a file of another user.
pub(crate) fn grants(
    mover: &Mover<'_>,
    level: &DirectoryPair,
    record: &EntryRecord,
    old: &Metadata,
) -> bool {
    let target = level.target.as_ref();
    target.is_some_and(|to| {
        dmover_local::rights::grants(&mover.session, sides(mover.engine, level, to), record, old)
    })
}

/// Whether attributes of the source would give rights to a file of ours, or to others the right to read it.
pub(crate) fn would_empower(
    mover: &Mover<'_>,
    level: &DirectoryPair,
    record: &EntryRecord,
    old: &Metadata,
) -> bool {
    let target = level.target.as_ref().filter(|_| level.root.range.is_none());
    target.is_some_and(|to| {
        dmover_local::rights::would_empower(
            &mover.session.local,
            sides(mover.engine, level, to),
            record,
            old,
        )
    })
}

/// What to do with a file of an earlier snapshot that looks equal, before a clone of it gets the attributes of the
/// source.
pub(crate) fn before_a_clone(
    mover: &Mover<'_>,
    level: &DirectoryPair,
    base: &TargetDirectory,
    of: (&EntryRecord, &Metadata),
) -> Decision {
    dmover_local::rights::before_a_clone(&mover.session.local, sides(mover.engine, level, base), of)
}
