//! Directories that are open or were open a moment ago, so that another task in one of them, or the one that completes
//! it, needs no round trip to open it.
use dmover_model::TreePath;
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_tree::RemoteDirectory;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

/// A path, and whether it may lead through symbolic links.
type Key = (TreePath, bool);

/// How many directories stay open after everybody has left them: a few for each of many movers.
const RECENT_MAX: usize = 64;

/// Open directories by path. Each request about one names its identity, so that the agent refuses it once another directory
/// has that path. A pass opens the source anew, so nothing here is older than the pass.
#[derive(Debug, Default)]
pub(super) struct OpenDirectories(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    all: HashMap<Key, Weak<dyn RemoteDirectory>>,
    /// Those that were opened last. Each of them holds what this belongs to, so they have to be closed.
    recent: VecDeque<Arc<dyn RemoteDirectory>>,
    /// From now on a directory is open only as long as somebody has it.
    is_closed: bool,
}

impl OpenDirectories {
    /// The directory at a path, if it is open.
    pub(super) fn at(&self, path: &TreePath, follows: bool) -> Option<Arc<dyn RemoteDirectory>> {
        lock(&self.0).all.get(&(path.clone(), follows)).and_then(Weak::upgrade)
    }

    /// Keeps a directory as long as somebody has it, and for a while.
    pub(super) fn keep(&self, key: Key, directory: &Arc<dyn RemoteDirectory>) {
        let mut open = lock(&self.0);
        let Open { all, recent, is_closed } = &mut *open;
        // Those that are closed are removed once they are as many as the others.
        if all.len() >= 2 * all.values().filter(|open| open.strong_count() > 0).count() + 64 {
            all.retain(|_, open| open.strong_count() > 0);
        }
        all.insert(key, Arc::downgrade(directory));
        if *is_closed {
            return;
        }
        recent.push_back(Arc::clone(directory));
        let oldest = if recent.len() > RECENT_MAX { recent.pop_front() } else { None };
        // Dropping the channels of a directory may wait for a write.
        drop(open);
        drop(oldest);
    }

    /// Closes all directories that nobody has.
    pub(super) fn close(&self) {
        let mut open = lock(&self.0);
        open.is_closed = true;
        let recent = std::mem::take(&mut open.recent);
        drop(open);
        drop(recent);
    }
}
