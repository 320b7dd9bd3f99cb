//! Comparing trees: what is compared, and what was found.
use serde::{Deserialize, Serialize};

use crate::{
    ByteRange, Digest, EntryError, EntryKind, FileRef, PathBytes, Record, Timestamp, Version,
};

word_set! {
    /// How an entry differs from what it should be.
    DifferenceKind, DifferenceSet {
        /// It is not there.
        Missing = "missing",
        /// Nothing says that it should be there.
        Extra = "extra",
        /// It has another type.
        Type = "type",
        /// The file has another size.
        Size = "size",
        /// The file has other bytes.
        Content = "content",
        /// The symbolic link leads elsewhere.
        Target = "target",
        /// It is another device.
        Device = "device",
        /// It was last written at another time.
        Mtime = "mtime",
        /// Its permission bits are others.
        Mode = "mode",
        /// Its owner or group is another.
        Owner = "owner",
        /// Names that should be those of one inode are not.
        Links = "links",
        /// An extended attribute is another, missing or too many.
        Xattr = "xattr",
        /// An ACL is another.
        Acl = "acl",
        /// An inode flag is another.
        Flags = "flags",
        /// Its project is another.
        Project = "project",
    }
}

impl DifferenceSet {
    /// Whether what a reader of the entry gets is another.
    pub fn is_of_content(self) -> bool {
        use DifferenceKind::{Content, Device, Missing, Size, Target, Type};
        [Missing, Type, Size, Content, Target, Device].into_iter().any(|kind| self.has(kind))
    }

    /// The members of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.iter().chain(other.iter()).collect()
    }

    /// The words, with commas between them.
    pub fn words(self) -> String {
        self.iter().map(DifferenceKind::word).collect::<Vec<_>>().join(",")
    }
}

/// How closely entries are compared; every level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerifyLevel {
    /// Names and types.
    Exists,
    /// Sizes, what symbolic links contain, device numbers.
    Size,
    /// Times of the last write, owners, permission bits, hard links.
    Mtime,
    /// Digests of content, extended attributes, ACLs, flags.
    Digest,
    /// Every byte.
    Bytes,
}

/// How trees are compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyPolicy {
    /// How closely.
    pub level: VerifyLevel,
    /// Whether what differs is brought over again.
    pub repair: bool,
    /// Whether entries are looked for that should not be there.
    pub extra: bool,
    /// The content of so many of a million files is read; `None`: of all.
    pub sample_millionths: Option<u32>,
    /// Which files a sample takes.
    pub seed: u64,
    /// Entries of the destination that were not changed since then are taken for right.
    pub since: Option<Timestamp>,
    /// Content is read from storage, past the page cache.
    pub stored: bool,
    /// A file that is not proven gets a time of its last write that says that it is not done.
    #[serde(default)]
    pub marks_unproven: bool,
}

/// An entry that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The entry at the destination.
    pub path: PathBytes,
    /// Its type, as it should be.
    pub kind: EntryKind,
    /// How it differs.
    pub kinds: DifferenceSet,
    /// Bytes that differ, in order, as closely as they are known.
    pub ranges: Vec<ByteRange>,
    /// What it is and what it should be.
    pub detail: Vec<DifferenceDetail>,
    /// Whether it was repaired, where that was wanted.
    pub repaired: Option<bool>,
}

impl Difference {
    /// What it is and what it should be, in words. `time` shows a time.
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
    /// In words.
    Words(String),
    /// The time of the last write; each printer shows times in its own form.
    Mtime {
        /// What it is.
        is: Timestamp,
        /// What it should be.
        should: Timestamp,
    },
}

/// What the content of a file is compared with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Against {
    /// This version at the source.
    Source(Version),
    /// What the digests of the pieces in the range should be, and how they are put together.
    Digests(crate::Shape, Vec<Digest>),
}

/// Some bytes of a file that is compared in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompareTask {
    /// The file.
    pub file: FileRef,
    /// The version at the destination.
    pub destination: Version,
    /// What it is compared with.
    pub against: Against,
    /// The bytes; of digests, on borders of pieces.
    pub range: ByteRange,
}

/// The end of a file that was compared in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgeTask {
    /// The file.
    pub file: FileRef,
    /// What a manifest says of it, if it is compared with one.
    pub record: Option<Box<Record>>,
    /// The versions that are compared, of the source if there is one.
    pub versions: (Option<Version>, Version),
    /// So many bytes from the start are for the parts to compare.
    pub compared: u64,
    /// Bytes that differ: those beyond the end of the shorter side, and others filled in by the coordinator.
    pub differing: Vec<ByteRange>,
    /// What went wrong with a part, filled in by the coordinator.
    pub failure: Option<Box<EntryError>>,
    /// How often it was begun, counting from 1.
    pub round: u32,
}

/// Entries to compare with what a manifest says of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordsTask {
    /// What it says.
    pub records: Vec<Record>,
    /// How often they were begun, counting from 1.
    pub round: u32,
}
