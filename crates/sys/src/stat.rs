//! Metadata of entries and file systems.
pub use rustix::fs::FileType;

pub use crate::answers::{
    ATTRIBUTE_APPEND, ATTRIBUTE_IMMUTABLE, ATTRIBUTE_MOUNT_ROOT, FileSystem, Stat,
};
use rustix::fs::{AtFlags, StatxFlags};
use std::sync::OnceLock;

use crate::{AsFd, BorrowedFd, Errno, Result, in_memory, retry};

fn has_statx() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    *PRESENT.get_or_init(|| {
        let mask = StatxFlags::BASIC_STATS;
        let asked = retry(|| rustix::fs::statx(rustix::fs::CWD, c".", AtFlags::empty(), mask));
        // Filters of system calls in containers answer EPERM. Other errors are those of the working directory.
        !matches!(asked, Err(Errno::NOSYS | Errno::PERM))
    })
}

/// Metadata of a name, itself if it is a symbolic link unless `follow`.
pub fn stat_at(parent: impl AsFd, name: &[u8], follow: bool) -> Result<Stat> {
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    stat_with(parent.as_fd(), name, flags)
}

/// Metadata of an open object, also of one that is only pinned.
pub fn stat_fd(object: impl AsFd) -> Result<Stat> {
    stat_with(object.as_fd(), b"", AtFlags::EMPTY_PATH)
}

/// Metadata of a name, and when it was born where the file system keeps that.
pub fn stat_born_at(parent: impl AsFd, name: &[u8]) -> Result<(Stat, Option<(i64, u32)>)> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    stat_asking(parent.as_fd(), name, flags, StatxFlags::BTIME)
}

