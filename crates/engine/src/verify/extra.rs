//! Entries at the destination that nothing says should be there.
use dmover_model::{
    DifferenceKind, EntryError, EntryKind, Metadata, Name, Operation, Side, TreePath,
};
use dmover_sys::directory::TypeHint;
use dmover_sys::{Errno, OwnedFd, path, stat};
use std::collections::HashSet;

use super::{Finding, look_at};
use crate::context::entry_error;
use crate::level::Level;
use crate::mover::Mover;

/// Names of one directory may take so many bytes here; for more than that the source is asked about each.
const NAMES_BYTES_MAX: usize = 4 << 20;

/// Names that a source directory has.
#[derive(Debug, Default)]
pub(crate) struct SeenNames {
    names: HashSet<Box<[u8]>>,
    bytes: usize,
    too_many: bool,
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
}

impl Mover<'_> {
    /// Whether names of a source directory have to be remembered to find others at the destination.
    pub(crate) fn looks_for_extra(&self, level: &Level) -> bool {
        let policy = self.engine.spec.policy.verify.as_ref();
        let wanted = policy.is_some_and(|policy| policy.extra);
        wanted && level.root.is_directory && level.target.as_ref().is_some_and(|t| !t.fresh)
    }

    /// Tells what the destination directory has and the source does not.
    pub(crate) fn tell_extra(&mut self, level: &Level, seen: &SeenNames) {
        let Some(target) = &level.target else { return };
        let below = TreePath::root();
        let result = self.each_name(&target.fd, &|| level.own_target_path(), |mover, name| {
            let known = if seen.too_many {
                look_at(&level.source.fd, name.as_bytes())?.is_some()
            } else {
                seen.names.contains(name.as_bytes())
            };
            if !known {
                mover.tell_extra_entry(level, &target.fd, (&below, name));
            }
            Ok(())
        });
        if let Err(error) = result {
            self.engine.error(error);
        }
    }

    /// Tells an extra entry, and everything below it.
    fn tell_extra_entry(&mut self, level: &Level, top: &OwnedFd, (at, name): (&TreePath, &Name)) {
        let mut directories = Vec::new();
        let kind = self.tell_extra_name(level, top, (at, name));
        if kind == Some(EntryKind::Directory) {
            directories.push(at.join(name.as_bytes()));
        }
        while let Some(at) = directories.pop() {
            if self.engine.control.is_stopping() {
                return self
                    .engine
                    .error(crate::context::Engine::cancelled(level.own_target_path().join(&at)));
            }
            let shown = || level.own_target_path().join(&at);
            let opened = path::open_directory_below(top, at.as_bytes())
                .map_err(|e| entry_error(Side::Destination, Operation::Open, shown(), e));
            let told = opened.and_then(|fd| {
                self.each_name(&fd, &shown, |mover, name| {
                    let kind = mover.tell_extra_name(level, &fd, (&at, name));
                    if kind == Some(EntryKind::Directory) {
                        directories.push(at.join(name.as_bytes()));
                    }
                    Ok(())
                })
            });
            if let Err(error) = told {
                self.engine.error(error);
            }
        }
    }

    /// Tells one name in the directory `fd`, which is `at` below the level's. Answers its type if it is told.
    fn tell_extra_name(
        &mut self,
        level: &Level,
        fd: &OwnedFd,
        (at, name): (&TreePath, &Name),
    ) -> Option<EntryKind> {
        let engine = self.engine;
        let shown = || level.own_target_path().join(&at.join(name.as_bytes()));
        engine.limits.operation(&engine.control);
        self.lease.extend();
        let found = match stat::stat_at(fd, name.as_bytes(), false) {
            Ok(found) => engine.mounts.metadata(&found),
            Err(error) if stat::is_absent(error) => return None,
            Err(error) => {
                engine.error(entry_error(Side::Destination, Operation::Stat, shown(), error));
                return None;
            }
        };
        // What a rule leaves out is nobody's business at the destination either.
        if !self.is_admitted_below(level, at, name, &found) {
            return None;
        }
        if engine.is_untouched(&found) && found.kind != EntryKind::Directory {
            return None;
        }
        let repaired = engine.repairs().then_some(false);
        engine.tell_finding(shown(), found.kind, Finding::of(DifferenceKind::Extra), repaired);
        let other_mount = level
            .target
            .as_ref()
            .is_some_and(|target| target.metadata.identity.mount != found.identity.mount);
        let stays = engine.spec.selection.one_file_system && other_mount;
        Some(found.kind).filter(|_| !stays)
    }

    fn is_admitted_below(
        &self,
        level: &Level,
        at: &TreePath,
        name: &Name,
        found: &Metadata,
    ) -> bool {
        let below = at.components().fold(level.path.clone(), |path, part| path.join(part));
        self.engine.filter.admits(below.join(name.as_bytes()).as_bytes(), found)
    }

    /// Does something with every name of a destination directory as it is read.
    fn each_name(
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
