//! Copies differences again, and nothing else.
use dmover_local::error::{at_destination, changed};
use dmover_local::mend::{Mending, reads_otherwise};
use dmover_local::session::WriteError;
use dmover_model::{ByteRange, Content, EntryKind, ErrorClass, LinkGroup, Side};
use dmover_plan::verify::merged;

use crate::finding::Finding;
use crate::level::{Level, TargetDirectory};
use crate::mover::Mover;
use crate::planned::Planned;

impl Mover<'_> {
    /// Copies differences again.
    pub(super) fn repair(
        &mut self,
        level: &Level,
        planned: &Planned,
        finding: &Finding,
        recorded: Option<&Content>,
    ) -> Result<(), WriteError> {
        let record = &planned.record;
        let last = record.destination_name().as_bytes();
        self.check_lease(level, last)?;
        self.touch(level);
        let is_file = record.metadata.kind == EntryKind::File;
        // Another name of the inode may belong to another tree: the file gets an inode of its own.
        let alone = planned.existing.as_ref().is_some_and(|found| found.links == 1);
        let foreign =
            |found| self.grants(level, record, found) || self.would_empower(level, record, found);
        let safe = !planned.existing.as_ref().is_some_and(foreign);
        let mends = is_file && alone && safe && !finding.needs_all();
        if let Some(target) = level.target.as_ref().filter(|_| mends) {
            match self.mend_file(level, target, planned, (finding, recorded)) {
                // It may not be written to, or is locked: a new file takes its place.
                Err(failed) if failed.error.class == ErrorClass::Denied => {}
                mended => return mended,
            }
        }
        self.bring(level, planned, None)?;
        let Some(recorded) = recorded else { return Ok(()) };
        // This shows whether the source was replaced after it was compared with the manifest.
        let now = self.look_again(level, record)?;
        let content = now.as_ref().and_then(|now| Some((now, now.existing.as_ref()?)));
        let shown = || level.target_path(last);
        let Some((now, found)) = content else { return Err(reads_otherwise(shown()).into()) };
        let mut pair = self.engine.open_pair(level, &now.record, found, self.permit())?;
        pair.destination.stored = true;
        let all = [ByteRange { start: 0, end: recorded.shape.length() }];
        let differs = self.session.differs_from_record(&pair.destination, recorded, &all, &shown);
        if differs.map_err(at_destination)? { Err(reads_otherwise(shown()).into()) } else { Ok(()) }
    }

    /// Called before a repair changes a directory: it must be finished again.
    pub(super) fn touch(&mut self, level: &Level) {
        if let Some(target) = level.target.as_ref().filter(|_| self.engine.is_recorded()) {
            let times = (target.metadata.atime, target.metadata.mtime);
            self.engine.proof.keep_times(level.path.clone(), times, true);
        }
        self.mark_dirty(&level.reference());
    }

    /// Gives a file the bytes of the source where they differ, its size and its attributes.
    fn mend_file(
        &mut self,
        level: &Level,
        target: &TargetDirectory,
        planned: &Planned,
        (finding, recorded): (&Finding, Option<&Content>),
    ) -> Result<(), WriteError> {
        let engine = self.engine;
        let record = &planned.record;
        let mut supply = engine.supply(level, record, self.permit())?;
        engine.settle_project(level, EntryKind::File, &mut supply.attributes, false)?;
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
        let order = self.order(level, target, planned);
        let (supply, ranges) = (&supply, &ranges[..]);
        self.session.mend(&Mending { order, supply, found, ranges, recorded })
    }

    /// Sets the attributes of a directory; returns whether this was done.
    pub(super) fn repair_directory(&mut self, level: &Level) -> bool {
        let engine = self.engine;
        let Some(target) = &level.target else { return false };
        if target.fresh && !engine.is_recorded() {
            // It is finished when it has been filled.
            self.mark_dirty(&level.reference());
            return true;
        }
        let done = self.finish_directory(level);
        if engine.is_recorded() && done.is_ok() {
            let times = (level.source.metadata.atime, level.source.metadata.mtime);
            engine.proof.keep_times(level.path.clone(), times, false);
        }
        done.map_err(|error| engine.error(error)).is_ok()
    }

    /// Copies all names of an inode as names of one; returns whether they are.
    pub(super) fn repair_links(&mut self, group: &LinkGroup) -> bool {
        let compares = std::mem::replace(&mut self.strategy, self.repairs);
        self.link_group(group);
        self.strategy = compares;
        for file in std::iter::once(&group.first).chain(&group.rest) {
            self.mark_dirty(&file.directory);
        }
        self.links_are_right(group)
    }
}
