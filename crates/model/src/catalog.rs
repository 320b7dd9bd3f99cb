//! The catalog: what a pass saw of both sides, by which the next one knows what was renamed.
use serde::{Deserialize, Serialize};

use crate::{EntryKind, Name, Timestamp, TreePath};

/// An object of one file system, told from a later one that has got its inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Object {
    /// Its inode number.
    pub inode: u64,
    /// When it was made; `None` where the file system does not keep that.
    pub birth: Option<Timestamp>,
}

impl Object {
    /// Whether both are surely the same: without a time of birth nothing is sure.
    pub fn is_surely(&self, other: &Self) -> bool {
        self.birth.is_some() && self == other
    }
}

/// A directory as it was before its names were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryState {
    /// Which one.
    pub object: Object,
    /// Last change of its names.
    pub mtime: Timestamp,
    /// Last change of any kind.
    pub ctime: Timestamp,
}

/// A source directory that is to be looked at again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revisit {
    /// Where it should be.
    pub path: TreePath,
    /// Which one it is.
    pub inode: u64,
    /// As it was when its names were last read; `None`: they are to be read in any case.
    pub known: Option<DirectoryState>,
}

/// A name as a directory has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedName {
    /// The name.
    pub name: Name,
    /// The inode that it stands for.
    pub inode: u64,
    /// A directory.
    pub is_directory: bool,
}

/// An entry that both sides have, and have alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogEntry {
    /// Its name.
    pub name: Name,
    /// Its type.
    pub kind: EntryKind,
    /// The object at the source.
    pub source: Object,
    /// Its copy at the destination.
    pub copy: Object,
    /// Bytes of content.
    pub size: u64,
    /// Last write.
    pub mtime: Timestamp,
}

/// A rename that was made at the source and is to be made at the destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Its number.
    pub number: u64,
    /// What is renamed.
    pub entry: CatalogEntry,
    /// Where its copy is at the destination.
    pub from: TreePath,
    /// Where it is at the source, and its copy is to be.
    pub to: TreePath,
    /// What stands there is wanted elsewhere: both change places.
    pub exchange: bool,
    /// What stands there is the copy of something that the source does not have there any more.
    pub replaces: bool,
}

/// What became of a [`Move`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoveResult {
    /// It was renamed.
    Moved,
    /// It changed places with what stood there.
    Exchanged,
    /// It was not, and is brought over like anything that is new.
    Left,
}

/// What a look at directories has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Surveyed {
    /// A source directory has the names that it had.
    Unchanged {
        /// Which one.
        inode: u64,
        /// Where it is.
        path: TreePath,
    },
    /// Names of one that has not, or was not known; more of them follow unless this is the `last`.
    Listed {
        /// The directory.
        object: Object,
        /// Where it is.
        path: TreePath,
        /// Names of it.
        names: Vec<ListedName>,
        /// There are no more.
        last: bool,
    },
    /// A rename has come to its end.
    Moved(u64, MoveResult),
    /// A directory was entered, of which a later look at its path may find another.
    Entered {
        /// Which one, at the source; when it was born is told of a `late` one.
        object: Object,
        /// Where it is.
        path: TreePath,
        /// The directory above it.
        above: u64,
        /// It was changed since the pass began, and not made by it: another one may have stood here when names were compared.
        late: bool,
    },
    /// Something in a directory was brought over.
    Touched {
        /// Which one, at the source.
        inode: u64,
        /// Where it is.
        path: TreePath,
    },
    /// Another version stands under a name that was there before.
    Renewed {
        /// The directory at the source.
        directory: u64,
        /// The name.
        name: Name,
        /// What both sides have.
        entry: Box<CatalogEntry>,
    },
    /// What stands under one name.
    Named {
        /// The directory at the source.
        directory: u64,
        /// The name.
        name: Name,
        /// What both sides have; `None`: not the same, or nothing.
        entry: Option<Box<CatalogEntry>>,
        /// Where it is, if it is a directory that was changed, or renamed, since the pass began.
        recent: Option<TreePath>,
    },
    /// Entries that both sides of a directory have alike.
    Recorded(Box<Segment>),
}

impl Surveyed {
    /// How many names it carries in lists.
    pub fn names(&self) -> usize {
        match self {
            Self::Listed { names, .. } => names.len(),
            Self::Recorded(segment) => segment.entries.len() + segment.left.len(),
            _ => 0,
        }
    }
}

/// Part of what is known of a directory, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The directory at the source.
    pub state: DirectoryState,
    /// Its copy.
    pub copy: Object,
    /// Where it is.
    pub path: TreePath,
    /// Entries.
    pub entries: Vec<CatalogEntry>,
    /// Names of those directories among them that were changed, or renamed, since the pass began.
    pub recent: Vec<Name>,
    /// Names that only the destination has: what was renamed after it was brought over is known by them.
    pub left: Vec<(Name, Object)>,
    /// Whether `entries` are all that the source has, and nothing was going on.
    pub settled: bool,
    /// The first part of this directory.
    pub first: bool,
    /// The last part of it.
    pub last: bool,
}
