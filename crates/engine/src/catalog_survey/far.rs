//! The same checks of a source that is read through messages: many directories or entries with each request.
use dmover_local::root::Root;
use dmover_model::{EntryError, Object, Revisit, Surveyed, TreePath};
use dmover_tree::{CatalogPart, RemoteCatalog};
use std::sync::Arc;

use super::findings::{NAMES_MAX, tell, tell_not_revisited};
use super::levels::level_told;
use super::recording::Recorder;
use crate::directory_pair::DirectoryPair;
use crate::mover::Mover;

/// Reports directories with changed names.
///
/// # Errors
/// The source cannot be asked.
pub(super) fn revisit(
    mover: &mut Mover<'_>,
    (root, catalog): (&Root, &dyn RemoteCatalog),
    directories: &[Revisit],
) -> Result<(), EntryError> {
    let mut left = directories.iter();
    let mut present = left.next();
    // The directory whose names come, and those that were not reported yet.
    let mut listed: Option<Object> = None;
    let mut names = Vec::new();
    catalog.revisit(directories, &mut |part| {
        mover.lease.extend();
        let Some(Revisit { path, inode, known }) = present else { return false };
        match part {
            CatalogPart::Directory(state, own) => {
                names.clear();
                let here = own.identity.mount == root.mount;
                let takes_part = path.is_root() || mover.engine.filter.admits_below(path, &own);
                let counts = here && state.object.inode == *inode && takes_part;
                listed = (counts && *known != Some(state)).then_some(state.object);
                if counts && listed.is_none() {
                    tell(mover, Surveyed::Unchanged { inode: *inode, path: path.clone() });
                }
            }
            CatalogPart::Entries(entries) => {
                let Some(object) = listed else { return true };
                names.extend(entries);
                if names.len() >= NAMES_MAX {
                    let (names, path) = (std::mem::take(&mut names), path.clone());
                    tell(mover, Surveyed::Listed { object, path, names, last: false });
                }
            }
            CatalogPart::End => {
                if let Some(object) = listed.take() {
                    let (names, path) = (std::mem::take(&mut names), path.clone());
                    tell(mover, Surveyed::Listed { object, path, names, last: true });
                }
                present = left.next();
            }
            CatalogPart::Failed(error) => {
                if let Some(revisit) = present {
                    tell_not_revisited(mover.engine, revisit, error);
                }
                listed = None;
                present = left.next();
            }
        }
        !mover.engine.control.is_stopping()
    })
}

/// Records entries of directories that are equal on both sides.
///
/// # Errors
/// The source cannot be asked.
pub(super) fn record(
    mover: &mut Mover<'_>,
    (root, catalog): (&Arc<Root>, &dyn RemoteCatalog),
    directories: &[TreePath],
) -> Result<(), EntryError> {
    let mut left = directories.iter();
    let mut open: Option<(DirectoryPair, Recorder)> = None;
    catalog.describe(directories, &mut |part| {
        mover.lease.extend();
        match part {
            CatalogPart::Directory(state, metadata) => {
                let Some(path) = left.as_slice().first() else { return false };
                open =
                    level_told(mover.engine, root, path.clone(), metadata).ok().and_then(|level| {
                        let recorder = Recorder::begin(&level, state).ok()??;
                        Some((level, recorder))
                    });
            }
            CatalogPart::Entries(entries) => {
                let Some((level, recorder)) = &mut open else { return true };
                for (name, looked) in entries {
                    recorder.add(mover, level, &name, || looked.ok());
                }
            }
            CatalogPart::End => {
                left.next();
                if let Some((level, recorder)) = open.take()
                    && let Err(error) = recorder.end(mover, &level)
                {
                    tracing::debug!(%error, "cannot record a directory in the catalog");
                }
            }
            CatalogPart::Failed(error) => {
                left.next();
                open = None;
                let error = error.to_string();
                tracing::debug!(error, "cannot record a directory in the catalog");
            }
        }
        !mover.engine.control.is_stopping()
    })
}
