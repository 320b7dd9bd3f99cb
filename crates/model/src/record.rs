//! What a manifest says of an entry.
use serde::{Deserialize, Serialize};

use crate::{Digest, EntryKind, Identity, Metadata, Shape, Timestamp, TreePath};

/// The content of a regular file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// How the digest is put together.
    pub shape: Shape,
    /// The digest.
    pub digest: Digest,
    /// Those of its pieces; none if there is only one.
    pub pieces: Vec<Digest>,
}

/// A name and the digest of what it stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedDigest {
    /// The name.
    pub name: serde_bytes::ByteBuf,
    /// BLAKE3 of the value.
    pub digest: Digest,
}

/// What an entry has that no look at it shows. `None`: not kept, so nothing is known of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Extended {
    /// Extended attributes in order of their names, without ACLs and those that belong to a system.
    pub xattrs: Option<Vec<NamedDigest>>,
    /// POSIX ACLs by the names of their attributes, ids mapped.
    pub acls: Option<Vec<NamedDigest>>,
    /// Inode flags (ioctl_iflags(2)), of those that are carried.
    pub flags: Option<u32>,
    /// Project id, and whether a directory hands it down.
    pub project: Option<(u32, bool)>,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Where it is; the root is the base itself.
    pub path: TreePath,
    /// Its metadata and content.
    pub body: Body,
}

/// What is known of an entry besides its path.
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
    /// Size in bytes; of directories 0.
    pub size: u64,
    /// Last write.
    pub mtime: Timestamp,
    /// Names of one inode have the same number here.
    pub link: Option<u64>,
    /// What a symbolic link contains.
    pub symlink: Option<serde_bytes::ByteBuf>,
    /// Major and minor number of a device node.
    pub device: Option<(u32, u32)>,
    /// Attributes, ACLs, flags and project.
    pub extended: Extended,
    /// The content of a regular file, if it was read.
    pub content: Option<Content>,
}

impl Body {
    /// What rules that choose entries want to know; what a manifest does not say is 0.
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
