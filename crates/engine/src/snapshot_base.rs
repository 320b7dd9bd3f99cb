//! The previous snapshot, from which unchanged files are taken.
use crate::context::Pass;
use dmover_journal::SourceObject;
use dmover_model::{EntryKind, EntryRecord, Metadata, Object, Share, Timestamp};
use dmover_observe::{Activity, activity, lock};
use dmover_plan::decide::{Decision, decide};

use crate::alike;
use crate::directory_pair::DirectoryPair;
use crate::mover::Mover;
use crate::planned::Based;
use crate::rights;

/// A source entry by inode and creation time.
pub(crate) fn source_object(level: &DirectoryPair, name: &[u8]) -> Option<SourceObject> {
    let Object { inode, birth } = level.source.object_at(name)?;
    let Timestamp { seconds, nanoseconds } = birth.unwrap_or_default();
    let born_ns = seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds.into());
    Some((inode, born_ns))
}

/// Whether an inode of the base may be taken for this source inode. One with several names belongs to the source
/// inode that it was copied from; otherwise two source files could become one.
fn may_take(pass: &Pass, level: &DirectoryPair, record: &EntryRecord, inode: u64) -> bool {
    let base = pass.sharing.as_ref().and_then(|sharing| sharing.base.as_ref());
    let Some(known) = base.and_then(|base| base.record.as_ref()) else { return true };
    let linked = lock(known).linked(inode);
    match linked {
        Ok(None) => true,
        Ok(Some(source)) => {
            source_object(level, record.name.as_bytes()).is_some_and(|now| now == source)
        }
        Err(error) => {
            tracing::warn!(%error, "cannot read the snapshot record; a file is copied instead of shared");
            false
        }
    }
}

/// Whether a file of the new snapshot has further names, from an interrupted run, that belong to another source
/// inode now.
pub(crate) fn is_linked_to_others(
    pass: &Pass,
    level: &DirectoryPair,
    record: &EntryRecord,
    existing: &Metadata,
) -> bool {
    let several = existing.kind == EntryKind::File && existing.links > 1;
    pass.sharing.as_ref().filter(|_| several).is_some_and(|sharing| {
        let source = || source_object(level, record.name.as_bytes());
        sharing.is_of_another(existing.identity.inode, source)
    })
}

/// The entry of the base for a file that does not exist at the destination.
pub(crate) fn based(
    mover: &Mover<'_>,
    level: &DirectoryPair,
    record: &EntryRecord,
) -> Option<Based> {
    let engine = mover.engine;
    let base = level.base.as_ref().filter(|_| record.metadata.kind == EntryKind::File)?;
    activity::at(Activity::TargetNames);
    let last = record.destination_name().as_bytes();
    let metadata = mover.engine.end.visible(base, last)?;
    if metadata.kind != EntryKind::File {
        return None;
    }
    let since = engine.pass.sharing.as_ref()?.base.as_ref()?.begun;
    let known = Metadata { ctime: since.min(metadata.ctime), ..metadata.clone() };
    let view = alike::existing_view(mover, level, base, record, (&known, None));
    let mut decision = decide(record, Some(view), &engine.spec.policy);
    let links = engine.pass.sharing.as_ref().is_some_and(|sharing| sharing.share == Share::Link);
    // Another name of it cannot have an owner or mode of its own.
    if decision != Decision::Replace
        && links
        && (alike::is_unlike(&mover.engine.settable, &record.metadata, &metadata)
            || !may_take(&engine.pass, level, record, metadata.identity.inode))
    {
        decision = Decision::Replace;
    }
    if decision == Decision::Inspect && !links {
        decision = rights::before_a_clone(mover, level, base, (record, &metadata));
    }
    Some(Based { metadata, decision })
}
