//! Bringing over again what differs, and only that.
//!
//! Bytes of a file are replaced in a clone of it, which is then renamed into place, where blocks can be shared; else they
//! are written into the file. There the time of the last write tells until the end that it is not done, and what was right
//! before is not touched.
use dmover_model::{
    ByteRange, Content, DifferenceKind, EntryError, EntryKind, ErrorClass, LinkGroup, Metadata,
    Operation, Side,
};
use dmover_plan::decide::Decision;
use dmover_sys::copy::Offer;
use dmover_sys::xattr::Held;
use dmover_sys::{AsFd, Errno, OwnedFd, copy, file, path, xattr};

use super::content::whole_around;
use super::{Finding, at_destination, is_acl};
use crate::apply::Planned;
use crate::attributes::{Attributes, Object, is_never_copied};
use crate::content::{Holes, Transfer};
use crate::context::{Engine, entry_error};
use crate::directory::directory_object;
use crate::file::{Supply, Unfinished};
use crate::level::{Level, TargetDirectory};
use crate::mover::Mover;

const EPERM: i32 = crate::context::EPERM;

impl Mover<'_> {
    /// Brings over what differs; answers whether that was done. What went wrong is told.
    pub(super) fn repair(
        &mut self,
        level: &Level,
        planned: &Planned,
        finding: &Finding,
        recorded: Option<&Content>,
    ) -> bool {
        let engine = self.engine;
        let mut attempt = 1;
        let result = loop {
            match self.try_to_repair(level, planned, finding, recorded) {
                Err(error) if error.errno == EPERM && engine.lift_directory(level) => {}
                Err(error) if engine.may_pass(&error, attempt) => attempt += 1,
                result => break result,
            }
        };
        // An attempt that failed has changed the directory as well.
        self.mark_dirty(&level.reference());
        result.map_err(|error| engine.error(EntryError { attempt, ..error })).is_ok()
    }

    fn try_to_repair(
        &mut self,
        level: &Level,
        planned: &Planned,
        finding: &Finding,
        recorded: Option<&Content>,
    ) -> Result<(), EntryError> {
        let record = &planned.record;
        let last = record.destination_name().as_bytes();
        self.check_lease(level, last)?;
        let kinds = finding.kinds;
        let replaced = kinds.has(DifferenceKind::Missing) || kinds.has(DifferenceKind::Type);
        let is_file = record.metadata.kind == EntryKind::File;
        // Another name may belong to somebody else's tree: the file gets an inode of its own.
        let alone = planned.existing.as_ref().is_none_or(|found| found.links == 1);
        let target = level.target.as_ref().filter(|_| is_file && !replaced && alone);
        let Some(target) = target else {
            self.bring(level, planned, None)?;
            let Some(recorded) = recorded else { return Ok(()) };
            // Whoever replaced the source since it was compared with the manifest shows here.
            let all = ByteRange { start: 0, end: recorded.shape.length() };
            return self.check_mended(level, planned, &[all], Some(recorded));
        };
        let ranges = self.mend_file(level, target, planned, finding)?;
        if ranges.is_empty() {
            return Ok(());
        }
        self.check_mended(level, planned, &ranges, recorded)
    }

    /// Gives a file the source's bytes where they differ, its size and its attributes. Answers what was written.
    fn mend_file(
        &mut self,
        level: &Level,
        target: &TargetDirectory,
        planned: &Planned,
        finding: &Finding,
    ) -> Result<Vec<ByteRange>, EntryError> {
        let engine = self.engine;
        let record = &planned.record;
        let supply = engine.supply(level, record)?;
        let Some(found) = &planned.existing else { return Ok(Vec::new()) };
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
        let ranges = dmover_plan::verify::merged(ranges);
        let resized = found.size != size;
        let content = resized || !ranges.is_empty();
        if !(content && self.mend_clone(level, target, planned, &supply, &ranges)?) {
            self.mend_in_place(level, target, planned, &supply, (&ranges, resized))?;
        }
        Ok(ranges)
    }

    /// Mends a clone and renames it. Answers false where blocks cannot be shared.
    fn mend_clone(
        &mut self,
        level: &Level,
        target: &TargetDirectory,
        planned: &Planned,
        supply: &Supply,
        ranges: &[ByteRange],
    ) -> Result<bool, EntryError> {
        let engine = self.engine;
        let last = planned.record.destination_name().as_bytes();
        if target.facts.no_clone_from.is(target.metadata.identity.mount) {
            return Ok(false);
        }
        let shown = || level.target_path(last);
        let old = self.open_checked(level, target, planned)?;
        let temporary = self.temporary_in(level);
        let unfinished = self.create_file(level, target, temporary.as_bytes(), last, supply)?;
        match copy::clone_file(&old, unfinished.fd()) {
            Ok(Offer::Done(())) => {}
            Ok(Offer::Never) => {
                target.facts.no_clone_from.set(target.metadata.identity.mount);
                return Ok(false);
            }
            // Whatever else is the matter, the bytes can still be written in place.
            Ok(Offer::NotThese) | Err(_) => return Ok(false),
        }
        self.write_ranges(level, planned, supply, &unfinished, ranges)?;
        engine.finish_file(&unfinished, &supply.metadata, &supply.attributes, true, &shown)?;
        self.settle(level, unfinished, last, Decision::Replace, &supply.attributes)?;
        Ok(true)
    }

    fn mend_in_place(
        &mut self,
        level: &Level,
        target: &TargetDirectory,
        planned: &Planned,
        supply: &Supply,
        (ranges, resized): (&[ByteRange], bool),
    ) -> Result<(), EntryError> {
        let engine = self.engine;
        let last = planned.record.destination_name().as_bytes();
        let shown = || level.target_path(last);
        let fail = |operation, e| entry_error(Side::Destination, operation, shown(), e);
        let opened = self.open_existing(level, target, last, &supply.metadata);
        let fd = match opened {
            Err(error) if error.errno == EPERM && self.lift_file(target, last) => {
                self.open_existing(level, target, last, &supply.metadata)?
            }
            opened => opened?,
        };
        let mut file =
            Unfinished::new(engine, target, fd, last).map_err(|e| fail(Operation::Stat, e))?;
        // What stands there is never removed; its times will show that it is incomplete.
        file.disarm();
        self.check_same(&file.metadata, planned, &shown)?;
        let object = engine.file_object(&file, &shown);
        engine.prepare(object, &supply.attributes, false)?;
        engine.remove_foreign(object, &supply.attributes)?;
        if resized || !ranges.is_empty() {
            self.write_ranges(level, planned, supply, &file, ranges)?;
        }
        let written = resized || !ranges.is_empty();
        engine.finish_file(&file, &supply.metadata, &supply.attributes, written, &shown)?;
        engine.set_last(&file, &supply.attributes, &shown)?;
        file.keep().map_err(|e| fail(Operation::Close, e))
    }

    fn write_ranges(
        &mut self,
        level: &Level,
        planned: &Planned,
        supply: &Supply,
        file: &Unfinished<'_>,
        ranges: &[ByteRange],
    ) -> Result<(), EntryError> {
        let engine = self.engine;
        let record = &planned.record;
        let source_path = || level.source_path(record.name.as_bytes());
        let target_path = || level.target_path(record.destination_name().as_bytes());
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
            lease: self.lease,
            tap: None,
        };
        file::set_size(file.fd(), supply.metadata.size)
            .map_err(|e| entry_error(Side::Destination, Operation::Allocate, target_path(), e))?;
        for range in ranges {
            engine.copy_range(transfer, *range, range.start, Holes::Fill, self.tools)?;
        }
        engine.check_version(level, record.name.as_bytes(), &supply.fd, &supply.metadata)
    }

    /// What was written has to read back as the manifest, or else the source, has it.
    fn check_mended(
        &mut self,
        level: &Level,
        planned: &Planned,
        ranges: &[ByteRange],
        recorded: Option<&Content>,
    ) -> Result<(), EntryError> {
        let engine = self.engine;
        let record = self.look(level, &planned.record.name)?;
        let Some(now) = self.plan_record(level, record) else { return Ok(()) };
        let shown = || level.target_path(now.record.destination_name().as_bytes());
        let failed = |words: &str| {
            let (side, class) = (Side::Destination, ErrorClass::Integrity);
            Err(EntryError::plain(side, Operation::Check, class, shown(), words))
        };
        let Some(found) = &now.existing else { return failed("it has gone while it was repaired") };
        let differs = if let Some(recorded) = recorded {
            let content = engine.open_destination(level, &now.record, found)?;
            self.differ_from_record(&content, recorded, ranges, &shown).map_err(at_destination)?
        } else {
            let pair = engine.open_pair(level, &now.record, found)?;
            let mut differs = false;
            for range in ranges {
                let range = whole_around(&pair.shape, *range);
                differs |= !self.compare_range(level, &now.record, &pair, range)?.is_empty();
            }
            differs
        };
        if differs { failed("what was written does not read back equal") } else { Ok(()) }
    }

    /// Opens what is to be repaired for reading.
    fn open_checked(
        &self,
        level: &Level,
        target: &TargetDirectory,
        planned: &Planned,
    ) -> Result<OwnedFd, EntryError> {
        let last = planned.record.destination_name().as_bytes();
        let shown = || level.target_path(last);
        let fail = |operation, e| entry_error(Side::Destination, operation, shown(), e);
        let fd =
            path::open_file_at(&target.fd, last, false).map_err(|e| fail(Operation::Open, e))?;
        let found = dmover_sys::stat::stat_fd(&fd).map_err(|e| fail(Operation::Stat, e))?;
        self.check_same(&self.engine.mounts.metadata(&found), planned, &shown)?;
        Ok(fd)
    }

    /// Only what was compared is written to.
    fn check_same(
        &self,
        now: &Metadata,
        planned: &Planned,
        shown: &dyn Fn() -> dmover_model::PathBytes,
    ) -> Result<(), EntryError> {
        let before = planned.existing.as_ref();
        if before.is_some_and(|before| before.identity == now.identity) {
            return Ok(());
        }
        let words = "another file stands here now";
        let (side, class) = (Side::Destination, ErrorClass::Busy);
        Err(EntryError::plain(side, Operation::Open, class, shown(), words))
    }

    /// Gives a directory its attributes; answers whether that was done.
    pub(super) fn repair_directory(&mut self, level: &Level) -> bool {
        let Some(target) = &level.target else { return false };
        if target.fresh {
            // It is finished when it has been filled.
            self.mark_dirty(&level.reference());
            return true;
        }
        let shown = || level.own_target_path();
        let source_shown = || level.own_source_path();
        let object = directory_object(target, &shown);
        let attributes =
            self.engine.read_attributes(level.source.fd.as_fd(), Held::Open, &source_shown);
        let done = attributes
            .and_then(|attributes| self.engine.remove_foreign(object, &attributes))
            .and_then(|()| self.finish_directory(level));
        done.map_err(|error| self.engine.error(error)).is_ok()
    }

    /// Brings over all names of an inode as names of one; answers whether they are.
    pub(super) fn repair_links(&mut self, group: &LinkGroup) -> bool {
        self.is_copying = true;
        self.link_group(group);
        self.is_copying = false;
        let mut anchor = None;
        for file in std::iter::once(&group.first).chain(&group.rest) {
            let level = self.engine.open_level(&file.directory);
            let found = level.ok().and_then(|level| {
                self.mark_dirty(&file.directory);
                self.present(&level, file)
            });
            let identity = found.map(|found| self.engine.mounts.identity(&found));
            if identity.is_none() || anchor.is_some_and(|anchor| Some(anchor) != identity) {
                return false;
            }
            anchor = identity;
        }
        true
    }
}

impl Engine {
    /// Takes away attributes that the source does not have.
    fn remove_foreign(
        &self,
        object: Object<'_>,
        attributes: &Attributes,
    ) -> Result<(), EntryError> {
        use dmover_model::Attribute;
        let keeps = |attribute| self.spec.policy.preserve.has(attribute);
        let fail =
            |e: Errno| entry_error(Side::Destination, Operation::SetXattr, (object.path)(), e);
        if !keeps(Attribute::Xattr) && !keeps(Attribute::Acl) {
            return Ok(());
        }
        for name in xattr::list(object.fd, object.held).map_err(fail)?.unwrap_or_default() {
            let kept = if is_acl(&name) { Attribute::Acl } else { Attribute::Xattr };
            let wanted = attributes.xattrs.iter().any(|(other, _)| *other == name);
            if !wanted && keeps(kept) && !is_never_copied(&name) {
                xattr::remove(object.fd, object.held, &name).map_err(fail)?;
            }
        }
        Ok(())
    }
}
