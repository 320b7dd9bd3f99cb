//! Operations on the backing directory, relative to descriptors.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use rustix::fs::{
    AtFlags, FileType as BackingType, Gid, Mode, OFlags, RawDir, SeekFrom, Stat, Timespec,
    Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
};
use rustix::io::Errno;

use super::inodes::{Inode, proc_path};

/// Permission bits with set-id and sticky bits.
const MODE_BITS: u32 = 0o7777;

/// Opens an entry without following it and says what it is.
pub(crate) fn lookup(parent: &Inode, name: &OsStr) -> Result<(OwnedFd, Stat), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&parent.fd, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    Ok((fd, stat))
}

/// Opens an inode for I/O.
///
/// Append and direct flags are the business of the kernel above: offsets come with each request, and
/// its buffers are not aligned for a second `O_DIRECT`.
pub(crate) fn open(inode: &Inode, flags: i32) -> Result<OwnedFd, Errno> {
    let dropped = libc::O_APPEND | libc::O_DIRECT | libc::O_NOFOLLOW | libc::O_CREAT | libc::O_EXCL;
    let flags = OFlags::from_bits_retain((flags & !dropped).cast_unsigned()) | OFlags::CLOEXEC;
    rustix::fs::open(inode.proc_path(), flags, Mode::empty())
}

/// Attributes as the protocol wants them.
pub(crate) fn attr(number: u64, stat: &Stat) -> FileAttr {
    let ctime = time(stat.st_ctime, stat.st_ctime_nsec);
    FileAttr {
        ino: INodeNo(number),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime,
        crtime: ctime,
        kind: kind(BackingType::from_raw_mode(stat.st_mode)),
        perm: (stat.st_mode & MODE_BITS) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: encode_device(stat.st_rdev),
        blksize: stat.st_blksize as u32,
        flags: 0,
    }
}

/// The protocol's word for a file type.
pub(crate) fn kind(file_type: BackingType) -> FileType {
    match file_type {
        BackingType::Directory => FileType::Directory,
        BackingType::Symlink => FileType::Symlink,
        BackingType::Fifo => FileType::NamedPipe,
        BackingType::Socket => FileType::Socket,
        BackingType::CharacterDevice => FileType::CharDevice,
        BackingType::BlockDevice => FileType::BlockDevice,
        BackingType::RegularFile | BackingType::Unknown => FileType::RegularFile,
    }
}

fn time(seconds: i64, nanoseconds: impl TryInto<u32>) -> SystemTime {
    let nanoseconds = Duration::from_nanos(u64::from(nanoseconds.try_into().unwrap_or(0)));
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base =
        if seconds >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
    base.and_then(|base| base.checked_add(nanoseconds)).unwrap_or(UNIX_EPOCH)
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match time {
        None => special(UTIME_OMIT),
        Some(TimeOrNow::Now) => special(UTIME_NOW),
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Timespec {
                tv_sec: after.as_secs() as i64,
                tv_nsec: i64::from(after.subsec_nanos()),
            },
            // fuser 0.18 reads (-2 s, 800 ms), which means -1.2 s, as 2.8 s before the epoch: taking
            // seconds and nanoseconds apart again gives back exactly what the kernel sent.
            Err(before) => Timespec {
                tv_sec: -(before.duration().as_secs() as i64),
                tv_nsec: i64::from(before.duration().subsec_nanos()),
            },
        },
    }
}

/// The kernel's 32-bit form of a device number (`new_encode_dev`).
fn encode_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// A device number from the kernel's 32-bit form.
pub(crate) fn decode_device(encoded: u32) -> u64 {
    let major = (encoded & 0xf_ff00) >> 8;
    let minor = (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00);
    rustix::fs::makedev(major, minor)
}

/// Attributes to change; the rest stays.
pub(crate) struct Changes {
    pub(crate) mode: Option<u32>,
    pub(crate) owner: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<TimeOrNow>,
    pub(crate) mtime: Option<TimeOrNow>,
}

/// Changes attributes, in the order in which none undoes another: a new owner clears set-id bits and a new size sets times.
pub(crate) fn set_attributes(
    inode: &Inode,
    open: Option<&OwnedFd>,
    changes: &Changes,
) -> Result<Stat, Errno> {
    if let Some(size) = changes.size {
        match open {
            Some(fd) => rustix::fs::ftruncate(fd, size)?,
            None => rustix::fs::ftruncate(self::open(inode, libc::O_WRONLY)?, size)?,
        }
    }
    if changes.owner.is_some() || changes.group.is_some() {
        let (owner, group) = (changes.owner.map(Uid::from_raw), changes.group.map(Gid::from_raw));
        rustix::fs::chownat(&inode.fd, "", owner, group, AtFlags::EMPTY_PATH)?;
    }
    if let Some(mode) = changes.mode {
        chmod(inode.proc_path(), mode)?;
    }
    if changes.atime.is_some() || changes.mtime.is_some() {
        let times = Timestamps {
            last_access: timespec(changes.atime),
            last_modification: timespec(changes.mtime),
        };
        rustix::fs::utimensat(&inode.fd, "", &times, AtFlags::EMPTY_PATH)?;
    }
    rustix::fs::fstat(&inode.fd)
}

