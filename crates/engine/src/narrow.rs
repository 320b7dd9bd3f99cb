//! Narrows directories that give more access than their source, before entries are copied into them.
//!
//! The final mode of a directory is set when everything below it is done. Until then new entries must not be accessible
//! to users whom the source excludes: only permission bits and a wrong owner are removed.
use dmover_local::error::is_absent;
use dmover_local::narrow::OTHERS;
use dmover_local::root::Root;
use dmover_model::{EntryError, TreePath};
use dmover_observe::Counter;
use std::sync::Arc;

use crate::alike;
use crate::catalog_survey;
use crate::context::Engine;
use crate::directory_pair::DirectoryPair;
use crate::mover::Mover;
use crate::source_now::SourceNow;

/// Removes permissions from a destination directory that its source does not give.
pub(crate) fn narrow(engine: &Engine, level: &mut DirectoryPair) -> Result<(), EntryError> {
    let Some(target) = &level.target else { return Ok(()) };
    let (new, old) = (&level.source.metadata, &target.metadata);
    let wide = old.mode & OTHERS != 0 || engine.local().owner_to_set(new, old).is_some();
    let unlike =
        alike::is_unlike(&engine.settable, new, old) || alike::is_touched(engine, level, new, old);
    if target.made || !wide || !unlike || !engine.local().rules.sets_modes() {
        return Ok(());
    }
    let narrowed = engine.local().narrow_directory(&level.source, target)?;
    if let (Some(now), Some(target)) = (narrowed, &mut level.target) {
        let before = std::mem::replace(&mut target.metadata, now);
        target.narrowed = Some(Box::new(before));
        engine.reports.count(Counter::DirectoriesUpdated);
    }
    Ok(())
}

/// Narrows a directory and all directories above it, before an entry is moved into it.
pub(crate) fn narrow_above(
    mover: &Mover<'_>,
    (root, source): (&Arc<Root>, &SourceNow<'_>),
    at: &TreePath,
) -> Result<(), EntryError> {
    if !mover.session.local.rules.sets_modes() || mover.seen.narrowed.borrow().as_ref() == Some(at)
    {
        return Ok(());
    }
    let mut place = TreePath::root();
    for component in std::iter::once(None).chain(at.components().map(Some)) {
        place = component.map_or(place.clone(), |name| place.join(name));
        let level = source.directory(&place).and_then(|directory| {
            catalog_survey::level_of(mover.engine, root, directory, place.clone())
        });
        match level {
            Ok(mut level) => narrow(mover.engine, &mut level)?,
            // It is made, closed to all others.
            Err(error) if is_absent(&error) => break,
            Err(error) => return Err(error),
        }
    }
    *mover.seen.narrowed.borrow_mut() = Some(at.clone());
    Ok(())
}
