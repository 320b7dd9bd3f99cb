//! Copies differences again, and nothing else.
//!
//! Where blocks can be shared, ranges of a file are replaced in a clone of it, which is then renamed into place;
//! otherwise they are written into the file. Meanwhile its modification time marks it as incomplete, and equal ranges
//! are not touched.
use dmover_local::content::{Holes, Transfer};
use dmover_local::error::{EPERM, at_destination, entry_error};
use dmover_local::file::{FileOrder, Unfinished};
use dmover_local::session::WriteError;
use dmover_local::source::{Supply, open_to_read};
use dmover_model::{
    ByteRange, Content, EntryError, EntryKind, ErrorClass, LinkGroup, Metadata, Operation,
    PathBytes, Side,
};
use dmover_plan::decide::Decision;
use dmover_plan::verify::merged;
use dmover_sys::copy::Offer;
use dmover_sys::{AsFd, Errno, OwnedFd, cache, copy, file, path, stat};
use std::sync::Arc;

use crate::finding::{Finding, Pair, changed};
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
        let pair = self.engine.open_pair(level, &now.record, found, self.permit())?;
        let all = [ByteRange { start: 0, end: recorded.shape.length() }];
        let destination = dmover_local::source::Content { stored: true, ..pair.destination };
        let differs = self.differ_from_record(&destination, recorded, &all, &shown);
        if differs.map_err(at_destination)? { Err(reads_otherwise(shown()).into()) } else { Ok(()) }
    }

    /// Called before a repair changes a directory: it must be finished again.
    pub(super) fn touch(&mut self, level: &Level) {
        if let Some(target) = level.target.as_ref().filter(|_| self.engine.is_recorded()) {
            let times = (target.metadata.atime, target.metadata.mtime);
            self.engine.keep_times(level.path.clone(), times, true);
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
        let mending =
            Mending { supply: &supply, ranges: &ranges, resized: found.size != size, recorded };
        let cloned = mending.writes() && self.mend_clone(level, target, planned, &mending)?;
        if !cloned {
            self.mend_in_place(level, target, planned, &mending)?;
        }
        Ok(())
    }

    /// Repairs a clone and renames it into place. Returns false where blocks cannot be shared.
    fn mend_clone(
        &mut self,
        level: &Level,
        target: &TargetDirectory,
        planned: &Planned,
        mending: &Mending<'_>,
    ) -> Result<bool, WriteError> {
        let (engine, supply) = (self.engine, mending.supply);
        let last = planned.record.destination_name().as_bytes();
        if target.facts.no_clone_from.is(target.metadata.identity.mount) {
            return Ok(false);
        }
        let shown = || level.target_path(last);
        let old = self.open_checked(level, target, planned)?;
        let temporary = self.session.temporary_in(&level.source, target);
        let unfinished = self.session.create_file(target, temporary.as_bytes(), last, supply)?;
        match copy::clone_file(&old, unfinished.fd()) {
            Ok(Offer::Done(())) => {}
            Ok(Offer::Never) => {
                target.facts.no_clone_from.set(target.metadata.identity.mount);
                return Ok(false);
            }
            // Whatever else is the matter, the bytes can still be written in place.
            Ok(Offer::NotThese) | Err(_) => return Ok(false),
        }
        self.write_ranges(level, planned, &unfinished, mending)?;
        engine.local().finish_file(
            &unfinished,
            &supply.metadata,
            &supply.attributes,
            true,
            &shown,
        )?;
        if planned.existing.as_ref().is_some_and(Metadata::is_locked) {
            // An immutable or append-only file cannot be replaced; the failure is reported.
            self.session.lift_file(target, last);
        }
        let order = FileOrder { decision: Decision::Replace, ..self.order(level, target, planned) };
        self.session.settle(order, unfinished, supply)?;
        Ok(true)
    }

    fn mend_in_place(
        &mut self,
        level: &Level,
        target: &TargetDirectory,
        planned: &Planned,
        mending: &Mending<'_>,
    ) -> Result<(), EntryError> {
        let (engine, supply) = (self.engine, mending.supply);
        let last = planned.record.destination_name().as_bytes();
        let shown = || level.target_path(last);
        let fail = |operation, e| entry_error(Side::Destination, operation, shown(), e);
        let opened = self.session.open_existing(&level.source, target, last, &supply.metadata);
        let (fd, opened_up) = match opened {
            Err(error) if error.errno == EPERM && self.session.lift_file(target, last) => {
                (self.session.open_existing(&level.source, target, last, &supply.metadata)?.0, true)
            }
            opened => opened?,
        };
        let mut file =
            Unfinished::new(&engine.end, target, fd, last).map_err(|e| fail(Operation::Stat, e))?;
        // An existing file is never removed; its times show that it is incomplete.
        file.disarm();
        file.written_into = true;
        let mut now = file.metadata.clone();
        if let Some(found) = planned.existing.as_ref().filter(|_| opened_up) {
            // That was ours.
            now.ctime = found.ctime;
        }
        self.check_same(&now, planned, &shown)?;
        let closes = mending.writes() && file.metadata.mode & !supply.metadata.mode & 0o077 != 0;
        if closes {
            // New content is not for those whom the old mode lets in.
            let closed =
                self.session.close_existing(&file, supply).and_then(|()| stat::stat_fd(file.fd()));
            let closed = closed.map_err(|e| fail(Operation::SetMode, e))?;
            file.metadata = engine.end.mounts.metadata(&closed);
        }
        let object = file.object(&shown);
        engine.attributes().prepare(object, &supply.attributes)?;
        engine.attributes().remove_foreign(object, &supply.attributes)?;
        let identity = file.metadata.identity;
        let written = if mending.writes() {
            self.write_ranges(level, planned, &file, mending)
        } else {
            Ok(())
        };
        // A file marked as incomplete may have been written by a repair that did not flush it.
        let flush = mending.writes() || file.metadata.mtime != supply.metadata.mtime;
        let finished = written.and_then(|()| {
            engine.local().finish_file(&file, &supply.metadata, &supply.attributes, flush, &shown)
        });
        if let Err(error) = finished {
            engine.end.unflushed.add(identity, mending.ranges);
            cache::forget(file.fd(), 0, supply.metadata.size);
            return Err(error);
        }
        engine.end.unflushed.settle(identity);
        engine.local().set_last(&file, &supply.attributes, &shown)?;
        file.keep().map_err(|e| fail(Operation::Close, e))
    }

    /// Writes differing ranges; they must read back from storage before the file is marked as complete.
    fn write_ranges(
        &mut self,
        level: &Level,
        planned: &Planned,
        file: &Unfinished<'_>,
        mending: &Mending<'_>,
    ) -> Result<(), EntryError> {
        let (engine, supply) = (self.engine, mending.supply);
        let record = &planned.record;
        let source_path = || level.source_path(record.name.as_bytes());
        let target_path = || level.target_path(record.destination_name().as_bytes());
        let fail = |operation, e| entry_error(Side::Destination, operation, target_path(), e);
        let transfer = Transfer {
            source: supply.fd.as_fd(),
            destination: file.fd(),
            size: supply.metadata.size,
            flushed: true,
            source_mount: supply.metadata.identity.mount,
            source_facts: &level.source.facts,
            facts: &file.target.facts,
            source_path: &source_path,
            target_path: &target_path,
            permit: self.permit(),
            tap: None,
        };
        file::set_size(file.fd(), supply.metadata.size)
            .map_err(|e| fail(Operation::Allocate, e))?;
        for range in mending.ranges {
            // Old bytes must not shine through holes; where none can be punched, zeroes are written.
            let mut holes = engine.content().holes(&supply.metadata);
            if holes != Holes::Fill {
                let punched = file::punch_hole(file.fd(), range.start, range.len());
                let punched = punched.map_err(|e| fail(Operation::Allocate, e))?;
                holes = if punched { holes } else { Holes::Fill };
            }
            engine.content().copy_range(
                transfer,
                *range,
                range.start,
                holes,
                self.session.tools,
            )?;
        }
        engine.local().check_version(
            &level.source,
            record.name.as_bytes(),
            &supply.fd,
            &supply.metadata,
        )?;
        file::sync_data(file.fd()).map_err(|e| fail(Operation::Sync, e))?;
        let found = stat::stat_fd(file.fd()).map_err(|e| fail(Operation::Stat, e))?;
        let fd = path::open_file_at(&file.target.fd, &file.name, false)
            .map_err(|e| fail(Operation::Open, e))?;
        let metadata = engine.end.mounts.metadata(&found);
        let facts = Arc::clone(&file.target.facts);
        let destination =
            dmover_local::source::Content { fd, metadata, facts, is_stream: false, stored: true };
        let differs = match mending.recorded {
            Some(recorded) => self
                .differ_from_record(&destination, recorded, mending.ranges, &target_path)
                .map_err(at_destination)?,
            None => {
                let fd = supply.fd.try_clone();
                let fd = fd.map_err(|_| fail(Operation::Open, Errno::MFILE))?;
                let (metadata, facts) = (supply.metadata.clone(), &level.source.facts);
                let facts = Arc::clone(facts);
                let source = dmover_local::source::Content {
                    fd,
                    metadata,
                    facts,
                    is_stream: false,
                    stored: false,
                };
                let pair = Pair { source, destination };
                let mut differs = false;
                for range in mending.ranges {
                    differs |= !self.compare_range(level, record, &pair, *range)?.is_empty();
                }
                differs
            }
        };
        if differs { Err(reads_otherwise(target_path())) } else { Ok(()) }
    }

    /// Opens the file to repair for reading.
    fn open_checked(
        &self,
        level: &Level,
        target: &TargetDirectory,
        planned: &Planned,
    ) -> Result<OwnedFd, EntryError> {
        let last = planned.record.destination_name().as_bytes();
        let shown = || level.target_path(last);
        let fail = |operation, e| entry_error(Side::Destination, operation, shown(), e);
        let fd = open_to_read(&target.fd, last, false, self.permit())
            .map_err(|e| fail(Operation::Open, e))?;
        let found = stat::stat_fd(&fd).map_err(|e| fail(Operation::Stat, e))?;
        self.check_same(&self.engine.end.mounts.metadata(&found), planned, &shown)?;
        Ok(fd)
    }

    /// Checks that the file is still the one that was compared.
    fn check_same(
        &self,
        now: &Metadata,
        planned: &Planned,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<(), EntryError> {
        let before = planned.existing.as_ref();
        if before.is_some_and(|before| before.version() == now.version()) {
            return Ok(());
        }
        Err(changed(Side::Destination, shown()))
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
            engine.keep_times(level.path.clone(), times, false);
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

/// The data for the repair of a file.
struct Mending<'a> {
    supply: &'a Supply,
    ranges: &'a [ByteRange],
    resized: bool,
    /// The content in the manifest.
    recorded: Option<&'a Content>,
}

impl Mending<'_> {
    fn writes(&self) -> bool {
        self.resized || !self.ranges.is_empty()
    }
}

fn reads_otherwise(path: PathBytes) -> EntryError {
    let words = "the data read back differs from the data written";
    EntryError::plain(Side::Destination, Operation::Check, ErrorClass::Integrity, path, words)
}
