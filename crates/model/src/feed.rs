//! Change feeds: who tells what has changed at a source, so that a pass need not look at everything.
//!
//! fanotify(7) is one, Lustre's changelogs, `btrfs send --no-data` and `zfs diff` can be others. A feed may tell more than
//! has happened, and the same twice: whoever hears it looks at both sides. It must not tell less; when it cannot be sure,
//! it says that it has lost something.
use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::TreePath;

/// A name at the source of which something may be another than it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedPlace {
    /// Where it is below the source.
    pub path: TreePath,
    /// What has happened there.
    pub what: Happened,
}

/// What may have happened to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Happened {
    /// Its content was written, and whoever did it may not be done.
    pub written: bool,
    /// It is a directory that has come here: everything below it is new here as well.
    pub arrived: bool,
    /// It came from another name, or went to one.
    pub moved: bool,
}

impl Happened {
    /// Both one and the other.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            // Whoever has closed it, or whatever else happened to it, does not have it wait any longer.
            written: self.written && other.written,
            arrived: self.arrived || other.arrived,
            moved: self.moved || other.moved,
        }
    }
}

/// What a feed has to tell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeedBatch {
    /// What has changed, in the order in which it did as far as that is known.
    pub places: Vec<ChangedPlace>,
    /// Why anything else may have changed as well: the whole source has to be looked at.
    pub lost: Option<String>,
    /// Why something else has changed that is not told by its name. It is found by a look at everything, which may wait
    /// until it is worth it.
    pub elsewhere: Option<String>,
    /// How far the feed has been read, for [`ChangeFeed::acknowledge`].
    pub position: u64,
}

/// Why a feed cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedError {
    /// What is the matter, naming the path.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// Who tells what has changed.
pub trait ChangeFeed: Send {
    /// What has changed since it was asked last; waits for it, but not longer than this.
    ///
    /// # Errors
    /// It cannot be read any more.
    fn collect(&mut self, most: Duration) -> Result<FeedBatch, FeedError>;

    /// Everything up to a position is on record, or at the destination. A feed that is kept on disk may forget it.
    ///
    /// # Errors
    /// It cannot be written any more.
    fn acknowledge(&mut self, position: u64) -> Result<(), FeedError>;
}
