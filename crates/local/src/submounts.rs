//! File systems mounted below the roots of a job.
use dmover_model::{Identity, Metadata, MountedBelow, RootId, Side, TreePath};
use dmover_plan::overlap::parse_mountinfo;
use dmover_sys::stat::Stat;
use dmover_sys::{OwnedFd, mount, path, stat};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::mounts::MountTable;
use crate::root::Root;
use crate::root_side::RootSide;

/// The mounts of this host, as the kernel lists them.
pub fn mount_table() -> Vec<u8> {
    mount::mountinfo()
}

/// The directory at a path below a root, as it is mounted now.
pub fn seen_at(
    (base, mounts): (&Path, &MountTable),
    side: &RootSide,
    at: &TreePath,
) -> Option<Identity> {
    look(&top_of(base, side)?, at).map(|stat| mounts.identity(&stat))
}

/// The base directory of a root with its present mounts: the source is read through a clone of its mounts, which does
/// not change.
fn top_of(base: &Path, side: &RootSide) -> Option<OwnedFd> {
    path::open_directory(&base.join(side.path_here().to_path())).ok()
}

/// The directory at a path. Opening it makes an automounter mount its file system.
fn look(top: &OwnedFd, at: &TreePath) -> Option<Stat> {
    let (above, name) = at.split_last()?;
    let above = path::open_directory_below(top, above.as_bytes()).ok()?;
    match path::open_directory_at(&above, name) {
        Ok(directory) => stat::stat_fd(&directory).ok(),
        Err(_) => stat::stat_at(&above, name, false).ok(),
    }
}

/// Mount points below a directory, from mountinfo.
fn places(table: &[u8], top: &OwnedFd) -> BTreeSet<TreePath> {
    let Some(real) = mount::path_of(top) else { return BTreeSet::new() };
    let lines = parse_mountinfo(table);
    // A file system that is not mounted yet is mounted by the automounter on access.
    let lines = lines.iter().filter(|line| line.file_system != "autofs");
    let below = lines.filter_map(|line| line.mount_point.strip_prefix(&real).ok());
    let paths = below.filter_map(|below| TreePath::new(below.as_os_str().as_bytes()).ok());
    paths.filter(|path| !path.is_root()).collect()
}

/// All mount points below a directory of this host, each with what is there.
pub fn mounted_in(directory: &Path, mounts: &MountTable) -> Vec<(TreePath, Option<Identity>)> {
    let Ok(top) = path::open_directory(directory) else { return Vec::new() };
    let found = places(&mount_table(), &top).into_iter().map(|path| {
        let identity = look(&top, &path).map(|stat| mounts.identity(&stat));
        (path, identity)
    });
    found.collect()
}

/// The ends of a root on this host.
pub fn sides(root: &Root) -> impl Iterator<Item = (Side, &RootSide)> {
    let destination = root.destination.as_ref().map(|side| (Side::Destination, side));
    // What is mounted at another host is the business of that host.
    let source = root.source.here().map(|side| (Side::Source, side));
    source.into_iter().chain(destination)
}

/// All mount points below a root.
pub fn mounted_below(
    (base, mounts): (&Path, &MountTable),
    table: &[u8],
    (id, root): (RootId, &Root),
) -> Vec<(MountedBelow, Option<Metadata>)> {
    let mut all = Vec::new();
    for (side, there) in sides(root).filter(|_| root.is_directory) {
        let Some(top) = top_of(base, there) else { continue };
        for path in places(table, &top) {
            let stat = look(&top, &path);
            let found = stat.as_ref().map(|stat| mounts.identity(stat));
            let found_there = stat.as_ref().map(|stat| mounts.metadata(stat));
            all.push((MountedBelow { root: id, side, path, found }, found_there));
        }
    }
    all
}
