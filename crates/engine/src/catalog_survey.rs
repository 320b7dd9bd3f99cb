//! The checks before and after a pass: which source directories have changed names, and which entries are equal on both
//! sides in the end.
use dmover_local::error::CallFailed;
use dmover_local::listing::Listing;
use dmover_local::object::says_nothing;
use dmover_local::root::Root;
use dmover_local::seen_names::SeenNames;
use dmover_model::{
    CatalogEntry, DirectoryState, EntryError, EntryKind, EntryRecord, Identity, Name, Object,
    Operation, Revisit, RootId, Segment, Side, Surveyed, TreePath,
};
use dmover_observe::{Activity, activity};
use dmover_plan::history::{COARSE, SKEW, later};
use dmover_plan::temporary::is_temporary;
use dmover_schedule::time::since_1970;
use std::sync::Arc;

use crate::alike;
use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair, SourceDirectory};
use crate::mover::Mover;

/// How many names are reported or recorded at once.
const NAMES_MAX: usize = 4096;
/// The most names of one directory that only the destination has; more cannot have been renamed one by one.
const LEFT_MAX: usize = 65_536;

/// A directory of both sides, by its path alone.
pub(crate) fn level_at(
    engine: &Engine,
    root_id: RootId,
    root: &Arc<Root>,
    path: TreePath,
) -> Result<DirectoryPair, EntryError> {
    let source = directory_pair::open_source(engine, root, &path)?;
    let target = directory_pair::open_target(engine, root, &path, Identity::default())?;
    let (root, ancestors) = (Arc::clone(root), Vec::new());
    Ok(DirectoryPair { root_id, root, path, source, target, base: None, ancestors })
}

/// Whether the last change of a source directory is so long ago that another change would show in its times.
fn is_settled(_engine: &Engine, source: &SourceDirectory, state: &DirectoryState) -> bool {
    let spare = if source.facts.local { COARSE } else { SKEW };
    let now = since_1970();
    later(state.ctime, spare).seconds < now.as_secs() as i64
}

/// Reports directories with changed names.
pub(crate) fn run_revisit(mover: &mut Mover<'_>, directories: &[Revisit]) {
    for revisit in directories {
        if mover.engine.control.is_stopping() {
            return;
        }
        mover.engine.resources.limits.operation(&mover.engine.control, mover.lease);
        mover.lease.extend();
        if let Err(error) = revisit_one(mover, revisit) {
            tell_not_revisited(mover.engine, revisit, error);
        }
    }
}

/// Reports a directory whose names could not be compared with those of the catalog. Names that were exchanged in it
/// would be found by nothing else, so the pass has failed.
fn tell_not_revisited(engine: &Engine, revisit: &Revisit, error: CallFailed) {
    // What may not be read fails in the scan, which reports it.
    if !says_nothing(error) {
        let Ok(root) = engine.root(RootId::ONLY) else { return };
        let path = root.source.display().join(&revisit.path);
        return engine.error(error.at((Side::Source, Operation::Read), path));
    }
    tracing::debug!(%error, path = ?revisit.path, "cannot check a directory for renames");
}

