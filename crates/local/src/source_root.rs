//! A root of the source: an entry of this host, or a tree that is read through messages.
use dmover_model::{EntryError, Name, PathBytes, SideMark};
use dmover_tree::RemoteTree;
use std::sync::Arc;

use crate::mounts::MountTable;
use crate::root_side::{RootNames, RootSide};

/// A root of the source.
#[derive(Debug)]
pub enum SourceRoot {
    /// An entry of this host.
    Here(RootSide),
    /// A tree that is read through messages.
    Remote {
        /// The tree.
        tree: Arc<dyn RemoteTree>,
        /// The name of the root, if it is a single entry.
        name: Option<Name>,
        /// How its entries are called.
        names: Arc<RootNames>,
    },
}

impl SourceRoot {
    /// The root of this host; `None`: it is read through messages.
    pub fn here(&self) -> Option<&RootSide> {
        match self {
            Self::Here(side) => Some(side),
            Self::Remote { .. } => None,
        }
    }

    /// The tree that is read through messages.
    pub fn remote(&self) -> Option<&Arc<dyn RemoteTree>> {
        match self {
            Self::Here(_) => None,
            Self::Remote { tree, .. } => Some(tree),
        }
    }

    /// How its entries are called.
    pub fn names(&self) -> &Arc<RootNames> {
        match self {
            Self::Here(side) => &side.names,
            Self::Remote { names, .. } => names,
        }
    }

    /// The name of the root entry in the directory that contains it; `None`: the root is an open directory.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Self::Here(side) => side.name.as_ref(),
            Self::Remote { name, .. } => name.as_ref(),
        }
    }

    /// The root entry as a user would type it.
    pub fn display(&self) -> &PathBytes {
        &self.names().display
    }

    /// The path by which this host opens the root; its name in messages if another host has it.
    pub fn path_here(&self) -> PathBytes {
        self.here().map_or_else(|| self.display().clone(), RootSide::path_here)
    }

    /// What the root is now. `follow`: the entry is what a symbolic link leads to.
    ///
    /// # Errors
    /// It cannot be looked at, or what is above it is gone.
    pub fn mark(&self, mounts: &MountTable, follow: bool) -> Result<SideMark, EntryError> {
        match self {
            Self::Here(side) => side.mark(mounts, follow),
            // What is above it at its host does not matter, because nothing but this entry is read.
            Self::Remote { tree, .. } => {
                let identity = tree.root().metadata.identity;
                Ok(SideMark { above: identity, entry: Some(identity) })
            }
        }
    }
}
