//! Change feeds: they report what has changed at a source, so that a pass need not scan everything.
//!
//! fanotify(7) is one; Lustre's changelogs, `btrfs send --no-data` and `zfs diff` can be others. A feed may report too
//! much, and the same change twice, because the pass checks both sides of each place. It must not report too little: if
//! it is not sure, it reports that it has lost events.
use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::TreePath;

/// A path at the source that may have changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedPlace {
    /// The path below the source.
    pub path: TreePath,
    /// The kind of change.
    pub what: Happened,
}

/// The kinds of change that a path may have seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Happened {
    /// Its content was written, and the writer may not have finished.
    pub written: bool,
    /// It is a directory that was moved here: everything below it is new as well.
    pub arrived: bool,
    /// It was renamed, from or to this path.
    pub moved: bool,
}

impl Happened {
    /// The union of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            // Once the writer has closed the file, or any other change happened, it need not wait any longer.
            written: self.written && other.written,
            arrived: self.arrived || other.arrived,
            moved: self.moved || other.moved,
        }
    }
}

/// The changes since the last call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeedBatch {
    /// The changed paths, in the order of the changes as far as it is known.
    pub places: Vec<ChangedPlace>,
    /// Why other paths may have changed as well: the whole source must be scanned.
    pub lost: Option<String>,
    /// Why a change at an unknown path has happened. Only a full scan finds it, which may wait until it is worthwhile.
    pub elsewhere: Option<String>,
    /// The position up to which the feed was read, for [`ChangeFeed::acknowledge`].
    pub position: u64,
}

/// Why a feed cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedError {
    /// The error, with the path.
    pub message: String,
    /// What the user can do.
    pub hint: String,
}

/// A source of change reports.
pub trait ChangeFeed: Send {
    /// Returns the changes since the last call; waits for changes, but not longer than `most`.
    ///
    /// # Errors
    /// The feed cannot be read any more.
    fn collect(&mut self, most: Duration) -> Result<FeedBatch, FeedError>;

    /// Confirms that all changes up to a position are recorded or copied. A feed on disk may then drop them.
    ///
    /// # Errors
    /// The feed cannot be written any more.
    fn acknowledge(&mut self, position: u64) -> Result<(), FeedError>;
}
