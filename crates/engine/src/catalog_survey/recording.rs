//! Which entries of a directory are equal on both sides, as the catalog records them.
use dmover_local::error::CallFailed;
use dmover_local::listing::Listing;
use dmover_local::seen_names::SeenNames;
use dmover_model::{
    CatalogEntry, DirectoryState, EntryKind, Metadata, Name, Object, Segment, Surveyed,
};
use dmover_plan::history::{COARSE, SKEW, later};
use dmover_plan::temporary::is_temporary;
use dmover_schedule::time::since_1970;

use super::findings::{NAMES_MAX, tell};
use crate::alike;
use crate::context::Engine;
use crate::directory_pair::{DirectoryPair, SourceDirectory};
use crate::mover::Mover;

/// The most names of one directory that only the destination has; more cannot have been renamed one by one.
const LEFT_MAX: usize = 65_536;

/// Whether the last change of a source directory is so long ago that another change would show in its times.
fn is_settled(source: &SourceDirectory, state: &DirectoryState) -> bool {
    let spare = match (source.facts.local, source.facts.clock_skew) {
        (true, _) => COARSE,
        (false, Some(skew)) => COARSE + skew,
        (false, None) => SKEW,
    };
    let now = since_1970();
    later(state.ctime, spare).seconds < now.as_secs() as i64
}

/// The record of a directory, while its source is read.
pub(super) struct Recorder {
    part: Segment,
    seen: SeenNames,
}

impl Recorder {
    /// Begins the record of a directory in this state. `None`: it is on another file system, or nothing is written.
    pub fn begin(level: &DirectoryPair, state: DirectoryState) -> Result<Option<Self>, CallFailed> {
        let Some(target) = &level.target else { return Ok(None) };
        if level.source.metadata.identity.mount != level.root.mount {
            return Ok(None);
        }
        let part = Segment {
            state,
            copy: target.identify()?,
            path: level.path.clone(),
            entries: Vec::new(),
            recent: Vec::new(),
            left: Vec::new(),
            settled: is_settled(&level.source, &state),
            first: true,
            last: false,
        };
        Ok(Some(Self { part, seen: SeenNames::default() }))
    }

    /// Adds a name of the source. `look`: looks at it, unless the name shows that it is no entry of the job.
    pub fn add(
        &mut self,
        mover: &mut Mover<'_>,
        level: &DirectoryPair,
        name: &Name,
        look: impl FnOnce() -> Option<(Metadata, Object)>,
    ) {
        self.seen.insert(name.as_bytes());
        if is_temporary(name.as_bytes()) {
            return;
        }
        match recorded(mover.engine, level, name, look()) {
            Recorded::Alike(entry) => self.part.entries.push(*entry),
            Recorded::AlikeNow(entry) => {
                self.part.recent.push(entry.name.clone());
                self.part.entries.push(*entry);
            }
            Recorded::Unlike => self.part.settled = false,
            Recorded::LeftOut => {}
        }
        mover.spent.entries += 1;
        if self.part.entries.len() >= NAMES_MAX {
            let (entries, recent, left) = (Vec::new(), Vec::new(), Vec::new());
            let next = Segment { entries, recent, left, first: false, ..self.part.clone() };
            tell_part(mover, std::mem::replace(&mut self.part, next));
        }
    }

    /// Completes the record, when all names of the source were added.
    pub fn end(self, mover: &mut Mover<'_>, level: &DirectoryPair) -> Result<(), CallFailed> {
        let Self { mut part, seen } = self;
        let Some(target) = &level.target else { return Ok(()) };
        if level.source.is_remote() && !seen.knows_all() {
            // Each name would be a request. The next pass reads the names again.
            part.settled = false;
        } else {
            each_in(mover, &target.listing()?, |_, name| {
                let bytes = name.as_bytes();
                if part.left.len() < LEFT_MAX
                    && !is_temporary(bytes)
                    && !seen.has(&level.source, bytes)?
                {
                    let object = target.object_at(bytes)?;
                    part.left.push((name, object));
                }
                Ok(())
            })?;
        }
        tell_part(mover, Segment { last: true, ..part });
        Ok(())
    }
}

fn tell_part(mover: &mut Mover<'_>, mut part: Segment) {
    part.entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    tell(mover, Surveyed::Recorded(Box::new(part)));
}

/// Calls `action` with every name of a list.
pub(super) fn each_in(
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
pub(super) enum Recorded {
    Alike(Box<CatalogEntry>),
    /// An equal directory that may have replaced the copied one.
    AlikeNow(Box<CatalogEntry>),
    /// It does not exist, differs, or may have been replaced.
    Unlike,
    /// It is not part of the job.
    LeftOut,
}

/// Whether an entry of the source may have changed later than its copy was made. What was copied in this run was so by the clocks as
/// they are now; an earlier run of the same pass may have had others.
fn is_later(engine: &Engine, level: &DirectoryPair, source: &Metadata, copy: &Metadata) -> bool {
    let (history, clocks) = (&engine.facts.history, level.clocks());
    if engine.facts.is_resumed {
        history.is_later(clocks, source, copy)
    } else {
        history.is_later_than_copy(clocks, source, copy)
    }
}

/// Compares an entry of the source, as a look has shown it, with its copy.
pub(super) fn recorded(
    engine: &Engine,
    level: &DirectoryPair,
    name: &Name,
    looked: Option<(Metadata, Object)>,
) -> Recorded {
    let (Some(target), Some((new, source))) = (&level.target, looked) else {
        return Recorded::Unlike;
    };
    let bytes = name.as_bytes();
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
        !is_later(engine, level, &new, &old)
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