fn stat_with(base: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> Result<Stat> {
    stat_asking(base, name, flags, StatxFlags::empty()).map(|(stat, _)| stat)
}

/// What nobody needs is not asked for: a server may have to be asked.
fn stat_asking(
    base: BorrowedFd<'_>,
    name: &[u8],
    flags: AtFlags,
    more: StatxFlags,
) -> Result<(Stat, Option<(i64, u32)>)> {
    in_memory!(crate::simulated::look::stat(base, name, flags));
    if has_statx() {
        let mask = StatxFlags::BASIC_STATS | more;
        let st = retry(|| rustix::fs::statx(base, name, flags, mask))?;
        let time = |t: rustix::fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
        let has_birth = st.stx_mask & StatxFlags::BTIME.bits() != 0;
        let stat = Stat {
            device: rustix::fs::makedev(st.stx_dev_major, st.stx_dev_minor),
            inode: st.stx_ino,
            mode: u32::from(st.stx_mode),
            links: u64::from(st.stx_nlink),
            uid: st.stx_uid,
            gid: st.stx_gid,
            size: st.stx_size,
            blocks: st.stx_blocks,
            node_device: (st.stx_rdev_major, st.stx_rdev_minor),
            atime: time(st.stx_atime),
            mtime: time(st.stx_mtime),
            ctime: time(st.stx_ctime),
            attributes: st.stx_attributes.bits(),
        };
        return Ok((stat, has_birth.then_some(time(st.stx_btime))));
    }
    let st = retry(|| rustix::fs::statat(base, name, flags))?;
    let stat = Stat {
        device: st.st_dev,
        inode: st.st_ino,
        mode: st.st_mode,
        links: st.st_nlink as u64,
        uid: st.st_uid,
        gid: st.st_gid,
        size: st.st_size as u64,
        blocks: st.st_blocks as u64,
        node_device: (rustix::fs::major(st.st_rdev), rustix::fs::minor(st.st_rdev)),
        atime: (st.st_atime, st.st_atime_nsec as u32),
        mtime: (st.st_mtime, st.st_mtime_nsec as u32),
        ctime: (st.st_ctime, st.st_ctime_nsec as u32),
        attributes: 0,
    };
    Ok((stat, None))
}

/// Whether an error number says that nothing stands there; 0 is none.
pub fn is_absent_number(errno: i32) -> bool {
    errno > 0 && is_absent(Errno::from_raw_os_error(errno))
}

/// The id of the mount an open object was reached through (`STATX_MNT_ID`, Linux 5.8).
pub fn mount_id(object: impl AsFd) -> Option<u64> {
    in_memory!(crate::simulated::look::mount(object.as_fd()).map(Some));
    let mask = StatxFlags::MNT_ID;
    let st = rustix::fs::statx(object.as_fd(), c"", AtFlags::EMPTY_PATH, mask).ok()?;
    (st.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(st.stx_mnt_id)
}

/// A number of the mount that an open object was reached through which no other mount gets as long as the kernel runs
/// (`STATX_MNT_ID_UNIQUE`, Linux 6.8); `None` on older kernels, which use their ids again.
pub fn mount_number(object: impl AsFd) -> Option<u64> {
    in_memory!(crate::simulated::look::mount(object.as_fd()).map(Some));
    let mask = StatxFlags::from_bits_retain(0x4000);
    let st = rustix::fs::statx(object.as_fd(), c"", AtFlags::EMPTY_PATH, mask);
    st.ok().filter(|st| st.stx_mask & mask.bits() != 0).map(|st| st.stx_mnt_id)
}

/// Memory and offset alignment for direct I/O (`STATX_DIOALIGN`, Linux 6.1); `None` if unknown.
pub fn direct_io_alignment(file: impl AsFd) -> Option<(u32, u32)> {
    in_memory!(crate::simulated::look::refuse::<()>(file.as_fd()).map(|_| None));
    let mask = StatxFlags::from_bits_retain(0x2000);
    let st = rustix::fs::statx(file.as_fd(), c"", AtFlags::EMPTY_PATH, mask).ok()?;
    (st.stx_dio_mem_align > 0).then_some((st.stx_dio_mem_align, st.stx_dio_offset_align))
}

/// fstatfs(2).
pub fn file_system(object: impl AsFd) -> Result<FileSystem> {
    in_memory!(crate::simulated::look::file_system(object.as_fd()));
    let st = retry(|| rustix::fs::fstatvfs(object.as_fd()))?;
    let fs = retry(|| rustix::fs::fstatfs(object.as_fd()))?;
    Ok(FileSystem {
        #[allow(clippy::unnecessary_cast)] // the width differs between C libraries
        magic: fs.f_type as i64,
        available_bytes: st.f_bavail.saturating_mul(st.f_frsize),
        size_bytes: st.f_blocks.saturating_mul(st.f_frsize),
        free_inodes: st.f_ffree,
        name_max: st.f_namemax,
        read_only: st.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
    })
}

/// A known name for a file system's magic number, from linux/magic.h and the file systems' sources.
pub fn file_system_name(magic: i64) -> Option<&'static str> {
    Some(match magic & 0xffff_ffff {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x0102_1994 => "tmpfs",
        0x6573_5546 => "fuse",
        0x794c_7630 => "overlay",
        0x6969 => "nfs",
        0x0bd0_0bd0 => "lustre",
        0x4d44 => "vfat",
        0x2011_bab0 => "exfat",
        0x2fc1_2fc1 => "zfs",
        0xf15f => "ecryptfs",
        0xff53_4d42 => "cifs",
        0x4750_4653 => "gpfs",
        0x7366_746e => "ntfs",
        0x9fa0 => "proc",
        0x6265_6572 => "sysfs",
        0x6462_6720 => "debugfs",
        0x7472_6163 => "tracefs",
        0x0027_e0eb | 0x6367_7270 => "cgroup",
        0x7363_6673 => "securityfs",
        0x0187 => "autofs",
        _ => return None,
    })
}

/// Whether a file system of this name has no storage, so that sizes there mean nothing.
pub fn is_pseudo(name: Option<&str>) -> bool {
    matches!(name, Some("proc" | "sysfs" | "debugfs" | "tracefs" | "cgroup" | "securityfs"))
}

/// Whether an error of a stat means that nothing is there.
pub fn is_absent(error: Errno) -> bool {
    error == Errno::NOENT
}

/// Major and minor number of a device.
pub fn device_numbers(device: u64) -> (u32, u32) {
    (rustix::fs::major(device), rustix::fs::minor(device))
}
