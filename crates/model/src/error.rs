//! Errors of single entries. They are data: counted, listed and retried, and they never stop a job.
use serde::{Deserialize, Serialize};
use std::fmt;

use crate::{EntryRecord, PathBytes};

/// Which tree an error belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The tree that is read.
    Source,
    /// The tree that is written.
    Destination,
}

macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident = $word:literal),* $(,)?) => {
        /// What was being done when an entry failed, named after the system call where there is one.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Operation { $($(#[$doc])* $variant),* }
        impl Operation {
            /// The words for messages: "cannot <words> 'path'".
            pub fn words(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }
    };
}
operations! {
    /// Opening a file or directory.
    Open = "open",
    /// Reading names of a directory.
    ReadDirectory = "read directory",
    /// Looking up metadata.
    Stat = "stat",
    /// Reading file content.
    Read = "read",
    /// Writing file content.
    Write = "write",
    /// Creating a file, link, device or FIFO.
    Create = "create",
    /// Creating a directory.
    MakeDirectory = "create directory",
    /// Reading a symbolic link.
    ReadLink = "read link",
    /// Creating a hard link.
    Link = "hard-link",
    /// Putting a finished temporary in place.
    Rename = "rename into place",
    /// Removing a name.
    Unlink = "remove",
    /// Setting owner or group.
    SetOwner = "set owner of",
    /// Setting permission bits.
    SetMode = "set mode of",
    /// Setting times.
    SetTimes = "set times of",
    /// Reading extended attributes.
    ReadXattr = "read attributes of",
    /// Setting extended attributes or ACLs.
    SetXattr = "set attributes of",
    /// Setting inode flags or the project id.
    SetFlags = "set flags of",
    /// Forcing data to storage.
    Sync = "flush",
    /// Closing, where network file systems report late errors.
    Close = "close",
    /// Setting the size or reserving space.
    Allocate = "allocate",
    /// Keeping a backup of what is replaced.
    Backup = "back up",
    /// Comparing before and after.
    Check = "check",
    /// A whole task that could not be attempted.
    Attempt = "attempt",
}

macro_rules! classes {
    ($($(#[$doc:meta])* $variant:ident, $word:literal, $advice:literal;)*) => {
        /// The kind of failure; scripts select by it and the retry rules follow it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorClass { $($(#[$doc])* $variant),* }
        impl ErrorClass {
            /// All classes, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),*];
            /// The word in JSON and text.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
            /// What a person can do about it.
            pub fn advice(self) -> &'static str {
                match self { $(Self::$variant => $advice),* }
            }
        }
    };
}
classes! {
    /// The source entry was there in the scan and is gone now.
    Vanished, "vanished", "it was removed while the job ran; if it should exist, run the same command again";
    /// The source entry changed while it was read, in every attempt.
    Changed, "changed", "it is being written; run the same command again when the writer has finished";
    /// Permission denied.
    Denied, "denied", "run as the owner or as root, or exclude it";
    /// The destination file system is full.
    NoSpace, "no_space", "free space on the destination, then run the same command again";
    /// A quota at the destination is exhausted.
    Quota, "quota", "raise the quota or free space, then run the same command again";
    /// The destination is mounted read-only.
    ReadOnly, "read_only", "remount the destination read-write, then run the same command again";
    /// The name is longer than the destination allows.
    NameTooLong, "name_too_long", "rename it at the source or choose another destination";
    /// Two source names are one name at the destination: it ignores case, or two sources meet there.
    NameClash, "name_clash", "rename one of the two at the source";
    /// The destination has another type under this name (a directory against a file).
    TypeConflict, "type_conflict", "move the destination entry out of the way";
    /// The file system cannot do what this entry needs.
    Unsupported, "unsupported", "run 'dmover doctor' to see what the file system supports";
    /// An input/output error.
    Io, "io", "check the storage and the kernel log, then run the same command again";
    /// A stale handle of a network file system.
    Stale, "stale", "the server lost the object; run the same command again";
    /// The file is larger than the destination allows.
    TooLarge, "too_large", "choose a destination that allows files of this size";
    /// The object is in use in a way that forbids this.
    Busy, "busy", "run the same command again when it is not in use";
    /// A symbolic link or another object has replaced an entry: another program changed the tree.
    Escaped, "escaped", "another program replaces entries while the job runs; find and stop it";
    /// The destination lies inside the source.
    SelfCopy, "self_copy", "choose a destination outside the source";
    /// An attribute that the destination cannot hold.
    Loss, "loss", "accept it with --allow-loss, or choose another destination";
    /// What was written does not read back equal, or what should be copied is not what it was.
    Integrity, "integrity", "check the storage, then run the same command again";
    /// The job was stopped before this entry was done.
    Cancelled, "cancelled", "run the same command again to resume";
    /// The mover lost its lease on this work.
    Fenced, "fenced", "run the same command again to resume";
    /// Anything else; the errno says what.
    Other, "other", "see the error message";
}

const ENOENT: i32 = 2;
const EINTR: i32 = 4;
const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;

impl ErrorClass {
    /// The class of a Linux error number met at `side`.
    pub fn from_errno(errno: i32, side: Side) -> Self {
        match errno {
            ENOENT if side == Side::Source => Self::Vanished,
            // ENOTDIR, ELOOP, ENXIO: another type stands there now; a fresh look will tell.
            20 | 40 | 6 if side == Side::Source => Self::Changed,
            1 | 13 => Self::Denied,
            28 => Self::NoSpace,
            122 => Self::Quota,
            30 => Self::ReadOnly,
            36 => Self::NameTooLong,
            20 | 21 | 39 => Self::TypeConflict,
            22 | 25 | 38 | 95 | 31 => Self::Unsupported,
            EIO | 6 | 19 | 107 | 121 | 117 | 61 => Self::Io,
            116 => Self::Stale,
            27 => Self::TooLarge,
            16 | 26 => Self::Busy,
            40 | 18 => Self::Escaped,
            _ => Self::Other,
        }
    }

    /// Whether trying once more at once may help.
    pub fn retryable(self, errno: i32) -> bool {
        matches!(self, Self::Io | Self::Stale | Self::Changed | Self::Busy)
            || matches!(errno, EINTR | EAGAIN | ENOMEM | 110)
    }

    /// Whether the same failure will meet every other entry as well.
    pub fn systemic(self) -> bool {
        matches!(self, Self::NoSpace | Self::Quota | Self::ReadOnly | Self::Io | Self::Stale)
    }

    /// Whether only the source is to blame, in the sense of exit code 4.
    pub fn source_moved_on(self) -> bool {
        matches!(self, Self::Vanished | Self::Changed)
    }
}

/// One entry that failed: what was done to which path, why, and at which attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryError {
    /// Source or destination.
    pub side: Side,
    /// What was being done.
    pub operation: Operation,
    /// The path as a person would type it.
    pub path: PathBytes,
    /// The kind of failure.
    pub class: ErrorClass,
    /// The error number, 0 if no system call failed.
    pub errno: i32,
    /// Further words, empty if there are none.
    pub detail: String,
    /// Attempts made, counting from 1.
    pub attempt: u32,
}

