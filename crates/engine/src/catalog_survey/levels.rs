//! Directories of both sides, by their paths alone.
use dmover_local::root::Root;
use dmover_model::{EntryError, Identity, Metadata, RootId, TreePath};
use std::sync::Arc;

use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair, SourceDirectory};

/// A directory of both sides.
pub(super) fn level_at(
    engine: &Engine,
    root: &Arc<Root>,
    path: TreePath,
) -> Result<DirectoryPair, EntryError> {
    let source = directory_pair::open_source(engine, root, &path)?;
    level_of(engine, root, source, path)
}

/// A directory of which the source has told before. `metadata`: as it has told it.
pub(super) fn level_told(
    engine: &Engine,
    root: &Arc<Root>,
    path: TreePath,
    metadata: Metadata,
) -> Result<DirectoryPair, EntryError> {
    match engine.end.told_source(&root.source, &path, metadata) {
        Some(source) => level_of(engine, root, source, path),
        None => level_at(engine, root, path),
    }
}

/// The directory of the destination that belongs to one of the source.
pub(crate) fn level_of(
    engine: &Engine,
    root: &Arc<Root>,
    source: SourceDirectory,
    path: TreePath,
) -> Result<DirectoryPair, EntryError> {
    let target = directory_pair::open_target(engine, root, &path, Identity::default())?;
    let (root_id, root, ancestors) = (RootId::ONLY, Arc::clone(root), Vec::new());
    Ok(DirectoryPair { root_id, root, path, source, target, base: None, ancestors })
}
