//! Creating, reading, writing and flushing regular files.
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom};

use crate::{AsFd, Errno, OwnedFd, Result, in_memory, kernel, retry, supported};
use std::os::fd::AsRawFd;

/// Creates a file that must not exist yet, open for reading and writing.
pub fn create_new(parent: impl AsFd, name: &[u8], mode: u32) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    open_with(parent, name, flags, mode)
}

/// A file without a name, where the file system can (`O_TMPFILE`, open(2)).
pub fn create_unnamed(directory: impl AsFd, mode: u32) -> Result<OwnedFd> {
    open_with(directory, b".", OFlags::RDWR | OFlags::TMPFILE, mode)
}

/// Opens an existing regular file for writing; a FIFO does not make it wait.
pub fn open_for_writing(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd> {
    open_with(parent, name, OFlags::RDWR | OFlags::NONBLOCK, 0)
}

fn open_with(parent: impl AsFd, name: &[u8], flags: OFlags, mode: u32) -> Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(mode);
    retry(|| kernel::openat(parent.as_fd(), name, flags, mode))
}

/// pread(2); fewer bytes than asked for is normal.
pub fn read_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize> {
    retry(|| kernel::pread(file.as_fd(), &mut *buffer, offset))
}

/// read(2), for what has no offsets; fewer bytes than asked for is normal.
pub fn read(file: impl AsFd, buffer: &mut [u8]) -> Result<usize> {
    retry(|| kernel::read(file.as_fd(), &mut *buffer))
}

/// A descriptor of standard input of its own.
pub fn standard_input() -> Result<OwnedFd> {
    retry(|| kernel::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 0))
}

/// pwrite(2); fewer bytes than given is normal.
pub fn write_at(file: impl AsFd, buffer: &[u8], offset: u64) -> Result<usize> {
    let written = retry(|| kernel::pwrite(file.as_fd(), buffer, offset))?;
    if written == 0 && !buffer.is_empty() { Err(Errno::IO) } else { Ok(written) }
}

/// Writes all of `buffer`, going on after short writes.
pub fn write_all_at(file: impl AsFd, mut buffer: &[u8], mut offset: u64) -> Result<()> {
    while !buffer.is_empty() {
        let written = write_at(&file, buffer, offset)?;
        buffer = &buffer[written..];
        offset += written as u64;
    }
    Ok(())
}

/// Takes `O_NONBLOCK` away, which guarded the open against FIFOs: io_uring takes it at its word for files as well.
pub fn set_blocking(file: impl AsFd) -> Result<()> {
    let file = file.as_fd();
    let flags = retry(|| kernel::fcntl_getfl(file))?;
    if flags.contains(OFlags::NONBLOCK) {
        retry(|| kernel::fcntl_setfl(file, flags - OFlags::NONBLOCK))?;
    }
    Ok(())
}

/// ftruncate(2).
pub fn set_size(file: impl AsFd, size: u64) -> Result<()> {
    retry(|| kernel::ftruncate(file.as_fd(), size))
}

/// Sets the size and reserves the space for it (fallocate(2)); `false` where the file system cannot.
pub fn allocate(file: impl AsFd, size: u64) -> Result<bool> {
    let none = FallocateFlags::empty();
    let call = retry(|| kernel::fallocate(file.as_fd(), none, 0, size));
    Ok(supported(call)?.is_some())
}

/// Reserves space without changing the size; `false` where the file system cannot.
pub fn reserve(file: impl AsFd, size: u64) -> Result<bool> {
    let call = retry(|| kernel::fallocate(file.as_fd(), FallocateFlags::KEEP_SIZE, 0, size));
    Ok(supported(call)?.is_some())
}

/// Makes a range a hole; `false` where the file system cannot.
pub fn punch_hole(file: impl AsFd, offset: u64, length: u64) -> Result<bool> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let call = retry(|| kernel::fallocate(file.as_fd(), flags, offset, length));
    Ok(supported(call)?.is_some())
}

