//! Comparison of trees: the options, tasks and results.
use serde::{Deserialize, Serialize};

use crate::{
    ByteRange, Digest, EntryError, EntryKind, ErrorClass, FileRef, Operation, PathBytes, Record,
    Side, Timestamp, Version,
};

word_set! {
    /// How an entry differs from what it should be.
    DifferenceKind, DifferenceSet {
        /// It does not exist.
        Missing = "missing",
        /// It should not exist.
        Extra = "extra",
        /// It has another type.
        Type = "type",
        /// The file has another size.
        Size = "size",
        /// The content of the file differs.
        Content = "content",
        /// The symbolic link has another target.
        Target = "target",
        /// It is a device with another number.
        Device = "device",
        /// Its modification time differs.
        Mtime = "mtime",
        /// Its permission bits differ.
        Mode = "mode",
        /// Its owner or group differs.
        Owner = "owner",
        /// Names that should be hard links of one inode are not.
        Links = "links",
        /// An extended attribute differs, is missing or is extra.
        Xattr = "xattr",
        /// An ACL differs.
        Acl = "acl",
        /// An inode flag differs.
        Flags = "flags",
        /// Its project id differs.
        Project = "project",
    }
}

impl DifferenceSet {
    /// Whether a reader of the entry would get something else.
    pub fn is_of_content(self) -> bool {
        use DifferenceKind::{Content, Device, Missing, Size, Target, Type};
        [Missing, Type, Size, Content, Target, Device].into_iter().any(|kind| self.has(kind))
    }

    /// The union of both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.iter().chain(other.iter()).collect()
    }

    /// The words, separated by commas.
    pub fn words(self) -> String {
        self.iter().map(DifferenceKind::word).collect::<Vec<_>>().join(",")
    }
}

/// How thoroughly to compare entries; each level includes the previous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerifyLevel {
    /// Names and types.
    Exists,
    /// Sizes, targets of symbolic links, device numbers.
    Size,
    /// Modification times, owners, permission bits, hard links.
    Mtime,
    /// Digests of content, extended attributes, ACLs, flags.
    Digest,
    /// Every byte.
    Bytes,
}

/// How to compare trees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyPolicy {
    /// The level.
    pub level: VerifyLevel,
    /// Whether to copy differing entries again.
    pub repair: bool,
    /// Whether to report entries that should not exist.
    pub extra: bool,
    /// How many of a million files have their content read; `None`: all files.
    pub sample_millionths: Option<u32>,
    /// The seed that selects the files of a sample.
    pub seed: u64,
    /// Entries of the destination that did not change since this time are accepted without a comparison.
    pub since: Option<Timestamp>,
    /// Whether to read content from storage, past the page cache.
    pub stored: bool,
    /// Whether to mark a file that is not verified by a special modification time, so that the next run copies it
    /// again.
    #[serde(default)]
    pub marks_unproven: bool,
}

/// An entry that differs from what it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The entry at the destination.
    pub path: PathBytes,
    /// The type that it should have.
    pub kind: EntryKind,
    /// How it differs.
    pub kinds: DifferenceSet,
    /// Ranges that differ, in order, as exactly as they are known.
    pub ranges: Vec<ByteRange>,
    /// For each difference, what it is and what it should be.
    pub detail: Vec<DifferenceDetail>,
    /// Whether it was repaired; `None` if no repair was requested.
    pub repaired: Option<bool>,
}

impl Difference {
    /// The difference as an error of its entry: what was written does not read back equal.
    pub fn as_error(&self) -> EntryError {
        let words = self.words(|time| time.seconds.to_string());
        EntryError {
            side: Side::Destination,
            operation: Operation::Check,
            path: self.path.clone(),
            class: ErrorClass::Integrity,
            errno: 0,
            detail: format!("read back differs: {words}"),
            attempt: 1,
        }
    }

    /// The details in words. `time` formats a time.
    pub fn words(&self, time: impl Fn(Timestamp) -> String) -> String {
        let words = |detail: &DifferenceDetail| match detail {
            DifferenceDetail::Words(words) => words.clone(),
            DifferenceDetail::Mtime { is, should } => {
                let word = DifferenceKind::Mtime.word();
                format!("{word} {} instead of {}", time(*is), time(*should))
            }
        };
        self.detail.iter().map(words).collect::<Vec<_>>().join("; ")
    }
}

/// One way in which an entry differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DifferenceDetail {
    /// A description in words.
    Words(String),
    /// The modification time; each printer has its own time format.
    Mtime {
        /// The present time.
        is: Timestamp,
        /// The expected time.
        should: Timestamp,
    },
}

/// What to compare the content of a file with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Against {
    /// The source, in this version.
    Source(Version),
    /// These digests of the pieces in the range, and how they are computed.
    Digests(crate::Shape, Vec<Digest>),
}

/// A task that compares a range of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompareTask {
    /// The file.
    pub file: FileRef,
    /// The version at the destination.
    pub destination: Version,
    /// What to compare it with.
    pub against: Against,
    /// The range; aligned to pieces if it is compared with digests.
    pub range: ByteRange,
}

/// The last task of a file that was compared in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishCompareTask {
    /// The file.
    pub file: FileRef,
    /// Its record in the manifest, if it is compared with one.
    pub record: Option<Box<Record>>,
    /// The compared versions: of the source if there is one, and of the destination.
    pub versions: (Option<Version>, Version),
    /// The number of bytes from the start that the parts compare.
    pub compared: u64,
    /// Ranges that differ: bytes beyond the end of the shorter side, and ranges filled in by the coordinator.
    pub differing: Vec<ByteRange>,
    /// The failure of a part, filled in by the coordinator.
    pub failure: Option<Box<EntryError>>,
    /// The number of attempts, counting from 1.
    pub round: u32,
}

/// A task that compares entries with their records in a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordsTask {
    /// The records.
    pub records: Vec<Record>,
    /// The number of attempts, counting from 1.
    pub round: u32,
}
