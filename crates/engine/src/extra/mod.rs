//! Destination names that the source does not have: a comparison reports them, and a deleting pass deletes them.
use dmover_local::error::{CallFailed, cancelled};
use dmover_local::extra_directory::Holder;
use dmover_local::seen_names::SeenNames;
use dmover_model::{DifferenceKind, EntryError, EntryKind, Metadata, Name, TreePath};
use dmover_plan::filter::Filter;
use dmover_plan::temporary::is_temporary;

use crate::context::Engine;
use crate::directory_pair::{DirectoryPair, TargetDirectory};
use crate::finding::{self, Finding};
use crate::mover::Mover;

pub(crate) mod delete;
pub(crate) mod guard;
mod meant;
mod presence;

pub(crate) use guard::{doubt, refuse_missing_destination};
pub(crate) use meant::refuse_unmeant;

/// A name that only the destination has.
pub(crate) struct ExtraEntry<'a> {
    /// The directory that contains it.
    pub holder: Holder<'a>,
    /// The path of that directory below the level.
    pub at: &'a TreePath,
    pub name: &'a Name,
    pub found: Metadata,
}

/// Counts destination entries that the source also has. A task that is repeated after an interruption may find its
/// own entries; its earlier count is recorded.
pub(crate) fn note_had(mover: &Mover<'_>, entries: u64) {
    let engine = mover.engine;
    if !mover.lease.task.resumed && engine.spec.delete_policy().is_some() {
        engine.pass.had(entries);
    }
}

/// Whether to remember the names of a source directory, to find extra names at the destination.
pub(crate) fn looks_for_extra(engine: &Engine, level: &DirectoryPair) -> bool {
    let policy = &engine.spec.policy;
    let told = policy.verify.as_ref().is_some_and(|policy| policy.extra);
    let deleted = delete::deletes_as_it_goes(engine);
    let wanted = told || deleted;
    wanted && level.root.is_directory && level.target.as_ref().is_some_and(|t| !t.fresh)
}

/// Reports or deletes names that only the destination directory has.
pub(crate) fn deal_with_extra(mover: &mut Mover<'_>, level: &DirectoryPair, seen: &SeenNames) {
    if mover.engine.spec.verb.fills() {
        return delete::collect_extra(mover, level, seen);
    }
    let result =
        walk_extra(mover, level, &|name| seen.has(&level.source, name), &mut |mover, extra| {
            tell_extra_name(mover.engine, level, &extra)
        });
    if let Err(error) = result {
        mover.engine.error(error);
    }
}

fn tell_extra_name(engine: &Engine, level: &DirectoryPair, extra: &ExtraEntry<'_>) -> bool {
    let ExtraEntry { at, name, found, .. } = extra;
    if finding::is_untouched(engine, found) && found.kind != EntryKind::Directory {
        return false;
    }
    let repaired = engine.spec.repairs().then_some(false);
    let shown = level.own_target_path().join(&at.join(name.as_bytes()));
    finding::tell_finding(engine, shown, found.kind, Finding::of(DifferenceKind::Extra), repaired);
    true
}

/// Visits every name of the destination directory that is not `known`, and everything below those for which `visit`
/// returns true.
pub(crate) fn walk_extra(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    known: &dyn Fn(&[u8]) -> Result<bool, CallFailed>,
    visit: &mut dyn FnMut(&mut Mover<'_>, ExtraEntry<'_>) -> bool,
) -> Result<(), EntryError> {
    let Some(target) = &level.target else { return Ok(()) };
    let (root, holder) = (TreePath::root(), target.holder());
    each_name(mover, holder, |mover, name| {
        if !known(name.as_bytes())? && visit_extra(mover, level, (holder, &root), name, visit) {
            walk_below(mover, level, target, root.join(name.as_bytes()), visit);
        }
        Ok(())
    })
}

/// Visits everything below a directory that only the destination has.
pub(crate) fn walk_below(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    top: &TargetDirectory,
    first: TreePath,
    visit: &mut dyn FnMut(&mut Mover<'_>, ExtraEntry<'_>) -> bool,
) {
    let mut directories = vec![first];
    while let Some(at) = directories.pop() {
        if mover.engine.control.is_stopping() {
            return mover.engine.error(cancelled(level.own_target_path().join(&at)));
        }
        let walked = mover.engine.end.open_extra(top, &at).and_then(|directory| {
            each_name(mover, directory.holder(), |mover, name| {
                if visit_extra(mover, level, (directory.holder(), &at), name, visit) {
                    directories.push(at.join(name.as_bytes()));
                }
                Ok(())
            })
        });
        if let Err(error) = walked {
            mover.engine.pass.hold_above(&level.own_target_path(), &at);
            mover.engine.error(error);
        }
    }
}

/// Visits one name. Returns whether it is a directory to enter.
pub(crate) fn visit_extra(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    (holder, at): (Holder<'_>, &TreePath),
    name: &Name,
    visit: &mut dyn FnMut(&mut Mover<'_>, ExtraEntry<'_>) -> bool,
) -> bool {
    let engine = mover.engine;
    let shown = || level.own_target_path().join(&at.join(name.as_bytes()));
    engine.resources.limits.operation(&engine.control, mover.lease);
    mover.lease.extend();
    let found = match engine.end.look_at_extra(holder, name) {
        Ok(Some(found)) => found,
        Ok(None) => return false,
        Err(error) => {
            engine.error(error);
            return false;
        }
    };
    // Excluded entries and files in progress are ignored at the destination as well. A leftover of an earlier run
    // of this job is deleted with its directory.
    let dead = !at.is_root() && mover.is_leftover(name.as_bytes());
    // No temporary is a directory.
    let looks = is_temporary(name.as_bytes()) && found.kind != EntryKind::Directory;
    let written = looks && !dead && !engine.spec.clears_all();
    let own = engine.spec.verb.fills() && written;
    if own {
        return false;
    }
    if !is_admitted_below(&mover.engine.filter, level, at, name, &found) {
        if mover.clearing.is_on {
            mover.clearing.spared.get_or_insert_with(shown);
        }
        if mover.clearing.is_on || engine.spec.policy.dry_run {
            // A dry run removes nothing, and would not find out that the directories above are not empty.
            engine.pass.hold_above(&level.own_target_path(), at);
        }
        return false;
    }
    let (kind, mount) = (found.kind, found.identity.mount);
    let enters = visit(mover, ExtraEntry { holder, at, name, found });
    let here = level.target.as_ref().is_some_and(|t| t.metadata.identity.mount == mount);
    let stays = engine.spec.selection.one_file_system && !here;
    enters && kind == EntryKind::Directory && !stays
}

fn is_admitted_below(
    filter: &Filter,
    level: &DirectoryPair,
    at: &TreePath,
    name: &Name,
    found: &Metadata,
) -> bool {
    let below = level.path.join_path(at);
    filter.admits(below.join(name.as_bytes()).as_bytes(), found)
}

/// Calls a function for every name of a directory as it is read.
pub(crate) fn each_name(
    mover: &mut Mover<'_>,
    holder: Holder<'_>,
    mut action: impl FnMut(&mut Mover<'_>, &Name) -> Result<(), CallFailed>,
) -> Result<(), EntryError> {
    mover.with_buffer(|mover, buffer| {
        holder.read(buffer, |listed| {
            mover.lease.extend();
            action(mover, &listed.name()?)?;
            Ok(true)
        })
    })
}
