//! Entries by names that are the same on every host that sees them.
use dmover_sys::stat::Stat;
use dmover_sys::{AsFd, OwnedFd, path, stat};
use dmover_tree::NamedObject;
use std::path::Path;

use crate::mounts::names_of;

/// An entry that was looked at.
pub(crate) fn named(found: &Stat) -> NamedObject {
    NamedObject { file_systems: names_of(found.device), inode: found.inode }
}

/// What has a path, and the directories above it. Nothing if it cannot be looked at.
pub(crate) fn with_all_above(at: &Path) -> Vec<NamedObject> {
    let mut all = Vec::new();
    let directory = match path::open_directory(at) {
        Ok(directory) => directory,
        Err(_) => {
            let (Some(above), Some(name)) = (at.parent(), at.file_name()) else { return all };
            let Ok(above) = path::open_directory(above) else { return all };
            all.extend(
                stat::stat_at(&above, name.as_encoded_bytes(), false).ok().map(|f| named(&f)),
            );
            above
        }
    };
    all.extend(above(&directory));
    all
}

/// A directory and those above it.
pub(crate) fn above(directory: impl AsFd) -> Vec<NamedObject> {
    let mut all: Vec<NamedObject> = Vec::new();
    let mut device = None;
    let mut next: Option<OwnedFd> = path::open_directory_at(directory, b".").ok();
    while let Some(directory) = next {
        let Ok(found) = stat::stat_fd(&directory) else { break };
        // The names of a file system are read from a list of all mounts.
        let here = match all.last() {
            Some(last) if device == Some(found.device) => {
                NamedObject { file_systems: last.file_systems.clone(), inode: found.inode }
            }
            _ => named(&found),
        };
        if all.last() == Some(&here) {
            break; // the root of all directories is its own parent
        }
        device = Some(found.device);
        all.push(here);
        next = path::open_directory_at(&directory, b"..").ok();
    }
    all
}
