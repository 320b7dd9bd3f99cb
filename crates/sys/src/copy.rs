//! Copying inside the kernel.
use crate::{AsFd, Errno, Result, retry};

/// Copies up to `length` bytes with copy_file_range(2) and answers how many.
///
/// `Ok(None)`: this pair of files cannot (another file system, an old kernel, a sandbox, a file system
/// that refuses); the caller reads and writes instead.
pub fn copy_range(
    source: impl AsFd,
    source_offset: u64,
    destination: impl AsFd,
    destination_offset: u64,
    length: usize,
) -> Result<Option<usize>> {
    let call = retry(|| {
        let (mut from, mut to) = (source_offset, destination_offset);
        let (source, destination) = (source.as_fd(), destination.as_fd());
        rustix::fs::copy_file_range(source, Some(&mut from), destination, Some(&mut to), length)
    });
    match call {
        Ok(bytes) => Ok(Some(bytes)),
        // EPERM comes from sandboxes, ETXTBSY from swap files, EBADF from files without the method.
        Err(
            Errno::NOSYS
            | Errno::XDEV
            | Errno::INVAL
            | Errno::OPNOTSUPP
            | Errno::PERM
            | Errno::TXTBSY
            | Errno::BADF,
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the whole destination share the source's blocks (FICLONE, ioctl_ficlone(2)).
///
/// `Ok(false)`: these two files cannot share blocks.
pub fn clone_file(source: impl AsFd, destination: impl AsFd) -> Result<bool> {
    let call = retry(|| rustix::fs::ioctl_ficlone(destination.as_fd(), source.as_fd()));
    match call {
        Ok(()) => Ok(true),
        Err(
            Errno::NOSYS
            | Errno::XDEV
            | Errno::INVAL
            | Errno::OPNOTSUPP
            | Errno::NOTTY
            | Errno::PERM
            | Errno::TXTBSY
            | Errno::BADF,
        ) => Ok(false),
        Err(error) => Err(error),
    }
}
