//! On which file system a path lies, and where on it.
use dmover_plan::overlap::{FileSystemPath, parse_mountinfo};
use dmover_sys::{Errno, mount, path, stat};
use std::path::{Path, PathBuf};

use crate::held_file_systems::may_lose;
use crate::overlaps::place;

/// File system types whose identity changes with each container or boot, whatever their content.
const PASSING: [&str; 2] = ["overlay", "ecryptfs"];

/// A directory on a disk of this host.
#[derive(Debug, Default)]
pub struct DirectoryOnDisk {
    /// The number that its file system was given when it was made.
    pub uuid: Option<String>,
    /// The canonical path of the directory.
    pub path: Option<PathBuf>,
}

/// The file system of a path, or of the nearest directory above it. `None`: it is not on a disk of this host, or cannot be
/// opened.
pub fn file_system_of(path: &Path) -> Option<DirectoryOnDisk> {
    let opened = path.ancestors().map(path::open_directory);
    let is_above = |error: &Errno| matches!(*error, Errno::NOENT | Errno::NOTDIR);
    let there = opened.into_iter().find(|opened| !opened.as_ref().is_err_and(is_above));
    // What cannot be opened may lie on another file system than what is above it.
    let directory = there?.ok()?;
    let name = stat::file_system_name(stat::file_system(&directory).ok()?.magic);
    if stat::is_pseudo(name) || name.is_some_and(|name| !may_lose(name) || PASSING.contains(&name))
    {
        return None;
    }
    let uuid = mount::file_system_uuid(&directory);
    Some(DirectoryOnDisk { uuid, path: mount::path_of(&directory) })
}

/// A path on its file system, independent of mounts.
pub fn on_storage(target: &Path) -> Option<FileSystemPath> {
    let mounts = parse_mountinfo(&mount::mountinfo());
    target.ancestors().find_map(|above| {
        let directory = path::open_directory(above).ok()?;
        let found = place(&directory, &mount::path_of(&directory)?, &mounts)?;
        let below = target.strip_prefix(above).ok()?;
        Some(FileSystemPath { path: found.path.join(below), ..found })
    })
}
