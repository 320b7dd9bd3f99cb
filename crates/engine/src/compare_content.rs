//! Opens both sides of a file and compares their bytes.
use dmover_local::error::{at_destination, entry_error};
use dmover_local::source::{Content, has_settled, open_to_read, past_the_tick};
use dmover_model::{ByteRange, EntryError, EntryRecord, Metadata, Operation, PathBytes, Side};
use dmover_sys::stat;
use dmover_tree::Permit;
use std::sync::Arc;

use crate::context::Engine;
use crate::finding::{Pair, changed};
use crate::level::Level;
use crate::mover::Mover;

impl Engine {
    /// Opens both sides of a file in the versions that were found.
    pub(crate) fn open_pair(
        &self,
        level: &Level,
        record: &EntryRecord,
        found: &Metadata,
        permit: &dyn Permit,
    ) -> Result<Pair, EntryError> {
        let stored = self.reads_stored();
        // What was found needs no second look if a change since then is sure to show in the look after the reading.
        if has_settled(&record.metadata) && has_settled(found) {
            return self.open_settled(level, record, found, permit);
        }
        let (fd, metadata) = self.open_source_file(level, record, permit)?;
        if metadata.version() != record.metadata.version() {
            return Err(changed(Side::Source, level.source_path(record.name.as_bytes())));
        }
        let facts = Arc::clone(&level.source.facts);
        let source = Content { fd, metadata, facts, is_stream: false, stored };
        let destination = self.open_destination(level, record, found, permit)?;
        Ok(Pair { source, destination })
    }

    fn open_settled(
        &self,
        level: &Level,
        record: &EntryRecord,
        found: &Metadata,
        permit: &dyn Permit,
    ) -> Result<Pair, EntryError> {
        let (name, last) = (record.name.as_bytes(), record.destination_name().as_bytes());
        let fail = |side, path, e| entry_error(side, Operation::Open, path, e);
        let gone = || changed(Side::Destination, level.target_path(last));
        let target = level.target.as_ref().ok_or_else(gone)?;
        let source = open_to_read(&level.source.fd, name, self.follows(level), permit)
            .map_err(|e| fail(Side::Source, level.source_path(name), e))?;
        let destination = open_to_read(&target.fd, last, false, permit)
            .map_err(|e| fail(Side::Destination, level.target_path(last), e))?;
        let stored = self.reads_stored();
        let side = |fd, metadata: &Metadata, facts| {
            let (metadata, facts) = (metadata.clone(), Arc::clone(facts));
            Content { fd, metadata, facts, is_stream: false, stored }
        };
        Ok(Pair {
            source: side(source, &record.metadata, &level.source.facts),
            destination: side(destination, found, &target.facts),
        })
    }

    fn open_destination(
        &self,
        level: &Level,
        record: &EntryRecord,
        found: &Metadata,
        permit: &dyn Permit,
    ) -> Result<Content, EntryError> {
        let last = record.destination_name().as_bytes();
        let shown = || level.target_path(last);
        let fail = |operation, e| entry_error(Side::Destination, operation, shown(), e);
        let target = level.target.as_ref().ok_or_else(|| changed(Side::Destination, shown()))?;
        let fd =
            open_to_read(&target.fd, last, false, permit).map_err(|e| fail(Operation::Open, e))?;
        let now = stat::stat_fd(&fd).map_err(|e| fail(Operation::Stat, e))?;
        let now = past_the_tick(&fd, now, permit, &shown).map_err(at_destination)?;
        let metadata = self.end.mounts.metadata(&now);
        if metadata.version() != found.version() {
            return Err(changed(Side::Destination, shown()));
        }
        let facts = Arc::clone(&target.facts);
        let stored = self.reads_stored();
        Ok(Content { fd, metadata, facts, is_stream: false, stored })
    }

    pub(crate) fn check_checked(
        &self,
        content: &Content,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<(), EntryError> {
        let (fd, before) = (&content.fd, &content.metadata);
        let checked = self.local().check_unchanged(&content.facts, fd, before, shown);
        checked.map_err(at_destination)
    }
}

impl Mover<'_> {
    /// Compares a range that both sides have. Both must stay unchanged meanwhile.
    pub(crate) fn compare_range(
        &mut self,
        level: &Level,
        record: &EntryRecord,
        pair: &Pair,
        range: ByteRange,
    ) -> Result<Vec<ByteRange>, EntryError> {
        let engine = self.engine;
        let source_shown = || level.source_path(record.name.as_bytes());
        let shown = || level.target_path(record.destination_name().as_bytes());
        let Pair { source, destination } = pair;
        let one = engine.way_to_read(source, range, &source_shown)?;
        let other = engine.way_to_read(destination, range, &shown)?;
        let permit = self.permit();
        let readings = [
            engine.reading(source, one, &source_shown, permit),
            engine.reading(destination, other, &shown, permit),
        ];
        let ranges =
            engine.content().compare_bytes(readings, range, &mut self.session.tools.buffer)?;
        engine.local().check_unchanged(
            &source.facts,
            &source.fd,
            &source.metadata,
            &source_shown,
        )?;
        engine.check_checked(destination, &shown)?;
        Ok(ranges)
    }
}
