//! Events of a job. Text output, JSON output and tests all use this one enum.
use serde::{Deserialize, Serialize};

use crate::{
    Difference, EntryError, EntryKind, FileDigest, HashType, JobId, Limit, LossKind, PathBytes,
    Verdict,
};

/// The action on one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It did not exist and was created.
    Created,
    /// Another version or type existed and was replaced.
    Replaced,
    /// Content was written into the existing file.
    Updated,
    /// It became a hard link to a copied entry.
    Linked,
    /// It is unchanged since the previous snapshot and shared with it.
    Shared,
    /// It was renamed to follow a rename at the source; `target` is the new name.
    Renamed,
    /// Its content was equal; its owner, mode or other attributes were set.
    MetadataUpdated,
    /// It was already equal.
    Skipped,
    /// It was deleted, because the source does not have it.
    Deleted,
    /// It was moved to the trash, because the source does not have it.
    Trashed,
    /// A rule or the policy excluded it.
    Excluded,
}

/// One entry that was processed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Path at the source.
    pub path: PathBytes,
    /// Path at the destination.
    pub target: PathBytes,
    /// The action.
    pub action: Action,
    /// Type of the entry.
    pub kind: EntryKind,
    /// Bytes of content copied.
    pub bytes: u64,
    /// Duration in microseconds.
    pub elapsed_us: u64,
    /// The 11 columns of rsync's itemize format.
    pub itemized: String,
}

/// A remark about an entry that is not a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// The owner was not kept, because that needs privilege.
    OwnerNotKept,
    /// Set-id bits were dropped, because the owner was not kept.
    SetIdDropped,
    /// An attribute such as a capability was not set, because that needs privilege.
    PrivilegedAttribute,
    /// A leftover of an interrupted run was removed.
    LeftoverRemoved,
    /// A temporary file of dmover was found in the source and skipped.
    TemporarySkipped,
    /// An attribute of the file system itself was not copied (SELinux, IMA, Lustre).
    SystemAttribute,
    /// The source file system updates access times although dmover asks it not to; reported once for each file system.
    SourceAtimeTouched,
    /// Another program had the file open for writing while it was read.
    OpenForWriting,
    /// A user or a group of the source has no account of its name at the destination, so its number was kept.
    OwnerWithoutAccount,
}

/// One event of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Event {
    /// The job begins.
    Start {
        /// Its id.
        job: JobId,
        /// The final destination paths, after the decision whether SOURCE goes into DEST or becomes DEST.
        targets: Vec<PathBytes>,
        /// Whether this is a dry run.
        dry_run: bool,
    },
    /// An entry was processed.
    Item(Item),
    /// A file was hashed.
    Digest(FileDigest),
    /// A file was checked against a list.
    Checked {
        /// The file.
        path: PathBytes,
        /// Its index in the list.
        number: u64,
        /// The result.
        verdict: Verdict,
        /// The hash function that matched, if the list does not name it.
        guessed: Option<HashType>,
    },
    /// An entry differs from what it should be.
    Difference(Difference),
    /// An entry failed.
    Error(EntryError),
    /// An entry was copied without an attribute.
    Loss {
        /// Path at the destination.
        path: PathBytes,
        /// The kind of attribute that was lost.
        kind: LossKind,
        /// Details in words.
        detail: String,
        /// Accepted by `--allow-loss`.
        allowed: bool,
    },
    /// A remark about an entry.
    Note {
        /// The entry.
        path: PathBytes,
        /// The remark.
        note: Note,
        /// What it is about, in words.
        detail: Option<String>,
    },
    /// The limit of the job's speed has changed.
    Limit(Limit),
    /// No entries, or no further entries, are deleted.
    Withheld {
        /// The reason, in words.
        reason: String,
        /// What the user can do.
        advice: String,
        /// Number of entries deleted before.
        deleted: u64,
        /// This is a dry run; the event says what a real run would do.
        dry_run: bool,
    },
    /// Something about movers that the user should know.
    Movers {
        /// The message.
        words: String,
    },
    /// dmover cannot lock a directory that the job writes to, so another job may write there at the same time.
    Unlocked {
        /// The directory.
        path: PathBytes,
        /// The reason.
        reason: String,
    },
    /// The job takes no new work.
    Paused {
        /// The reason, in words.
        reason: String,
    },
}
