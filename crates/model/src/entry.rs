//! What dmover knows about one name in a tree, without an open descriptor.
use serde::{Deserialize, Serialize};

use crate::Name;

/// A point in time as file systems keep it: seconds since 1970 (negative before) and nanoseconds.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Timestamp {
    /// Whole seconds since the epoch, rounded towards the past.
    pub seconds: i64,
    /// 0 to 999,999,999, always counted forward.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// This time rounded down to a multiple of `granularity_ns` (1 to 2,000,000,000).
    #[must_use]
    pub fn truncated(self, granularity_ns: u32) -> Self {
        if granularity_ns <= 1 {
            return self;
        }
        let total = i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanoseconds);
        let cut = total - total.rem_euclid(i128::from(granularity_ns));
        Self {
            seconds: cut.div_euclid(1_000_000_000) as i64,
            nanoseconds: cut.rem_euclid(1_000_000_000) as u32,
        }
    }
}

/// A mounted file system: an index into the job's table of mounts.
///
/// Device numbers differ between hosts, so tasks carry this index instead.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct MountId(pub u32);

/// The identity of an object: its mount and its inode number.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Identity {
    /// The mount of the object.
    pub mount: MountId,
    /// Its inode number there.
    pub inode: u64,
}

/// One version of a file's content, as far as metadata can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Version {
    /// The object.
    pub identity: Identity,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last write.
    pub mtime: Timestamp,
    /// Time of the last change of content or metadata.
    pub ctime: Timestamp,
}

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A UNIX-domain socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl EntryKind {
    /// The word that text output uses.
    pub fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symbolic link",
            Self::Fifo => "FIFO",
            Self::Socket => "socket",
            Self::CharDevice => "character device",
            Self::BlockDevice => "block device",
        }
    }
}

/// The result of one `statx` of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// Type of the entry.
    pub kind: EntryKind,
    /// Permission bits, set-id bits and the sticky bit (`07777`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated 512-byte blocks.
    pub blocks: u64,
    /// Number of names of this inode.
    pub links: u64,
    /// Major and minor number of a device node, else 0, 0.
    pub device: (u32, u32),
    /// The identity of the object.
    pub identity: Identity,
    /// Last access.
    pub atime: Timestamp,
    /// Last write.
    pub mtime: Timestamp,
    /// Last change.
    pub ctime: Timestamp,
    /// Whether the immutable flag is set (false where unknown).
    pub immutable: bool,
    /// Whether the append-only flag is set (false where unknown).
    pub append_only: bool,
}

impl Metadata {
    /// The version of the content that this metadata describes.
    pub fn version(&self) -> Version {
        Version { identity: self.identity, size: self.size, mtime: self.mtime, ctime: self.ctime }
    }

    /// Whether the immutable or append-only flag is set.
    pub fn is_locked(&self) -> bool {
        self.immutable || self.append_only
    }

    /// Whether fewer blocks are allocated than the size needs, so that holes are likely.
    pub fn may_have_holes(&self) -> bool {
        self.blocks.saturating_mul(512) < self.size
    }
}

/// One entry as the scan passes it on: it holds no descriptor, so it can be sent to another process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryRecord {
    /// Name in the source directory.
    pub name: Name,
    /// Name in the destination directory if it differs, which happens only for the root of a tree.
    pub renamed: Option<Name>,
    /// The metadata that the scan read.
    pub metadata: Metadata,
    /// The content of a symbolic link.
    pub symlink: Option<Vec<u8>>,
}

impl EntryRecord {
    /// The name in the destination directory.
    pub fn destination_name(&self) -> &Name {
        self.renamed.as_ref().unwrap_or(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation_rounds_towards_the_past_also_before_1970() {
        let t = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
        assert_eq!(t(5, 999).truncated(1_000), t(5, 0));
        assert_eq!(t(-1, 500_000_000).truncated(1_000_000_000), t(-1, 0));
        assert_eq!(t(3, 1).truncated(2_000_000_000), t(2, 0));
        assert_eq!(t(-3, 1).truncated(2_000_000_000), t(-4, 0));
    }
}