impl EntryError {
    /// Whether it may be the host's that has met it, and not the entry's: its connection to a file server, its mount.
    pub fn may_be_the_hosts(&self) -> bool {
        use ErrorClass::{Io, ReadOnly, Stale, TooLarge};
        // The kernel tells once that what was written did not reach storage: nobody else will hear of it.
        if matches!(self.operation, Operation::Sync | Operation::Close) {
            return false;
        }
        // ESHUTDOWN (a Lustre client that was evicted), ETIMEDOUT, EHOSTDOWN, EHOSTUNREACH.
        // TooLarge: a process may have a limit of its own (RLIMIT_FSIZE).
        matches!(self.class, Io | Stale | ReadOnly | TooLarge)
            || matches!(self.errno, 108 | 110 | 112 | 113)
    }

    /// An error without a failed system call.
    pub fn plain(
        side: Side,
        operation: Operation,
        class: ErrorClass,
        path: PathBytes,
        detail: impl Into<String>,
    ) -> Self {
        Self { side, operation, path, class, errno: 0, detail: detail.into(), attempt: 1 }
    }

    /// Whether trying once more at once may help.
    pub fn retryable(&self) -> bool {
        self.class.retryable(self.errno)
    }
}

impl fmt::Display for EntryError {
    /// Everything but the path and the advice, which the printer quotes in its own way.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = if self.errno == 0 {
            self.class.word().replace('_', " ")
        } else {
            std::io::Error::from_raw_os_error(self.errno).to_string()
        };
        if self.detail.is_empty() {
            write!(f, "{reason}")
        } else if self.errno == 0 {
            write!(f, "{}", self.detail)
        } else {
            write!(f, "{reason}; {}", self.detail)
        }
    }
}

impl EntryRecord {
    /// Whether this entry has other names, so that it is left to the link phase.
    pub fn is_hard_linked(&self) -> bool {
        self.metadata.kind != crate::EntryKind::Directory && self.metadata.links > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_source_is_vanished_and_a_missing_destination_is_not() {
        assert_eq!(ErrorClass::from_errno(ENOENT, Side::Source), ErrorClass::Vanished);
        assert_eq!(ErrorClass::from_errno(ENOENT, Side::Destination), ErrorClass::Other);
    }
}
