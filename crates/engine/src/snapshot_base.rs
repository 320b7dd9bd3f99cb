//! The previous snapshot, from which unchanged files are taken.
use dmover_journal::SourceObject;
use dmover_model::{EntryKind, EntryRecord, Metadata, Object, Share, Timestamp};
use dmover_observe::{Activity, activity, lock};
use dmover_plan::decide::{Decision, decide};

use crate::context::Engine;
use crate::level::Level;
use crate::mover::Mover;
use crate::planned::Based;

/// A source entry by inode and creation time.
pub(crate) fn source_object(level: &Level, name: &[u8]) -> Option<SourceObject> {
    let Object { inode, birth } = level.source.object_at(name)?;
    let Timestamp { seconds, nanoseconds } = birth.unwrap_or_default();
    let born_ns = seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds.into());
    Some((inode, born_ns))
}

impl Engine {
    /// Whether an inode of the base may be taken for this source inode. One with several names belongs to the source
    /// inode that it was copied from; otherwise two source files could become one.
    fn may_take(&self, level: &Level, record: &EntryRecord, inode: u64) -> bool {
        let base = self.pass.sharing.as_ref().and_then(|sharing| sharing.base.as_ref());
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
        &self,
        level: &Level,
        record: &EntryRecord,
        existing: &Metadata,
    ) -> bool {
        let several = existing.kind == EntryKind::File && existing.links > 1;
        self.pass.sharing.as_ref().filter(|_| several).is_some_and(|sharing| {
            let source = || source_object(level, record.name.as_bytes());
            sharing.is_of_another(existing.identity.inode, source)
        })
    }
}

impl Mover<'_> {
    /// The entry of the base for a file that does not exist at the destination.
    pub(crate) fn based(&self, level: &Level, record: &EntryRecord) -> Option<Based> {
        let engine = self.engine;
        let base = level.base.as_ref().filter(|_| record.metadata.kind == EntryKind::File)?;
        activity::at(Activity::TargetNames);
        let last = record.destination_name().as_bytes();
        let metadata = self.engine.end.visible(base, last)?;
        if metadata.kind != EntryKind::File {
            return None;
        }
        let since = engine.pass.sharing.as_ref()?.base.as_ref()?.begun;
        let known = Metadata { ctime: since.min(metadata.ctime), ..metadata.clone() };
        let view = self.existing_view(level, base, record, (&known, None));
        let mut decision = decide(record, Some(view), &engine.spec.policy);
        let links =
            engine.pass.sharing.as_ref().is_some_and(|sharing| sharing.share == Share::Link);
        // Another name of it cannot have an owner or mode of its own.
        if decision != Decision::Replace
            && links
            && (self.is_unlike(&record.metadata, &metadata)
                || !engine.may_take(level, record, metadata.identity.inode))
        {
            decision = Decision::Replace;
        }
        if decision == Decision::Inspect && !links {
            decision = self.before_a_clone(level, base, (record, &metadata));
        }
        Some(Based { metadata, decision })
    }
}
