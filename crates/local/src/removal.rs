//! Entries that are removed from the destination.
use dmover_model::{
    EntryError, EntryKind, ErrorClass, ExtraName, Metadata, Operation, Side, TreePath,
};
use dmover_observe::{Activity, activity};
use dmover_sys::{AsFd, Errno, directory, flags, path};

use crate::directory::TargetDirectory;
use crate::end::Local;
use crate::error::entry_error;
use crate::locks;
use crate::session::Session;
use crate::trash::{Gone, Trash};

/// Whether the present entry is the one that was found.
fn is_still(name: &ExtraName, now: &Metadata) -> bool {
    let same = now.kind == name.kind && now.identity == name.identity;
    same && match name.kind {
        // Its own times move while it is emptied; it can only be removed once it is empty.
        EntryKind::Directory => true,
        // Other names of it may have been deleted meanwhile.
        _ if name.links > 1 => (now.size, now.mtime) == (name.size, name.mtime),
        _ => now.ctime == name.ctime,
    }
}

impl Session<'_> {
    /// The entry that is to be removed; `None` if it is gone.
    ///
    /// # Errors
    /// It cannot be looked at, or is not the one that was found.
    pub fn check_still(
        &self,
        target: &TargetDirectory,
        name: &ExtraName,
    ) -> Result<Option<Metadata>, EntryError> {
        activity::at(Activity::TargetNames);
        let shown = || target.place.entry(name.name.as_bytes());
        let at = (Side::Destination, Operation::Unlink);
        let found = self.local.end.find_target(target, name.name.as_bytes());
        let found = found.map_err(|e| e.at(at, shown()))?;
        if found.as_ref().is_some_and(|now| !is_still(name, now)) {
            let words = "it changed after the scan; the next run checks it again";
            let class = ErrorClass::Changed;
            return Err(EntryError::plain(at.0, at.1, class, shown(), words));
        }
        Ok(found)
    }

    /// Removes a name, or moves it into a trash, in which the path of its directory below the root is kept.
    ///
    /// # Errors
    /// It is still there.
    pub fn remove(
        &self,
        target: &TargetDirectory,
        name: &ExtraName,
        trash: Option<(&Trash, &TreePath)>,
    ) -> Result<Gone, EntryError> {
        try_to_remove(&self.local, target, name, trash).map_err(|e| {
            let path = target.place.entry(name.name.as_bytes());
            entry_error(Side::Destination, Operation::Unlink, path, e)
        })
    }
}

fn try_to_remove(
    local: &Local<'_>,
    target: &TargetDirectory,
    name: &ExtraName,
    trash: Option<(&Trash, &TreePath)>,
) -> Result<Gone, Errno> {
    let Some((trash, place)) = trash else {
        return once_more(local, target, || unlink(local, target, name));
    };
    let take = || trash.take(target, name, place);
    once_more(local, target, || match take() {
        // An earlier pass has locked it, as its source was.
        Err(Errno::PERM) => unlocked(local, target, name, take),
        taken => taken,
    })
}

/// Repeats a step in a directory that was closed to its own owner, or locked.
fn once_more<T>(
    local: &Local<'_>,
    target: &TargetDirectory,
    action: impl Fn() -> Result<T, Errno>,
) -> Result<T, Errno> {
    match action() {
        Err(Errno::ACCESS | Errno::PERM) if locks::unlock_target(local, target) => action(),
        result => result,
    }
}

fn unlink(local: &Local<'_>, target: &TargetDirectory, name: &ExtraName) -> Result<Gone, Errno> {
    let bytes = name.name.as_bytes();
    if name.kind == EntryKind::Directory {
        let remove = || directory::remove_directory(&target.fd, bytes);
        let removed = match remove() {
            Err(Errno::PERM) => unlocked(local, target, name, remove),
            removed => removed,
        };
        return match removed {
            Ok(()) => Ok(Gone::Removed),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Gone::Holds),
            Err(error) => Err(error),
        };
    }
    match directory::unlink(&target.fd, bytes) {
        // An earlier pass has locked it, as its source was.
        Err(Errno::PERM) => {
            unlocked(local, target, name, || directory::unlink(&target.fd, bytes))?;
        }
        unlinked => unlinked?,
    }
    Ok(Gone::Removed)
}

/// Performs a step on a name whose flags forbid it. The flags are restored, because they belong to the inode, which
/// may have other names or be kept in a trash.
fn unlocked<T>(
    local: &Local<'_>,
    target: &TargetDirectory,
    name: &ExtraName,
    action: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let bytes = name.name.as_bytes();
    let file = path::open_file_at(&target.fd, bytes, false).map_err(|_| Errno::PERM)?;
    let before = flags::get(&file)?.unwrap_or_default();
    if !local.attributes().lift_flags(file.as_fd()) {
        return Err(Errno::PERM);
    }
    let done = action();
    if name.kind == EntryKind::Directory && done.is_ok() {
        return done; // nothing has its inode any more
    }
    if !flags::set(&file, before)? {
        return Err(Errno::PERM);
    }
    done
}
