//! The catalog: what a pass saw on both sides. The next pass detects renames with it.
use serde::{Deserialize, Serialize};

use crate::{EntryKind, Name, Timestamp, TreePath};

/// An object of one file system, distinguished from a later object that reuses its inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Object {
    /// Its inode number.
    pub inode: u64,
    /// The time of its creation; `None` where the file system does not keep it.
    pub birth: Option<Timestamp>,
}

impl Object {
    /// Whether both are certainly the same object; without a creation time this is never certain.
    pub fn is_surely(&self, other: &Self) -> bool {
        self.birth.is_some() && self == other
    }
}

/// The state of a directory before its names were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryState {
    /// The directory.
    pub object: Object,
    /// Last change of its names (mtime).
    pub mtime: Timestamp,
    /// Last change of any kind (ctime).
    pub ctime: Timestamp,
}

/// A source directory to check again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revisit {
    /// Its expected path.
    pub path: TreePath,
    /// Its inode number.
    pub inode: u64,
    /// Its state when its names were last read; `None`: read the names in any case.
    pub known: Option<DirectoryState>,
}

/// A name as listed in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedName {
    /// The name.
    pub name: Name,
    /// Its inode number.
    pub inode: u64,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// An entry that is equal on both sides.
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

/// A rename that was made at the source and must be repeated at the destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Its number.
    pub number: u64,
    /// The entry that is renamed.
    pub entry: CatalogEntry,
    /// The present path of its copy at the destination.
    pub from: TreePath,
    /// Its path at the source, which its copy gets.
    pub to: TreePath,
    /// The entry at the new path is needed elsewhere: the two entries are exchanged.
    pub exchange: bool,
    /// The entry at the new path is a copy of an entry that the source no longer has there.
    pub replaces: bool,
}

/// The result of a [`Move`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoveResult {
    /// It was renamed.
    Moved,
    /// It was exchanged with the entry at the new path.
    Exchanged,
    /// It was not renamed, and is copied as a new entry.
    Left,
}

/// One finding of a check of directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Surveyed {
    /// The names of a source directory are unchanged.
    Unchanged {
        /// The inode of the directory.
        inode: u64,
        /// Its path.
        path: TreePath,
    },
    /// Names of a changed or new directory; more follow unless this is the `last` message.
    Listed {
        /// The directory.
        object: Object,
        /// Its path.
        path: TreePath,
        /// Some of its names.
        names: Vec<ListedName>,
        /// No more names follow.
        last: bool,
    },
    /// A rename has ended.
    Moved(u64, MoveResult),
    /// A directory was entered whose path may lead to another directory later.
    Entered {
        /// The source directory; its creation time is only known if it is `late`.
        object: Object,
        /// Its path.
        path: TreePath,
        /// The inode of its parent directory.
        above: u64,
        /// It was changed since the pass began, and the pass did not create it: another directory may have had this
        /// path when names were compared.
        late: bool,
    },
    /// An entry of a directory was copied.
    Touched {
        /// The source directory.
        inode: u64,
        /// Its path.
        path: TreePath,
    },
    /// An existing name has a new version.
    Renewed {
        /// The directory at the source.
        directory: u64,
        /// The name.
        name: Name,
        /// The entry as both sides have it.
        entry: Box<CatalogEntry>,
    },
    /// The entry under one name.
    Named {
        /// The directory at the source.
        directory: u64,
        /// The name.
        name: Name,
        /// The entry that both sides have; `None`: they differ, or there is no entry.
        entry: Option<Box<CatalogEntry>>,
        /// Its path, if it is a directory that was changed or renamed since the pass began.
        recent: Option<TreePath>,
    },
    /// Entries of a directory that are equal on both sides.
    Recorded(Box<Segment>),
}

impl Surveyed {
    /// How many names its lists hold.
    pub fn names(&self) -> usize {
        match self {
            Self::Listed { names, .. } => names.len(),
            Self::Recorded(segment) => segment.entries.len() + segment.left.len(),
            _ => 0,
        }
    }
}

/// A part of what is known about a directory, sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The directory at the source.
    pub state: DirectoryState,
    /// Its copy at the destination.
    pub copy: Object,
    /// Its path.
    pub path: TreePath,
    /// Entries.
    pub entries: Vec<CatalogEntry>,
    /// Names of directories in `entries` that were changed or renamed since the pass began.
    pub recent: Vec<Name>,
    /// Names that only the destination has; they identify entries that were renamed after they were copied.
    pub left: Vec<(Name, Object)>,
    /// Whether `entries` holds all entries of the source, and none was being changed.
    pub settled: bool,
    /// This is the first part of the directory.
    pub first: bool,
    /// This is the last part of the directory.
    pub last: bool,
}
