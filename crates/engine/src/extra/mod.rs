//! Destination names that the source does not have: a comparison reports them, and a deleting pass deletes them.
use dmover_local::directory::{fold, look_at};
use dmover_local::error::entry_error;
use dmover_model::{
    DifferenceKind, EntryError, EntryKind, Identity, Metadata, Name, Operation, Side, TreePath,
};
use dmover_plan::temporary::is_temporary;
use dmover_sys::directory::{DirectoryReader, TypeHint};
use dmover_sys::{Errno, OwnedFd, path, stat};
use std::cell::OnceCell;
use std::collections::HashSet;

use crate::finding::Finding;
use crate::level::Level;
use crate::mover::Mover;

mod delete;
mod guard;
mod meant;

pub(crate) use guard::{doubt, is_empty, refuse_missing_destination};
pub(crate) use meant::refuse_unmeant;

/// The most bytes for names of one directory; beyond that the source is asked about each name.
const NAMES_BYTES_MAX: usize = 4 << 20;

/// Names that a source directory has.
#[derive(Debug, Default)]
pub(crate) struct SeenNames {
    names: HashSet<Box<[u8]>>,
    bytes: usize,
    too_many: bool,
    /// The names without case, computed on demand.
    folded: OnceCell<HashSet<String>>,
}

impl SeenNames {
    pub fn insert(&mut self, name: &[u8]) {
        self.bytes += name.len() + 40;
        if self.bytes > NAMES_BYTES_MAX {
            self.too_many = true;
            self.names = HashSet::new();
        }
        if !self.too_many {
            self.names.insert(name.into());
        }
    }

    /// Whether the source directory has this destination name, ignoring case if the destination does.
    pub fn has_alike(&self, level: &Level, name: &[u8]) -> Result<bool, Errno> {
        let folds = level.target.as_ref().is_some_and(|target| target.folds_case);
        let has = self.has(level, name)?;
        if has || !folds {
            return Ok(has);
        }
        if self.folded.get().is_none() {
            let mut folded: HashSet<String> = self.names.iter().map(|name| fold(name)).collect();
            if self.too_many {
                let fd = path::open_directory_at(&level.source.fd, b".")?;
                DirectoryReader::default().read(&fd, |name, _| -> Result<bool, Errno> {
                    folded.insert(fold(name));
                    Ok(true)
                })?;
            }
            let _ = self.folded.set(folded);
        }
        Ok(self.folded.get().is_some_and(|folded| folded.contains(&fold(name))))
    }

    /// Whether the source directory has this name.
    pub fn has(&self, level: &Level, name: &[u8]) -> Result<bool, Errno> {
        if self.too_many {
            return Ok(look_at(&level.source.fd, name)?.is_some());
        }
        Ok(self.names.contains(name))
    }
}

/// A name that only the destination has.
pub(crate) struct ExtraEntry<'a> {
    /// The directory that contains it.
    pub fd: &'a OwnedFd,
    /// The path of that directory below the level, and its identity.
    pub at: &'a TreePath,
    pub holder: Identity,
    pub name: &'a Name,
    pub found: Metadata,
}

