//! What the movers of several hosts and their coordinator say to each other. A changed type is another protocol.
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use crate::{
    Content, DeleteLimit, Extended, Identity, MountId, PathBytes, RootId, Side, Timestamp, TreePath,
};

/// A question that only the coordinator can answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CoordinatorRequest {
    /// Both ends of all roots at present.
    Roots,
    /// The mounts below the roots that belong to the job.
    MountedBelow,
    /// Which of these mount points differ on the coordinator's host.
    OtherPlaces(Vec<MountedBelow>),
    /// The number of a file system in the job's table.
    Mount(FileSystemName),
    /// Whether this many extra names may be deleted now.
    OnTheWay(u64),
    /// Which of these paths are in the manifest.
    Known(Vec<TreePath>),
    /// The times that a directory must get in the end.
    KeptTimes(TreePath),
    /// The result of a large file that was just sealed.
    Sealed(Identity),
}

/// The answer of the coordinator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// `Err`: why they cannot be read.
    Roots(Result<RootMarks, String>),
    /// All mount points.
    MountedBelow(Vec<MountedBelow>),
    /// For each mount point, whether it differs.
    OtherPlaces(Vec<bool>),
    /// `None`: the coordinator does not see such a file system.
    Mount(Option<MountId>),
    /// What to do with the names.
    OnTheWay(OnTheWay),
    /// For each path, whether it is there. `Err`: why this cannot be determined.
    Known(Result<Vec<bool>, String>),
    /// The times, if there are any.
    KeptTimes(Option<Times>),
    /// The result, if there is one.
    Sealed(Option<Box<Carried>>),
}

/// A fact that movers must learn before they perform the tasks that depend on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Notice {
    /// The doubtful files.
    RecheckSet(RecheckSet),
    /// A directory of the destination, which must not be entered as a source.
    Forbidden(Identity),
}

/// Identifies a file system, also across hosts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileSystemName {
    /// A device number under one kernel, which is identified by the random id of its boot.
    Device(String, u64),
    /// A file system with one name on all hosts: its type and export, such as `nfs server:/export`.
    Shared(String),
    /// Its UUID.
    Uuid(String),
    /// The number that the agent of another host gives it, which is the same in each run.
    Remote(u32),
}

/// Identifies one end of a root on every host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideMark {
    /// The directory that contains the root entry.
    pub above: Identity,
    /// The root entry, if it exists.
    pub entry: Option<Identity>,
}

/// Both ends of each root.
pub type RootMarks = Vec<(SideMark, Option<SideMark>)>;

/// A mount point below a root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountedBelow {
    /// The root.
    pub root: RootId,
    /// The side of the root.
    pub side: Side,
    /// Its path below the root.
    pub path: TreePath,
    /// The identity of its directory. `None`: it cannot be opened.
    pub found: Option<Identity>,
}

/// The content and attributes of an inode in the manifest, for its other names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Carried {
    /// The inode.
    pub of: Identity,
    /// Its attributes.
    pub extended: Extended,
    /// The digests of its content.
    pub content: Option<Content>,
}

/// Access and modification time of a directory.
pub type Times = (Timestamp, Timestamp);

/// Paths that are checked more closely than by times.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecheckSet {
    /// Files that are compared if they look equal, and directories whose files are: files that were open for writing
    /// when an earlier pass copied them, and paths where renames may have put other entries.
    pub content: BTreeSet<TreePath>,
    /// Entries that were renamed at the destination, so that their change time does not show when they were copied.
    pub renamed: BTreeSet<TreePath>,
}

/// What to do with names found while directories are read (`--delete=during`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnTheWay {
    /// Delete them now.
    Go,
    /// Keep them until everything was read: so many were deleted that the total must be known first.
    Wait,
    /// Keep them, for this reason.
    Stay(WithheldReason),
}

/// Why deletes are withheld.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WithheldReason {
    /// The source has no entries.
    Empty,
    /// It may not be the same source as before.
    Doubtful(String),
    /// A file system that belongs to the source is not mounted.
    NotMounted(PathBytes),
    /// Parts of the source could not be read.
    SourceErrors(u64),
    /// The trash is in a destination directory that this pass creates.
    NoTrash,
    /// The job did not complete.
    Stopped,
    /// More entries than allowed would be deleted.
    Limit(DeleteLimit),
    /// The deletes may be unintended: the reason, and an entry that would be deleted.
    Unmeant(Unmeant, PathBytes),
    /// In a dry run: a real run would be refused before it changed anything.
    Refused {
        /// The reason.
        message: String,
        /// What the user can do.
        hint: String,
    },
}

impl WithheldReason {
    /// The reason, in words.
    pub fn words(&self) -> String {
        match self {
            Self::Empty => "the source is empty".into(),
            Self::Doubtful(words) => words.clone(),
            Self::NotMounted(at) => {
                format!("{} is in fstab but not mounted", at.to_path().display())
            }
            Self::SourceErrors(1) => "one source entry could not be read".into(),
            Self::SourceErrors(count) => {
                format!("{count} source entries could not be read")
            }
            Self::NoTrash => "--trash is inside the destination, which did not exist yet".into(),
            Self::Stopped => "the job stopped before it had scanned everything".into(),
            Self::Refused { message, .. } => message.clone(),
            Self::Unmeant(why, example) if example.0.is_empty() => why.words(),
            Self::Unmeant(why, example) => {
                format!("{}, such as '{}'", why.words(), example.to_path().display())
            }
            Self::Limit(DeleteLimit::Entries(most)) => {
                format!("--delete would remove more entries than --max-delete={most} allows")
            }
            Self::Limit(DeleteLimit::Millionths(share)) => {
                let percent = f64::from(*share) / 10_000.0;
                format!("--delete would remove more entries than --max-delete={percent}% allows")
            }
        }
    }

    /// Whether too large a share of the destination would be deleted.
    pub fn is_a_share(&self) -> bool {
        matches!(self, Self::Limit(DeleteLimit::Millionths(_)) | Self::Unmeant(Unmeant::Half, _))
    }

    /// What the user can do.
    pub fn advice(&self) -> &str {
        match self {
            Self::Refused { hint, .. } => hint,
            Self::Empty => {
                "check that it is mounted; if it should be empty, use --allow-empty-source"
            }
            Self::Doubtful(_) => {
                "if this is the right source, remove the record of the old one: dmover cleanup JOB \
                ('dmover jobs' lists the jobs)"
            }
            Self::NotMounted(_) => "mount it, or remove it from /etc/fstab",
            Self::SourceErrors(_) => "fix the reported errors, then run the same command again",
            Self::NoTrash | Self::Stopped => "run the same command again",
            Self::Unmeant(Unmeant::Half, _) => {
                "list the deletes with --dry-run --itemize, then confirm them with --yes"
            }
            Self::Unmeant(..) => {
                "list the deletes with --dry-run --itemize, then confirm them with --yes. For a \
                copy inside DEST: dmover sync SOURCE DEST/NAME"
            }
            Self::Limit(_) => {
                "list the deletes with --dry-run --itemize and without --max-delete, then raise \
                --max-delete if they are right"
            }
        }
    }
}

/// Why deletes need a confirmation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unmeant {
    /// More than half of the entries of the destination would be deleted.
    Half,
    /// The destination had content when the job first used it, and no pass of the job has deleted since.
    Foreign,
}

impl Unmeant {
    /// Why, in words.
    fn words(&self) -> String {
        match self {
            Self::Half => "--delete would remove more than half of what DEST had".into(),
            Self::Foreign => "DEST had content that this job did not copy".into(),
        }
    }
}
