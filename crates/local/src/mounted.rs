//! Detects directories that are unmounted while a job writes to them (umount(8) -l): no call fails, but the files are not
//! there afterwards.
use dmover_model::PathBytes;
use dmover_plan::overlap::parse_mountinfo;
use dmover_sys::{AsFd, BorrowedFd, OwnedFd, mount, stat};
use std::sync::Arc;

use crate::root::Root;

/// Directories that a job writes to, each on a mount that was visible at the start. They are held open, so that the id
/// of a mount cannot be reused.
pub struct Mounted(Vec<(Held, u64, PathBytes)>);

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
            let own = side.open_entry();
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

    /// The directories whose mount is gone.
    pub fn gone(&self) -> impl Iterator<Item = &PathBytes> {
        let seen = ids();
        // Without /proc nothing is known.
        let is_gone = move |id| !seen.is_empty() && !seen.contains(id);
        self.0.iter().filter(move |(_, id, _)| is_gone(id)).map(|(_, _, path)| path)
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
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