fn chmod(path: String, mode: u32) -> Result<(), Errno> {
    rustix::fs::chmod(path, Mode::from_raw_mode(mode & MODE_BITS))
}

/// Who creates an entry, and with which permissions.
#[derive(Clone, Copy)]
pub(crate) struct Creation {
    pub(crate) owner: u32,
    pub(crate) group: u32,
    pub(crate) mode: u32,
    pub(crate) umask: u32,
}

impl Creation {
    /// The mode to hand to the backing file system. Bits that our own umask takes away are given back afterwards.
    pub(crate) fn backing_mode(self, parent: &Inode) -> Mode {
        let mask = if has_default_acl(parent) { 0 } else { self.umask };
        Mode::from_raw_mode(self.mode & !mask & MODE_BITS)
    }

    /// Gives a new entry the owner and mode it would have had if the requesting process had made it.
    pub(crate) fn finish(self, parent: &Inode, fd: &OwnedFd) -> Result<Stat, Errno> {
        let made = rustix::fs::fstat(fd)?;
        let parent_group = rustix::fs::fstat(&parent.fd)?;
        let inherits = parent_group.st_mode & libc::S_ISGID != 0;
        let owner = (made.st_uid != self.owner).then(|| Uid::from_raw(self.owner));
        let group = (!inherits && made.st_gid != self.group).then(|| Gid::from_raw(self.group));
        if owner.is_some() || group.is_some() {
            rustix::fs::chownat(fd, "", owner, group, AtFlags::EMPTY_PATH)?;
        }
        let symlink = BackingType::from_raw_mode(made.st_mode) == BackingType::Symlink;
        if !symlink && !has_default_acl(parent) {
            let inherited = made.st_mode & libc::S_ISGID;
            let wanted = (self.mode & !self.umask & MODE_BITS) | inherited;
            if made.st_mode & MODE_BITS != wanted || owner.is_some() || group.is_some() {
                chmod(proc_path(fd), wanted)?;
            }
        }
        rustix::fs::fstat(fd)
    }
}

/// Where a directory has a default ACL, the umask does not count.
fn has_default_acl(directory: &Inode) -> bool {
    rustix::fs::getxattr_query(directory.proc_path(), "system.posix_acl_default")
        .is_ok_and(|size| size > 0)
}

/// Creates and opens a file, or opens the one that came first unless `O_EXCL` was asked for.
pub(crate) fn create(
    parent: &Inode,
    name: &OsStr,
    flags: i32,
    creation: Creation,
) -> Result<(OwnedFd, OwnedFd, Stat), Errno> {
    let dropped = libc::O_APPEND | libc::O_DIRECT;
    let flags = OFlags::from_bits_retain((flags & !dropped).cast_unsigned())
        | OFlags::CLOEXEC
        | OFlags::NOFOLLOW;
    let exclusive = flags | OFlags::CREATE | OFlags::EXCL;
    let made = rustix::fs::openat(&parent.fd, name, exclusive, creation.backing_mode(parent));
    if matches!(made, Err(Errno::EXIST)) && !flags.contains(OFlags::EXCL) {
        let existing = flags - OFlags::CREATE;
        let opened = rustix::fs::openat(&parent.fd, name, existing, Mode::empty())?;
        let (fd, stat) = lookup(parent, name)?;
        return Ok((fd, opened, stat));
    }
    let opened = made?;
    let (fd, _) = lookup(parent, name)?;
    let stat = creation.finish(parent, &fd)?;
    Ok((fd, opened, stat))
}

/// An entry of a directory.
pub(crate) struct DirectoryEntry<'a> {
    pub(crate) name: &'a OsStr,
    pub(crate) number: u64,
    pub(crate) file_type: BackingType,
    /// Where to go on after this entry.
    pub(crate) next: u64,
}

/// Hands out entries from a position on, until `take` says that it has enough.
pub(crate) fn read_directory(
    fd: &OwnedFd,
    position: u64,
    mut take: impl FnMut(&DirectoryEntry<'_>) -> bool,
) -> Result<(), Errno> {
    use std::os::unix::ffi::OsStrExt;

    rustix::fs::seek(fd, SeekFrom::Start(position))?;
    let mut buffer = vec![MaybeUninit::uninit(); 32 * 1024];
    let mut entries = RawDir::new(fd, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let entry = DirectoryEntry {
            name: OsStr::from_bytes(entry.file_name().to_bytes()),
            number: entry.ino(),
            file_type: entry.file_type(),
            next: entry.next_entry_cookie(),
        };
        if take(&entry) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn devices_survive_the_round_trip() {
        for (major, minor) in [(1, 3), (8, 0), (259, 1), (511, 0xf_ffff), (4095, 1 << 19)] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(decode_device(encode_device(device)), device, "{major}:{minor}");
        }
    }

    #[test]
    fn times_before_the_epoch_keep_their_nanoseconds() {
        let before = time(-2, 800_000_000_u32);
        assert_eq!(UNIX_EPOCH.duration_since(before).unwrap(), Duration::from_millis(1200));
    }
}
