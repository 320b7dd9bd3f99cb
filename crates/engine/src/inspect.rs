//! Entries that look equal: checks of their content and attributes.
use dmover_local::entry_attributes;
use dmover_local::error::changed;
use dmover_local::session::WriteError;
use dmover_model::{ByteRange, EntryError, EntryKind, Side, Verb};
use dmover_observe::Counter;
use dmover_plan::decide::Decision;

use crate::alike;
use crate::compare_content;
use crate::directory_pair::DirectoryPair;
use crate::doubts;
use crate::mover::Mover;
use crate::planned::Planned;
use crate::project;
use crate::rights;
use crate::storage;

/// What a comparison of a file with its source has shown.
pub(crate) enum Compared {
    Equal {
        /// The size at the destination may be in memory only.
        may_lack_size: bool,
    },
    /// How to copy it.
    Differs(Decision),
}

/// Compares a file that looks equal.
pub(crate) fn compare_with_source(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    planned: &Planned,
) -> Result<Compared, EntryError> {
    let Some(found) = &planned.existing else {
        return Ok(Compared::Equal { may_lack_size: false });
    };
    let pair =
        compare_content::open_pair(mover.engine, level, &planned.record, found, mover.permit())?;
    let source = &pair.source;
    // Before it is read: what begins to write later moves its times.
    let written = doubts::is_written_to(mover.engine, level, source.open_file());
    let metadata = source.metadata.clone();
    let all = ByteRange { start: 0, end: pair.source.metadata.size };
    let last = planned.record.destination_name().as_bytes();
    let is_doubtful = mover.entry.is_doubtful
        || mover.engine.doubts.has(&level.path, planned.record.name.as_bytes());
    if is_doubtful || storage::is_suspect(mover.engine, level, last, (found.ctime, found.size)) {
        // If an earlier run could not write it, memory may still have what storage has not.
        pair.destination.forget(all.end);
    }
    let differs = compare_content::compare_range(mover, level, &planned.record, &pair, all)?;
    // Only where an interrupted pass is on record: a copy compares for weaker reasons, and a second one changes nothing.
    let is_after_interruption = mover.engine.spec.verb == Verb::Sync
        && (is_doubtful || mover.engine.facts.history.is_unfinished(level.clocks(), found.ctime));
    let may_lack_size = differs.is_empty() && is_after_interruption && pair.may_lack_size();
    drop(pair);
    mover.engine.reports.count(Counter::FilesCompared);
    if differs.is_empty() {
        if written {
            doubts::note_written(mover.engine, level, &planned.record.name, &metadata);
        }
        return Ok(Compared::Equal { may_lack_size });
    }
    let policy = &mover.engine.spec.policy;
    let in_place = policy.inplace && policy.backup.is_none() && found.links == 1;
    Ok(Compared::Differs(if in_place { Decision::UpdateInPlace } else { Decision::Replace }))
}

/// Sets the attributes of an entry with the right content. Returns what it needed: nothing, other attributes, or a
/// new file, which is left to the caller.
pub(crate) fn dress_if_unlike(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    planned: &Planned,
) -> Result<Decision, WriteError> {
    let engine = mover.engine;
    let record = &planned.record;
    let (Some(target), Some(found)) = (&level.target, &planned.existing) else {
        return Ok(Decision::Skip);
    };
    let last = record.destination_name().as_bytes();
    let sides = rights::sides(engine, level, target);
    let pair = entry_attributes::open_entry_pair(&engine.local(), sides, record, mover.permit())?;
    let kind = record.metadata.kind;
    let unseen = alike::attribute_differences(engine, level, kind, &pair.attributes()?)?;
    if unseen.kinds.is_empty() && !alike::needs_owner_or_mode(mover.engine, planned) {
        return Ok(Decision::Skip);
    }
    if engine.spec.policy.dry_run {
        return Ok(Decision::Inspect);
    }
    mover.check_lease(level, last)?;
    if found.links > 1 && found.links != mover.entry.names_here {
        // Another name of the inode may belong to another tree: the file gets an inode of its own.
        return Ok(Decision::Replace);
    }
    let now = pair.found()?;
    if now.version() != found.version() {
        return Err(changed(Side::Destination, level.target_path(last)).into());
    }
    let mut attributes = pair.source_attributes()?;
    project::settle_project(engine, level, kind, &mut attributes, false)?;
    if record.metadata.kind == EntryKind::File
        && engine.facts.history.is_recent(level.clocks(), &record.metadata)
    {
        // It may have taken the place of another that looks alike since the names were compared, and its copy will look
        // younger than that.
        engine.doubts.add(level.path.join(record.name.as_bytes()));
    }
    // What fails here has moved the change time, and would look equal.
    pair.set(&attributes, &now).map_err(WriteError::in_place)?;
    Ok(Decision::Inspect)
}
