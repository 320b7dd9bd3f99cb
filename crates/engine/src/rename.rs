//! Repeats renames of the source at the destination, without reading or writing content.
//!
//! The catalog has the old places. Right before a rename both sides are checked: the source must have the object under
//! its new name, and the destination must have its copy, the very same one, under the old name. Entries that cannot be
//! renamed are left to the scan, which copies them as new.
use dmover_local::error::is_absent;
use dmover_local::rename::{OldCopy, Rename};
use dmover_local::root::Root;
use dmover_model::{
    Action, EntryError, EntryKind, Event, Identity, Item, Metadata, Move, MoveResult, Overwrite,
    RootId, Surveyed, TreePath,
};
use dmover_observe::{Activity, Counter, activity};
use dmover_plan::itemize;
use std::sync::Arc;

use crate::level::TargetDirectory;
use crate::mover::Mover;

impl Mover<'_> {
    /// Performs renames in the given order.
    pub(crate) fn run_rename(&mut self, moves: &[Move]) {
        for wanted in moves {
            if self.engine.control.is_stopping() {
                return;
            }
            self.engine.resources.limits.operation(&self.engine.control, self.lease);
            self.lease.extend();
            let result = self.follow(wanted).unwrap_or_else(|error| {
                let error = error.to_string();
                tracing::debug!(error, to = ?wanted.to, "cannot follow a rename");
                MoveResult::Left
            });
            self.tell(Surveyed::Moved(wanted.number, result));
        }
    }

    fn follow(&mut self, wanted: &Move) -> Result<MoveResult, EntryError> {
        const LEFT: Result<MoveResult, EntryError> = Ok(MoveResult::Left);
        let engine = self.engine;
        let Move { entry, from, to, .. } = wanted;
        let root = engine.root(RootId::ONLY)?;
        let (Some((old_place, old_name)), Some((new_place, new_name))) =
            (from.split_last(), to.split_last())
        else {
            return LEFT;
        };
        activity::at(Activity::SourceNames);
        let source = engine.open_source(&root, &new_place)?;
        let local = self.session.local;
        let (metadata, object) = local.look_at_object(&source, new_name)?;
        let here = metadata.identity.mount == root.mount;
        // A rule that names paths may keep something at the destination where it is.
        let stays = metadata.kind == EntryKind::Directory && engine.filter.has_path_rules();
        let admitted = |path: &TreePath| engine.filter.admits_below(path, &metadata);
        // An inode number alone may have been reused.
        let is_object = metadata.kind == entry.kind && object.is_surely(&entry.source);
        if !(here && is_object && !stays && admitted(from) && admitted(to)) {
            return LEFT;
        }
        activity::at(Activity::TargetNames);
        let shown = |path: &TreePath| root.written().join(path);
        let Some(old) = engine.open_target(&root, &old_place, Identity::default())? else {
            return LEFT;
        };
        let own = engine.places.state_path.as_deref();
        let copy = OldCopy { at: &old, name: old_name, kind: entry.kind, object: entry.copy };
        let Some(copy) = local.copy_to_rename(copy, own, &|| shown(to))? else { return LEFT };
        if old_place != new_place {
            self.narrow_above(&root, &new_place)?;
        }
        let Some(new) = self.place_for(&root, &new_place)? else { return LEFT };
        if !self.lease.holds() {
            return LEFT;
        }
        let policy = &engine.spec.policy;
        let result = self.session.rename(Rename {
            old: &old,
            old_name,
            new: &new,
            new_name,
            copy: &copy,
            from: &source,
            source: &metadata,
            may_exchange: wanted.exchange,
            may_replace: wanted.replaces
                && policy.overwrite == Overwrite::Changed
                && policy.backup.is_none(),
            own,
        })?;
        if result != MoveResult::Left {
            let both = [(from, to), (to, from)];
            let exchanged = result == MoveResult::Exchanged;
            engine.doubts.carry(if exchanged { &both } else { &both[..1] });
            self.tell_renamed(&shown(from), &shown(to), &metadata);
        }
        Ok(result)
    }

    /// The new parent directory of an entry, created if it is new at the source as well.
    fn place_for(
        &mut self,
        root: &Arc<Root>,
        at: &TreePath,
    ) -> Result<Option<TargetDirectory>, EntryError> {
        let engine = self.engine;
        let missing = match engine.open_target(root, at, Identity::default()) {
            Err(error) if is_absent(&error) => error,
            opened => return opened,
        };
        let Some((above, name)) = at.split_last() else { return Err(missing) };
        let Some(parent) = self.place_for(root, &above)? else { return Ok(None) };
        let source = engine.open_source(root, at)?;
        self.make_target(&parent.new_directory(name), &source.metadata)
    }

    fn tell_renamed(
        &mut self,
        from: &dmover_model::PathBytes,
        to: &dmover_model::PathBytes,
        metadata: &Metadata,
    ) {
        let engine = self.engine;
        self.spent.entries += 1;
        engine.reports.count(Counter::EntriesRenamed);
        engine.reports.progress();
        if engine.reports.wants_items() {
            engine.reports.show(Event::Item(Item {
                path: from.clone(),
                target: to.clone(),
                action: Action::Renamed,
                kind: metadata.kind,
                bytes: 0,
                elapsed_us: 0,
                itemized: itemize::columns(Action::Renamed, metadata, Some(metadata)),
            }));
        }
    }
}
