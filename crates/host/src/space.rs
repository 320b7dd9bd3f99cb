//! Free space for what a job keeps.

/// Bytes that an ordinary user may still write to the file system of a directory (statvfs(3)); `None` where that is not known.
pub fn free_bytes(directory: &std::path::Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok()?;
    Some(found.f_bavail * found.f_frsize)
}