fn revisit_one(mover: &mut Mover<'_>, revisit: &Revisit) -> Result<(), CallFailed> {
    activity::at(Activity::SourceNames);
    let Ok(root) = mover.engine.root(RootId::ONLY) else { return Ok(()) };
    let Revisit { path, inode, known } = revisit;
    // Renames are only followed in trees of this host.
    let Some(source) = root.source.here() else { return Ok(()) };
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

pub(super) fn tell(mover: &mut Mover<'_>, surveyed: Surveyed) {
    let many = match &surveyed {
        Surveyed::Listed { names, .. } => names.len() >= NAMES_MAX,
        Surveyed::Recorded(segment) => segment.entries.len() >= NAMES_MAX,
        _ => false,
    };
    mover.report.outcome.survey.push(surveyed);
    if many {
        mover.report.flush();
    }
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
            let Ok(state) = level.source.state() else { return };
            object = state.object;
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

/// Reports that a file has another version or other attributes under its old name: the names of its directory are
/// those in the catalog.
pub(crate) fn tell_renewed(mover: &mut Mover<'_>, level: &DirectoryPair, record: &EntryRecord) {
    let (source, name) = (level.source.metadata.identity, &record.name);
    if !mover.engine.facts.keeps_catalog || source.mount != level.root.mount {
        return;
    }
    match recorded(mover.engine, level, name) {
        // Another file has its name now. If it looks alike, only a comparison shows the difference.
        Recorded::Alike(entry) if entry.source.inode != record.metadata.identity.inode => {
            mover.engine.doubts.add(level.path.join(name.as_bytes()));
            tell_touched(mover, level);
        }
        Recorded::Alike(entry) => {
            let (directory, name) = (source.inode, name.clone());
            tell(mover, Surveyed::Renewed { directory, name, entry });
        }
        Recorded::LeftOut => {}
        Recorded::Unlike | Recorded::AlikeNow(_) => tell_touched(mover, level),
    }
}

/// Records a doubt if another file may have taken the name between the last check of the copied file and its rename
/// at the destination. The times of that file are older than the copy, and if it looks alike, only this shows it.
pub(crate) fn doubt_if_exchanged(engine: &Engine, level: &DirectoryPair, record: &EntryRecord) {
    if !engine.facts.keeps_catalog {
        return;
    }
    let (name, follows) = (record.name.as_bytes(), engine.spec.follows_links());
    let found = engine.end.find_source(&level.source, name, follows).ok().flatten();
    if found.is_some_and(|now| now.identity != record.metadata.identity) {
        engine.doubts.add(level.path.join(record.name.as_bytes()));
    }
}

/// Records entries of directories that are equal on both sides.
pub(crate) fn run_catalog(mover: &mut Mover<'_>, directories: &[TreePath]) {
    for path in directories {
        if mover.engine.control.is_stopping() {
            return;
        }
        // What was not there, or failed, is not recorded; the next pass reads it again.
        if let Err(error) = record_directory(mover, path) {
            tracing::debug!(%error, "cannot record a directory in the catalog");
        }
    }
}

/// Records what both sides have under single names.
pub(crate) fn run_catalog_names(mover: &mut Mover<'_>, places: &[TreePath]) {
    let mut open: Option<DirectoryPair> = None;
    for place in places {
        let Some((directory, name)) = place.split_last() else { continue };
        if open.as_ref().is_none_or(|level| level.path != directory) {
            let engine = mover.engine;
            let level = engine
                .root(RootId::ONLY)
                .and_then(|root| level_at(engine, RootId::ONLY, &root, directory));
            open = level.ok();
        }
        // The entries of a deleted directory are gone with it.
        let (Some(level), Ok(name)) = (&open, Name::new(name)) else { continue };
        if mover.engine.control.is_stopping() {
            return;
        }
        let (entry, recent) = match recorded(mover.engine, level, &name) {
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

fn record_directory(mover: &mut Mover<'_>, path: &TreePath) -> Result<(), EntryError> {
    let engine = mover.engine;
    let root = engine.root(RootId::ONLY)?;
    let level = level_at(engine, RootId::ONLY, &root, path.clone())?;
    let recorded = record_level(mover, &level);
    recorded.map_err(|e| level.source.unread(e))
}

fn record_level(mover: &mut Mover<'_>, level: &DirectoryPair) -> Result<(), CallFailed> {
    activity::at(Activity::SourceNames);
    let engine = mover.engine;
    let Some(target) = &level.target else { return Ok(()) };
    let here = level.source.metadata.identity.mount == level.root.mount;
    if !here {
        return Ok(());
    }
    let state = level.source.state()?;
    let copy = target.identify()?;
    let mut part = Segment {
        state,
        copy,
        path: level.path.clone(),
        entries: Vec::new(),
        recent: Vec::new(),
        left: Vec::new(),
        settled: is_settled(engine, &level.source, &state),
        first: true,
        last: false,
    };
    let mut seen = SeenNames::default();
    each_in(mover, &level.source.listing()?, |mover, name| {
        seen.insert(name.as_bytes());
        if is_temporary(name.as_bytes()) {
            return Ok(());
        }
        match recorded(mover.engine, level, &name) {
            Recorded::Alike(entry) => part.entries.push(*entry),
            Recorded::AlikeNow(entry) => {
                part.recent.push(entry.name.clone());
                part.entries.push(*entry);
            }
            Recorded::Unlike => part.settled = false,
            Recorded::LeftOut => {}
        }
        mover.spent.entries += 1;
        if part.entries.len() >= NAMES_MAX {
            let (entries, recent, left) = (Vec::new(), Vec::new(), Vec::new());
            let next = Segment { entries, recent, left, first: false, ..part.clone() };
            tell_part(mover, std::mem::replace(&mut part, next));
        }
        Ok(())
    })?;
    each_in(mover, &target.listing()?, |_, name| {
        let bytes = name.as_bytes();
        if part.left.len() < LEFT_MAX && !is_temporary(bytes) && !seen.has(&level.source, bytes)? {
            let object = target.object_at(bytes)?;
            part.left.push((name, object));
        }
        Ok(())
    })?;
    tell_part(mover, Segment { last: true, ..part });
    Ok(())
}

fn tell_part(mover: &mut Mover<'_>, mut part: Segment) {
    part.entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    tell(mover, Surveyed::Recorded(Box::new(part)));
}

fn each_in(
    mover: &mut Mover<'_>,
    listing: &Listing,
    mut action: impl FnMut(&mut Mover<'_>, Name) -> Result<(), CallFailed>,
) -> Result<(), CallFailed> {
    mover.with_buffer(|mover, buffer| {
        listing.read(buffer, |listed| {
            mover.lease.extend();
            action(mover, listed.name()?)?;
            Ok(true)
        })
    })
}

/// The result of a check of a name on both sides for the catalog.
enum Recorded {
    Alike(Box<CatalogEntry>),
    /// An equal directory that may have replaced the copied one.
    AlikeNow(Box<CatalogEntry>),
    /// It does not exist, differs, or may have been replaced.
    Unlike,
    /// It is not part of the job.
    LeftOut,
}

fn recorded(engine: &Engine, level: &DirectoryPair, name: &Name) -> Recorded {
    let Some(target) = &level.target else { return Recorded::Unlike };
    let bytes = name.as_bytes();
    let looked = engine.end.source_object(&level.source, bytes);
    let Ok((new, source)) = looked else { return Recorded::Unlike };
    let below = level.path.join(name.as_bytes());
    let here = new.identity.mount == level.root.mount;
    if !here || !engine.filter.admits(below.as_bytes(), &new) {
        return Recorded::LeftOut;
    }
    let looked = engine.end.target_object(target, bytes);
    let Ok((old, copy)) = looked else { return Recorded::Unlike };
    if source.birth.is_none() || copy.birth.is_none() {
        // Without a time of birth it could be another object by then.
        return Recorded::LeftOut;
    }
    let there = old.identity.mount == target.metadata.identity.mount && old.kind == new.kind;
    // If an entry was exchanged with another of the same size and time after both were checked, only this shows it.
    // Renamed and compared entries are known whatever their times: not every file system changes times then.
    let looked_at = || {
        !engine.facts.history.is_later(level.clocks(), &new, &old)
            || engine.doubts.was_renamed(&level.path, name.as_bytes())
            || engine.doubts.has(&level.path, name.as_bytes())
    };
    let known = new.kind == EntryKind::Directory
        || (alike::is_the_same(&engine.spec, &new, &old, target) && looked_at());
    if !(there && known) {
        if there
            && engine.facts.keeps_journal
            && alike::is_the_same(&engine.spec, &new, &old, target)
        {
            // It may have been replaced after it was copied, by an entry that looks alike.
            engine.doubts.add(below);
        }
        return Recorded::Unlike;
    }
    let entry = Box::new(CatalogEntry {
        name: name.clone(),
        kind: new.kind,
        source,
        copy,
        size: new.size,
        mtime: new.mtime,
    });
    if new.kind == EntryKind::Directory && engine.facts.history.is_recent(level.clocks(), &new) {
        return Recorded::AlikeNow(entry);
    }
    Recorded::Alike(entry)
}