impl Mover<'_> {
    /// Counts destination entries that the source also has. A task that is repeated after an interruption may find its
    /// own entries; its earlier count is recorded.
    pub(crate) fn note_had(&self, entries: u64) {
        if !self.lease.task.resumed {
            self.engine.tell_had(entries);
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
        let result = self.walk_extra(level, &|name| seen.has(level, name), &mut |mover, extra| {
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
        let repaired = engine.repairs().then_some(false);
        let shown = level.own_target_path().join(&at.join(name.as_bytes()));
        engine.tell_finding(shown, found.kind, Finding::of(DifferenceKind::Extra), repaired);
        true
    }

    /// Visits every name of the destination directory that is not `known`, and everything below those for which `visit`
    /// returns true.
    pub(crate) fn walk_extra(
        &mut self,
        level: &Level,
        known: &dyn Fn(&[u8]) -> Result<bool, Errno>,
        visit: &mut dyn FnMut(&mut Self, ExtraEntry<'_>) -> bool,
    ) -> Result<(), EntryError> {
        let Some(target) = &level.target else { return Ok(()) };
        let (root, holder) = (TreePath::root(), target.metadata.identity);
        self.each_name(&target.fd, &|| level.own_target_path(), |mover, name| {
            if !known(name.as_bytes())?
                && mover.visit_extra(level, &target.fd, (&root, holder), name, visit)
            {
                mover.walk_below(level, &target.fd, root.join(name.as_bytes()), visit);
            }
            Ok(())
        })
    }

    /// Visits everything below a directory that only the destination has.
    pub(crate) fn walk_below(
        &mut self,
        level: &Level,
        top: &OwnedFd,
        first: TreePath,
        visit: &mut dyn FnMut(&mut Self, ExtraEntry<'_>) -> bool,
    ) {
        let mut directories = vec![first];
        while let Some(at) = directories.pop() {
            let shown = || level.own_target_path().join(&at);
            if self.engine.control.is_stopping() {
                return self.engine.error(dmover_local::error::cancelled(shown()));
            }
            let fail = |e| entry_error(Side::Destination, Operation::Open, shown(), e);
            let walked = path::open_directory_below(top, at.as_bytes())
                .and_then(|fd| Ok((stat::stat_fd(&fd)?, fd)))
                .map_err(fail)
                .and_then(|(own, fd)| {
                    let holder = self.engine.end.mounts.identity(&own);
                    self.each_name(&fd, &shown, |mover, name| {
                        if mover.visit_extra(level, &fd, (&at, holder), name, visit) {
                            directories.push(at.join(name.as_bytes()));
                        }
                        Ok(())
                    })
                });
            if let Err(error) = walked {
                self.engine.hold_above(level, &at);
                self.engine.error(error);
            }
        }
    }

    /// Visits one name. Returns whether it is a directory to enter.
    pub(crate) fn visit_extra(
        &mut self,
        level: &Level,
        fd: &OwnedFd,
        (at, holder): (&TreePath, Identity),
        name: &Name,
        visit: &mut dyn FnMut(&mut Self, ExtraEntry<'_>) -> bool,
    ) -> bool {
        let engine = self.engine;
        let shown = || level.own_target_path().join(&at.join(name.as_bytes()));
        engine.limits.operation(&engine.control, self.lease);
        self.lease.extend();
        let found = match stat::stat_at(fd, name.as_bytes(), false) {
            Ok(found) => engine.end.mounts.metadata(&found),
            Err(error) if stat::is_absent(error) => return false,
            Err(error) => {
                engine.error(entry_error(Side::Destination, Operation::Stat, shown(), error));
                return false;
            }
        };
        // Excluded entries and files in progress are ignored at the destination as well. A leftover of an earlier run
        // of this job is deleted with its directory.
        let dead = !at.is_root() && self.is_leftover(name.as_bytes());
        // No temporary is a directory.
        let looks = is_temporary(name.as_bytes()) && found.kind != EntryKind::Directory;
        let written = looks && !dead && !engine.clears_all();
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
                engine.hold_above(level, at);
            }
            return false;
        }
        let (kind, mount) = (found.kind, found.identity.mount);
        let enters = visit(self, ExtraEntry { fd, at, holder, name, found });
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
        fd: &OwnedFd,
        shown: &dyn Fn() -> dmover_model::PathBytes,
        mut action: impl FnMut(&mut Self, &Name) -> Result<(), Errno>,
    ) -> Result<(), EntryError> {
        let fail = |e| entry_error(Side::Destination, Operation::ReadDirectory, shown(), e);
        // A descriptor of its own, so that the position of the other stays at the start.
        let fd = path::open_directory_at(fd, b".").map_err(fail)?;
        let mut reader = self.readers.pop().unwrap_or_default();
        let read = reader.read(&fd, |name, _: TypeHint| -> Result<bool, Errno> {
            self.lease.extend();
            action(self, &Name::new(name).map_err(|_| Errno::ILSEQ)?)?;
            Ok(true)
        });
        self.readers.push(reader);
        read.map(drop).map_err(fail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_in_case_alone_are_alike() {
        for (one, other) in [("Foo", "foo"), ("straße", "STRASSE"), ("ÉTÉ", "été"), ("ſ", "s")]
        {
            assert_eq!(fold(one.as_bytes()), fold(other.as_bytes()), "{one}");
        }
        assert_ne!(fold(b"foo"), fold(b"foo "));
    }
}
