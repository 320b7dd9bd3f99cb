//! Copies differences again, and nothing else.
use dmover_local::digest;
use dmover_local::error::{at_destination, changed};
use dmover_local::mend::{Mending, reads_otherwise};
use dmover_local::session::WriteError;
use dmover_model::{ByteRange, Content, EntryKind, ErrorClass, LinkGroup, Side};
use dmover_plan::verify::merged;

use crate::bring;
use crate::compare_content;
use crate::directory;
use crate::directory_pair::{DirectoryPair, TargetDirectory};
use crate::file;
use crate::finding::Finding;
use crate::links;
use crate::mover::Mover;
use crate::plan_entry;
use crate::planned::Planned;
use crate::project;
use crate::rights;
use crate::verify;

/// Copies differences again.
pub(super) fn repair(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    planned: &Planned,
    finding: &Finding,
    recorded: Option<&Content>,
) -> Result<(), WriteError> {
    let record = &planned.record;
    let last = record.destination_name().as_bytes();
    mover.check_lease(level, last)?;
    touch(mover, level);
    let is_file = record.metadata.kind == EntryKind::File;
    // Another name of the inode may belong to another tree: the file gets an inode of its own.
    let alone = planned.existing.as_ref().is_some_and(|found| found.links == 1);
    let foreign = |found| {
        rights::grants(mover, level, record, found)
            || rights::would_empower(mover, level, record, found)
    };
    let safe = !planned.existing.as_ref().is_some_and(foreign);
    let mends = is_file && alone && safe && !finding.needs_all();
    if let Some(target) = level.target.as_ref().filter(|_| mends) {
        match mend_file(mover, level, target, planned, (finding, recorded)) {
            // It may not be written to, or is locked: a new file takes its place.
            Err(failed) if failed.error.class == ErrorClass::Denied => {}
            mended => return mended,
        }
    }
    bring::bring(mover, level, planned, None)?;
    let Some(recorded) = recorded else { return Ok(()) };
    // This shows whether the source was replaced after it was compared with the manifest.
    let now = plan_entry::look_again(mover, level, record)?;
    let content = now.as_ref().and_then(|now| Some((now, now.existing.as_ref()?)));
    let shown = || level.target_path(last);
    let Some((now, found)) = content else { return Err(reads_otherwise(shown()).into()) };
    let mut pair =
        compare_content::open_pair(mover.engine, level, &now.record, found, mover.permit())?;
    pair.destination.stored = true;
    let all = [ByteRange { start: 0, end: recorded.shape.length() }];
    let differs =
        digest::differs_from_record(&mut mover.session, &pair.destination, recorded, &all, &shown);
    if differs.map_err(at_destination)? { Err(reads_otherwise(shown()).into()) } else { Ok(()) }
}

/// Called before a repair changes a directory: it must be finished again.
pub(super) fn touch(mover: &mut Mover<'_>, level: &DirectoryPair) {
    if let Some(target) = level.target.as_ref().filter(|_| mover.engine.is_recorded()) {
        let times = (target.metadata.atime, target.metadata.mtime);
        mover.engine.proof.keep_times(level.path.clone(), times, true);
    }
    mover.report.mark_dirty(&level.reference());
}

/// Gives a file the bytes of the source where they differ, its size and its attributes.
fn mend_file(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    target: &TargetDirectory,
    planned: &Planned,
    (finding, recorded): (&Finding, Option<&Content>),
) -> Result<(), WriteError> {
    let engine = mover.engine;
    let record = &planned.record;
    let mut supply = file::supply(engine, level, record, mover.permit())?;
    project::settle_project(engine, level, EntryKind::File, &mut supply.attributes, false)?;
    let Some(found) = &planned.existing else { return Ok(()) };
    // The known differences are between these versions only.
    if finding.source != Some(supply.metadata.version()) {
        return Err(changed(Side::Source, level.source_path(record.name.as_bytes())).into());
    }
    if finding.destination != Some(found.version()) {
        let last = record.destination_name().as_bytes();
        return Err(changed(Side::Destination, level.target_path(last)).into());
    }
    let size = supply.metadata.size;
    let mut ranges: Vec<ByteRange> = finding
        .ranges
        .iter()
        .map(|range| ByteRange { start: range.start, end: range.end.min(size) })
        .filter(|range| !range.is_empty())
        .collect();
    if found.size < size {
        ranges.push(ByteRange { start: found.size, end: size });
    }
    let ranges = merged(ranges);
    let order = file::order(mover.engine, level, target, planned);
    let (supply, ranges) = (&supply, &ranges[..]);
    mover.session.mend(&Mending { order, supply, found, ranges, recorded })
}

/// Sets the attributes of a directory; returns whether this was done.
pub(super) fn repair_directory(mover: &mut Mover<'_>, level: &DirectoryPair) -> bool {
    let engine = mover.engine;
    let Some(target) = &level.target else { return false };
    if target.fresh && !engine.is_recorded() {
        // It is finished when it has been filled.
        mover.report.mark_dirty(&level.reference());
        return true;
    }
    let done = directory::finish_directory(mover, level);
    if engine.is_recorded() && done.is_ok() {
        let times = (level.source.metadata.atime, level.source.metadata.mtime);
        engine.proof.keep_times(level.path.clone(), times, false);
    }
    done.map_err(|error| engine.error(error)).is_ok()
}

/// Copies all names of an inode as names of one; returns whether they are.
pub(super) fn repair_links(mover: &mut Mover<'_>, group: &LinkGroup) -> bool {
    let compares = std::mem::replace(&mut mover.thread.strategy, mover.thread.repairs);
    links::link_group(mover, group);
    mover.thread.strategy = compares;
    for file in std::iter::once(&group.first).chain(&group.rest) {
        mover.report.mark_dirty(&file.directory);
    }
    verify::links_are_right(mover, group)
}
