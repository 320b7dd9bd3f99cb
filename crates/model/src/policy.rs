//! How a job copies: which attributes it keeps, which entries it replaces, and which losses it accepts.
use serde::{Deserialize, Serialize};

use crate::ByteRange;

word_set! {
    /// An attribute of an entry that `--preserve` can name.
    Attribute, AttributeSet {
        /// Permission bits, set-id bits and the sticky bit.
        Mode = "mode",
        /// Owner and group.
        Owner = "owner",
        /// Access and modification time.
        Times = "times",
        /// Hard links between copied entries.
        Links = "links",
        /// Extended attributes, including capabilities.
        Xattr = "xattr",
        /// POSIX access and default ACLs.
        Acl = "acl",
        /// Inode flags (`chattr`).
        Flags = "flags",
        /// Project id and project inheritance.
        Project = "project",
    }
}

word_set! {
    /// A kind of lost attribute, for counting and for `--allow-loss`.
    LossKind, LossSet {
        /// An extended attribute.
        Xattr = "xattr",
        /// An ACL.
        Acl = "acl",
        /// A file capability.
        Capability = "capability",
        /// An inode flag.
        Flags = "flags",
        /// A project id.
        Project = "project",
        /// A time outside the range or finer than the resolution of the destination.
        Times = "times",
        /// Permission bits that the destination does not keep.
        Mode = "mode",
        /// An owner that the destination does not keep.
        Owner = "owner",
        /// A hard link that became a separate file.
        Links = "links",
    }
}

/// What to do with an existing destination entry that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overwrite {
    /// Replace it unless type, size and modification time are equal.
    #[default]
    Changed,
    /// Replace it even if it looks equal.
    Always,
    /// Skip whatever exists.
    Never,
    /// Replace it only if the source is newer.
    Older,
}

/// `auto`, `always` or `never`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Where it is possible and useful.
    #[default]
    Auto,
    /// Required.
    Always,
    /// Forbidden.
    Never,
}

/// How content is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyEngine {
    /// Chosen for each file from its size and the features of both file systems.
    #[default]
    Auto,
    /// Inside the kernel (copy_file_range) where possible, otherwise through the page cache.
    Kernel,
    /// Read and written through the page cache.
    Buffered,
    /// Read and written past the page cache (O_DIRECT) where possible.
    Direct,
    /// The same with reads and writes of one file overlapping (io_uring).
    Uring,
}

/// How to keep the old version of a replaced entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    /// Numbered backups (`name.~1~`) instead of one with the suffix.
    pub numbered: bool,
    /// Appended to the name, `~` by default.
    pub suffix: Vec<u8>,
}

/// `--offset`, `--length` and `--dst-offset`: copy only parts of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeCopy {
    /// Ranges of the source; an end of `u64::MAX` means the end of the file.
    pub ranges: Vec<ByteRange>,
    /// The destination offset of the first source byte; `None` keeps the offset of each range.
    pub destination_offset: Option<u64>,
}

/// One rule of the id map: ids `from .. from + count` become `to ..`. A count of 0: all ids become `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRule {
    /// First source id.
    pub from: u32,
    /// Its destination id.
    pub to: u32,
    /// How many consecutive ids the rule covers; 0: all, for those that no rule before it covers.
    pub count: u32,
}

/// One side of a rule by names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccountKey {
    /// A number.
    Id(u32),
    /// A name: one of the host of the source on the left, of the destination on the right.
    Name(String),
    /// All that no other rule covers; only on the left.
    Others,
}

/// A rule of which at least one side is a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRule {
    /// Who it is at the source.
    pub from: AccountKey,
    /// Who becomes the owner at the destination.
    pub to: AccountKey,
}

/// Rules by names; the first one for an account counts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NameTables {
    /// For users.
    pub users: Vec<NameRule>,
    /// For groups.
    pub groups: Vec<NameRule>,
}

impl NameTables {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }
}

/// How to copy entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyPolicy {
    /// Attributes to keep.
    pub preserve: AttributeSet,
    /// Attributes that the user named explicitly: the job is refused if the destination cannot hold them.
    pub demanded: AttributeSet,
    /// Losses that do not count as failures.
    pub allow_loss: LossSet,
    /// What to do with existing entries that differ.
    pub overwrite: Overwrite,
    /// Backups of replaced entries.
    pub backup: Option<Backup>,
    /// Write into existing files instead of replacing them.
    pub inplace: bool,
    /// Send files of another host whole, also if the destination has an older version.
    #[serde(default)]
    pub whole_files: bool,
    /// Only these ranges of one file.
    pub range: Option<RangeCopy>,
    /// Files larger than this are cut into chunks of this size; `None` chooses by size.
    pub split_bytes: Option<u64>,
    /// Whether runs of zeroes become holes.
    pub sparse: When,
    /// Whether blocks may be shared with the source.
    pub reflink: When,
    /// How to copy content.
    pub engine: CopyEngine,
    /// Bytes in one read or write; `None` chooses.
    pub buffer_bytes: Option<u64>,
    /// Whether files are read past the page cache.
    pub direct_read: When,
    /// Whether files are written past the page cache.
    pub direct_write: When,
    /// Drop what was read from the page cache.
    pub forget_read: bool,
    /// Drop what was written from the page cache, once it is on storage.
    pub forget_written: bool,
    /// Flush every file before it gets its times.
    pub fsync: bool,
    /// Keep the restrictive permission bits used during the copy.
    pub skip_chmod: bool,
    /// Only report what a run would do.
    pub dry_run: bool,
    /// The digest of content to compute.
    pub digest: Option<crate::DigestPolicy>,
    /// Whether to report digests of copied files, with the paths of this side.
    pub print_hash: Option<crate::Side>,
    /// How to compare entries instead of copying them.
    pub verify: Option<crate::VerifyPolicy>,
    /// How to make the destination match the source.
    pub sync: Option<crate::SyncPolicy>,
    /// Owner mapping, first match wins.
    pub user_map: Vec<IdRule>,
    /// Group mapping, first match wins.
    pub group_map: Vec<IdRule>,
    /// Owners without a rule, and those in ACLs, get the number that their name has at the destination.
    #[serde(default)]
    pub owners_by_name: bool,
    /// Owner and group mapping by names, for ids that no rule of numbers covers.
    #[serde(default)]
    pub names: NameTables,
    /// Mapping of project ids, first match wins.
    #[serde(default)]
    pub project_map: Vec<IdRule>,
}

impl Default for CopyPolicy {
    fn default() -> Self {
        Self {
            preserve: AttributeSet::all(),
            demanded: AttributeSet::NONE,
            allow_loss: LossSet::NONE,
            overwrite: Overwrite::Changed,
            backup: None,
            inplace: false,
            whole_files: false,
            range: None,
            split_bytes: None,
            sparse: When::Auto,
            reflink: When::Auto,
            engine: CopyEngine::Auto,
            buffer_bytes: None,
            direct_read: When::Auto,
            direct_write: When::Auto,
            forget_read: false,
            forget_written: false,
            fsync: false,
            skip_chmod: false,
            dry_run: false,
            digest: None,
            print_hash: None,
            verify: None,
            sync: None,
            user_map: Vec::new(),
            group_map: Vec::new(),
            owners_by_name: false,
            names: NameTables::default(),
            project_map: Vec::new(),
        }
    }
}
