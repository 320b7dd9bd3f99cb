//! The directories of a job, and the ones that its movers must not enter.
use dmover_local::destination_lock::DestinationLock;
use dmover_local::directory::{SourceDirectory, TargetDirectory};
use dmover_local::object::LayerObject;
use dmover_local::root::OverlappingRoots;
use dmover_model::Identity;
use dmover_schedule::sync::RwLock;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::PoisonError;

use super::roots::RootTable;
use crate::bounds::Bounds;

/// The directories of a job.
pub(crate) struct Places {
    pub roots: RootTable,
    /// Paths where roots overlap.
    pub meetings: OverlappingRoots,
    /// Locks of the written directories, in the process of the coordinator.
    pub lock: DestinationLock,
    /// The base of relative paths; empty: the working directory.
    pub base: PathBuf,
    /// The trees and verbs that this mover accepts.
    pub bounds: Bounds,
    /// The state directory of the job.
    pub state_path: Option<PathBuf>,
    pub forbidden: Forbidden,
}

/// Directories of the destination, which must never be entered as a source.
#[derive(Default)]
pub(crate) struct Forbidden {
    roots: RwLock<HashSet<Identity>>,
    /// The same directories as an overlay shows them.
    in_layers: RwLock<HashSet<LayerObject>>,
}

impl Forbidden {
    /// Forbids to enter a directory of the destination as a source.
    pub fn add(&self, identity: Identity) {
        self.roots.write().unwrap_or_else(PoisonError::into_inner).insert(identity);
    }

    /// Forbids the same directory behind an overlay, which shows it with another device number. This also covers layers
    /// that the options of the overlay do not name.
    pub fn add_in_layers(&self, directory: &TargetDirectory) {
        if let Some(object) = directory.layer_object() {
            self.in_layers.write().unwrap_or_else(PoisonError::into_inner).insert(object);
        }
    }

    /// Whether a directory is one of the destination behind an overlay, or the destination is an overlay that writes
    /// into it.
    pub fn has_in_layers(&self, directory: &SourceDirectory) -> bool {
        let known = || self.in_layers.read().unwrap_or_else(PoisonError::into_inner);
        directory.layer_object().is_some_and(|object| known().contains(&object))
    }

    pub fn has(&self, identity: Identity) -> bool {
        self.roots.read().unwrap_or_else(PoisonError::into_inner).contains(&identity)
    }
}
