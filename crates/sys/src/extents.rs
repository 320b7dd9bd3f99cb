//! Which bytes of a file have no data on storage (`FS_IOC_FIEMAP`, Documentation/filesystems/fiemap.rst).
use std::ops::Range;

use crate::{AsFd, Result};

/// Bytes that read as zeroes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// Where they are.
    pub range: Range<u64>,
    /// Blocks are set aside for them and were never written. Otherwise it is a hole.
    pub is_unwritten: bool,
}

const EXTENTS: usize = 32;
/// So many calls are made for one file.
const CALLS_MAX: u32 = 64;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap`.
#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

/// `FIEMAP_EXTENT_LAST`, `FIEMAP_EXTENT_UNWRITTEN`.
const LAST: u32 = 0x1;
const UNWRITTEN: u32 = 0x800;

#[allow(unsafe_code)]
mod call {
    use super::{AsFd, Request, Result};
    use crate::{Errno, in_memory, retry};
    use std::os::fd::AsRawFd;

    /// `_IOWR('f', 11, struct fiemap)`.
    const FIEMAP: u32 = 0xc020_660b;

    pub(super) fn fiemap(file: impl AsFd, request: &mut Request) -> Result<()> {
        in_memory!(crate::simulated::look::refuse(file.as_fd()));
        let fd = file.as_fd().as_raw_fd();
        // The type of the request is another one in each C library.
        #[allow(clippy::cast_lossless)]
        let number = FIEMAP as libc::Ioctl;
        retry(|| {
            // SAFETY: the kernel writes at most `room` extents behind the header, and there is room for as many.
            let result = unsafe { libc::ioctl(fd, number, &raw mut *request) };
            let error = std::io::Error::last_os_error();
            if result == 0 {
                Ok(())
            } else {
                Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
            }
        })
    }
}

/// The gaps in the first `size` bytes of a file. Data that waits in memory for its blocks is no gap; data that waits for
/// blocks which are set aside already looks like one. `None`: the file system does not tell.
///
/// # Errors
/// Those of ioctl(2).
pub fn gaps(file: impl AsFd, size: u64) -> Result<Option<Vec<Gap>>> {
    let mut gaps = Vec::new();
    let mut at = 0;
    for _ in 0..CALLS_MAX {
        let mut request = Request {
            start: at,
            length: size - at,
            flags: 0,
            mapped: 0,
            room: EXTENTS as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENTS],
        };
        if crate::supported(call::fiemap(&file, &mut request).map(Some))?.flatten().is_none() {
            return Ok(None);
        }
        let mapped = (request.mapped as usize).min(EXTENTS);
        let mut is_last = mapped == 0;
        for extent in &request.extents[..mapped] {
            let begin = extent.logical.clamp(at, size);
            let end = extent.logical.saturating_add(extent.length).clamp(begin, size);
            if begin > at {
                gaps.push(Gap { range: at..begin, is_unwritten: false });
            }
            if extent.flags & UNWRITTEN != 0 && end > begin {
                gaps.push(Gap { range: begin..end, is_unwritten: true });
            }
            at = end;
            is_last |= extent.flags & LAST != 0;
        }
        if is_last && at < size {
            gaps.push(Gap { range: at..size, is_unwritten: false });
        }
        if is_last || at >= size {
            return Ok(Some(gaps));
        }
    }
    // Too many pieces to look at each: nothing is known of the rest.
    gaps.push(Gap { range: at..size, is_unwritten: true });
    Ok(Some(gaps))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn holes_and_blocks_that_were_never_written_are_gaps() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all_at(&[1; 4096], 0).unwrap();
        file.write_all_at(&[1; 4096], 1 << 20).unwrap();
        file.sync_all().unwrap();
        let Some(found) = gaps(&file, (1 << 20) + 4096).unwrap() else {
            return; // the file system of the source tree does not tell
        };
        assert_eq!(found, [Gap { range: 4096..1 << 20, is_unwritten: false }]);
        assert_eq!(gaps(&file, 100).unwrap(), Some(Vec::new()), "what follows is not looked at");
        if crate::file::allocate(&file, (1 << 20) + 4096).unwrap() {
            let found = gaps(&file, (1 << 20) + 4096).unwrap().unwrap();
            assert_eq!(found, [Gap { range: 4096..1 << 20, is_unwritten: true }]);
        }
    }
}
