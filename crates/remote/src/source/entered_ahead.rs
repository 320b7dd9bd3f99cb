//! Directories that will be entered soon: their lists and attributes are asked for ahead.
use dmover_model::{Metadata, TreePath};
use dmover_net::connection::Channel;
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_schedule::time::Instant;
use std::collections::HashMap;
use std::time::Duration;

/// The most directories of a tree that are asked for ahead. Each takes two channels, and files need some, too.
const DIRECTORIES_MAX: usize = 64;

/// How long a directory is waited for if others want its place: its mover may have handed it to the queue.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the answers count. What a directory has got since is found by the next pass, and a name is looked at again
/// before anything is deleted because a list lacks it.
const FRESH: Duration = Duration::from_secs(30);

/// The requests about a directory that are under way.
#[derive(Debug)]
pub(super) struct Requested {
    /// What the list of the directory above has shown of it.
    pub(super) metadata: Metadata,
    pub(super) list: Channel,
    pub(super) attributes: Option<Channel>,
    at: Instant,
}

impl Requested {
    pub(super) fn new(metadata: Metadata, list: Channel, attributes: Option<Channel>) -> Self {
        Self { metadata, list, attributes, at: Instant::now() }
    }
}

/// Requests about directories that nobody has entered yet, by path.
#[derive(Debug, Default)]
pub(super) struct EnteredAhead(Mutex<HashMap<TreePath, Requested>>);

impl EnteredAhead {
    /// Whether a directory may be asked for ahead: it was not yet, and there is room.
    pub(super) fn wants(&self, path: &TreePath) -> bool {
        let mut all = lock(&self.0);
        let mut dropped = Vec::new();
        if all.len() >= DIRECTORIES_MAX {
            dropped.extend(all.extract_if(|_, requested| requested.at.elapsed() > PATIENCE));
        }
        let wants = all.len() < DIRECTORIES_MAX && !all.contains_key(path);
        // Dropping a channel may wait for a write.
        drop(all);
        drop(dropped);
        wants
    }

    pub(super) fn keep(&self, path: TreePath, requested: Requested) {
        let replaced = lock(&self.0).insert(path, requested);
        drop(replaced);
    }

    /// Takes the requests about a directory, unless they are too old.
    pub(super) fn take(&self, path: &TreePath) -> Option<Requested> {
        let taken = lock(&self.0).remove(path);
        taken.filter(|requested| requested.at.elapsed() <= FRESH)
    }
}
