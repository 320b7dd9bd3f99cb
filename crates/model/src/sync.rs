//! Synchronising: what a pass makes of the destination beyond copying, and what it may take away there.
use serde::{Deserialize, Serialize};

use crate::{DirectoryRef, EntryKind, Identity, Name, PathBytes, Timestamp, TreePath};

/// When entries go that the source does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeleteWhen {
    /// Directory by directory, as they are read.
    During,
    /// All of them once everything else is done, as they were found on the way.
    Delay,
    /// The same, found by another look at all names of both sides.
    After,
}

/// How much may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeleteLimit {
    /// So many entries.
    Entries(u64),
    /// So many millionths of the entries that the destination has.
    Millionths(u32),
}

/// What becomes of entries at the destination that the source does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletePolicy {
    /// When.
    pub when: DeleteWhen,
    /// At most so many.
    pub limit: Option<DeleteLimit>,
    /// Moved there instead of being removed.
    pub trash: Option<PathBytes>,
    /// Whoever asked has said that it is meant, however much it is. It belongs to a command, not to the work.
    #[serde(default, skip)]
    pub meant: bool,
}

/// How a file that has not changed since the last snapshot gets into the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// As another name of the same inode.
    #[default]
    Link,
    /// As a file of its own that has the same blocks.
    Reflink,
}

/// A pass that makes a snapshot: a tree of its own that shares what has not changed with an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPolicy {
    /// The directory that holds all snapshots of the tree.
    pub directory: PathBytes,
    /// Name of the snapshot that unchanged files come from; `None`: there is none yet.
    pub base: Option<String>,
    /// How they do.
    pub share: Share,
}

/// What tells a pass of `sync` from a copy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SyncPolicy {
    /// Entries that the source does not have go.
    pub delete: Option<DeletePolicy>,
    /// Also if the source has none at all.
    pub allow_empty_source: bool,
    /// Files that look equal are compared byte by byte.
    pub checksum: bool,
    /// The same for those that were changed in any way since they were brought over.
    pub ctime: bool,
    /// What was renamed at the source is renamed at the destination.
    pub renames: bool,
    /// Nothing is spared by deletes, neither a trash nor temporaries: the whole destination is the job's own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clears_all: bool,
    /// It makes a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotPolicy>,
}

/// A name at the destination that the source does not have, as it was when it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraName {
    /// The name.
    pub name: Name,
    /// What it stands for.
    pub kind: EntryKind,
    /// Which object.
    pub identity: Identity,
    /// Number of its names.
    pub links: u64,
    /// Bytes of content.
    pub size: u64,
    /// Last write.
    pub mtime: Timestamp,
    /// Last change.
    pub ctime: Timestamp,
}

/// Names in one directory of the destination that the source does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraNames {
    /// The directory that both sides have.
    pub directory: DirectoryRef,
    /// Where the names are below it, if that is extra as well.
    pub below: TreePath,
    /// The directory that holds them.
    pub holder: Identity,
    /// They have something else's name at the source, which takes their place once they are gone.
    pub in_the_way: bool,
    /// The names.
    pub names: Vec<ExtraName>,
}

impl ExtraNames {
    /// How deep they are: what is deeper goes first.
    pub fn depth(&self) -> usize {
        self.directory.path.depth() + self.below.depth()
    }
}
