//! Narrows what gives more access than its source, before entries are copied or moved into it.
//!
//! The final mode of a directory is set when everything below it is done. Until then new entries must not be accessible
//! to users whom the source excludes: this module only removes permission bits and a wrong owner.
use dmover_model::{Attribute, EntryError, EntryKind, Metadata, Operation, Side};
use dmover_plan::acl;
use dmover_sys::xattr::{self, Held};
use dmover_sys::{AsFd, Errno, path, set, stat};
use dmover_tree::RemoteDirectory;
use std::sync::Arc;

use crate::attributes::ACCESS_ACL;
use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::Local;
use crate::error::entry_error;
use crate::handle::{DirectoryHandle, errno_of};

/// The place of an entry that is about to move, and its metadata.
pub(crate) type Moving<'a> = ((&'a TargetDirectory, &'a [u8]), &'a Metadata);

/// The permissions of all but the owner.
pub const OTHERS: u32 = 0o077;
const GROUP: u32 = 0o070;
const OWNER: u32 = 0o700;
const STICKY: u32 = 0o1000;

impl Local<'_> {
    /// The owner that an entry must get, as far as this process can set it.
    pub fn owner_to_set(&self, new: &Metadata, old: &Metadata) -> Option<(u32, u32)> {
        let owner = (self.rules.ids.user(new.uid), self.rules.ids.group(new.gid));
        let sets =
            self.end.privilege.privileged && self.rules.policy.preserve.has(Attribute::Owner);
        (sets && owner != (old.uid, old.gid)).then_some(owner)
    }

    /// Removes permissions from a directory that its source does not give, and a wrong owner. Returns its new metadata if
    /// anything was changed.
    ///
    /// # Errors
    /// Its mode or owner cannot be read or changed.
    pub fn narrow_directory(
        &self,
        from: &SourceDirectory,
        target: &TargetDirectory,
    ) -> Result<Option<Metadata>, EntryError> {
        try_to_narrow(self, from, target)
            .map_err(|e| entry_error(Side::Destination, Operation::SetMode, target.place.own(), e))
    }
}

/// The permissions that the source gives to its owner, its group and others; `wanted`: its ACL. An ACL that the destination does not
/// have in the same form closes the group, because the group bits are the mask of all users in the ACL.
fn allowed(
    local: &Local<'_>,
    new: &Metadata,
    SourceAcl { acl: wanted, owning_group }: SourceAcl,
    (target, held): (impl AsFd, Held),
) -> Result<u32, Errno> {
    let mode = new.mode & 0o777;
    if !local.rules.policy.preserve.has(Attribute::Acl) {
        return Ok(owning_group.map_or(mode, |group| mode & !GROUP | group << 3));
    }
    let maps = !local.rules.ids.is_identity();
    let mapped = wanted.as_deref().filter(|_| maps).and_then(|acl| local.rules.ids.posix_acl(acl));
    let same = mapped.or(wanted) == xattr::get(target, held, ACCESS_ACL)?;
    Ok(if same { mode } else { mode & !GROUP })
}

fn try_to_narrow(
    local: &Local<'_>,
    from: &SourceDirectory,
    target: &TargetDirectory,
) -> Result<Option<Metadata>, Errno> {
    let (new, old) = (&from.metadata, &target.metadata);
    let wanted = match &from.handle {
        DirectoryHandle::Open(from) => SourceAcl::read(from, Held::Open)?,
        DirectoryHandle::Remote(from) => SourceAcl::ask(from)?,
    };
    let mut allowed = allowed(local, new, wanted, (&target.fd, Held::Open))?;
    if !local.end.privilege.privileged {
        // Who fills it has to get in.
        allowed |= OWNER;
    }
    let mut changed = false;
    if let Some((uid, gid)) = local.owner_to_set(new, old) {
        changed = unless_impossible(set::owner(&target.fd, Some(uid), Some(gid)))?;
    }
    if !changed && local.rules.ids.group(new.gid) != old.gid {
        allowed &= !GROUP;
    }
    let mode = old.mode & 0o7000 | new.mode & STICKY | old.mode & allowed;
    if mode != old.mode & 0o7777 {
        let mut set = set::mode(&target.fd, mode);
        if set == Err(Errno::PERM) && local.attributes().lift_flags(target.fd.as_fd()) {
            set = set::mode(&target.fd, mode);
        }
        changed |= unless_impossible(set)?;
    }
    changed
        .then(|| stat::stat_fd(&target.fd).map(|now| local.end.mounts.metadata(&now)))
        .transpose()
}

/// The access ACL of a source entry as another host has told it; `None`: the entry has none.
#[derive(Debug, Clone, Copy)]
pub struct ToldAcl<'a>(pub Option<&'a [u8]>);

/// The source of an entry that is about to move.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MovingSource<'a> {
    /// The directory that it is in.
    pub from: &'a SourceDirectory,
    /// Its name there.
    pub name: &'a [u8],
    /// Its metadata.
    pub metadata: &'a Metadata,
    /// Its ACL, if another host has told it.
    pub told_acl: Option<ToldAcl<'a>>,
}

