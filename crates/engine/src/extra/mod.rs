//! Destination names that the source does not have: a comparison reports them, and a deleting pass deletes them.
use dmover_local::error::{CallFailed, cancelled};
use dmover_local::extra_directory::Holder;
use dmover_local::seen_names::SeenNames;
use dmover_model::{DifferenceKind, EntryError, EntryKind, Metadata, Name, TreePath};
use dmover_plan::temporary::is_temporary;

use crate::finding::Finding;
use crate::level::{Level, TargetDirectory};
use crate::mover::Mover;

mod delete;
mod guard;
mod meant;

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

impl Mover<'_> {
    /// Counts destination entries that the source also has. A task that is repeated after an interruption may find its
    /// own entries; its earlier count is recorded.
    pub(crate) fn note_had(&self, entries: u64) {
        let engine = self.engine;
        if !self.lease.task.resumed && engine.spec.delete_policy().is_some() {
            engine.pass.had(entries);
        }
    }

    /// Whether to remember the names of a source directory, to find extra names at the destination.
    pub(crate) fn looks_for_extra(&self, level: &Level) -> bool {
        let policy = &self.engine.spec.policy;
        let told = policy.verify.as_ref().is_some_and(|policy| policy.extra);
        let deleted = self.engine.deletes_as_it_goes();
        let wanted = told || deleted;
        wanted && level.root.is_directory && level.target.as_ref().is_some_and(|t| !t.fresh)
    }

    /// Reports or deletes names that only the destination directory has.
    pub(crate) fn deal_with_extra(&mut self, level: &Level, seen: &SeenNames) {
        if self.engine.spec.verb.fills() {
            return self.collect_extra(level, seen);
        }
        let result =
            self.walk_extra(level, &|name| seen.has(&level.source, name), &mut |mover, extra| {
                mover.tell_extra_name(level, &extra)
            });
        if let Err(error) = result {
            self.engine.error(error);
        }
    }

    fn tell_extra_name(&mut self, level: &Level, extra: &ExtraEntry<'_>) -> bool {
        let engine = self.engine;
        let ExtraEntry { at, name, found, .. } = extra;
        if engine.is_untouched(found) && found.kind != EntryKind::Directory {
            return false;
        }
        let repaired = engine.spec.repairs().then_some(false);
        let shown = level.own_target_path().join(&at.join(name.as_bytes()));
        engine.tell_finding(shown, found.kind, Finding::of(DifferenceKind::Extra), repaired);
        true
    }

    /// Visits every name of the destination directory that is not `known`, and everything below those for which `visit`
    /// returns true.
    pub(crate) fn walk_extra(
        &mut self,
        level: &Level,
        known: &dyn Fn(&[u8]) -> Result<bool, CallFailed>,
        visit: &mut dyn FnMut(&mut Self, ExtraEntry<'_>) -> bool,
    ) -> Result<(), EntryError> {
        let Some(target) = &level.target else { return Ok(()) };
        let (root, holder) = (TreePath::root(), target.holder());
        self.each_name(holder, |mover, name| {
            if !known(name.as_bytes())? && mover.visit_extra(level, (holder, &root), name, visit) {
                mover.walk_below(level, target, root.join(name.as_bytes()), visit);
            }
            Ok(())
        })
    }

    /// Visits everything below a directory that only the destination has.
    pub(crate) fn walk_below(
        &mut self,
        level: &Level,
        top: &TargetDirectory,
        first: TreePath,
        visit: &mut dyn FnMut(&mut Self, ExtraEntry<'_>) -> bool,
    ) {
        let mut directories = vec![first];
        while let Some(at) = directories.pop() {
            if self.engine.control.is_stopping() {
                return self.engine.error(cancelled(level.own_target_path().join(&at)));
            }
            let walked = self.engine.end.open_extra(top, &at).and_then(|directory| {
                self.each_name(directory.holder(), |mover, name| {
                    if mover.visit_extra(level, (directory.holder(), &at), name, visit) {
                        directories.push(at.join(name.as_bytes()));
                    }
                    Ok(())
                })
            });
            if let Err(error) = walked {
                self.engine.pass.hold_above(&level.own_target_path(), &at);
                self.engine.error(error);
            }
        }
    }

    /// Visits one name. Returns whether it is a directory to enter.
    pub(crate) fn visit_extra(
        &mut self,
        level: &Level,
        (holder, at): (Holder<'_>, &TreePath),
        name: &Name,
        visit: &mut dyn FnMut(&mut Self, ExtraEntry<'_>) -> bool,
    ) -> bool {
        let engine = self.engine;
        let shown = || level.own_target_path().join(&at.join(name.as_bytes()));
        engine.resources.limits.operation(&engine.control, self.lease);
        self.lease.extend();
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
        let dead = !at.is_root() && self.is_leftover(name.as_bytes());
        // No temporary is a directory.
        let looks = is_temporary(name.as_bytes()) && found.kind != EntryKind::Directory;
        let written = looks && !dead && !engine.spec.clears_all();
        let own = engine.spec.verb.fills() && written;
        if own {
            return false;
        }
        if !self.is_admitted_below(level, at, name, &found) {
            if self.clearing {
                self.spared.get_or_insert_with(shown);
            }
            if self.clearing || engine.spec.policy.dry_run {
                // A dry run removes nothing, and would not find out that the directories above are not empty.
                engine.pass.hold_above(&level.own_target_path(), at);
            }
            return false;
        }
        let (kind, mount) = (found.kind, found.identity.mount);
        let enters = visit(self, ExtraEntry { holder, at, name, found });
        let here = level.target.as_ref().is_some_and(|t| t.metadata.identity.mount == mount);
        let stays = engine.spec.selection.one_file_system && !here;
        enters && kind == EntryKind::Directory && !stays
    }

    fn is_admitted_below(
        &self,
        level: &Level,
        at: &TreePath,
        name: &Name,
        found: &Metadata,
    ) -> bool {
        let below = level.path.join_path(at);
        self.engine.filter.admits(below.join(name.as_bytes()).as_bytes(), found)
    }

    /// Calls a function for every name of a directory as it is read.
    pub(crate) fn each_name(
        &mut self,
        holder: Holder<'_>,
        mut action: impl FnMut(&mut Self, &Name) -> Result<(), CallFailed>,
    ) -> Result<(), EntryError> {
        self.with_buffer(|mover, buffer| {
            holder.read(buffer, |listed| {
                mover.lease.extend();
                action(mover, &listed.name()?)?;
                Ok(true)
            })
        })
    }
}
