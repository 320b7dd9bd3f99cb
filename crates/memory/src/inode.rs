//! One inode: its kind, its attributes, and what it holds.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dmover_model::{EntryKind, Identity, Metadata, MountId, Timestamp};

use crate::content::Content;

/// What `chmod`, `chown`, `utimensat` and the flags change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, set-id bits and the sticky bit (`07777`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last write.
    pub mtime: Timestamp,
    /// Last change.
    pub ctime: Timestamp,
    /// Creation.
    pub birth: Timestamp,
    /// Whether nothing can be changed.
    pub immutable: bool,
    /// Whether content and names can only be added.
    pub append_only: bool,
}

impl Attributes {
    /// Those of an entry that is created now.
    pub(crate) fn new(mode: u32, (uid, gid): (u32, u32), now: Timestamp) -> Self {
        let (atime, mtime, ctime, birth) = (now, now, now, now);
        Self { mode, uid, gid, atime, mtime, ctime, birth, immutable: false, append_only: false }
    }
}

/// The name of an entry, and the inode that it leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: Box<[u8]>,
    pub inode: u64,
}

/// The names in a directory, and their order in a listing.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// By the form in which names are compared.
    pub by_key: BTreeMap<Box<[u8]>, Entry>,
    /// The order of a listing: a number, then the key.
    pub order: BTreeSet<(u64, Box<[u8]>)>,
    /// The directory above; the root is above itself.
    pub parent: u64,
    /// Its name there.
    pub name: Box<[u8]>,
}

/// What an inode holds.
#[derive(Debug, Clone)]
pub enum Body {
    File(Content),
    Directory(Names),
    Symlink(Arc<[u8]>),
    /// Major and minor number of a device, else 0, 0.
    Special((u32, u32)),
}

/// One inode.
#[derive(Debug, Clone)]
pub struct Inode {
    pub kind: EntryKind,
    pub attributes: Attributes,
    pub xattrs: BTreeMap<Box<[u8]>, Arc<[u8]>>,
    pub links: u64,
    pub body: Body,
}

impl Inode {
    /// Its content, if it is a regular file.
    pub fn content(&self) -> Option<&Content> {
        match &self.body {
            Body::File(content) => Some(content),
            _ => None,
        }
    }

    /// Its names, if it is a directory.
    pub fn names(&self) -> Option<&Names> {
        match &self.body {
            Body::Directory(names) => Some(names),
            _ => None,
        }
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == EntryKind::Directory
    }

    /// Blocks that its owner pays for.
    pub fn owned_blocks(&self) -> u64 {
        self.content().map_or(0, Content::owned_blocks)
    }

    /// What `statx` shows.
    pub fn metadata(&self, mount: MountId, inode: u64, counts_subdirectories: bool) -> Metadata {
        let (size, blocks, device) = match &self.body {
            Body::File(content) => (content.size(), content.allocated_bytes() / 512, (0, 0)),
            Body::Directory(_) => (4096, 8, (0, 0)),
            Body::Symlink(target) => (target.len() as u64, 0, (0, 0)),
            Body::Special(device) => (0, 0, *device),
        };
        let has_one_name = self.is_directory() && !counts_subdirectories;
        let links = if has_one_name { self.links.min(1) } else { self.links };
        let of = &self.attributes;
        Metadata {
            kind: self.kind,
            mode: of.mode,
            uid: of.uid,
            gid: of.gid,
            size,
            blocks,
            links,
            device,
            identity: Identity { mount, inode },
            atime: of.atime,
            mtime: of.mtime,
            ctime: of.ctime,
            immutable: of.immutable,
            append_only: of.append_only,
        }
    }
}
