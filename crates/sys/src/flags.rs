//! Inode flags (`chattr`) and project ids.
use rustix::fs::IFlags;
use std::os::fd::AsRawFd;

use crate::{AsFd, Errno, Result, in_memory, kernel, retry};

/// Inode flags as FS_IOC_GETFLAGS reports them (linux/fs.h).
pub type Flags = u32;

/// `FS_IMMUTABLE_FL`.
pub const IMMUTABLE: Flags = 0x10;
/// `FS_APPEND_FL`.
pub const APPEND: Flags = 0x20;
/// The flags that forbid changes.
pub const LOCKS: Flags = IMMUTABLE | APPEND;
/// `FS_NOCOW_FL`: only effective while the file is empty.
pub const NOCOW: Flags = 0x0080_0000;
/// `FS_COMPR_FL`: only useful before data is written.
pub const COMPRESS: Flags = 0x4;
/// `FS_NOCOMP_FL`: never compressed, the opposite of the one above.
pub const NO_COMPRESS: Flags = 0x400;
/// Flags that only have their full effect on a file that is still empty.
pub const EARLY: Flags = NOCOW | COMPRESS | NO_COMPRESS;
/// `FS_CASEFOLD_FL`: names of the directory ignore case.
pub const CASEFOLD: Flags = 0x4000_0000;
/// `FS_PROJINHERIT_FL`: new entries take the directory's project id.
pub const PROJECT_INHERIT: Flags = 0x2000_0000;
/// Flags that a copy carries over: those a user sets, not those that describe the file system's state.
/// `SECRM`, `UNRM`, `SYNC`, `IMMUTABLE`, `APPEND`, `NODUMP`, `NOATIME`, `COMPR`, `NOCOMP`, `NOTAIL`, `DIRSYNC`, `TOPDIR`, `NOCOW`.
pub const CARRIED: Flags =
    0x1 | 0x2 | 0x8 | LOCKS | 0x40 | 0x80 | 0x8000 | 0x10000 | 0x20000 | EARLY;

/// Of these, the ones that neither need an empty file nor forbid anything.
pub const PLAIN: Flags = CARRIED & !EARLY & !LOCKS;

/// The flags of an open file or directory; `None` where there are none.
pub fn get(object: impl AsFd) -> Result<Option<Flags>> {
    match retry(|| kernel::ioctl_getflags(object.as_fd())) {
        Ok(flags) => Ok(Some(flags.bits())),
        Err(error) if is_unsupported(error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sets the flags; `false` where the file system does not take them.
pub fn set(object: impl AsFd, flags: Flags) -> Result<bool> {
    let flags = IFlags::from_bits_retain(flags);
    match retry(|| kernel::ioctl_setflags(object.as_fd(), flags)) {
        Ok(()) => Ok(true),
        Err(error) if is_unsupported(error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// FUSE servers without ioctls answer in many ways, for large files even with EOVERFLOW.
fn is_unsupported(error: Errno) -> bool {
    use Errno as E;
    matches!(error, E::NOTTY | E::OPNOTSUPP | E::NOSYS | E::INVAL | E::OVERFLOW)
}

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Fsxattr {
    xflags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// `_IOR('X', 31, struct fsxattr)` and `_IOW('X', 32, struct fsxattr)`.
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
const XFLAG_PROJECT_INHERIT: u32 = 0x200;

/// Project id and project inheritance of an open file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Project {
    /// The id, 0 if none.
    pub id: u32,
    /// New entries of the directory take the id.
    pub inherit: bool,
}

#[allow(unsafe_code)]
fn fsxattr_ioctl(object: impl AsFd, request: u32, argument: &mut Fsxattr) -> Result<()> {
    in_memory!(crate::simulated::look::refuse(object.as_fd()));
    let fd = object.as_fd().as_raw_fd();
    // The type of a request is an unsigned long in glibc and an int in musl; the bits are the same.
    #[allow(clippy::cast_lossless)]
    let request = request as libc::Ioctl;
    retry(|| {
        // SAFETY: both requests read or write exactly one `struct fsxattr`, which `argument` is.
        let result = unsafe { libc::ioctl(fd, request, std::ptr::from_mut(argument)) };
        if result == 0 { Ok(()) } else { Err(last_errno()) }
    })
}

pub(crate) fn last_errno() -> Errno {
    let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Errno::from_raw_os_error(number)
}

/// The project of an open file or directory; `None` where the file system has none.
pub fn project(object: impl AsFd) -> Result<Option<Project>> {
    let mut attributes = Fsxattr::default();
    match fsxattr_ioctl(object, FS_IOC_FSGETXATTR, &mut attributes) {
        Ok(()) => Ok(Some(Project {
            id: attributes.project,
            inherit: attributes.xflags & XFLAG_PROJECT_INHERIT != 0,
        })),
        Err(error) if is_unsupported(error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sets the project, leaving every other extended flag as it is; `false` where it is not taken.
pub fn set_project(object: impl AsFd, project: Project) -> Result<bool> {
    let mut attributes = Fsxattr::default();
    let object = object.as_fd();
    match fsxattr_ioctl(object, FS_IOC_FSGETXATTR, &mut attributes) {
        Err(error) if is_unsupported(error) => return Ok(false),
        result => result?,
    }
    attributes.project = project.id;
    attributes.xflags &= !XFLAG_PROJECT_INHERIT;
    if project.inherit {
        attributes.xflags |= XFLAG_PROJECT_INHERIT;
    }
    match fsxattr_ioctl(object, FS_IOC_FSSETXATTR, &mut attributes) {
        Ok(()) => {}
        Err(error) if is_unsupported(error) => return Ok(false),
        Err(error) => return Err(error),
    }
    // Some file systems accept the call and keep nothing.
    Ok(self::project(object)?.is_some_and(|p| p.id == project.id))
}
