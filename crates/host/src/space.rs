//! What can be written where: free space, and the permission.

/// Bytes that an ordinary user may still write to the file system of a directory (statvfs(3)); `None` where that is not known.
pub fn free_bytes(directory: &std::path::Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok()?;
    Some(found.f_bavail * found.f_frsize)
}

/// Whether the effective user may write to what a path leads to (faccessat(2) with `AT_EACCESS`). The next call may say
/// otherwise: this is for people.
pub fn may_write(path: &std::path::Path) -> bool {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}
