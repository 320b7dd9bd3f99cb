//! Copying inside the kernel.
use crate::{AsFd, Errno, Result, kernel, retry};

/// What the kernel says when it is asked to do something with two files on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelAnswer<T> {
    /// Done.
    Done(T),
    /// Not with these two files: a sandbox, a swap file, an odd inode. The next pair may be better.
    NotThese,
    /// Not with these two file systems, or not by this kernel.
    Never,
}

impl<T> KernelAnswer<T> {
    fn of(call: Result<T>) -> Result<Self> {
        match call {
            Ok(answer) => Ok(Self::Done(answer)),
            Err(Errno::NOSYS | Errno::XDEV | Errno::OPNOTSUPP | Errno::NOTTY) => Ok(Self::Never),
            // EPERM comes from sandboxes, ETXTBSY from swap files, EBADF from files without the method.
            Err(Errno::INVAL | Errno::PERM | Errno::TXTBSY | Errno::BADF) => Ok(Self::NotThese),
            Err(error) => Err(error),
        }
    }
}

/// Copies up to `length` bytes with copy_file_range(2) and answers how many.
pub fn copy_range(
    source: impl AsFd,
    source_offset: u64,
    destination: impl AsFd,
    destination_offset: u64,
    length: usize,
) -> Result<KernelAnswer<usize>> {
    KernelAnswer::of(retry(|| {
        let (mut from, mut to) = (source_offset, destination_offset);
        let (source, destination) = (source.as_fd(), destination.as_fd());
        kernel::copy_file_range(source, Some(&mut from), destination, Some(&mut to), length)
    }))
}

/// Makes the whole destination share the source's blocks (FICLONE, ioctl_ficlone(2)).
///
/// `Ok(false)`: these two files cannot share blocks.
pub fn clone_file(source: impl AsFd, destination: impl AsFd) -> Result<KernelAnswer<()>> {
    KernelAnswer::of(retry(|| kernel::ioctl_ficlone(destination.as_fd(), source.as_fd())))
}
