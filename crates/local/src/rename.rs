//! Renames at the destination that repeat those of the source, without reading or writing content.
use dmover_model::{
    EntryError, EntryKind, Metadata, MoveResult, Object, Operation, PathBytes, Side,
};
use dmover_plan::overlap::parse_mountinfo;
use dmover_sys::{AsFd, Errno, OwnedFd, directory, mount, path, set, stat};
use std::path::Path;

use crate::directory::{SourceDirectory, TargetDirectory, look_at};
use crate::end::Local;
use crate::error::entry_error;
use crate::locks;
use crate::narrow::{self, MovingSource, ToldAcl};
use crate::object::object_of;
use crate::session::Session;

/// A copy under its old name, as a catalog has it.
#[derive(Clone, Copy)]
pub struct OldCopy<'a> {
    /// The directory that it is in.
    pub at: &'a TargetDirectory,
    /// Its name there.
    pub name: &'a [u8],
    /// Its type.
    pub kind: EntryKind,
    /// The object that it was.
    pub object: Object,
}

/// The rename of a copy, whose source has its new name.
#[derive(Clone, Copy)]
pub struct Rename<'a> {
    /// The directory that it is in.
    pub old: &'a TargetDirectory,
    /// Its name there.
    pub old_name: &'a [u8],
    /// The directory that it moves to.
    pub new: &'a TargetDirectory,
    /// Its name there.
    pub new_name: &'a [u8],
    /// Its metadata.
    pub copy: &'a Metadata,
    /// The directory of its source.
    pub from: &'a SourceDirectory,
    /// The metadata of its source.
    pub source: &'a Metadata,
    /// The ACL of its source, if another host has told it.
    pub told_acl: Option<ToldAcl<'a>>,
    /// What has the new name gets the old one.
    pub may_exchange: bool,
    /// What has the new name may be replaced.
    pub may_replace: bool,
    /// A directory that is known by its path, so neither it nor what contains it is renamed.
    pub own: Option<&'a Path>,
}

impl Local<'_> {
    /// The metadata of a copy if it is still the one in the catalog, and contains nothing that is known by its path: a
    /// mount point, or `own`. `shown`: its new path, for messages.
    ///
    /// # Errors
    /// It is not there, or its directory cannot be searched.
    pub fn copy_to_rename(
        &self,
        OldCopy { at, name, kind, object }: OldCopy<'_>,
        own: Option<&Path>,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<Option<Metadata>, EntryError> {
        let found = stat::stat_born_at(&at.fd, name)
            .map_err(|e| entry_error(Side::Destination, Operation::Rename, shown(), e))?;
        let metadata = self.end.mounts.metadata(&found.0);
        // An inode number alone may have been reused.
        let same = metadata.kind == kind && object_of(&found).is_surely(&object);
        Ok((same && !holds_fixed_path(&at.fd, name, kind, own)).then_some(metadata))
    }
}

impl Session<'_> {
    /// Renames a copy, unless what has the new name forbids it. An entry that moves into another directory is narrowed
    /// first.
    ///
    /// # Errors
    /// It still has its old name.
    pub fn rename(&self, rename: Rename<'_>) -> Result<MoveResult, EntryError> {
        let Rename { old, old_name, new, new_name, copy, .. } = rename;
        let local = self.local;
        let fail =
            |e| entry_error(Side::Destination, Operation::Rename, new.place.entry(new_name), e);
        self.writes_to(old);
        self.writes_to(new);
        let there = look_at(&new.fd, new_name).map_err(fail)?;
        let there = there.map(|found| local.end.mounts.metadata(&found));
        // What is exchanged is moved as well.
        let other = there.as_ref().filter(|_| rename.may_exchange);
        if other.is_some_and(|o| holds_fixed_path(&new.fd, new_name, o.kind, rename.own)) {
            return Ok(MoveResult::Left);
        }
        let both = [Some(((old, old_name), copy)), other.map(|other| ((new, new_name), other))];
        let Rename { from, source: metadata, told_acl, .. } = rename;
        let source = Some(MovingSource { from, name: new_name, metadata, told_acl });
        let elsewhere = old.place.path() != new.place.path();
        let narrowed = if elsewhere { narrow::narrow_both(&local, both, source) } else { Ok(true) };
        let result = match narrowed {
            Ok(false) => Ok(MoveResult::Left),
            Ok(true) => match make_move(rename, there.as_ref()) {
                Err(Errno::ACCESS | Errno::PERM) if open_up_for(&self.local, rename) => {
                    make_move(rename, there.as_ref())
                }
                result => result,
            },
            Err(error) => Err(error),
        };
        if elsewhere && matches!(result, Ok(MoveResult::Left) | Err(_)) {
            both.into_iter().flatten().for_each(|(at, old)| narrow::put_back(&local, at, old));
        }
        result.map_err(fail)
    }
}

/// Makes directories writable that are closed to their owner or locked; the scan closes them again.
fn open_up_for(local: &Local<'_>, Rename { old, old_name, new, copy, .. }: Rename<'_>) -> bool {
    let mut opened = locks::unlock_target(local, old);
    opened |= locks::unlock_target(local, new);
    if copy.kind == EntryKind::Directory
        && let Ok(fd) = path::open_directory_below(&old.fd, old_name)
        && let Ok(found) = stat::stat_fd(&fd)
    {
        // Its entry '..' is written when it gets another parent.
        opened |= local.attributes().lift_flags(fd.as_fd());
        opened |= found.mode & 0o200 == 0 && set::mode(&fd, found.mode & 0o7777 | 0o700).is_ok();
    }
    opened
}

fn make_move(
    Rename { old, old_name, new, new_name, copy, may_exchange, may_replace, .. }: Rename<'_>,
    there: Option<&Metadata>,
) -> Result<MoveResult, Errno> {
    let Some(there) = there else {
        directory::move_new(&old.fd, old_name, &new.fd, new_name)?;
        return Ok(MoveResult::Moved);
    };
    // Two names of one inode stay two names.
    if there.identity.inode == copy.identity.inode {
        return Ok(MoveResult::Left);
    }
    if may_exchange {
        return match directory::exchange(&old.fd, old_name, &new.fd, new_name) {
            Ok(()) => Ok(MoveResult::Exchanged),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(MoveResult::Left),
            Err(error) => Err(error),
        };
    }
    let plain = |kind| kind != EntryKind::Directory;
    if may_replace && plain(there.kind) && plain(copy.kind) {
        directory::move_over(&old.fd, old_name, &new.fd, new_name)?;
        return Ok(MoveResult::Moved);
    }
    Ok(MoveResult::Left)
}

/// Whether an entry contains something that is known by its path: `own`, or a mount point.
fn holds_fixed_path(parent: &OwnedFd, name: &[u8], kind: EntryKind, own: Option<&Path>) -> bool {
    if kind != EntryKind::Directory {
        return false;
    }
    let fd = path::open_directory_below(parent, name);
    let place = fd.ok().and_then(mount::path_of);
    let mounts = parse_mountinfo(&mount::mountinfo());
    place.is_none_or(|place| {
        own.is_some_and(|own| own.starts_with(&place))
            || mounts.iter().any(|mount| mount.mount_point.starts_with(&place))
    })
}
