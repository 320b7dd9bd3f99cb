//! How a job writes to its destination, for the locks that other jobs see.
use dmover_local::destination_lock::Writing;
use dmover_local::root::Resolved;
use dmover_model::{JobSpec, Placement, RangeCopy, Verb};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::job_list::JobList;

/// How a job writes to its destination. `None`: it writes nothing, or to the many places of a list.
pub(crate) fn writing<'a>(
    (spec, list): (&JobSpec, &JobList),
    resolved: &'a Resolved,
) -> Option<Writing<'a>> {
    if spec.policy.dry_run || matches!(list, JobList::Pairs(_)) {
        return None;
    }
    let snapshot = spec.policy.sync.as_ref().and_then(|sync| sync.snapshot.as_ref());
    let work = destination(resolved).and_then(|typed| {
        let (above, name) = (typed.parent()?, typed.file_name()?);
        Some((above, work((spec, list), resolved, Path::new(name))))
    });
    Some(Writing {
        alone: spec.verb == Verb::Sync,
        snapshots: snapshot.map(|policy| policy.directory.to_path()),
        work,
    })
}

/// The canonical path of DEST.
fn destination(resolved: &Resolved) -> Option<&Path> {
    let target = resolved.targets.first()?;
    match resolved.placement {
        Placement::As => Some(target),
        Placement::Inside => target.parent(),
    }
}

/// Identifies the same copy: its sources, the name of its DEST, and its selection.
fn work((spec, list): (&JobSpec, &JobList), resolved: &Resolved, name: &Path) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    let mut add = |bytes: &[u8]| _ = hasher.update(bytes).update(b"\0");
    add(spec.verb.word().as_bytes());
    let paths = resolved.sources.iter().map(PathBuf::as_path);
    for path in paths.chain([name]) {
        add(path.as_os_str().as_bytes());
    }
    if let JobList::Paths(paths) = list {
        for path in paths {
            add(path.as_bytes());
        }
    }
    if let Some(RangeCopy { ranges, destination_offset }) = &spec.policy.range {
        add(format!("{ranges:?} {destination_offset:?}").as_bytes());
    }
    hasher.finalize().as_bytes().to_vec()
}
