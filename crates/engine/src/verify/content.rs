//! Comparing content: both sides of a file, or one side with digests.
use dmover_digest::Fold;
use dmover_model::{
    ByteRange, CompareTask, ComparedFile, Digest, DigestPolicy, EntryError, EntryRecord,
    ErrorClass, FileRef, HashType, Metadata, Operation, Shape, Side, VerifyLevel,
};
use dmover_sys::{path, stat};
use std::sync::Arc;

use super::at_destination;
use crate::content::Reading;
use crate::context::{Engine, entry_error};
use crate::level::Level;
use crate::mover::Mover;
use crate::sum::{Content, Part, differing};

/// Both sides of a file, open.
pub(super) struct Pair {
    pub source: Content,
    pub destination: Content,
    /// Of the bytes that both have.
    pub shape: Shape,
}

impl Pair {
    pub fn in_parts(&self, file: FileRef) -> ComparedFile {
        ComparedFile {
            file,
            source: Some(self.source.metadata.version()),
            destination: self.destination.metadata.version(),
            shape: self.shape,
        }
    }
}

impl Engine {
    /// Opens both sides of a file. What stands at the destination has to be what was found there.
    pub(super) fn open_pair(
        &self,
        level: &Level,
        record: &EntryRecord,
        found: &Metadata,
    ) -> Result<Pair, EntryError> {
        let (fd, metadata) = self.open_source_file(level, record)?;
        let facts = Arc::clone(&level.source.facts);
        let source = Content { fd, metadata, facts, is_stream: false };
        let destination = self.open_destination(level, record, found)?;
        let length = source.metadata.size.min(destination.metadata.size);
        let shape = DigestPolicy::plain(HashType::Blake3).shape(length);
        Ok(Pair { source, destination, shape })
    }

    pub(super) fn open_destination(
        &self,
        level: &Level,
        record: &EntryRecord,
        found: &Metadata,
    ) -> Result<Content, EntryError> {
        let last = record.destination_name().as_bytes();
        let shown = || level.target_path(last);
        let fail = |operation, e| entry_error(Side::Destination, operation, shown(), e);
        let changed = || {
            let words = "another file stands here now";
            let (side, class) = (Side::Destination, ErrorClass::Busy);
            EntryError::plain(side, Operation::Open, class, shown(), words)
        };
        let target = level.target.as_ref().ok_or_else(changed)?;
        let fd =
            path::open_file_at(&target.fd, last, false).map_err(|e| fail(Operation::Open, e))?;
        let now = stat::stat_fd(&fd).map_err(|e| fail(Operation::Stat, e))?;
        let now = self.past_the_tick(&fd, now, &shown).map_err(at_destination)?;
        let metadata = self.mounts.metadata(&now);
        if metadata.identity != found.identity || metadata.kind != found.kind {
            return Err(changed());
        }
        let facts = Arc::clone(&target.facts);
        Ok(Content { fd, metadata, facts, is_stream: false })
    }
}

