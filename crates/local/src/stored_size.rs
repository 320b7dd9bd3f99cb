//! Sizes of files that memory may have and storage may lack.
//!
//! A write changes the size in memory at once. XFS records it when the blocks of the end have been written
//! (`xfs_setfilesize` in fs/xfs/xfs_aops.c), other file systems earlier. If writing them failed, the end of the file reads as
//! zeroes once it was dropped from memory, so a comparison with zeroes does not show it. After a power cut the file is too
//! short.
use dmover_model::{EntryError, Metadata, Operation, Side, Timestamp};
use dmover_sys::xattr::Held;
use dmover_sys::{AsFd, Errno, file, set, stat, xattr};

use crate::directory::TargetDirectory;
use crate::error::{changed, entry_error};
use crate::pair::Pair;
use crate::rights::{CAPABILITY, SET_ID};
use crate::session::Session;

/// Whether a file has a capability, or may have one.
fn has_capability(file: impl AsFd) -> bool {
    !matches!(xattr::get(file, Held::Open, CAPABILITY), Ok(None) | Err(Errno::NOTSUP))
}

/// Sets the size that a file has. File systems may ignore an equal size, because it is the one in memory (`ext4_setattr` in
/// fs/ext4/inode.c).
pub(crate) fn set_size_anew(file: impl AsFd, size: u64) -> Result<(), Errno> {
    file::set_size(file.as_fd(), size + 1)?;
    file::set_size(file.as_fd(), size)
}

impl Pair {
    /// Whether the size of the copy may be in memory only: its last byte is zero, or cannot be read.
    pub fn may_lack_size(&self) -> bool {
        let Some(last) = self.destination.metadata.size.checked_sub(1) else { return false };
        let Some(copy) = self.destination.file.fd() else { return false };
        let mut byte = [0];
        !matches!(file::read_at(copy, &mut byte, last), Ok(1) if byte != [0])
    }
}

impl Session<'_> {
    /// Makes the size of a file reach storage with the next flush. `found`: the file as it was compared. Returns whether this
    /// was possible; if not, a new file has to replace it.
    ///
    /// # Errors
    /// It is another file by now, or its size or times cannot be set.
    pub fn store_size(
        &self,
        target: &TargetDirectory,
        last: &[u8],
        found: &Metadata,
    ) -> Result<bool, EntryError> {
        let shown = || target.place.entry(last);
        let fail = |operation, e| entry_error(Side::Destination, operation, shown(), e);
        self.check_commit(target, last)?;
        let fd = match file::open_for_writing(&target.fd, last) {
            Ok(fd) => fd,
            // Locked (chattr(1)): it can be neither changed nor replaced.
            Err(Errno::PERM) => return Ok(true),
            Err(_) => return Ok(false),
        };
        let now = stat::stat_fd(&fd).map_err(|e| fail(Operation::Stat, e))?;
        let now = self.local.end.mounts.metadata(&now);
        if (now.identity, now.size) != (found.identity, found.size) {
            return Err(changed(Side::Destination, shown()));
        }
        if now.mode & SET_ID != 0 || has_capability(&fd) {
            // A change of the size takes them away.
            return Ok(false);
        }
        self.writes_to(target);
        set_size_anew(&fd, now.size).map_err(|e| fail(Operation::Allocate, e))?;
        let time = |time: Timestamp| Some((time.seconds, time.nanoseconds));
        set::times(&fd, time(now.atime), time(now.mtime))
            .map_err(|e| fail(Operation::SetTimes, e))?;
        Ok(true)
    }
}
