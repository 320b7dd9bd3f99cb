//! The shared state of a pass over changed paths.
use dmover_model::TreePath;
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use std::collections::BTreeSet;

/// The shared state of a pass over changed paths.
#[derive(Debug, Default)]
pub(crate) struct Following {
    /// Scanned names: several paths may lead to one name, if a directory was moved.
    taken: Mutex<BTreeSet<TreePath>>,
    /// Why a full scan is needed.
    all: Mutex<Option<String>>,
}

impl Following {
    /// Whether no mover has taken a name so far.
    pub fn takes(&self, place: &TreePath) -> bool {
        lock(&self.taken).insert(place.clone())
    }

    /// Requests a full scan.
    pub fn look_at_all(&self, why: &str) {
        lock(&self.all).get_or_insert_with(|| why.to_owned());
    }

    /// Why a full scan is needed.
    pub fn needs_all(&self) -> Option<String> {
        lock(&self.all).clone()
    }
}
