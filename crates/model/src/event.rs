//! What a job tells those who watch it. Text, JSON and tests are all fed from this one enum.
use serde::{Deserialize, Serialize};

use crate::{
    Difference, EntryError, EntryKind, FileDigest, HashType, JobId, Limit, LossKind, PathBytes,
    Verdict,
};

/// What was done with one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It was not there and is now.
    Created,
    /// Another version or type stood there and was replaced.
    Replaced,
    /// It was written into the existing file.
    Updated,
    /// A hard link to an entry that was copied.
    Linked,
    /// It is as in the snapshot before, and was shared with it.
    Shared,
    /// It was renamed, as its source was; `target` is the new name.
    Renamed,
    /// Its content was right, and its owner, mode or other attributes were set.
    Dressed,
    /// It was equal already.
    Skipped,
    /// It was removed, because the source does not have it.
    Deleted,
    /// It was moved to the trash, because the source does not have it.
    Trashed,
    /// A rule or the policy left it out.
    Excluded,
}

/// One entry that was dealt with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Path at the source.
    pub path: PathBytes,
    /// Path at the destination.
    pub target: PathBytes,
    /// What was done.
    pub action: Action,
    /// Type of the entry.
    pub kind: EntryKind,
    /// Bytes of content moved.
    pub bytes: u64,
    /// Time it took in microseconds.
    pub elapsed_us: u64,
    /// The 11 columns of rsync's itemize format.
    pub itemized: String,
}

/// Things worth saying that are no failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// Without privilege the owner could not be kept.
    OwnerNotKept,
    /// Set-id bits were dropped because the owner could not be kept.
    SetIdDropped,
    /// Without privilege an attribute such as a capability could not be set.
    PrivilegedAttribute,
    /// A leftover of an interrupted run was removed.
    LeftoverRemoved,
    /// A temporary of this or another run was met in the source and skipped.
    TemporarySkipped,
    /// The file system's own attribute was not carried over (SELinux, IMA, Lustre).
    SystemAttribute,
    /// The source's file system updates access times whatever it is asked; told once a file system.
    SourceAtimeTouched,
    /// Somebody had a file open for writing while it was read.
    OpenForWriting,
}

/// One thing that happened in a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Event {
    /// The job begins.
    Start {
        /// Its id.
        job: JobId,
        /// Where the entries go, after the decision between inside and as.
        targets: Vec<PathBytes>,
        /// Whether nothing is written.
        dry_run: bool,
    },
    /// An entry was dealt with.
    Item(Item),
    /// A file was hashed.
    Digest(FileDigest),
    /// A file was compared with what a list says of it.
    Checked {
        /// The file.
        path: PathBytes,
        /// Its place in the list.
        number: u64,
        /// What was found.
        verdict: Verdict,
        /// The function that matched, where the list does not name it.
        guessed: Option<HashType>,
    },
    /// An entry is not as it should be.
    Difference(Difference),
    /// An entry failed.
    Error(EntryError),
    /// An entry arrived without an attribute.
    Loss {
        /// Path at the destination.
        path: PathBytes,
        /// What was lost.
        kind: LossKind,
        /// In words.
        detail: String,
        /// Accepted by `--allow-loss`.
        allowed: bool,
    },
    /// Something worth saying.
    Note {
        /// About which path.
        path: PathBytes,
        /// What.
        note: Note,
    },
    /// What keeps the job from being faster has become something else.
    Limit(Limit),
    /// Nothing is deleted, or nothing more.
    Withheld {
        /// Why, in words.
        reason: String,
        /// What to do.
        advice: String,
        /// Entries that have gone before.
        deleted: u64,
        /// It is what the run itself would do that a dry run is about.
        dry_run: bool,
    },
    /// Something about movers elsewhere that a person should know.
    Movers {
        /// In words.
        words: String,
    },
    /// The job stops taking new work.
    Paused {
        /// In words.
        reason: String,
    },
}
