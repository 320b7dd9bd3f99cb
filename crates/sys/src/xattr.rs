//! Extended attributes of open and pinned objects.
//!
//! A pinned object (`O_PATH`: symbolic links, FIFOs, sockets, devices) is reached through its entry in
//! /proc/self/fd, which leads to that very object and follows nothing further.
use rustix::fs::XattrFlags;

use crate::process::descriptor_path;
use crate::{AsFd, Errno, Result, kernel, retry};

/// How an object is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Open for reading or writing.
    Open,
    /// Only pinned (`O_PATH`).
    Pinned,
}

/// The names of all attributes; `None` if the file system has none at all.
pub fn list(object: impl AsFd, held: Held) -> Result<Option<Vec<Vec<u8>>>> {
    let object = object.as_fd();
    let names = grow(FIRST_BYTES, |buffer| {
        retry(|| match held {
            Held::Open => kernel::flistxattr(object, &mut *buffer),
            Held::Pinned => kernel::listxattr(&*descriptor_path(object), &mut *buffer),
        })
    });
    match names {
        Ok(names) => {
            let names = names.split(|b| *b == 0).filter(|n| !n.is_empty());
            Ok(Some(names.map(<[u8]>::to_vec).collect()))
        }
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The value of an attribute; `None` if it is not there (any more) or not supported.
pub fn get(object: impl AsFd, held: Held, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let object = object.as_fd();
    let fill = |buffer: &mut [u8]| {
        retry(|| match held {
            Held::Open => kernel::fgetxattr(object, name, &mut *buffer),
            Held::Pinned => kernel::getxattr(&*descriptor_path(object), name, &mut *buffer),
        })
    };
    let value = match grow(FIRST_BYTES, fill) {
        // A FUSE server (zfs-fuse does) may answer a buffer that is too small with a `struct
        // fuse_getxattr_out`, which then passes for the value.
        Ok(value) if value.len() == 8 => grow(LARGEST_BYTES, fill),
        value => value,
    };
    match value {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(error) => Err(error),
    }
}

const FIRST_BYTES: usize = 1 << 10;
/// The kernel's limit for values and name lists alike (XATTR_SIZE_MAX).
const LARGEST_BYTES: usize = 64 << 10;

/// Calls `fill` with a larger buffer until the value fits; values may grow between two calls. Most objects
/// have no attributes, or small ones: the first buffer costs no allocation.
fn grow(mut size: usize, mut fill: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    if size == FIRST_BYTES {
        let mut buffer = [0; FIRST_BYTES];
        match fill(&mut buffer) {
            Ok(used) => return Ok(buffer[..used].to_vec()),
            Err(Errno::RANGE) => size *= 4,
            Err(error) => return Err(error),
        }
    }
    loop {
        let mut buffer = vec![0; size];
        match fill(&mut buffer) {
            Ok(used) => {
                buffer.truncate(used);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if size < LARGEST_BYTES => size *= 4,
            Err(error) => return Err(error),
        }
    }
}

/// Sets an attribute.
pub fn set(object: impl AsFd, held: Held, name: &[u8], value: &[u8]) -> Result<()> {
    retry(|| match held {
        Held::Open => kernel::fsetxattr(object.as_fd(), name, value, XattrFlags::empty()),
        Held::Pinned => {
            kernel::setxattr(&*descriptor_path(object.as_fd()), name, value, XattrFlags::empty())
        }
    })
}

/// Removes an attribute; one that is not there or not supported is fine.
pub fn remove(object: impl AsFd, held: Held, name: &[u8]) -> Result<()> {
    let call = retry(|| match held {
        Held::Open => kernel::fremovexattr(object.as_fd(), name),
        Held::Pinned => kernel::removexattr(&*descriptor_path(object.as_fd()), name),
    });
    match call {
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        result => result,
    }
}
