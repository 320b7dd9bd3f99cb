//! File systems that should be mounted and are not.
use dmover_plan::overlap::{missing_mount, parse_mountinfo};
use dmover_sys::{mount, path};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::root_side::RootSide;

impl RootSide {
    /// A file system that should be mounted at a root of the source, above it or, if `below`, in it, and is not. `base`:
    /// where the path of the root begins if it is relative.
    pub fn missing_mount(&self, base: &Path, below: bool) -> Option<PathBuf> {
        let source = base.join(self.path_here().to_path());
        let source = mount::path_of(path::open_directory(&source).ok()?)?;
        missing_at(&source, below)
    }

    /// A file system that should be mounted at a root of the destination, which may be still to be made, or above it,
    /// and is not.
    pub fn missing_mount_above(&self) -> Option<PathBuf> {
        let parent = mount::path_of(&self.parent)?;
        let name = self.name.as_ref().map(|name| OsStr::from_bytes(name.as_bytes()));
        let place = name.map_or_else(|| parent.clone(), |name| parent.join(name));
        missing_at(&place, false)
    }
}

/// A file system that should be mounted at a path, above it or, if `below`, in it, and is not.
pub(crate) fn missing_at(tree: &Path, below: bool) -> Option<PathBuf> {
    missing_mount(&mount::fstab(), &parse_mountinfo(&mount::mountinfo()), tree, below)
}
