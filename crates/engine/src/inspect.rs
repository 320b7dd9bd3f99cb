//! Entries that look equal: checks of their content and attributes.
use dmover_local::attributes::{Attributes, Object};
use dmover_local::error::entry_error;
use dmover_local::session::WriteError;
use dmover_local::source::open_to_read;
use dmover_model::{ByteRange, EntryError, EntryKind, EntryRecord, Metadata, Operation, Side};
use dmover_observe::{Activity, Counter, station};
use dmover_plan::decide::Decision;
use dmover_sys::xattr::Held;
use dmover_sys::{AsFd, OwnedFd, cache, flags, path, stat};

use crate::context::Engine;
use crate::finding::changed;
use crate::level::{Level, TargetDirectory};
use crate::mover::Mover;
use crate::planned::Planned;

impl Mover<'_> {
    /// Compares a file that looks equal. Returns how to copy it if it differs.
    pub(crate) fn compare_with_source(
        &mut self,
        level: &Level,
        planned: &Planned,
    ) -> Result<Option<Decision>, EntryError> {
        let Some(found) = &planned.existing else { return Ok(None) };
        let pair = self.engine.open_pair(level, &planned.record, found, self.permit())?;
        let source = &pair.source;
        // Before it is read: what begins to write later moves its times.
        let written = self.engine.is_written_to(level, (&source.metadata, &source.fd));
        let metadata = source.metadata.clone();
        let all = ByteRange { start: 0, end: pair.source.metadata.size };
        let last = planned.record.destination_name().as_bytes();
        if self.engine.is_suspect(level, last, (found.ctime, found.size)) {
            // If it could not be written, memory may still have what storage has not.
            cache::forget(&pair.destination.fd, 0, all.end);
        }
        let differs = self.compare_range(level, &planned.record, &pair, all)?;
        drop(pair);
        self.engine.count(Counter::FilesCompared);
        if differs.is_empty() {
            if written {
                self.engine.note_written(level, &planned.record.name, &metadata);
            }
            return Ok(None);
        }
        let policy = &self.engine.spec.policy;
        let in_place = policy.inplace && policy.backup.is_none() && found.links == 1;
        Ok(Some(if in_place { Decision::UpdateInPlace } else { Decision::Replace }))
    }

    /// Sets the attributes of an entry with the right content. Returns what it needed: nothing, other attributes, or a
    /// new file, which is left to the caller.
    pub(crate) fn dress_if_unlike(
        &mut self,
        level: &Level,
        planned: &Planned,
    ) -> Result<Decision, WriteError> {
        let engine = self.engine;
        let record = &planned.record;
        let (Some(target), Some(found)) = (&level.target, &planned.existing) else {
            return Ok(Decision::Skip);
        };
        let sides = self.open_sides(level, target, record)?;
        let source_shown = || level.source_path(record.name.as_bytes());
        let last = record.destination_name().as_bytes();
        let shown = || level.target_path(last);
        let fds = (sides.source.as_fd(), sides.destination.as_fd());
        let of = (level, record.metadata.kind, sides.held);
        let unseen = engine.attribute_differences(of, fds, (&source_shown, &shown))?;
        if unseen.kinds.is_empty() && !self.is_dressed_otherwise(planned) {
            return Ok(Decision::Skip);
        }
        if engine.spec.policy.dry_run {
            return Ok(Decision::Inspect);
        }
        self.check_lease(level, last)?;
        if found.links > 1 && found.links != self.names_here {
            // Another name of the inode may belong to another tree: the file gets an inode of its own.
            return Ok(Decision::Replace);
        }
        let fail = |e| entry_error(Side::Destination, Operation::Stat, shown(), e);
        let now = engine.end.mounts.metadata(&stat::stat_fd(&sides.destination).map_err(fail)?);
        if now.version() != found.version() {
            return Err(changed(Side::Destination, shown()).into());
        }
        let kind = record.metadata.kind;
        let mut attributes =
            engine.attributes().read(sides.source.as_fd(), sides.held, &source_shown)?;
        engine.settle_project(level, kind, &mut attributes, false)?;
        if record.metadata.kind == EntryKind::File
            && engine.history.is_recent(level.clocks(), &record.metadata)
        {
            // It may have taken the place of another that looks alike since the names were compared, and its copy will look
            // younger than that.
            engine.doubt(level.path.join(record.name.as_bytes()));
        }
        let object = Object {
            fd: sides.destination.as_fd(),
            held: sides.held,
            kind,
            facts: &target.facts,
            made: false,
            replaces: None,
            inherits: None,
            place: Some((target.fd.as_fd(), last)),
            path: &shown,
        };
        // What fails here has moved the change time, and would look equal.
        self.engine.dress_again(object, record, &attributes, &now).map_err(WriteError::in_place)?;
        Ok(Decision::Inspect)
    }

    fn open_sides(
        &self,
        level: &Level,
        target: &TargetDirectory,
        record: &EntryRecord,
    ) -> Result<Sides, EntryError> {
        station::at(Activity::SourceNames);
        let engine = self.engine;
        let last = record.destination_name().as_bytes();
        let at_target =
            |e| entry_error(Side::Destination, Operation::Open, level.target_path(last), e);
        if record.metadata.kind == EntryKind::File {
            let (source, _) = engine.open_source_file(level, record, self.permit())?;
            let destination =
                open_to_read(&target.fd, last, false, self.permit()).map_err(at_target)?;
            return Ok(Sides { source, destination, held: Held::Open });
        }
        let (source, held) = engine.open_for_attributes(level, record)?;
        let destination = path::pin_at(&target.fd, last).map_err(at_target)?;
        Ok(Sides { source, destination, held })
    }
}

/// Both sides of an entry, open.
struct Sides {
    source: OwnedFd,
    destination: OwnedFd,
    held: Held,
}

impl Engine {
    /// Sets all attributes, in the order of a new entry.
    fn dress_again(
        &self,
        object: Object<'_>,
        record: &EntryRecord,
        attributes: &Attributes,
        now: &Metadata,
    ) -> Result<(), EntryError> {
        if now.is_locked() {
            self.attributes().lift_flags(object.fd);
        }
        self.attributes().remove_foreign(object, attributes)?;
        self.attributes().set(object, &record.metadata, attributes, now)?;
        if object.held == Held::Open {
            self.attributes().set_project(object, attributes)?;
            self.attributes().carry_flags(object, attributes, flags::PLAIN)?;
            self.attributes().carry_flags(object, attributes, flags::LOCKS)?;
        }
        Ok(())
    }
}
