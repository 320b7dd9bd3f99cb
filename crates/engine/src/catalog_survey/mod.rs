//! The checks before and after a pass: which source directories have changed names, and which entries are equal on both
//! sides in the end.
use dmover_local::error::CallFailed;
use dmover_local::root::Root;
use dmover_local::root_side::RootSide;
use dmover_model::{
    EntryError, EntryRecord, Identity, Metadata, Name, Object, Operation, Revisit, RootId, Side,
    Surveyed, TreePath,
};
use dmover_observe::{Activity, activity};
use dmover_tree::RemoteCatalog;
use std::sync::Arc;

use crate::context::Engine;
use crate::copied_names::{CopiedName, CopiedNames};
use crate::directory_pair::DirectoryPair;
use crate::mover::Mover;
use findings::NAMES_MAX;
pub(crate) use findings::tell;
pub(crate) use levels::level_of;
use levels::{level_at, level_told};
use recording::{Recorded, Recorder, each_in, recorded};

mod far;
mod findings;
mod levels;
mod recording;

/// What tells of a source that is read through messages.
fn told_by(root: &Root) -> Option<&dyn RemoteCatalog> {
    root.source.remote()?.catalog()
}

/// Reports directories with changed names.
pub(crate) fn run_revisit(mover: &mut Mover<'_>, directories: &[Revisit]) {
    let Ok(root) = mover.engine.root(RootId::ONLY) else { return };
    activity::at(Activity::SourceNames);
    if let Some(catalog) = told_by(&root) {
        mover.engine.resources.limits.operation(&mover.engine.control, mover.lease);
        if let Err(error) = far::revisit(mover, (&root, catalog), directories) {
            mover.engine.error(error);
        }
        return;
    }
    let Some(source) = root.source.here() else { return };
    for revisit in directories {
        if mover.engine.control.is_stopping() {
            return;
        }
        mover.engine.resources.limits.operation(&mover.engine.control, mover.lease);
        mover.lease.extend();
        if let Err(error) = revisit_one(mover, (&root, source), revisit) {
            let path = root.source.display().join(&revisit.path);
            let error = error.at((Side::Source, Operation::Read), path);
            findings::tell_not_revisited(mover.engine, revisit, error);
        }
    }
}

fn revisit_one(
    mover: &mut Mover<'_>,
    (root, source): (&Root, &RootSide),
    revisit: &Revisit,
) -> Result<(), CallFailed> {
    let Revisit { path, inode, known } = revisit;
    let (state, own) = mover.engine.end.revisit(source, path)?;
    let here = own.identity.mount == root.mount;
    let takes_part = path.is_root() || mover.engine.filter.admits_below(path, &own);
    if !here || state.object.inode != *inode || !takes_part {
        return Ok(());
    }
    if *known == Some(state) {
        let (inode, path) = (*inode, path.clone());
        tell(mover, Surveyed::Unchanged { inode, path });
        return Ok(());
    }
    let mut names = Vec::new();
    let object = mover.with_buffer(|mover, buffer| {
        source.each_numbered(path, buffer, |object, name| {
            mover.lease.extend();
            names.push(name);
            if names.len() >= NAMES_MAX {
                let (names, path) = (std::mem::take(&mut names), path.clone());
                tell(mover, Surveyed::Listed { object, path, names, last: false });
            }
        })
    })?;
    tell(mover, Surveyed::Listed { object, path: path.clone(), names, last: true });
    Ok(())
}

/// Reports that a directory was entered that may be replaced before it is recorded, or whose old place the catalog
/// does not have.
pub(crate) fn tell_entered(mover: &mut Mover<'_>, above: &DirectoryPair, level: &DirectoryPair) {
    let engine = mover.engine;
    let source = &level.source.metadata;
    let here = source.identity.mount == level.root.mount;
    if !engine.facts.keeps_catalog || !here {
        return;
    }
    let made = level.target.as_ref().is_some_and(|target| target.made);
    let recent = engine.facts.history.is_recent(level.clocks(), source);
    if engine.facts.tells_entered || made || recent {
        let late = recent && !made;
        let mut object = Object { inode: source.identity.inode, birth: None };
        if late {
            // Only then the catalog is asked which object it knows.
            let Some(now) = object_of(level) else { return };
            object = now;
        }
        let (path, above) = (level.path.clone(), above.source.metadata.identity.inode);
        mover.report.outcome.survey.push(Surveyed::Entered { object, path, above, late });
    }
}

