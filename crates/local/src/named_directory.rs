//! Directories by their path alone, such as those on a command line.
use dmover_model::Identity;
use dmover_sys::{mount, path, stat};
use std::path::{Path, PathBuf};

use crate::mounts::MountTable;

/// A directory by device, inode and creation time, because an inode number may be reused at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryObject {
    device: u64,
    inode: u64,
    born: Option<(i64, u32)>,
}

impl DirectoryObject {
    /// The directory at a path, if it can be opened.
    pub fn at(at: &Path) -> Option<Self> {
        let opened = path::open_directory(at);
        let (found, born) = opened.and_then(|fd| stat::stat_born_at(fd, b"")).ok()?;
        Some(Self { device: found.device, inode: found.inode, born })
    }
}

/// The canonical path of a directory, if it can be opened.
pub fn real_path(at: &Path) -> Option<PathBuf> {
    path::open_directory(at).ok().and_then(mount::path_of)
}

/// The device and inode numbers of a directory, if it can be opened.
pub fn device_and_inode(at: &Path) -> Option<(u64, u64)> {
    let found = path::open_directory(at).and_then(stat::stat_fd).ok()?;
    Some((found.device, found.inode))
}

/// The identity of a directory, if it can be opened.
pub fn identity_at(at: &Path, mounts: &MountTable) -> Option<Identity> {
    let found = path::open_directory(at).and_then(stat::stat_fd).ok()?;
    Some(mounts.identity(&found))
}
