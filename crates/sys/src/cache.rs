//! The page cache: direct I/O, which goes past it, and advice.
use rustix::fs::{Advice, OFlags};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;

use crate::{AsFd, Errno, Result, in_memory, kernel, retry};

/// Turns direct I/O (`O_DIRECT`) of an open file on or off; `false` where the file system has none.
pub fn set_direct(file: impl AsFd, direct: bool) -> Result<bool> {
    let file = file.as_fd();
    let mut flags = retry(|| kernel::fcntl_getfl(file))?;
    if flags.contains(OFlags::DIRECT) == direct {
        return Ok(true);
    }
    flags.set(OFlags::DIRECT, direct);
    match retry(|| kernel::fcntl_setfl(file, flags)) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Asks the kernel to forget a range of a file (`POSIX_FADV_DONTNEED`). What has not reached storage stays;
/// that it is only advice is why nothing is answered.
pub fn forget(file: impl AsFd, offset: u64, length: u64) {
    let Some(length) = NonZeroU64::new(length) else { return };
    let _ = retry(|| kernel::fadvise(file.as_fd(), offset, Some(length), Advice::DontNeed));
}

/// Says that a file will be read from start to end, which doubles the kernel's read-ahead.
pub fn expect_sequential(file: impl AsFd) {
    let _ = retry(|| kernel::fadvise(file.as_fd(), 0, None, Advice::Sequential));
}

/// Starts writing a range to storage without waiting for it (sync_file_range(2)).
pub fn start_writing(file: impl AsFd, offset: u64, length: u64) -> Result<()> {
    sync_range(file, offset, length, libc::SYNC_FILE_RANGE_WRITE)
}

/// Writes a range to storage and waits until it can be forgotten. This is no fdatasync(2): the device may still
/// lose it. But an error that is told here is not told again.
pub fn wait_for_writing(file: impl AsFd, offset: u64, length: u64) -> Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_range(file, offset, length, flags)
}

#[allow(unsafe_code)]
fn sync_range(file: impl AsFd, offset: u64, length: u64, flags: libc::c_uint) -> Result<()> {
    in_memory!(crate::simulated::look::refuse::<()>(file.as_fd()).map(|_| Ok(())));
    let fd = file.as_fd().as_raw_fd();
    let call = retry(|| {
        // SAFETY: the call takes numbers only, and the descriptor is borrowed.
        let result = unsafe { libc::sync_file_range(fd, offset as i64, length as i64, flags) };
        let error = std::io::Error::last_os_error();
        if result == 0 { Ok(()) } else { Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)) }
    });
    match call {
        // A sandbox or a file system without it: the advice that follows is then worth less.
        Err(Errno::NOSYS | Errno::INVAL | Errno::SPIPE | Errno::OPNOTSUPP | Errno::PERM) => Ok(()),
        result => result,
    }
}

/// `struct cachestat_range` and `struct cachestat` of linux/mman.h.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Number of cachestat(2), the same on every architecture.
const CACHESTAT: libc::c_long = 451;

/// How many bytes of a range are in the page cache; `None` where the kernel does not say.
pub fn cached_bytes(file: impl AsFd, offset: u64, length: u64) -> Option<u64> {
    let answer = cachestat(file, offset, length)?;
    Some(answer.cached.saturating_mul(page_bytes()))
}

/// Whether a file has no page that is to be written back or is being written; `None` where the kernel does not say. A file
/// with places for pages that are not there is not known to be clean: DAX keeps what it has mapped in such places.
pub fn is_clean(file: impl AsFd) -> Option<bool> {
    let answer = cachestat(file, 0, 0)?;
    Some(answer.dirty == 0 && answer.writeback == 0 && answer.evicted == 0)
}

/// What the page cache has of a range, cachestat(2), Linux 6.5. A length of 0 stands for everything after the offset.
fn cachestat(file: impl AsFd, offset: u64, length: u64) -> Option<Cachestat> {
    in_memory!(crate::simulated::look::refuse::<()>(file.as_fd()).map(|_| None));
    let range = Range { offset, length };
    let mut answer = Cachestat::default();
    let fd = file.as_fd().as_raw_fd();
    #[allow(unsafe_code)]
    // SAFETY: both structures have the kernel's layout and outlive the call.
    let result = unsafe {
        let (range, answer) = (std::ptr::from_ref(&range), std::ptr::from_mut(&mut answer));
        libc::syscall(CACHESTAT, fd, range, answer, 0)
    };
    (result == 0).then_some(answer)
}

fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn what_was_written_is_cached_until_it_is_forgotten() {
        let mut file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        let Some(cached) = cached_bytes(&file, 0, 1 << 20) else { return };
        assert_eq!(cached, 1 << 20);
        assert_eq!(is_clean(&file), Some(false));
        file.sync_all().unwrap();
        assert_eq!(is_clean(&file), Some(true));
        start_writing(&file, 0, 1 << 20).unwrap();
        wait_for_writing(&file, 0, 1 << 20).unwrap();
        forget(&file, 0, 1 << 20);
        assert_eq!(cached_bytes(&file, 0, 1 << 20), Some(0));
    }
}