/// Reports that an entry of a directory is copied, so that the catalog is outdated there.
pub(crate) fn tell_touched(mover: &mut Mover<'_>, level: &DirectoryPair) {
    let source = level.source.metadata.identity;
    let here = source.mount == level.root.mount;
    if mover.engine.facts.keeps_catalog
        && here
        && mover.seen.touched.replace(source) != Some(source)
    {
        let (inode, path) = (source.inode, level.path.clone());
        mover.report.outcome.survey.push(Surveyed::Touched { inode, path });
    }
}

/// The object that a source directory is.
fn object_of(level: &DirectoryPair) -> Option<Object> {
    let Some(catalog) = told_by(&level.root) else {
        return level.source.state().ok().map(|state| state.object);
    };
    let looked = catalog.objects(std::slice::from_ref(&level.path)).ok()?.pop()?;
    Some(looked.ok()?.1)
}

/// Reports that a file was copied, and whether the destination had an older version under this name.
pub(crate) fn tell_copied(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    record: &EntryRecord,
    is_renewed: bool,
) {
    let engine = mover.engine;
    if !is_renewed {
        tell_touched(mover, level);
    }
    let is_here = level.source.metadata.identity.mount == level.root.mount;
    if !engine.facts.keeps_catalog || (is_renewed && !is_here) {
        return;
    }
    let (name, identity) = (record.name.clone(), record.metadata.identity);
    if told_by(&level.root).is_some() {
        let directory = (&level.path, &level.source.metadata);
        if mover.seen.copied.add(directory, CopiedName { name, identity, is_renewed }) {
            ask_about_copied(mover);
        }
        return;
    }
    if is_renewed {
        let looked = engine.end.source_object(&level.source, name.as_bytes()).ok();
        return tell_renewed(mover, level, (&name, identity), looked);
    }
    let follows = engine.spec.follows_links();
    let found = engine.end.find_source(&level.source, name.as_bytes(), follows).ok().flatten();
    doubt_if_exchanged(engine, (&level.path, &name), identity, found.as_ref());
}

/// Reports that a file has another version or other attributes under its old name: the names of its directory are
/// those in the catalog. `looked`: what has the name now.
fn tell_renewed(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    (name, copied): (&Name, Identity),
    looked: Option<(Metadata, Object)>,
) {
    match recorded(mover.engine, level, name, looked) {
        // Another file has its name now. If it looks alike, only a comparison shows the difference.
        Recorded::Alike(entry) if entry.source.inode != copied.inode => {
            mover.engine.doubts.add(level.path.join(name.as_bytes()));
            tell_touched(mover, level);
        }
        Recorded::Alike(entry) => {
            let (directory, name) = (level.source.metadata.identity.inode, name.clone());
            tell(mover, Surveyed::Renewed { directory, name, entry });
        }
        Recorded::LeftOut => {}
        Recorded::Unlike | Recorded::AlikeNow(_) => tell_touched(mover, level),
    }
}

/// Records a doubt if another file may have taken the name between the last check of the copied file and its rename
/// at the destination. The times of that file are older than the copy, and if it looks alike, only this shows it.
fn doubt_if_exchanged(
    engine: &Engine,
    (directory, name): (&TreePath, &Name),
    copied: Identity,
    now: Option<&Metadata>,
) {
    if now.is_some_and(|now| now.identity != copied) {
        engine.doubts.add(directory.join(name.as_bytes()));
    }
}

