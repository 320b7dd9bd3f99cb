//! The tree that is compared with a manifest.
use dmover_local::error::at_destination;
use dmover_model::{
    Answer, CoordinatorRequest, DifferenceKind, DirectoryRef, EntryError, EntryKind, ErrorClass,
    Metadata, Operation, Side, Times, TreePath,
};
use dmover_observe::lock;

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
        let known = match engine.ask(|| CoordinatorRequest::Known(vec![path.clone()])) {
            Some(Answer::Known(known)) => known.map(|known| known == [true]),
            _ => lock(&engine.known).has(path),
        };
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
            && !engine.tell(|| ReportItem::Known(path.clone()))
            && let Err(error) = lock(&engine.known).insert(path)
        {
            engine.error(
                engine.unchecked(path, format!("cannot report the extra entries in it: {error}")),
            );
        }
        if engine.is_untouched(found) {
            return;
        }
        let repaired = engine.repairs().then_some(false);
        let finding = Finding::of(DifferenceKind::Extra);
        engine.tell_finding(engine.checked_path(path), found.kind, finding, repaired);
    }

    /// Restores the times of a directory in a tree that was compared with a manifest.
    pub(crate) fn restore_times(&self, at: &DirectoryRef) -> Result<(), EntryError> {
        let engine = self.engine;
        let Some((atime, mtime)) = engine.kept_times(&at.path) else {
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

    /// The metadata of a directory as it was, or should be, before an entry in it was repaired.
    pub(crate) fn with_kept_times(&self, path: &TreePath, found: Metadata) -> Metadata {
        if found.kind != EntryKind::Directory {
            return found;
        }
        match self.kept_times(path) {
            Some((atime, mtime)) => Metadata { atime, mtime, ..found },
            None => found,
        }
    }

    /// The times that a directory must get after repairs below it.
    pub(crate) fn kept_times(&self, path: &TreePath) -> Option<Times> {
        let known = lock(&self.kept_times).get(path).copied();
        known.or_else(|| match self.ask(|| CoordinatorRequest::KeptTimes(path.clone())) {
            Some(Answer::KeptTimes(times)) => times,
            _ => None,
        })
    }

    /// Records the times of a directory.
    pub(crate) fn keep_times(&self, path: TreePath, times: Times, unless_known: bool) {
        self.tell(|| ReportItem::KeptTimes(path.clone(), times, unless_known));
        let mut all = lock(&self.kept_times);
        if !unless_known || !all.contains_key(&path) {
            all.insert(path, times);
        }
    }

    pub(crate) fn checked_path(&self, path: &TreePath) -> dmover_model::PathBytes {
        self.destination_path(CHECKED, path, b"")
    }
}