impl MovingSource<'_> {
    /// Its ACL. `None`: another host has not told it.
    fn acl(&self) -> Result<Option<SourceAcl>, Errno> {
        match &self.from.handle {
            DirectoryHandle::Open(from) => {
                SourceAcl::read(path::pin_at(from, self.name)?, Held::Pinned).map(Some)
            }
            DirectoryHandle::Remote(_) => {
                Ok(self.told_acl.map(|ToldAcl(acl)| SourceAcl::of(acl.map(<[u8]>::to_vec))))
            }
        }
    }
}

/// Narrows an entry before it moves into another directory, where users may reach it whom the old place excluded. A
/// directory is closed to all other users, like a new one, until everything below it was checked. Returns whether
/// it may move.
///
/// # Errors
/// Its mode or owner cannot be read or changed.
pub(crate) fn narrow_moved(
    local: &Local<'_>,
    (holder, name): (&TargetDirectory, &[u8]),
    old: &Metadata,
    source: Option<MovingSource<'_>>,
) -> Result<bool, Errno> {
    if old.kind == EntryKind::Symlink || !local.rules.sets_modes() {
        return Ok(true);
    }
    let pinned = path::pin_at(&holder.fd, name)?;
    if local.end.mounts.identity(&stat::stat_fd(&pinned)?) != old.identity {
        return Ok(false);
    }
    let is_directory = old.kind == EntryKind::Directory;
    let owner = source.and_then(|source| local.owner_to_set(source.metadata, old));
    if let Some((uid, gid)) = owner.filter(|_| is_directory) {
        unless_impossible(set::owner(&pinned, Some(uid), Some(gid)))?;
    } else if owner.is_some_and(|(uid, _)| uid != old.uid) {
        // Its owner could read there what is copied for other users.
        return Ok(false);
    }
    let allowed = match source.filter(|_| !is_directory && old.mode & OTHERS != 0) {
        Some(source) => {
            let Some(wanted) = source.acl()? else { return Ok(false) };
            let allowed = allowed(local, source.metadata, wanted, (&pinned, Held::Pinned))?;
            if owner.is_some() { allowed & !GROUP } else { allowed }
        }
        None => OWNER,
    };
    let mode = old.mode & 0o7000 | old.mode & (allowed | OWNER);
    if mode != old.mode & 0o7777 {
        unless_impossible(set::mode_pinned(&pinned, mode))?;
    }
    Ok(true)
}

/// Narrows an entry and another one with which it is exchanged.
///
/// # Errors
/// Its mode or owner cannot be read or changed.
pub(crate) fn narrow_both(
    local: &Local<'_>,
    [one, other]: [Option<Moving<'_>>; 2],
    source: Option<MovingSource<'_>>,
) -> Result<bool, Errno> {
    let may = one.map_or(Ok(true), |(at, old)| narrow_moved(local, at, old, source))?;
    Ok(may && other.map_or(Ok(true), |(at, old)| narrow_moved(local, at, old, None))?)
}

/// Restores the permissions of an entry that was not moved.
pub(crate) fn put_back(
    local: &Local<'_>,
    (holder, name): (&TargetDirectory, &[u8]),
    old: &Metadata,
) {
    if old.kind == EntryKind::Symlink || !local.rules.sets_modes() {
        return;
    }
    let put_back = || -> Result<(), Errno> {
        let pinned = path::pin_at(&holder.fd, name)?;
        let now = local.end.mounts.metadata(&stat::stat_fd(&pinned)?);
        if now.identity != old.identity {
            return Ok(());
        }
        if (now.uid, now.gid) != (old.uid, old.gid) {
            set::owner(&pinned, Some(old.uid), Some(old.gid))?;
        }
        if now.mode != old.mode {
            set::mode_pinned(&pinned, old.mode & 0o7777)?;
        }
        Ok(())
    };
    if let Err(error) = put_back() {
        tracing::warn!(?error, "cannot restore the mode of an entry that was not moved");
    }
}

/// What the ACL of a source entry says.
struct SourceAcl {
    /// The ACL; not known where ACLs are not preserved and the entry is read through messages.
    acl: Option<Vec<u8>>,
    /// The permissions of the owning group, if there is an ACL.
    owning_group: Option<u32>,
}

impl SourceAcl {
    fn read(entry: impl AsFd, held: Held) -> Result<Self, Errno> {
        let acl = xattr::get(entry, held, ACCESS_ACL)?;
        Ok(Self::of(acl))
    }

    fn of(acl: Option<Vec<u8>>) -> Self {
        let owning_group = acl.as_deref().and_then(acl::owning_group);
        Self { acl, owning_group }
    }

    fn ask(from: &Arc<dyn RemoteDirectory>) -> Result<Self, Errno> {
        let (_, found) = from.attributes(b"", false).map_err(|error| errno_of(&error))?;
        let acl = found.xattrs.into_iter().find(|(name, _)| name == ACCESS_ACL);
        Ok(Self { acl: acl.map(|(_, value)| value), owning_group: found.owning_group })
    }
}

/// Ignores errors where modes or owners cannot be set: finishing the entry reports the loss.
fn unless_impossible(set: Result<(), Errno>) -> Result<bool, Errno> {
    match set {
        Ok(()) => Ok(true),
        Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error),
    }
}
