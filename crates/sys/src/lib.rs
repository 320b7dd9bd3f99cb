//! The kernel boundary: every system call and ioctl that dmover makes, as thin safe functions on
//! borrowed descriptors; and MD5, which is C. It is the only crate with `unsafe`.
//!
//! "The kernel or file system does not have this" is a value (`Ok(None)` or `false`), so that callers
//! fall back; every other error keeps its number. Interrupted calls are repeated here, once for all.
#![deny(unsafe_code)]

mod answers;
pub mod buffer;
pub mod cache;
pub mod copy;
pub mod directory;
pub mod extents;
pub mod fanotify;
pub mod file;
pub mod flags;
mod kernel;
pub mod lock;
pub mod mount;
pub mod path;
pub mod process;
pub mod ring;
pub mod set;
#[cfg(feature = "simulated")]
pub mod simulated;
pub mod socket;
pub mod stat;
pub mod xattr;

pub use rustix::fd::{AsFd, BorrowedFd};
pub use rustix::io::Errno;

#[cfg(not(feature = "simulated"))]
pub use rustix::fd::OwnedFd;
#[cfg(feature = "simulated")]
pub use simulated::OwnedFd;

/// The result of a system call.
pub type Result<T> = std::result::Result<T, Errno>;

/// A call that is interrupted so often is not interrupted by signals: a file system is at fault.
const INTERRUPTIONS_MAX: u32 = 1000;

/// Repeats a call that a signal or an interruptible file system interrupted.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..INTERRUPTIONS_MAX {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
    Err(Errno::INTR)
}

/// Answers with what the disks in memory say, if the descriptor is one of theirs.
#[cfg(feature = "simulated")]
macro_rules! in_memory {
    ($answer:expr) => {
        if let Some(answer) = $answer {
            return answer;
        }
    };
}
#[cfg(not(feature = "simulated"))]
macro_rules! in_memory {
    ($answer:expr) => {};
}
pub(crate) use in_memory;

/// Turns the errors that mean "not here" into `None`.
pub(crate) fn supported<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::XDEV) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
