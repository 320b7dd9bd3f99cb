//! Directories that an earlier run has locked (chattr(1)), or that are closed to their own owner.
use dmover_model::{EntryError, Operation, Side};
use dmover_sys::{AsFd, Errno, OwnedFd, flags, path, set, stat};

use crate::directory::{SourceDirectory, TargetDirectory, clocks};
use crate::end::Local;
use crate::error::entry_error;
use crate::handle::DirectoryHandle;

impl Local<'_> {
    /// Makes a directory writable that an earlier run has made immutable, or that is closed to its own owner.
    ///
    /// Only for a directory that will be finished, which restores its flags.
    pub fn lift_directory(&self, from: &SourceDirectory, to: &TargetDirectory) -> bool {
        if !to.place.is_of_job() {
            return false;
        }
        if self.rules.updates && open_up_now(self, to) {
            return true;
        }
        let is_locked = match &from.handle {
            DirectoryHandle::Open(from) => {
                flags::get(from).ok().flatten().is_some_and(|flags| flags & flags::LOCKS != 0)
            }
            DirectoryHandle::Remote(_) => from.metadata.is_locked(),
        };
        let is_own =
            is_locked || self.rules.history.is_own_lock(clocks(from, Some(to)), &to.metadata);
        is_own && self.clear_locks(to)
    }

    /// Without privilege, gives the owner access to a directory of this user so that it can be filled; finishing it
    /// restores the mode of the source. Returns whether it was closed.
    ///
    /// # Errors
    /// Its mode cannot be changed.
    pub fn open_up(&self, target: &TargetDirectory) -> Result<bool, EntryError> {
        // An update that changes nothing in a directory leaves it closed.
        if self.rules.updates && !target.fresh {
            return Ok(false);
        }
        let privilege = self.end.privilege;
        let own = target.metadata.uid == privilege.uid;
        let closed = target.metadata.mode & 0o300 != 0o300;
        if privilege.privileged || !own || !closed || self.rules.policy.dry_run {
            return Ok(false);
        }
        let opened = set::mode(&target.fd, target.metadata.mode | 0o700).map(|()| true);
        opened
            .map_err(|e| entry_error(Side::Destination, Operation::SetMode, target.place.own(), e))
    }

    /// Clears the locks of a directory. Returns whether it had any.
    pub fn clear_locks(&self, target: &TargetDirectory) -> bool {
        self.attributes().lift_flags(target.fd.as_fd())
    }
}

/// Makes a directory writable from which an entry is removed.
pub(crate) fn unlock_target(local: &Local<'_>, target: &TargetDirectory) -> bool {
    open_up_now(local, target) || local.clear_locks(target)
}

/// Makes a directory writable that was left closed so far. Returns whether it was closed.
fn open_up_now(local: &Local<'_>, target: &TargetDirectory) -> bool {
    let found = stat::stat_fd(&target.fd).map(|found| local.end.mounts.metadata(&found));
    let privilege = local.end.privilege;
    found.is_ok_and(|now| {
        let own = now.uid == privilege.uid && !privilege.privileged;
        own && now.mode & 0o300 != 0o300 && set::mode(&target.fd, now.mode | 0o700).is_ok()
    })
}

/// Opens a destination directory. Without privilege, a directory of this user that is closed to its owner is made
/// accessible first.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn open_own_directory(
    local: &Local<'_>,
    parent: &OwnedFd,
    name: &[u8],
) -> Result<OwnedFd, Errno> {
    let privilege = local.end.privilege;
    match path::open_directory_below(parent, name) {
        Err(Errno::ACCESS) if !privilege.privileged && !local.rules.policy.dry_run => {
            let pinned = path::pin_at(parent, name)?;
            let found = stat::stat_fd(&pinned)?;
            let is_directory = found.mode & 0o170_000 == 0o040_000;
            if found.uid != privilege.uid || !is_directory {
                return Err(Errno::ACCESS);
            }
            set::mode_pinned(&pinned, found.mode & 0o7777 | 0o700)?;
            path::open_directory_below(parent, name)
        }
        result => result,
    }
}