/// The next range of data at or after `offset` (SEEK_DATA, SEEK_HOLE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataRange {
    /// From here to there is data.
    Data(u64, u64),
    /// There is no more data.
    End,
    /// The file system does not say where data is.
    Unknown,
}

/// Finds data with lseek(2).
pub fn next_data(file: impl AsFd, offset: u64) -> Result<DataRange> {
    let seek = |to| retry(|| kernel::seek(file.as_fd(), to));
    match seek(SeekFrom::Data(offset)) {
        Ok(start) => Ok(DataRange::Data(start, seek(SeekFrom::Hole(start))?)),
        Err(Errno::NXIO) => Ok(DataRange::End),
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(DataRange::Unknown),
        Err(error) => Err(error),
    }
}

/// Forces content and size to storage.
pub fn sync_data(file: impl AsFd) -> Result<()> {
    retry(|| kernel::fdatasync(file.as_fd()))
}

/// Forces content, size and all other metadata to storage.
pub fn sync_all(file: impl AsFd) -> Result<()> {
    retry(|| kernel::fsync(file.as_fd()))
}

/// Forces everything that was written to a file system to storage, syncfs(2).
pub fn sync_file_system(object: impl AsFd) -> Result<()> {
    retry(|| kernel::syncfs(object.as_fd()))
}

/// A further descriptor of what one has open, fcntl(2).
pub fn duplicate(object: impl AsFd) -> Result<OwnedFd> {
    retry(|| kernel::fcntl_dupfd_cloexec(object.as_fd(), 0))
}

/// Closes a file and hears the late errors that NFS and FUSE report only here.
pub fn close(file: OwnedFd) -> Result<()> {
    match kernel::close(file) {
        // Linux has released the descriptor even when close(2) is interrupted.
        Err(Errno::INTR) => Ok(()),
        result => result,
    }
}

/// Whether somebody has a file open for writing, or mapped so; `None` where that cannot be asked.
///
/// The kernel gives a read lease (fcntl(2), `F_SETLEASE`) to nobody then. It is given back at once; whoever opens the file
/// for writing in that very moment waits no longer than that.
pub fn is_open_for_writing(file: impl AsFd) -> Option<bool> {
    /// A signal that is ignored unless somebody asks for it, in place of SIGIO, which would end the process.
    const QUIET: libc::c_int = libc::SIGURG;
    /// From linux/fcntl.h; the C library's crate does not have it.
    const F_SETSIG: libc::c_int = 10;
    in_memory!(crate::simulated::look::is_open_for_writing(file.as_fd()).map(Result::ok));
    let fd = file.as_fd().as_raw_fd();
    #[allow(unsafe_code)]
    // SAFETY: these requests take plain numbers and touch no memory.
    let ask = |request, argument: libc::c_int| unsafe { libc::fcntl(fd, request, argument) } == 0;
    if !ask(F_SETSIG, QUIET) {
        return None;
    }
    if ask(libc::F_SETLEASE, libc::F_RDLCK) {
        ask(libc::F_SETLEASE, libc::F_UNLCK);
        return Some(false);
    }
    (crate::flags::last_errno() == Errno::AGAIN).then_some(true)
}

/// Takes an exclusive advisory lock as soon as nobody else holds it, flock(2).
pub fn wait_for_lock(file: impl AsFd) -> Result<()> {
    retry(|| kernel::flock(file.as_fd(), FlockOperation::LockExclusive))
}

/// Gives an advisory lock back.
pub fn unlock(file: impl AsFd) -> Result<()> {
    retry(|| kernel::flock(file.as_fd(), FlockOperation::Unlock))
}

/// Takes a shared advisory lock without waiting; `false` if somebody holds an exclusive one.
pub fn try_lock_shared(file: impl AsFd) -> Result<bool> {
    match retry(|| kernel::flock(file.as_fd(), FlockOperation::NonBlockingLockShared)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes an exclusive advisory lock without waiting; `false` if somebody else holds it.
pub fn try_lock(file: impl AsFd) -> Result<bool> {
    match retry(|| kernel::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error),
    }
}