impl Mover<'_> {
    /// Compares all bytes that both sides have.
    pub(super) fn compare_pair(
        &mut self,
        level: &Level,
        record: &EntryRecord,
        pair: &Pair,
    ) -> Result<Vec<ByteRange>, EntryError> {
        let whole = ByteRange { start: 0, end: pair.shape.length() };
        self.compare_range(level, record, pair, whole)
    }

    /// Compares some of them, on borders of pieces. Both sides have to stay as they are meanwhile.
    pub(super) fn compare_range(
        &mut self,
        level: &Level,
        record: &EntryRecord,
        pair: &Pair,
        range: ByteRange,
    ) -> Result<Vec<ByteRange>, EntryError> {
        let engine = self.engine;
        let source_shown = || level.source_path(record.name.as_bytes());
        let shown = || level.target_path(record.destination_name().as_bytes());
        let Pair { source, destination, shape } = pair;
        let ranges = if engine.verify_policy().level == VerifyLevel::Bytes {
            let one = engine.way_to_read(source, range, &source_shown)?;
            let other = engine.way_to_read(destination, range, &shown)?;
            let lease = self.lease;
            let readings = [
                Reading { source: source.held(), direct: one, path: &source_shown, lease },
                Reading { source: destination.held(), direct: other, path: &shown, lease },
            ];
            engine.compare_bytes(readings, range, &mut self.tools.buffer)?
        } else {
            let part = Part { shape: *shape, start: 0 };
            let expected = self.hash_range(source, part, range, &source_shown)?;
            let found =
                self.hash_range(destination, part, range, &shown).map_err(at_destination)?;
            differing(shape, range.start, &found, &expected)
        };
        engine.check_unchanged(&source.facts, &source.fd, &source.metadata, &source_shown)?;
        engine.check_checked(destination, &shown)?;
        Ok(ranges.into_iter().map(|r| ByteRange { end: r.end.min(range.end), ..r }).collect())
    }

    /// Compares pieces with the digests that they should have: those from `range` on, of which `expected` has one each.
    pub(super) fn compare_pieces(
        &mut self,
        content: &Content,
        shape: &Shape,
        range: ByteRange,
        expected: &[Digest],
        shown: &dyn Fn() -> dmover_model::PathBytes,
    ) -> Result<Vec<ByteRange>, EntryError> {
        let part = Part { shape: *shape, start: 0 };
        let made = self.hash_range(content, part, range, shown)?;
        let ranges = differing(shape, range.start, &made, expected);
        Ok(ranges.into_iter().map(|r| ByteRange { end: r.end.min(range.end), ..r }).collect())
    }

    /// Compares the content of a file with what a manifest says of it, as far as the file goes.
    pub(super) fn compare_recorded(
        &mut self,
        content: &Content,
        recorded: &dmover_model::Content,
        shown: &dyn Fn() -> dmover_model::PathBytes,
    ) -> Result<Vec<ByteRange>, EntryError> {
        let (shape, size) = (&recorded.shape, content.metadata.size);
        let whole = ByteRange { start: 0, end: shape.length() };
        let there = whole_pieces(shape, size);
        let mut ranges = if recorded.pieces.is_empty() {
            let all = size >= shape.length();
            let made = if all {
                let part = Part { shape: *shape, start: 0 };
                Fold::of(shape, &self.hash_range(content, part, whole, shown)?)
            } else {
                None
            };
            if made == Some(recorded.digest) { Vec::new() } else { vec![whole] }
        } else {
            let expected = &recorded.pieces[..there.len().div_ceil(shape.piece()) as usize];
            self.compare_pieces(content, shape, there, expected, shown)?
        };
        if !recorded.pieces.is_empty() && there.end < shape.length() {
            ranges.push(ByteRange { start: there.end, end: shape.length() });
        }
        // Where nothing should be there is nothing to differ.
        ranges.retain(|range| !range.is_empty());
        self.engine.check_unchanged(&content.facts, &content.fd, &content.metadata, shown)?;
        Ok(dmover_plan::verify::merged(ranges))
    }

    /// Compares a part of a large file. A failure is for its end to judge.
    pub(crate) fn run_compare(&mut self, task: &CompareTask) {
        match self.compare_part(task) {
            Ok(ranges) => {
                self.outcome.differing = ranges;
                self.engine.progress();
            }
            Err(error) => self.outcome.chunk_failure = Some(Box::new(error)),
        }
    }

    fn compare_part(&mut self, task: &CompareTask) -> Result<Vec<ByteRange>, EntryError> {
        let engine = self.engine;
        let CompareTask { file: compared, range, expected } = task;
        let level = engine.open_level(&compared.file.directory)?;
        let Some(version) = compared.source else {
            return self.compare_recorded_part(&level, task);
        };
        let record = self.look(&level, &compared.file.name)?;
        let found = self.plan_record(&level, record.clone()).and_then(|planned| planned.existing);
        let changed = |side, path| {
            let words = "the file changed while it was compared";
            EntryError::plain(side, Operation::Check, ErrorClass::Changed, path, words)
        };
        let target = || level.target_path(compared.file.destination_name.as_bytes());
        let found = found.ok_or_else(|| changed(Side::Destination, target()))?;
        let mut pair = engine.open_pair(&level, &record, &found)?;
        pair.shape = compared.shape;
        if pair.source.metadata.version() != version {
            return Err(changed(Side::Source, level.source_path(record.name.as_bytes())));
        }
        if pair.destination.metadata.version() != compared.destination {
            return Err(changed(Side::Destination, target()));
        }
        debug_assert!(expected.is_empty(), "there is a source to compare with");
        self.compare_range(&level, &record, &pair, *range)
    }
}

impl Engine {
    fn check_checked(
        &self,
        content: &Content,
        shown: &dyn Fn() -> dmover_model::PathBytes,
    ) -> Result<(), EntryError> {
        let checked = self.check_unchanged(&content.facts, &content.fd, &content.metadata, shown);
        checked.map_err(at_destination)
    }
}

/// The whole pieces that a range touches.
pub(super) fn whole_around(shape: &Shape, range: ByteRange) -> ByteRange {
    let (piece, length) = (shape.piece(), shape.length());
    let start = (range.start - range.start % piece).min(length);
    ByteRange { start, end: range.end.div_ceil(piece).saturating_mul(piece).min(length) }
}

/// The pieces that a file of `size` bytes has in full, or all of them.
pub(super) fn whole_pieces(shape: &Shape, size: u64) -> ByteRange {
    let end = if size >= shape.length() { shape.length() } else { size - size % shape.piece() };
    ByteRange { start: 0, end }
}
