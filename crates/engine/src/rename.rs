//! Repeats renames of the source at the destination, without reading or writing content.
//!
//! The catalog has the old places. Right before a rename both sides are checked: the source must have the object under
//! its new name, and the destination must have its copy, the very same one, under the old name. Entries that cannot be
//! renamed are left to the scan, which copies them as new.
use dmover_local::error::entry_error;
use dmover_local::make_directory::NewDirectory;
use dmover_local::objects::object_of;
use dmover_local::root::Root;
use dmover_model::{
    Action, CatalogEntry, EntryError, EntryKind, Event, Identity, Item, Metadata, Move, MoveResult,
    Object, Operation, Overwrite, RootId, Side, Surveyed, TreePath,
};
use dmover_observe::{Activity, Counter, station};
use dmover_plan::itemize;
use dmover_plan::overlap::parse_mountinfo;
use dmover_sys::stat::{self, Stat};
use dmover_sys::{Errno, OwnedFd, directory, mount, path, set};
use std::sync::Arc;

use crate::context::Engine;
use crate::level::TargetDirectory;
use crate::mover::Mover;

impl Mover<'_> {
    /// Performs renames in the given order.
    pub(crate) fn run_rename(&mut self, moves: &[Move]) {
        for wanted in moves {
            if self.engine.control.is_stopping() {
                return;
            }
            self.engine.limits.operation(&self.engine.control, self.lease);
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
        station::at(Activity::SourceNames);
        let source = engine.open_source(&root, &new_place)?;
        let fail = |e| {
            let path = root.source_path(&new_place, new_name);
            entry_error(Side::Source, Operation::Stat, path, e)
        };
        let found = stat::stat_born_at(&source.fd, new_name).map_err(fail)?;
        let metadata = engine.end.mounts.metadata(&found.0);
        let here = metadata.identity.mount == root.mount;
        // A rule that names paths may keep something at the destination where it is.
        let stays = metadata.kind == EntryKind::Directory && engine.filter.has_path_rules();
        let admitted = |path: &TreePath| engine.filter.admits_below(path, &metadata);
        let is_object = engine.is_object(entry, entry.source, &found);
        if !(here && is_object && !stays && admitted(from) && admitted(to)) {
            return LEFT;
        }
        station::at(Activity::TargetNames);
        let shown = |path: &TreePath| root.written().join(path);
        let refused = |e| entry_error(Side::Destination, Operation::Rename, shown(to), e);
        let Some(old) = engine.open_target(&root, &old_place, Identity::default())? else {
            return LEFT;
        };
        let copy = stat::stat_born_at(&old.fd, old_name).map_err(refused)?;
        if !engine.is_object(entry, entry.copy, &copy)
            || self.holds_own(&old.fd, old_name, entry.kind)
        {
            return LEFT;
        }
        let elsewhere = old_place != new_place;
        if elsewhere {
            self.narrow_above(&root, &new_place)?;
        }
        let Some(new) = self.place_for(&root, &new_place)? else { return LEFT };
        if !self.lease.holds() {
            return LEFT;
        }
        self.session.writes_to(&old);
        self.session.writes_to(&new);
        let ends = Ends { old: &old, old_name, new: &new, new_name };
        let there = match stat::stat_at(&new.fd, new_name, false) {
            Err(error) if stat::is_absent(error) => None,
            found => Some(engine.end.mounts.metadata(&found.map_err(refused)?)),
        };
        // What is exchanged is moved as well.
        let other = there.as_ref().filter(|_| wanted.exchange);
        if other.is_some_and(|other| self.holds_own(&new.fd, new_name, other.kind)) {
            return LEFT;
        }
        let found = engine.end.mounts.metadata(&copy.0);
        let both = [Some(((&old, old_name), &found)), other.map(|other| ((&new, new_name), other))];
        let own = Some((&source.fd, new_name, &metadata));
        let narrowed = if elsewhere { self.session.local.narrow_both(both, own) } else { Ok(true) };
        let result = match narrowed {
            Ok(false) => Ok(MoveResult::Left),
            Ok(true) => match self.make_move(wanted, &ends, there.as_ref()) {
                Err(Errno::ACCESS | Errno::PERM) if self.open_up_for(&ends, entry) => {
                    self.make_move(wanted, &ends, there.as_ref())
                }
                result => result,
            },
            Err(error) => Err(error),
        };
        if elsewhere && matches!(result, Ok(MoveResult::Left) | Err(_)) {
            both.into_iter().flatten().for_each(|(at, old)| self.session.local.put_back(at, old));
        }
        let result = result.map_err(refused)?;
        if result != MoveResult::Left {
            let both = [(from, to), (to, from)];
            let exchanged = result == MoveResult::Exchanged;
            engine.carry_doubts(if exchanged { &both } else { &both[..1] });
            self.tell_renamed(&shown(from), &shown(to), &metadata);
        }
        Ok(result)
    }

    fn make_move(
        &self,
        wanted: &Move,
        Ends { old, old_name, new, new_name }: &Ends<'_>,
        there: Option<&Metadata>,
    ) -> Result<MoveResult, Errno> {
        let Some(there) = there else {
            directory::move_new(&old.fd, old_name, &new.fd, new_name)?;
            return Ok(MoveResult::Moved);
        };
        // Two names of one inode stay two names.
        if there.identity.inode == wanted.entry.copy.inode {
            return Ok(MoveResult::Left);
        }
        if wanted.exchange {
            return match directory::exchange(&old.fd, old_name, &new.fd, new_name) {
                Ok(()) => Ok(MoveResult::Exchanged),
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(MoveResult::Left),
                Err(error) => Err(error),
            };
        }
        let policy = &self.engine.spec.policy;
        let replaces =
            wanted.replaces && policy.overwrite == Overwrite::Changed && policy.backup.is_none();
        let plain = |kind| kind != EntryKind::Directory;
        if replaces && plain(there.kind) && plain(wanted.entry.kind) {
            directory::move_over(&old.fd, old_name, &new.fd, new_name)?;
            return Ok(MoveResult::Moved);
        }
        Ok(MoveResult::Left)
    }

    /// The new parent directory of an entry, created if it is new at the source as well.
    fn place_for(
        &mut self,
        root: &Arc<Root>,
        at: &TreePath,
    ) -> Result<Option<TargetDirectory>, EntryError> {
        let engine = self.engine;
        let missing = match engine.open_target(root, at, Identity::default()) {
            Err(error) if stat::is_absent_number(error.errno) => error,
            opened => return opened,
        };
        let Some((above, name)) = at.split_last() else { return Err(missing) };
        let Some(parent) = self.place_for(root, &above)? else { return Ok(None) };
        let source = engine.open_source(root, at)?;
        let place = &parent.place.below(name);
        let (parent, inherits_acl) = (&parent.fd, parent.default_acl);
        self.make_target(NewDirectory { parent, inherits_acl, name, place }, &source.metadata)
    }

    /// Makes directories writable that are closed to their owner or locked; the scan closes them again.
    fn open_up_for(&self, ends: &Ends<'_>, entry: &CatalogEntry) -> bool {
        let mut opened = self.session.local.unlock_target(ends.old);
        opened |= self.session.local.unlock_target(ends.new);
        if entry.kind == EntryKind::Directory
            && let Ok(fd) = path::open_directory_below(&ends.old.fd, ends.old_name)
            && let Ok(found) = stat::stat_fd(&fd)
        {
            // Its entry '..' is written when it gets another parent.
            opened |= self.engine.attributes().lift_flags(dmover_sys::AsFd::as_fd(&fd));
            opened |=
                found.mode & 0o200 == 0 && set::mode(&fd, found.mode & 0o7777 | 0o700).is_ok();
        }
        opened
    }

    /// Whether the entry to move contains something that is identified by its path: dmover's own state, or a mount
    /// point.
    fn holds_own(&self, parent: &OwnedFd, name: &[u8], kind: EntryKind) -> bool {
        if kind != EntryKind::Directory {
            return false;
        }
        let fd = path::open_directory_below(parent, name);
        let place = fd.ok().and_then(mount::path_of);
        let mounts = parse_mountinfo(&mount::mountinfo());
        let state = &self.engine.state_path;
        place.is_none_or(|place| {
            state.as_ref().is_some_and(|state| state.starts_with(&place))
                || mounts.iter().any(|mount| mount.mount_point.starts_with(&place))
        })
    }

    fn tell_renamed(
        &mut self,
        from: &dmover_model::PathBytes,
        to: &dmover_model::PathBytes,
        metadata: &Metadata,
    ) {
        let engine = self.engine;
        self.spent.entries += 1;
        engine.count(Counter::EntriesRenamed);
        engine.progress();
        if engine.monitor.wants_items() {
            engine.show(Event::Item(Item {
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

/// The old and the new place of a name.
struct Ends<'a> {
    old: &'a TargetDirectory,
    old_name: &'a [u8],
    new: &'a TargetDirectory,
    new_name: &'a [u8],
}

impl Engine {
    /// Whether an object is the one in the catalog: an inode number alone may have been reused.
    fn is_object(
        &self,
        entry: &CatalogEntry,
        object: Object,
        found: &(Stat, Option<(i64, u32)>),
    ) -> bool {
        let metadata = self.end.mounts.metadata(&found.0);
        metadata.kind == entry.kind && object_of(found).is_surely(&object)
    }
}
