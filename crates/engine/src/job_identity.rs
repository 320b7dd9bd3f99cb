//! Which job a command is: its id, and the file system of its destination.
use dmover_journal::{StateDirectory, Volume};
use dmover_local::root::canonical_paths;
use dmover_local::volume::file_system_of;
use dmover_model::{Fatal, JobId, JobSpec};
use std::os::unix::ffi::OsStrExt;

use crate::job_list::JobList;

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
        _ => hasher.update(&dmover_host::name_bytes()),
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
            state.volumes().job_here(id, || volume_of(spec))
        }
        _ => id,
    })
}

/// The file system of a job's DEST. It has no name if it is not on a disk of this host, or cannot be opened.
pub(crate) fn volume_of(spec: &JobSpec) -> Volume {
    named_volume_of(spec).unwrap_or_default()
}

fn named_volume_of(spec: &JobSpec) -> Option<Volume> {
    let found = file_system_of(&std::path::absolute(spec.destination.to_path()).ok()?)?;
    Some(Volume::of(found.uuid, found.path.as_deref()))
}
