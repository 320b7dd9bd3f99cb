//! Errors of single entries. They are data: they are counted, listed and retried, and they never stop a job.
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
        /// The operation during which an entry failed, named after the system call where there is one.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Operation { $($(#[$doc])* $variant),* }
        impl Operation {
            /// The words for messages of the form "cannot <words> 'path'".
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
    /// Renaming a finished temporary file into place.
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
    /// Closing a file; network file systems report late errors here.
    Close = "close",
    /// Setting the size or reserving space.
    Allocate = "allocate",
    /// Backing up an entry that is replaced.
    Backup = "back up",
    /// Comparing a file before and after the copy.
    Check = "check",
    /// A whole task that could not be attempted.
    Attempt = "attempt",
}

macro_rules! classes {
    ($($(#[$doc:meta])* $variant:ident, $word:literal, $advice:literal;)*) => {
        /// The kind of a failure. Scripts select errors by it, and the retry rules depend on it.
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
            /// What the user can do about it.
            pub fn advice(self) -> &'static str {
                match self { $(Self::$variant => $advice),* }
            }
        }
    };
}
classes! {
    /// The source entry existed in the scan and has vanished since.
    Vanished, "vanished", "it was removed while the job ran; if it should exist, run the same command again";
    /// The source entry changed during each attempt to read it.
    Changed, "changed", "it is being written; run the same command again when the writer has finished";
    /// Permission denied.
    Denied, "denied", "run as the owner or as root; as root, check for the immutable flag (lsattr)";
    /// The destination file system is full.
    NoSpace, "no_space", "free space on the destination, then run the same command again";
    /// A quota at the destination is exhausted.
    Quota, "quota", "raise the quota or free space, then run the same command again";
    /// The destination is mounted read-only.
    ReadOnly, "read_only", "remount the destination read-write, then run the same command again";
    /// The name is longer than the destination allows.
    NameTooLong, "name_too_long", "rename it at the source or choose another destination";
    /// Two source names map to one destination name: the destination ignores case, or two sources overlap.
    NameClash, "name_clash", "rename one of the two at the source";
    /// The destination has an entry of another type under this name.
    TypeConflict, "type_conflict", "move the destination entry out of the way";
    /// The file system cannot do what this entry needs.
    Unsupported, "unsupported", "run 'dmover doctor' to see what the file system supports";
    /// An input/output error.
    Io, "io", "check the storage and the kernel log, then run the same command again";
    /// A stale handle (ESTALE) of a network file system.
    Stale, "stale", "the server lost the object; run the same command again";
    /// The file is larger than the destination allows.
    TooLarge, "too_large", "choose a destination that allows files of this size";
    /// The object is in use, which forbids the operation.
    Busy, "busy", "run the same command again when it is not in use";
    /// An entry was replaced during the job, for example by a symbolic link: another program changes the tree.
    Escaped, "escaped", "another program replaces entries while the job runs; find and stop it";
    /// The destination lies inside the source.
    SelfCopy, "self_copy", "choose a destination outside the source";
    /// The destination cannot hold an attribute.
    Loss, "loss", "accept it with --allow-loss, or choose another destination";
    /// Written content does not read back equal, or the content to copy is not the expected one.
    Integrity, "integrity", "check the storage, then run the same command again";
    /// The job was stopped before this entry was done.
    Cancelled, "cancelled", "run the same command again to resume";
    /// The mover lost its lease on this task.
    Fenced, "fenced", "run the same command again to resume";
    /// Any other error; the errno says which.
    Other, "other", "see the error message";
}

const ENOENT: i32 = 2;
const EINTR: i32 = 4;
const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;

impl ErrorClass {
    /// The class of a Linux error number on this side.
    pub fn from_errno(errno: i32, side: Side) -> Self {
        match errno {
            ENOENT if side == Side::Source => Self::Vanished,
            // ENOTDIR, ELOOP, ENXIO: the entry has another type now; the next attempt reads it again.
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

    /// Whether an immediate retry may succeed.
    pub fn retryable(self, errno: i32) -> bool {
        matches!(self, Self::Io | Self::Stale | Self::Changed | Self::Busy)
            || matches!(errno, EINTR | EAGAIN | ENOMEM | 110)
    }

    /// Whether every other entry is likely to fail in the same way.
    pub fn systemic(self) -> bool {
        matches!(self, Self::NoSpace | Self::Quota | Self::ReadOnly | Self::Io | Self::Stale)
    }

    /// Whether the cause is only a change of the source, as exit code 4 reports it.
    pub fn source_moved_on(self) -> bool {
        matches!(self, Self::Vanished | Self::Changed)
    }
}

/// One entry that failed: the operation, the path, the reason, and the attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryError {
    /// Source or destination.
    pub side: Side,
    /// The operation that failed.
    pub operation: Operation,
    /// The path as a user would type it.
    pub path: PathBytes,
    /// The kind of failure.
    pub class: ErrorClass,
    /// The error number, 0 if no system call failed.
    pub errno: i32,
    /// Further details, empty if there are none.
    pub detail: String,
    /// Attempts made, counting from 1.
    pub attempt: u32,
}

impl EntryError {
    /// Whether the cause may be the host and not the entry, such as its connection to a file server or its mount.
    pub fn may_be_the_hosts(&self) -> bool {
        use ErrorClass::{Io, ReadOnly, Stale, TooLarge};
        // The kernel reports only once that data did not reach storage: no other call will report it.
        if matches!(self.operation, Operation::Sync | Operation::Close) {
            return false;
        }
        // ESHUTDOWN (a Lustre client that was evicted), ETIMEDOUT, EHOSTDOWN, EHOSTUNREACH.
        // TooLarge: a process may have a limit of its own (RLIMIT_FSIZE).
        matches!(self.class, Io | Stale | ReadOnly | TooLarge)
            || matches!(self.errno, 108 | 110 | 112 | 113)
    }

    /// Whether data that was written to the destination may not be on storage.
    pub fn is_failed_flush(&self) -> bool {
        self.operation == Operation::Sync && self.side == Side::Destination
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

    /// Whether an immediate retry may succeed.
    pub fn retryable(&self) -> bool {
        self.class.retryable(self.errno)
    }
}

impl fmt::Display for EntryError {
    /// Writes everything but the path and the advice, which the printer adds.
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
    /// Whether this entry has several names, so that the link phase copies it.
    pub fn is_hard_linked(&self) -> bool {
        self.metadata.kind != crate::EntryKind::Directory && self.metadata.links > 1
    }
}

/// Entries that failed in the interrupted run of a pass. The run that resumes the pass does not retry them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Failed {
    /// They vanished from the source, or changed during each attempt.
    pub moved_on: u64,
    /// They could not be read.
    pub unseen: u64,
    /// They could not be copied.
    pub there: u64,
}

impl Failed {
    /// The number of all failures.
    pub fn all(self) -> u64 {
        self.moved_on + self.unseen + self.there
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
