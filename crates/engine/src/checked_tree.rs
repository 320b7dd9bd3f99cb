//! The tree that is compared with a manifest.
use dmover_local::error::at_destination;
use dmover_model::{
    DifferenceKind, DirectoryRef, EntryError, EntryKind, ErrorClass, Metadata, Operation, Side,
    TreePath,
};

use crate::context::{CHECKED, Engine};
use crate::directory_pair::{self, DirectoryPair};
use crate::finding::{self, Finding};
use crate::mover_report::ReportItem;

/// Whether the manifest has an entry, or at least its directory: entries beside the tree of the manifest are
/// ignored.
pub(crate) fn is_of_manifest(engine: &Engine, path: &TreePath) -> bool {
    let above = path.split_last().map(|(above, _)| above);
    path.is_root() || knows(engine, path) || above.is_some_and(|above| knows(engine, &above))
}

fn knows(engine: &Engine, path: &TreePath) -> bool {
    let known = engine.proof.known(std::slice::from_ref(path)).map(|known| known == [true]);
    known.unwrap_or_else(|reason| {
        let words = format!("cannot check the manifest: {reason}");
        engine.error(unchecked(engine, path, words));
        true
    })
}

/// Reports an entry in a directory of the manifest that the manifest does not have.
pub(crate) fn tell_unless_known(engine: &Engine, path: &TreePath, found: &Metadata) {
    if path.is_root() || !is_of_manifest(engine, path) || knows(engine, path) {
        return;
    }
    // What is in it is too much as well.
    if found.kind == EntryKind::Directory
        && !engine.reports.coordinator.tell(|| ReportItem::Known(path.clone()))
        && let Err(error) = engine.proof.learn([path])
    {
        engine.error(unchecked(
            engine,
            path,
            format!("cannot report the extra entries in it: {error}"),
        ));
    }
    if finding::is_untouched(engine, found) {
        return;
    }
    let repaired = engine.spec.repairs().then_some(false);
    let finding = Finding::of(DifferenceKind::Extra);
    finding::tell_finding(engine, checked_path(engine, path), found.kind, finding, repaired);
}

/// Restores the times of a directory in a tree that was compared with a manifest.
pub(crate) fn restore_times(engine: &Engine, at: &DirectoryRef) -> Result<(), EntryError> {
    let Some((atime, mtime)) = engine.proof.kept_times(&at.path) else {
        return Ok(());
    };
    let root = engine.root(at.root)?;
    let Some(target) = directory_pair::open_target(engine, &root, &at.path, at.destination)? else {
        return Ok(());
    };
    target.set_times(atime, mtime)
}

pub(crate) fn unchecked(engine: &Engine, path: &TreePath, words: String) -> EntryError {
    let (side, class) = (Side::Destination, ErrorClass::Other);
    EntryError::plain(side, Operation::Check, class, checked_path(engine, path), words)
}

/// A directory of the tree that is compared with a manifest.
pub(crate) fn checked_level(engine: &Engine, path: &TreePath) -> Result<DirectoryPair, EntryError> {
    let root = engine.root(CHECKED)?;
    let source = engine
        .insist(|| directory_pair::open_source(engine, &root, path))
        .map_err(at_destination)?;
    let (root_id, path) = (CHECKED, path.clone());
    Ok(DirectoryPair {
        root_id,
        root,
        path,
        source,
        target: None,
        base: None,
        ancestors: Vec::new(),
    })
}

pub(crate) fn checked_path(engine: &Engine, path: &TreePath) -> dmover_model::PathBytes {
    engine.destination_path(CHECKED, path, b"")
}
