//! Which job a command is: its id, the file system of its destination, and where that lies.
use dmover_journal::{StateDirectory, Volume};
use dmover_local::overlaps::place;
use dmover_local::root::canonical_paths;
use dmover_model::{Fatal, JobId, JobSpec};
use dmover_plan::overlap::{FileSystemPath, parse_mountinfo};
use dmover_sys::{Errno, mount, path, stat};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::job_list::JobList;
use crate::periodic_flush::may_lose;

/// File system types whose identity changes with each container or boot, whatever their content.
const PASSING: [&str; 2] = ["overlay", "ecryptfs"];

/// Derives the id of a job from its verb, sources, destination, list, user, host and state directory, so that the same
/// command finds the leftovers and decisions of its earlier runs. The host is omitted if hosts share the state
/// directory.
///
/// # Errors
/// A path that cannot be resolved.
pub fn job_id(
    spec: &JobSpec,
    list: &JobList,
    state: Option<&StateDirectory>,
) -> Result<JobId, Fatal> {
    let mut hasher = blake3::Hasher::new();
    // Two runs that do not share a lock must not take each other's temporaries for leftovers.
    match state {
        Some(state) if state.is_shared() => hasher.update(b"any host"),
        _ => hasher.update(dmover_host::name().as_bytes()),
    };
    hasher.update(&dmover_host::user::effective_uid().to_le_bytes());
    hasher.update(state.map_or(&b""[..], |s| s.path().as_os_str().as_bytes()));
    hasher.update(b"dmover job 1\0").update(spec.verb.word().as_bytes()).update(b"\0");
    for path in canonical_paths(spec)? {
        hasher.update(path.as_os_str().as_bytes());
        hasher.update(b"\0");
    }
    match list {
        JobList::None
        | JobList::Failed(_)
        | JobList::Changed(_)
        | JobList::Sums(_)
        | JobList::Records(_) => {}
        JobList::Paths(paths) => paths.iter().for_each(|p| {
            hasher.update(p.as_bytes()).update(b"\0");
        }),
        JobList::Pairs(pairs) => pairs.iter().for_each(|(source, destination, _)| {
            hasher.update(&source.0).update(b"\0").update(&destination.0).update(b"\0");
        }),
    }
    let id = JobId::of_hash(&hasher.finalize().to_hex());
    // Another file system in the place of the destination is another job's.
    Ok(match state {
        Some(state) if spec.verb.fills() && !spec.destination.0.is_empty() => {
            state.job_here(id, || volume_of(spec))
        }
        _ => id,
    })
}

/// The file system of a job's DEST. It has no name if it is not on a disk of this host, or cannot be opened.
pub(crate) fn volume_of(spec: &JobSpec) -> Volume {
    named_volume_of(spec).unwrap_or_default()
}

fn named_volume_of(spec: &JobSpec) -> Option<Volume> {
    let destination = std::path::absolute(spec.destination.to_path()).ok()?;
    let opened = destination.ancestors().map(path::open_directory);
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
    Some(Volume::of(uuid, mount::path_of(&directory).as_deref()))
}

/// The path on its file system, independent of mounts.
pub(crate) fn on_storage(target: &Path) -> Option<FileSystemPath> {
    let mounts = parse_mountinfo(&mount::mountinfo());
    target.ancestors().find_map(|above| {
        let directory = path::open_directory(above).ok()?;
        let found = place(&directory, &mount::path_of(&directory)?, &mounts)?;
        let below = target.strip_prefix(above).ok()?;
        Some(FileSystemPath { path: found.path.join(below), ..found })
    })
}
