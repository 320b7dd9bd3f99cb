//! Directories that are open, so that another task in one of them needs no round trip to open it.
use dmover_model::TreePath;
use dmover_observe::lock;
use dmover_tree::RemoteDirectory;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

/// A path, and whether it may lead through symbolic links.
type Key = (TreePath, bool);

/// Open directories by path. Each request about one names its identity, so that the agent refuses it once another directory
/// has that path.
#[derive(Debug, Default)]
pub(super) struct OpenDirectories(Mutex<HashMap<Key, Weak<dyn RemoteDirectory>>>);

impl OpenDirectories {
    /// The directory at a path, if it is open.
    pub(super) fn at(&self, path: &TreePath, follows: bool) -> Option<Arc<dyn RemoteDirectory>> {
        lock(&self.0).get(&(path.clone(), follows)).and_then(Weak::upgrade)
    }

    /// Keeps a directory as long as somebody has it.
    pub(super) fn keep(&self, key: Key, directory: &Arc<dyn RemoteDirectory>) {
        let mut all = lock(&self.0);
        // Those that are closed are removed once they are as many as the others.
        if all.len() >= 2 * all.values().filter(|open| open.strong_count() > 0).count() + 64 {
            all.retain(|_, open| open.strong_count() > 0);
        }
        all.insert(key, Arc::downgrade(directory));
    }
}
