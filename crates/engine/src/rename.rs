//! Repeats renames of the source at the destination, without reading or writing content.
//!
//! The catalog has the old places. Right before a rename both sides are checked: the source must have the object under
//! its new name, and the destination must have its copy, the very same one, under the old name. (A source on another host is asked
//! for the renames of a task with one request.) Entries that cannot be
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

use crate::catalog_survey;
use crate::directory;
use crate::directory_pair::{self, TargetDirectory};
use crate::mover::Mover;
use crate::narrow;
use crate::source_now::SourceNow;

/// Performs renames in the given order.
pub(crate) fn run(mover: &mut Mover<'_>, moves: &[Move]) {
    let engine = mover.engine;
    let left = |error: EntryError| {
        let error = error.to_string();
        tracing::debug!(error, "cannot follow a rename");
        MoveResult::Left
    };
    activity::at(Activity::SourceNames);
    let Ok(root) = engine.root(RootId::ONLY) else { return };
    let source = SourceNow::of(engine, &root, moves).map_err(left);
    for wanted in moves {
        if engine.control.is_stopping() {
            return;
        }
        engine.resources.limits.operation(&engine.control, mover.lease);
        mover.lease.extend();
        let result = match &source {
            Ok(source) => follow(mover, (&root, source), wanted).unwrap_or_else(left),
            Err(left) => *left,
        };
        catalog_survey::tell(mover, Surveyed::Moved(wanted.number, result));
    }
}

fn follow(
    mover: &mut Mover<'_>,
    (root, source): (&Arc<Root>, &SourceNow<'_>),
    wanted: &Move,
) -> Result<MoveResult, EntryError> {
    const LEFT: Result<MoveResult, EntryError> = Ok(MoveResult::Left);
    let engine = mover.engine;
    let Move { entry, from, to, .. } = wanted;
    let (Some((old_place, old_name)), Some((new_place, new_name))) =
        (from.split_last(), to.split_last())
    else {
        return LEFT;
    };
    activity::at(Activity::SourceNames);
    let local = mover.session.local;
    let directory = source.directory(&new_place)?;
    let (metadata, object) = source.look(to, &directory)?;
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
    let Some(old) = directory_pair::open_target(engine, root, &old_place, Identity::default())?
    else {
        return LEFT;
    };
    let own = engine.places.state_path.as_deref();
    let copy = OldCopy { at: &old, name: old_name, kind: entry.kind, object: entry.copy };
    let Some(copy) = local.copy_to_rename(copy, own, &|| shown(to))? else { return LEFT };
    if old_place != new_place {
        narrow::narrow_above(mover, (root, source), &new_place)?;
    }
    let Some(new) = place_for(mover, (root, source), &new_place)? else { return LEFT };
    if !mover.lease.holds() {
        return LEFT;
    }
    let policy = &engine.spec.policy;
    let result = mover.session.rename(Rename {
        old: &old,
        old_name,
        new: &new,
        new_name,
        copy: &copy,
        from: &directory,
        source: &metadata,
        told_acl: source.acl(to)?,
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
        tell_renamed(mover, &shown(from), &shown(to), &metadata);
    }
    Ok(result)
}

/// The new parent directory of an entry, created if it is new at the source as well.
fn place_for(
    mover: &mut Mover<'_>,
    (root, source): (&Arc<Root>, &SourceNow<'_>),
    at: &TreePath,
) -> Result<Option<TargetDirectory>, EntryError> {
    let engine = mover.engine;
    let missing = match directory_pair::open_target(engine, root, at, Identity::default()) {
        Err(error) if is_absent(&error) => error,
        opened => return opened,
    };
    let Some((above, name)) = at.split_last() else { return Err(missing) };
    let Some(parent) = place_for(mover, (root, source), &above)? else { return Ok(None) };
    let new = source.directory(at)?;
    directory::make_target(mover, &parent.new_directory(name), &new.metadata)
}

fn tell_renamed(
    mover: &mut Mover<'_>,
    from: &dmover_model::PathBytes,
    to: &dmover_model::PathBytes,
    metadata: &Metadata,
) {
    let engine = mover.engine;
    mover.spent.entries += 1;
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
