//! The record of an entry in a manifest.
use serde::{Deserialize, Serialize};

use crate::{Digest, EntryKind, Identity, Metadata, Shape, Timestamp, TreePath};

/// The content of a regular file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// How the digest is computed.
    pub shape: Shape,
    /// The digest.
    pub digest: Digest,
    /// The digests of its pieces; empty if there is only one piece.
    pub pieces: Vec<Digest>,
}

/// A name and the digest of its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedDigest {
    /// The name.
    pub name: serde_bytes::ByteBuf,
    /// BLAKE3 of the value.
    pub digest: Digest,
}

/// Attributes of an entry that statx does not show. `None`: not recorded, so unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Extended {
    /// Extended attributes sorted by name, without ACLs and attributes of the file system itself.
    pub xattrs: Option<Vec<NamedDigest>>,
    /// POSIX ACLs by attribute name, with mapped ids.
    pub acls: Option<Vec<NamedDigest>>,
    /// Inode flags (ioctl_iflags(2)), only those that dmover copies.
    pub flags: Option<u32>,
    /// Project id, and whether new entries of a directory inherit it.
    pub project: Option<(u32, bool)>,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its path; the root is the base directory itself.
    pub path: TreePath,
    /// Its metadata and content.
    pub body: Body,
}

/// The record of an entry without its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Body {
    /// Type of the entry.
    pub kind: EntryKind,
    /// Permission bits, set-id bits and the sticky bit.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes; 0 for directories.
    pub size: u64,
    /// Last write.
    pub mtime: Timestamp,
    /// A number that all names of one inode share.
    pub link: Option<u64>,
    /// The target of a symbolic link.
    pub symlink: Option<serde_bytes::ByteBuf>,
    /// Major and minor number of a device node.
    pub device: Option<(u32, u32)>,
    /// Attributes, ACLs, flags and project.
    pub extended: Extended,
    /// The content of a regular file, if it was read.
    pub content: Option<Content>,
}

impl Body {
    /// Metadata for rules that select entries; fields that a manifest does not have are 0.
    pub fn metadata(&self) -> Metadata {
        let zero = Timestamp::default();
        Metadata {
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            blocks: 0,
            links: 1,
            device: self.device.unwrap_or_default(),
            identity: Identity::default(),
            atime: zero,
            mtime: self.mtime,
            ctime: zero,
            immutable: false,
            append_only: false,
        }
    }
}
