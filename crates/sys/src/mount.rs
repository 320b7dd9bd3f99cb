//! Mounts: a private view of the source that never updates access times.
use crate::{AsFd, BorrowedFd, OwnedFd, Result, in_memory, kernel};
#[allow(unsafe_code)]
mod attributes {
    use super::{AsFd, BorrowedFd};
    use std::os::fd::AsRawFd;

    /// `struct mount_attr` of mount_setattr(2).
    #[repr(C)]
    struct MountAttr {
        attr_set: u64,
        attr_clr: u64,
        propagation: u64,
        userns_fd: u64,
    }

    const MOUNT_ATTR_RDONLY: u64 = 0x1;
    const MOUNT_ATTR_NOATIME: u64 = 0x10;
    const MOUNT_ATTR_ATIME_MASK: u64 = 0x70;
    const AT_EMPTY_PATH: libc::c_uint = 0x1000;
    const AT_RECURSIVE: libc::c_uint = 0x8000;

    /// Makes a detached mount tree read-only and free of access-time updates.
    pub(super) fn make_read_only_noatime(tree: impl AsFd) -> bool {
        let fd: BorrowedFd<'_> = tree.as_fd();
        let attr = MountAttr {
            attr_set: MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOATIME,
            attr_clr: MOUNT_ATTR_ATIME_MASK,
            propagation: 0,
            userns_fd: 0,
        };
        // SAFETY: the path is a valid C string and `attr` lives through the call with its size given.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                fd.as_raw_fd(),
                c"".as_ptr(),
                AT_EMPTY_PATH | AT_RECURSIVE,
                &raw const attr,
                size_of::<MountAttr>(),
            )
        };
        result == 0
    }
}

#[allow(unsafe_code)]
mod uuid {
    use super::AsFd;
    use std::os::fd::AsRawFd;

    /// `struct fsuuid2` of linux/fs.h.
    #[repr(C)]
    struct FsUuid {
        length: u8,
        uuid: [u8; 16],
    }

    /// `FS_IOC_GETFSUUID`: `_IOR(0x15, 0, struct fsuuid2)`.
    const GET_UUID: u32 = 0x8011_1500;

    pub(super) fn of(object: impl AsFd) -> Option<Vec<u8>> {
        let mut found = FsUuid { length: 0, uuid: [0; 16] };
        let fd = object.as_fd().as_raw_fd();
        // The type of the request is another one in each C library.
        #[allow(clippy::cast_lossless)]
        let request = GET_UUID as libc::Ioctl;
        // SAFETY: the descriptor is open and the kernel writes one `struct fsuuid2`, which lives through the call.
        let result = unsafe { libc::ioctl(fd, request, &raw mut found) };
        let uuid = &found.uuid[..usize::from(found.length).min(16)];
        (result == 0 && uuid.iter().any(|byte| *byte != 0)).then(|| uuid.to_vec())
    }
}

/// A detached, read-only, noatime clone of the mounts at `directory` (open_tree(2) and
/// mount_setattr(2), Linux 5.12, CAP_SYS_ADMIN).
///
/// Reading through it leaves even the access times of symbolic links alone, which no flag of
/// readlinkat(2) can, and nothing can be written through it by mistake. `None` where it is not to be had.
pub fn quiet_clone(directory: impl AsFd) -> Option<OwnedFd> {
    use rustix::mount::OpenTreeFlags;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = kernel::open_tree(directory.as_fd(), c"", flags).ok()?;
    attributes::make_read_only_noatime(&tree).then_some(tree)
}

/// The UUID of the file system that an open directory lies on, in hexadecimal digits (FS_IOC_GETFSUUID, Linux 6.9, linux/fs.h).
/// `None`: it has none, or the kernel does not tell it.
pub fn file_system_uuid(directory: impl AsFd) -> Option<String> {
    in_memory!(crate::simulated::look::refuse::<()>(directory.as_fd()).map(|_| None));
    let uuid = uuid::of(directory)?;
    let digit = |bits: u8| char::from_digit(bits.into(), 16);
    uuid.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}

/// The text of `/proc/self/mountinfo`, empty where /proc is missing.
pub fn mountinfo() -> Vec<u8> {
    in_memory!(crate::simulated::mountinfo());
    std::fs::read("/proc/self/mountinfo").unwrap_or_default()
}

/// The table of file systems that are to be mounted, fstab(5); empty where there is none.
pub fn fstab() -> Vec<u8> {
    std::fs::read("/etc/fstab").unwrap_or_default()
}

/// Whether a directory is the root of a mount, a bind mount of the same file system included, which no device number tells.
pub fn is_mounted_on(parent: impl AsFd, name: &[u8]) -> Result<bool> {
    let child = crate::path::pin_at(&parent, name)?;
    match (id_of(&parent), id_of(&child)) {
        (Some(above), Some(here)) => Ok(above != here),
        // Nothing can tell: whoever asks must not go there.
        _ => Ok(true),
    }
}

/// The mount through which an object was opened: statx(2), or proc(5) before Linux 5.8.
pub fn id_of(object: impl AsFd) -> Option<u64> {
    use std::os::fd::AsRawFd;
    if let Some(id) = crate::stat::mount_id(&object) {
        return Some(id);
    }
    let at = format!("/proc/self/fdinfo/{}", object.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(at).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// The canonical path of an open directory, from /proc.
pub fn path_of(object: impl AsFd) -> Option<std::path::PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    in_memory!(crate::simulated::path_of(object.as_fd()).map(Some));
    let link = crate::process::descriptor_path(object.as_fd());
    std::fs::read_link(std::ffi::OsStr::from_bytes(link.as_bytes())).ok()
}
