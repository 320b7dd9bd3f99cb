//! Owner, mode and times of open and pinned objects.
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid};

use crate::process::descriptor_path;
use crate::{AsFd, Errno, Result, kernel, retry};

/// Sets owner and group of an open or pinned object; `None` leaves one as it is. `u32::MAX` stands for an owner that is not
/// known, and is refused with EIO.
pub fn owner(object: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    // chown(2) takes it for "as it is".
    if [uid, gid].contains(&Some(u32::MAX)) {
        return Err(Errno::IO);
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    retry(|| kernel::chownat(object.as_fd(), c"", uid, gid, AtFlags::EMPTY_PATH))
}

/// fchmod(2).
pub fn mode(object: impl AsFd, mode: u32) -> Result<()> {
    retry(|| kernel::fchmod(object.as_fd(), Mode::from_raw_mode(mode)))
}

/// Sets the mode of an object that is only pinned, through its entry in /proc.
pub fn mode_pinned(object: impl AsFd, mode: u32) -> Result<()> {
    let path = descriptor_path(object.as_fd());
    retry(|| kernel::chmod(&*path, Mode::from_raw_mode(mode)))
}

/// Seconds and nanoseconds, or `None` to leave a time as it is.
pub type Time = Option<(i64, u32)>;

fn timestamps(atime: Time, mtime: Time) -> Timestamps {
    let spec = |time: Time| match time {
        Some((tv_sec, nanoseconds)) => Timespec { tv_sec, tv_nsec: nanoseconds.into() },
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
    };
    Timestamps { last_access: spec(atime), last_modification: spec(mtime) }
}

/// futimens(3).
pub fn times(object: impl AsFd, atime: Time, mtime: Time) -> Result<()> {
    retry(|| kernel::futimens(object.as_fd(), &timestamps(atime, mtime)))
}

/// Sets the times of a pinned object (utimensat(2) with AT_EMPTY_PATH, Linux 5.8; else by `name`).
pub fn times_pinned(
    object: impl AsFd,
    parent: impl AsFd,
    name: &[u8],
    atime: Time,
    mtime: Time,
) -> Result<()> {
    let times = timestamps(atime, mtime);
    match retry(|| kernel::utimensat(object.as_fd(), c"", &times, AtFlags::EMPTY_PATH)) {
        Err(Errno::INVAL) => {}
        result => return result,
    }
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    retry(|| kernel::utimensat(parent.as_fd(), name, &times, flags))
}
