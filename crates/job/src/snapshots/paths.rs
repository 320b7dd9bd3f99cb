//! Checks of SOURCE and DIR before anything is created.
use dmover_journal::OWN_SNAPSHOTS as OWN;
use dmover_model::Fatal;
use dmover_sys::{Errno, OwnedFd, mount, path, stat};
use std::path::Path;

/// Refuses an invalid source, such as exchanged arguments, which would store all snapshots in another tree.
///
/// # Errors
/// The source does not exist, has snapshots itself, or contains the directory for its snapshots.
pub(super) fn check_snapshot_paths(source: &Path, directory: &Path) -> Result<(), Fatal> {
    let refuse = |what: &str, hint: &str| {
        Err(Fatal::refused(format!("'{}' {what}", source.display()), hint))
    };
    match path::open_directory(source) {
        Err(Errno::NOENT) => {
            refuse("does not exist", "check the path; SOURCE comes first, then DIR")
        }
        Ok(fd) if stat::stat_at(&fd, OWN.as_bytes(), false).is_ok() => refuse(
            "holds snapshots",
            "SOURCE comes first, then DIR; 'dmover sync' copies a directory of snapshots",
        ),
        Ok(fd) if holds(&fd, directory) => {
            refuse("contains the directory for its snapshots", "choose a directory outside SOURCE")
        }
        // Whatever else there is to say, the job says.
        _ => Ok(()),
    }
}

/// Whether a directory lies in another one, on the same file system.
fn holds(outer: &OwnedFd, inner: &Path) -> bool {
    let Ok(inner) = path::open_directory(inner) else { return false };
    let device = |fd| stat::stat_fd(fd).ok().map(|found| found.device);
    let paths = mount::path_of(outer).zip(mount::path_of(&inner));
    device(outer) == device(&inner) && paths.is_some_and(|(outer, inner)| inner.starts_with(outer))
}
