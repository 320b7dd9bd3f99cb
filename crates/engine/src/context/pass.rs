//! What only a pass has: deletes, snapshots, and the paths that a change feed has reported.
use dmover_model::{PathBytes, TreePath};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use std::collections::BTreeSet;

use crate::coordinator_client::CoordinatorLink;
use crate::delete_guard::Guard;
use crate::following::Following;
use crate::mover_report::{ReportItem, collect_had};
use crate::sharing::Sharing;

/// What movers share only in a pass.
pub(crate) struct Pass {
    /// Guards deletes.
    pub guard: Guard,
    /// The pass creates a snapshot.
    pub sharing: Option<Sharing>,
    /// The pass scans only paths that a change feed has reported.
    pub following: Option<Following>,
    /// Why one full scan is not enough.
    looks_again: Mutex<Option<String>>,
    /// Directories that should be deleted but contain entries that stay.
    held: Mutex<BTreeSet<PathBytes>>,
    coordinator: CoordinatorLink,
}

impl Pass {
    /// `follows`: the pass scans only paths that a change feed has reported.
    pub fn new(
        guard: Guard,
        sharing: Option<Sharing>,
        follows: bool,
        coordinator: CoordinatorLink,
    ) -> Self {
        Self {
            guard,
            sharing,
            following: follows.then(Following::default),
            looks_again: Mutex::default(),
            held: Mutex::default(),
            coordinator,
        }
    }

    /// Requests another full scan, because nothing else can correct this.
    pub fn look_again(&self, why: &str) {
        match &self.following {
            _ if self.coordinator.tell(|| ReportItem::LookAgain(why.to_owned())) => {}
            Some(following) => following.look_at_all(why),
            None => *lock(&self.looks_again) = Some(why.to_owned()),
        }
    }

    /// Why a full scan is needed.
    pub fn needs_all(&self) -> Option<String> {
        let again = lock(&self.looks_again).clone();
        again.or_else(|| self.following.as_ref().and_then(Following::needs_all))
    }

    /// Keeps the directory of an entry that stays, and all directories above it. `top`: the destination directory that
    /// `at` lies below.
    pub fn hold_above(&self, top: &PathBytes, at: &TreePath) {
        let mut place = Some(at.clone());
        while let Some(at) = place.filter(|at| !at.is_root()) {
            self.hold(top.join(&at));
            place = at.split_last().map(|(above, _)| above);
        }
    }

    /// Records a directory that should be deleted but contains entries that stay.
    pub fn hold(&self, directory: PathBytes) {
        self.coordinator.tell(|| ReportItem::Held(directory.clone()));
        lock(&self.held).insert(directory);
    }

    /// Whether any directory contains entries that stay.
    pub fn holds_any(&self) -> bool {
        !lock(&self.held).is_empty()
    }

    /// Adds entries that the destination had before the pass.
    pub fn had(&self, entries: u64) {
        self.guard.had(entries);
        if self.coordinator.is_remote() {
            collect_had(entries);
        }
    }

    /// Whether a directory contains entries that stay.
    pub fn is_held(&self, directory: &PathBytes) -> bool {
        lock(&self.held).contains(directory)
    }
}
