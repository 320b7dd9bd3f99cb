//! Where an entry is, on both sides of a job.
use serde::{Deserialize, Serialize};

use crate::{Identity, Name, TreePath};

/// Index of a source/destination pair in the job's table of roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RootId(pub u32);

impl RootId {
    /// The only root of a job with a catalog.
    pub const ONLY: Self = Self(0);
}

/// A directory on both sides, as it was when the task was created; a mover checks it when it opens the directory again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DirectoryRef {
    /// The root that it belongs to.
    pub root: RootId,
    /// The path below that root.
    pub path: TreePath,
    /// The source directory.
    pub source: Identity,
    /// The destination directory.
    pub destination: Identity,
    /// Whether this job created the destination directory.
    pub made: bool,
    /// Source directories above it, recorded only if symbolic links are followed, to detect cycles.
    pub ancestors: Vec<Identity>,
}

impl DirectoryRef {
    /// A whole root. Its directories are not known yet.
    pub fn of_root(root: RootId) -> Self {
        let (source, destination) = (Identity::default(), Identity::default());
        let (path, made, ancestors) = (TreePath::root(), false, Vec::new());
        Self { root, path, source, destination, made, ancestors }
    }
}

/// One file on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileRef {
    /// The directory that holds it.
    pub directory: DirectoryRef,
    /// Name at the source.
    pub name: Name,
    /// Name at the destination.
    pub destination_name: Name,
}

/// Where the entries of a job go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// Into DEST, under their own names.
    Inside,
    /// SOURCE becomes DEST.
    As,
}