/// Asks the source once more who has the names of copied files.
pub(crate) fn ask_about_copied(mover: &mut Mover<'_>) {
    let copied = mover.seen.copied.take();
    // Jobs without a catalog may have no root of this number.
    if copied.is_empty() {
        return;
    }
    let engine = mover.engine;
    let Ok(root) = engine.root(RootId::ONLY) else { return };
    let Some(catalog) = told_by(&root) else { return };
    activity::at(Activity::SourceNames);
    let path = |directory: &TreePath, file: &CopiedName| directory.join(file.name.as_bytes());
    let paths: Vec<TreePath> = copied
        .iter()
        .flat_map(|names| names.files.iter().map(|file| path(&names.directory, file)))
        .collect();
    let mut looked = match catalog.objects(&paths) {
        Ok(looked) => looked.into_iter(),
        // The next run scans again what this one could not report, and goes by change times.
        Err(_) if root.source.remote().is_some_and(|tree| tree.lost().is_some()) => return,
        Err(error) => {
            // Nothing is known of them.
            tracing::debug!(
                error = error.to_string(),
                "cannot ask who has the names of copied files"
            );
            for path in paths {
                engine.doubts.add(path);
            }
            Vec::new().into_iter()
        }
    };
    for CopiedNames { directory, metadata, files } in copied {
        let mut level = None;
        for CopiedName { name, identity, is_renewed } in files {
            let now = looked.next().and_then(Result::ok);
            if !is_renewed {
                let now = now.as_ref().map(|(metadata, _)| metadata);
                doubt_if_exchanged(engine, (&directory, &name), identity, now);
                continue;
            }
            let open = || level_told(engine, &root, directory.clone(), metadata.clone()).ok();
            if let Some(level) = level.get_or_insert_with(open) {
                tell_renewed(mover, level, (&name, identity), now);
            }
        }
    }
}

/// Records entries of directories that are equal on both sides.
pub(crate) fn run_catalog(mover: &mut Mover<'_>, directories: &[TreePath]) {
    let Ok(root) = mover.engine.root(RootId::ONLY) else { return };
    activity::at(Activity::SourceNames);
    // What was not there, or failed, is not recorded; the next pass reads it again.
    let tell = |error: EntryError| {
        tracing::debug!(%error, "cannot record a directory in the catalog");
    };
    if let Some(catalog) = told_by(&root) {
        return far::record(mover, (&root, catalog), directories).unwrap_or_else(tell);
    }
    for path in directories {
        if mover.engine.control.is_stopping() {
            return;
        }
        record_directory(mover, &root, path).unwrap_or_else(tell);
    }
}

/// Records what both sides have under single names.
pub(crate) fn run_catalog_names(mover: &mut Mover<'_>, places: &[TreePath]) {
    let engine = mover.engine;
    let Ok(root) = engine.root(RootId::ONLY) else { return };
    activity::at(Activity::SourceNames);
    let told = match told_by(&root).map(|catalog| catalog.objects(places)) {
        Some(Err(error)) => {
            tracing::debug!(%error, "cannot record entries in the catalog");
            return;
        }
        Some(Ok(told)) => Some(told),
        None => None,
    };
    let mut open: Option<DirectoryPair> = None;
    for (number, place) in places.iter().enumerate() {
        let Some((directory, name)) = place.split_last() else { continue };
        if open.as_ref().is_none_or(|level| level.path != directory) {
            open = level_at(engine, &root, directory).ok();
        }
        // The entries of a deleted directory are gone with it.
        let (Some(level), Ok(name)) = (&open, Name::new(name)) else { continue };
        if engine.control.is_stopping() {
            return;
        }
        let looked = match &told {
            Some(told) => told.get(number).and_then(|looked| looked.clone().ok()),
            None => engine.end.source_object(&level.source, name.as_bytes()).ok(),
        };
        let (entry, recent) = match recorded(engine, level, &name, looked) {
            Recorded::Alike(entry) => (Some(entry), None),
            Recorded::AlikeNow(entry) => (Some(entry), Some(place.clone())),
            Recorded::Unlike | Recorded::LeftOut => (None, None),
        };
        // Inodes of other file systems have the same numbers.
        if level.source.metadata.identity.mount != level.root.mount {
            continue;
        }
        let directory = level.source.metadata.identity.inode;
        tell(mover, Surveyed::Named { directory, name, entry, recent });
    }
}

fn record_directory(
    mover: &mut Mover<'_>,
    root: &Arc<Root>,
    path: &TreePath,
) -> Result<(), EntryError> {
    let level = level_at(mover.engine, root, path.clone())?;
    record_level(mover, &level).map_err(|e| level.source.unread(e))
}

fn record_level(mover: &mut Mover<'_>, level: &DirectoryPair) -> Result<(), CallFailed> {
    let engine = mover.engine;
    let Some(mut recorder) = Recorder::begin(level, level.source.state()?)? else { return Ok(()) };
    each_in(mover, &level.source.listing()?, |mover, name| {
        let look = || engine.end.source_object(&level.source, name.as_bytes()).ok();
        recorder.add(mover, level, &name, look);
        Ok(())
    })?;
    recorder.end(mover, level)
}
