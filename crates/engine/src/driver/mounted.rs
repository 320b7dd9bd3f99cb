//! Detects a destination that is unmounted while a job writes to it (umount(8) -l): no call fails, but the files are
//! not there afterwards.
use dmover_local::root::Root;
use dmover_model::{EntryError, ErrorClass, Operation, PathBytes, Side};
use dmover_plan::overlap::parse_mountinfo;
use dmover_sys::{OwnedFd, mount, path, stat};
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::context::Engine;

/// Directories that a job writes to, each on a mount that was visible at the start. They are held open, so that the id
/// of a mount cannot be reused.
pub(super) struct Mounted(Vec<(Held, u64, PathBytes)>);

enum Held {
    Own(OwnedFd),
    Shared(Arc<OwnedFd>),
}

impl Mounted {
    /// Thousands of sources on a command line share one destination, which is held once.
    pub fn of(roots: &[Root]) -> Self {
        let seen = ids();
        let mut held: Vec<(Held, u64, PathBytes)> = Vec::new();
        for side in roots.iter().filter_map(|root| root.destination.as_ref()) {
            let name = side.name.as_ref();
            let own =
                name.and_then(|n| path::open_directory_below(&side.parent, n.as_bytes()).ok());
            let fd = own.map_or_else(|| Held::Shared(Arc::clone(&side.parent)), Held::Own);
            let Some(id) = stat::mount_id(fd.as_fd()).filter(|id| seen.contains(id)) else {
                continue;
            };
            if !held.iter().any(|(_, known, _)| *known == id) {
                held.push((fd, id, side.display().clone()));
            }
        }
        Self(held)
    }

    /// Reports each directory whose mount is gone.
    pub fn tell_what_is_gone(&self, engine: &Engine) {
        let seen = ids();
        // Without /proc nothing is known.
        for (_, _, path) in
            self.0.iter().filter(|(_, id, _)| !seen.is_empty() && !seen.contains(id))
        {
            let words = "its file system was unmounted while the job ran; the written data is not \
                at this path";
            let (side, class) = (Side::Destination, ErrorClass::Stale);
            engine.error(EntryError::plain(side, Operation::Check, class, path.clone(), words));
        }
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::Own(fd) => fd.as_fd(),
            Self::Shared(fd) => fd.as_fd(),
        }
    }
}

/// The ids of all visible mounts.
fn ids() -> Vec<u64> {
    parse_mountinfo(&mount::mountinfo()).into_iter().map(|line| line.id).collect()
}
