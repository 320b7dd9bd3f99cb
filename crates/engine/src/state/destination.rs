//! The lock of a pass that has no state directory: the directory of the destination carries it.
use dmover_model::{Attribute, Verb};
use dmover_sys::{OwnedFd, directory, file, path, stat};

use crate::driver::Job;
use crate::error::Fatal;
use crate::root::Root;

/// Locks the destination of a pass without state, flock(2) of its directory, as long as what is answered lives. The
/// directory is made if it is not there: two that begin together must see each other.
///
/// # Errors
/// Somebody else has the lock.
pub(crate) fn lock_destination(job: &Job, roots: &[Root]) -> Result<Option<OwnedFd>, Fatal> {
    let (spec, policy) = (&job.spec, &job.spec.policy);
    let is_snapshot = policy.sync.as_ref().is_some_and(|sync| sync.snapshot.is_some());
    if job.state.is_some() || spec.verb != Verb::Sync || policy.dry_run || is_snapshot {
        return Ok(None);
    }
    let Some(side) = roots.first().and_then(|root| root.destination.as_ref()) else {
        return Ok(None);
    };
    let opened = match &side.name {
        None => path::open_directory_at(&side.parent, b"."),
        Some(name) => {
            let open = || path::open_directory_below(&side.parent, name.as_bytes());
            let is_closed = policy.preserve.has(Attribute::Mode);
            let mode = if is_closed { 0o700 } else { 0o777 & !job.umask };
            match open() {
                Err(error) if stat::is_absent(error) => {
                    // What stands in the way is told by whoever needs the place.
                    let _ = directory::make_directory(&side.parent, name.as_bytes(), mode);
                    open()
                }
                opened => opened,
            }
        }
    };
    let Ok(fd) = opened else { return Ok(None) };
    match file::try_lock(&fd) {
        Ok(true) => Ok(Some(fd)),
        Ok(false) => Err(Fatal::Locked { lock: side.display.to_path() }),
        Err(error) => {
            tracing::warn!(%error, "cannot lock the destination against a second run");
            Ok(None)
        }
    }
}
