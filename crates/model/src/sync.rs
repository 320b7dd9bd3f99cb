//! The policy of `sync`: what a pass does beyond copying, and what it may delete at the destination.
use serde::{Deserialize, Serialize};

use crate::{DirectoryRef, EntryKind, Identity, Name, PathBytes, Timestamp, TreePath};

/// When to delete entries that the source does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeleteWhen {
    /// In each directory when it is read.
    During,
    /// After everything else; the entries were found during the pass.
    Delay,
    /// After everything else; the entries are found by a second scan of all names on both sides.
    After,
}

/// The limit of deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeleteLimit {
    /// This many entries.
    Entries(u64),
    /// This many millionths of the entries of the destination.
    Millionths(u32),
}

/// Which deletes the command confirms that would otherwise be refused or need an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Confirmed {
    /// None.
    #[default]
    None,
    /// Those within its limit, unless DEST seems to hold a copy of SOURCE among other entries.
    Limit,
    /// All of them.
    All,
}

/// What to do with destination entries that the source does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletePolicy {
    /// When to delete them.
    pub when: DeleteWhen,
    /// The most entries to delete.
    pub limit: Option<DeleteLimit>,
    /// The directory to move them to, instead of deleting them.
    pub trash: Option<PathBytes>,
    /// Which deletes are confirmed. This belongs to one command, not to the job.
    #[serde(default, skip)]
    pub confirmed: Confirmed,
}

/// How an unchanged file becomes part of the next snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// As a hard link to the same inode.
    #[default]
    Link,
    /// As a separate file that shares blocks (reflink).
    Reflink,
}

/// A pass that creates a snapshot: a separate tree that shares unchanged files with an earlier snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPolicy {
    /// The directory that holds all snapshots of the tree.
    pub directory: PathBytes,
    /// The snapshot that unchanged files are shared with; `None`: this is the first snapshot.
    pub base: Option<String>,
    /// How files are shared.
    pub share: Share,
}

/// Options of a `sync` pass beyond those of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SyncPolicy {
    /// Delete entries that the source does not have.
    pub delete: Option<DeletePolicy>,
    /// Delete even if the source has no entries.
    pub allow_empty_source: bool,
    /// Compare files that look equal byte by byte.
    pub checksum: bool,
    /// Compare also files whose ctime changed after they were copied.
    pub ctime: bool,
    /// Repeat renames of the source at the destination.
    pub renames: bool,
    /// Delete trash directories and temporary files as well: the whole destination belongs to the job.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clears_all: bool,
    /// Create a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotPolicy>,
}

/// A destination name that the source does not have, with its state when it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraName {
    /// The name.
    pub name: Name,
    /// Its type.
    pub kind: EntryKind,
    /// Its identity.
    pub identity: Identity,
    /// Number of its hard links.
    pub links: u64,
    /// Bytes of content.
    pub size: u64,
    /// Last write.
    pub mtime: Timestamp,
    /// Last change.
    pub ctime: Timestamp,
}

/// Names in one destination directory that the source does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraNames {
    /// The directory that both sides have.
    pub directory: DirectoryRef,
    /// The path of the names below that directory, if their own directory is extra as well.
    pub below: TreePath,
    /// The directory that holds them.
    pub holder: Identity,
    /// The source has other entries under these names, which are copied after the deletes.
    pub in_the_way: bool,
    /// The names.
    pub names: Vec<ExtraName>,
}

impl ExtraNames {
    /// Whether other names are in the same directory. Names in the way of others are on their own: what needs the place of one that
    /// has gone is looked for again.
    pub fn is_beside(&self, other: &Self) -> bool {
        let Self { directory, below, holder, in_the_way, .. } = other;
        (&self.directory, &self.below, self.holder) == (directory, below, *holder)
            && !(self.in_the_way || *in_the_way)
    }

    /// Their depth: deeper names are deleted first.
    pub fn depth(&self) -> usize {
        self.directory.path.depth() + self.below.depth()
    }
}
