//! One request: a verb, its trees and its policy, as `--print-job` shows it.
use serde::{Deserialize, Serialize};
use std::fmt;

use crate::{
    CopyPolicy, DeletePolicy, EntryError, ErrorClass, PathBytes, Side, Timestamp, VerifyLevel,
    VerifyPolicy,
};

/// The id of a job: twelve hexadecimal digits derived from its verb, sources and destination, so that the same command
/// is the same job.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JobId(pub String);

impl JobId {
    const DIGITS: usize = 12;

    /// The id from a hash in hexadecimal digits.
    #[must_use]
    pub fn of_hash(hash: &str) -> Self {
        Self(hash.chars().take(Self::DIGITS).collect())
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The verb of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Copy trees.
    Copy,
    /// Make one tree match another.
    Sync,
    /// Hash the content of files, or check it against lists.
    Sum,
    /// Compare trees, or a tree with a manifest.
    Verify,
}

/// How to interpret the destination path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetMode {
    /// As `cp` does: into an existing directory, otherwise as that name.
    #[default]
    Auto,
    /// Inside this directory (`-t`).
    Into,
    /// As exactly this name (`-T`).
    As,
}

/// Which symbolic links of the source to follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FollowLinks {
    /// None: links are copied as links.
    #[default]
    Never,
    /// Only those given on the command line.
    Arguments,
    /// All.
    Always,
    /// All of them, and names that lead to the same file become hard links.
    AlwaysLinked,
}

/// One include or exclude rule; the first match decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterRule {
    /// Include instead of exclude.
    pub include: bool,
    /// The pattern, with the meaning that it has in rsync(1). A leading slash anchors it at the root of the transfer, a
    /// trailing slash matches only directories, and a pattern without an inner slash matches the last component.
    pub pattern: PathBytes,
}

/// A file that lists what to copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListFile {
    /// Where it is; `-` is standard input.
    pub path: PathBytes,
    /// Names end with NUL instead of a newline.
    pub nul: bool,
    /// Whether lines are `SRC DST RANGES` as for `mcp --read-stdin`, instead of names below the source.
    pub pairs: bool,
}

/// Which entries belong to the job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Selection {
    /// Names come from a list instead of a scan.
    pub list: Option<ListFile>,
    /// Include and exclude rules in order.
    pub rules: Vec<FilterRule>,
    /// Skip files smaller than this many bytes.
    pub min_size_bytes: Option<u64>,
    /// Skip files larger than this many bytes.
    pub max_size_bytes: Option<u64>,
    /// Skip files last written before this time.
    pub newer_than: Option<Timestamp>,
    /// Skip files last written at or after this time.
    pub older_than: Option<Timestamp>,
    /// The ages in milliseconds from which the two times above were computed, if they were given as ages: a later run
    /// computes later times from them.
    #[serde(default)]
    pub ages_ms: [Option<u64>; 2],
    /// Do not enter other file systems.
    pub one_file_system: bool,
    /// Symbolic links to follow.
    pub follow: FollowLinks,
}

/// Limits of the resources that a job uses.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Concurrent operations; 0 chooses automatically.
    pub threads: usize,
    /// Bytes of file content per second.
    pub bytes_per_s: Option<u64>,
    /// Entries per second.
    pub operations_per_s: Option<u64>,
    /// Source files opened per second for their content.
    #[serde(default)]
    pub opens_per_s: Option<u64>,
    /// Entries created per second at the destination, temporary files included.
    #[serde(default)]
    pub creates_per_s: Option<u64>,
    /// Stop after this many failed entries.
    pub errors_max: Option<u64>,
    /// Stop after this many milliseconds.
    pub duration_max_ms: Option<u64>,
    /// Memory for buffers and queues in bytes.
    pub memory_bytes: u64,
}

/// One complete, serialisable request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Version of this format.
    pub schema: u32,
    /// The verb.
    pub verb: Verb,
    /// Source paths; empty for lists of pairs and lists of files to hash.
    pub sources: Vec<PathBytes>,
    /// The sources are on other hosts, as `HOST:PATH`.
    #[serde(default)]
    pub sources_are_remote: bool,
    /// What the user puts before paths of this host, such as `user@host:`, if the job runs for a user at another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<PathBytes>,
    /// Destination path; empty for lists of pairs and for verbs that only read.
    pub destination: PathBytes,
    /// How to interpret the destination path.
    pub target_mode: TargetMode,
    /// Which entries belong to the job.
    pub selection: Selection,
    /// How they are copied.
    pub policy: CopyPolicy,
    /// Resource limits.
    pub limits: Limits,
}

impl Verb {
    /// The word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Sync => "sync",
            Self::Sum => "sum",
            Self::Verify => "verify",
        }
    }

    /// Whether this verb copies entries.
    pub fn fills(self) -> bool {
        matches!(self, Self::Copy | Self::Sync)
    }

    /// Whether every source has a destination.
    pub fn has_destination(self) -> bool {
        self != Self::Sum
    }
}

impl JobSpec {
    /// The version of the format that this program writes.
    pub const SCHEMA: u32 = 1;

    /// What a pass deletes, if it deletes.
    #[must_use]
    pub fn delete_policy(&self) -> Option<&DeletePolicy> {
        self.policy.sync.as_ref()?.delete.as_ref()
    }

    /// Whether trash directories and temporary files are deleted as well.
    #[must_use]
    pub fn clears_all(&self) -> bool {
        self.policy.sync.as_ref().is_some_and(|sync| sync.clears_all)
    }

    /// Whether a comparison also repairs.
    #[must_use]
    pub fn repairs(&self) -> bool {
        self.policy.verify.as_ref().is_some_and(|policy| policy.repair)
    }

    /// The comparison policy.
    ///
    /// # Panics
    /// If the job does not compare.
    #[must_use]
    pub fn verify_policy(&self) -> &VerifyPolicy {
        self.policy.verify.as_ref().expect("a job that compares says how")
    }

    /// Whether content is read from storage and not from the page cache.
    #[must_use]
    pub fn reads_stored(&self) -> bool {
        self.policy.verify.as_ref().is_some_and(|policy| policy.stored)
    }

    /// Whether hard links are compared.
    #[must_use]
    pub fn compares_links(&self) -> bool {
        match self.verb {
            Verb::Copy | Verb::Sync => true,
            Verb::Sum => false,
            // A repair that does not know of them would tear them apart.
            Verb::Verify => self.repairs() || self.verify_policy().level >= VerifyLevel::Mtime,
        }
    }

    /// Whether an error says that a directory to compare is another type of entry.
    #[must_use]
    pub fn is_no_directory(&self, error: &EntryError) -> bool {
        let conflict = error.class == ErrorClass::TypeConflict && error.side == Side::Destination;
        conflict && self.verb == Verb::Verify
    }

    /// Whether all symbolic links of the source are followed.
    #[must_use]
    pub fn follows_links(&self) -> bool {
        matches!(self.selection.follow, FollowLinks::Always | FollowLinks::AlwaysLinked)
    }
}
