//! The tree that is compared with a manifest.
use dmover_local::error::at_destination;
use dmover_model::{
    DifferenceKind, DirectoryRef, EntryError, EntryKind, ErrorClass, Metadata, Operation, Side,
    TreePath,
};

use crate::context::{CHECKED, Engine};
use crate::finding::Finding;
use crate::level::Level;
use crate::mover::Mover;
use crate::mover_report::ReportItem;

impl Mover<'_> {
    /// Whether the manifest has an entry, or at least its directory: entries beside the tree of the manifest are
    /// ignored.
    pub(crate) fn is_of_manifest(&mut self, path: &TreePath) -> bool {
        let above = path.split_last().map(|(above, _)| above);
        path.is_root() || self.knows(path) || above.is_some_and(|above| self.knows(&above))
    }

    fn knows(&mut self, path: &TreePath) -> bool {
        let engine = self.engine;
        let known = engine.proof.known(std::slice::from_ref(path)).map(|known| known == [true]);
        known.unwrap_or_else(|reason| {
            let words = format!("cannot check the manifest: {reason}");
            engine.error(engine.unchecked(path, words));
            true
        })
    }

    /// Reports an entry in a directory of the manifest that the manifest does not have.
    pub(crate) fn tell_unless_known(&mut self, path: &TreePath, found: &Metadata) {
        let engine = self.engine;
        if path.is_root() || !self.is_of_manifest(path) || self.knows(path) {
            return;
        }
        // What is in it is too much as well.
        if found.kind == EntryKind::Directory
            && !engine.reports.desk.tell(|| ReportItem::Known(path.clone()))
            && let Err(error) = engine.proof.learn([path])
        {
            engine.error(
                engine.unchecked(path, format!("cannot report the extra entries in it: {error}")),
            );
        }
        if engine.is_untouched(found) {
            return;
        }
        let repaired = engine.spec.repairs().then_some(false);
        let finding = Finding::of(DifferenceKind::Extra);
        engine.tell_finding(engine.checked_path(path), found.kind, finding, repaired);
    }

    /// Restores the times of a directory in a tree that was compared with a manifest.
    pub(crate) fn restore_times(&self, at: &DirectoryRef) -> Result<(), EntryError> {
        let engine = self.engine;
        let Some((atime, mtime)) = engine.proof.kept_times(&at.path) else {
            return Ok(());
        };
        let root = engine.root(at.root)?;
        let Some(target) = engine.open_target(&root, &at.path, at.destination)? else {
            return Ok(());
        };
        target.set_times(atime, mtime)
    }
}

impl Engine {
    pub(crate) fn unchecked(&self, path: &TreePath, words: String) -> EntryError {
        let (side, class) = (Side::Destination, ErrorClass::Other);
        EntryError::plain(side, Operation::Check, class, self.checked_path(path), words)
    }

    /// A directory of the tree that is compared with a manifest.
    pub(crate) fn checked_level(&self, path: &TreePath) -> Result<Level, EntryError> {
        let root = self.root(CHECKED)?;
        let source = self.insist(|| self.open_source(&root, path)).map_err(at_destination)?;
        let (root_id, path) = (CHECKED, path.clone());
        Ok(Level { root_id, root, path, source, target: None, base: None, ancestors: Vec::new() })
    }

    pub(crate) fn checked_path(&self, path: &TreePath) -> dmover_model::PathBytes {
        self.destination_path(CHECKED, path, b"")
    }
}
