//! Compares content: both sides of a file, or one side with digests.
use dmover_digest::Fold;
use dmover_local::source::{Content, has_settled};
use dmover_model::{
    Against, ByteRange, CompareTask, Digest, EntryError, EntryKind, EntryRecord, Metadata, Name,
    PathBytes, Shape, Side, Version,
};
use dmover_observe::{Activity, station};
use dmover_plan::chunk;
use dmover_plan::temporary::is_temporary;
use dmover_plan::verify::merged;
use dmover_sys::{path, stat};
use std::sync::Arc;

use crate::context::Engine;
use crate::finding::{Pair, changed};
use crate::level::Level;
use crate::mover::Mover;
use crate::sum::{Part, differing};

impl Engine {
    /// The size of the parts in which several movers compare a file, if that is worthwhile.
    pub(super) fn compare_chunk(&self, length: u64) -> Option<u64> {
        let demanded = self.spec.policy.split_bytes;
        let bytes = chunk::chunk_bytes(length, self.movers_max, demanded)?.max(1);
        (bytes < length).then_some(bytes)
    }
}

impl Engine {
    /// Whether regular files of a directory are opened on both sides before their metadata is known.
    pub(crate) fn compares_at_sight(&self, level: &Level) -> bool {
        let both = level.target.as_ref().is_some_and(|target| !target.fresh);
        both && self.asks_nothing_of_names(level)
            && self.compares_closely()
            && self.verify_policy().since.is_none()
    }
}

impl Mover<'_> {
    /// Compares a regular file that must be opened in any case: fstat is cheaper than stat by name. Returns the name if
    /// anything is unusual; the normal way then reports it.
    pub(crate) fn compare_at_sight(&mut self, level: &Level, name: Name) -> Option<Name> {
        let engine = self.engine;
        let Some(target) = level.target.as_ref().filter(|_| !engine.control.is_stopping()) else {
            return Some(name);
        };
        if is_temporary(name.as_bytes()) {
            return Some(name);
        }
        let open = |directory| {
            let fd = path::open_file_at(directory, name.as_bytes(), false)?;
            stat::stat_fd(&fd).map(|found| (fd, engine.end.mounts.metadata(&found)))
        };
        station::at(Activity::SourceNames);
        let Ok((source, metadata)) = open(&level.source.fd) else { return Some(name) };
        station::at(Activity::TargetNames);
        let Ok((destination, found)) = open(&target.fd) else { return Some(name) };
        let ordinary = [&metadata, &found].iter().all(|of| of.kind == EntryKind::File)
            && metadata.links == 1
            && engine.compare_chunk(metadata.size).is_none()
            && has_settled(&metadata)
            && has_settled(&found);
        if !ordinary {
            return Some(name);
        }
        engine.limits.operation(&engine.control, self.lease);
        self.count_found(&metadata);
        let content = |fd, metadata: &Metadata, facts| {
            let (metadata, facts) = (metadata.clone(), Arc::clone(facts));
            Content { fd, metadata, facts, is_stream: false, stored: engine.reads_stored() }
        };
        self.pair = Some(Pair {
            source: content(source, &metadata, &level.source.facts),
            destination: content(destination, &found, &target.facts),
        });
        let record = EntryRecord { name, renamed: None, metadata, symlink: None };
        let planned = self.decide(level, record, Some((found, None)));
        self.apply_one(level, planned);
        self.pair = None;
        self.lease.extend();
        None
    }

    /// Compares pieces with their expected digests, beginning at `range`; `expected` has one digest for each.
    pub(super) fn compare_pieces(
        &mut self,
        content: &Content,
        shape: &Shape,
        range: ByteRange,
        expected: &[Digest],
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<Vec<ByteRange>, EntryError> {
        let part = Part { shape: *shape, start: 0 };
        let made = self.hash_range(content, part, range, shown)?;
        let ranges = differing(shape, range.start, &made, expected);
        Ok(ranges.into_iter().map(|r| ByteRange { end: r.end.min(range.end), ..r }).collect())
    }

    /// Compares the content of a file with its manifest record, up to the end of the file.
    pub(super) fn compare_recorded(
        &mut self,
        content: &Content,
        recorded: &dmover_model::Content,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<Vec<ByteRange>, EntryError> {
        let (shape, size) = (&recorded.shape, content.metadata.size);
        let whole = ByteRange { start: 0, end: shape.length() };
        let there = whole_pieces(shape, size);
        let mut ranges = if recorded.pieces.is_empty() {
            let made = if size >= shape.length() {
                let part = Part { shape: *shape, start: 0 };
                Fold::of(shape, &self.hash_range(content, part, whole, shown)?)
            } else {
                None
            };
            if made == Some(recorded.digest) { Vec::new() } else { vec![whole] }
        } else {
            let expected = pieces_of(shape, there, &recorded.pieces);
            let mut ranges = self.compare_pieces(content, shape, there, expected, shown)?;
            ranges.push(ByteRange { start: there.end, end: shape.length() });
            ranges
        };
        // Where nothing should be there is nothing to differ.
        ranges.retain(|range| !range.is_empty());
        self.engine.check_checked(content, shown)?;
        Ok(merged(ranges))
    }

    /// Whether the content of a file differs from its manifest record. It must have the recorded size.
    pub(super) fn differ_from_record(
        &mut self,
        content: &Content,
        recorded: &dmover_model::Content,
        ranges: &[ByteRange],
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<bool, EntryError> {
        let shape = &recorded.shape;
        if content.metadata.size != shape.length() {
            return Ok(true);
        }
        if recorded.pieces.is_empty() {
            return Ok(!self.compare_recorded(content, recorded, shown)?.is_empty());
        }
        for range in ranges {
            let range = whole_around(shape, *range);
            let expected = pieces_of(shape, range, &recorded.pieces);
            if !self.compare_pieces(content, shape, range, expected, shown)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Compares a part of a large file. The last task of the file handles a failure.
    pub(crate) fn run_compare(&mut self, task: &CompareTask) {
        let compared = match &task.against {
            Against::Source(version) => self.compare_part(task, *version),
            Against::Digests(shape, expected) => self.compare_recorded_part(task, shape, expected),
        };
        match compared {
            Ok(ranges) => {
                self.outcome.differing = ranges;
                self.outcome.covered = Some(task.range);
                self.engine.progress();
            }
            Err(error) => self.outcome.chunk_failure = Some(Box::new(error)),
        }
    }

    fn compare_part(
        &mut self,
        task: &CompareTask,
        version: Version,
    ) -> Result<Vec<ByteRange>, EntryError> {
        let engine = self.engine;
        let level = engine.open_level(&task.file.directory)?;
        let record = self.look(&level, &task.file.name)?;
        let found = self.plan_record(&level, record.clone()).and_then(|planned| planned.existing);
        let target = || level.target_path(task.file.destination_name.as_bytes());
        let found = found.filter(|found| found.version() == task.destination);
        let found = found.ok_or_else(|| changed(Side::Destination, target()))?;
        if record.metadata.version() != version {
            return Err(changed(Side::Source, level.source_path(record.name.as_bytes())));
        }
        let pair = engine.open_pair(&level, &record, &found, self.permit())?;
        self.compare_range(&level, &record, &pair, task.range)
    }
}

/// The whole pieces that a range touches.
fn whole_around(shape: &Shape, range: ByteRange) -> ByteRange {
    let (piece, length) = (shape.piece(), shape.length());
    let start = (range.start - range.start % piece).min(length);
    ByteRange { start, end: range.end.div_ceil(piece).saturating_mul(piece).min(length) }
}

/// The complete pieces of a file of `size` bytes, or all of them.
pub(super) fn whole_pieces(shape: &Shape, size: u64) -> ByteRange {
    let end = if size >= shape.length() { shape.length() } else { size - size % shape.piece() };
    ByteRange { start: 0, end }
}

/// The digests of the pieces in a range that is aligned to pieces.
pub(super) fn pieces_of<'a>(shape: &Shape, range: ByteRange, pieces: &'a [Digest]) -> &'a [Digest] {
    if range.is_empty() {
        return &[];
    }
    let (from, to) = (range.start / shape.piece(), range.end.div_ceil(shape.piece()));
    &pieces[(from as usize).min(pieces.len())..(to as usize).min(pieces.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::HashType;

    #[test]
    fn ranges_are_widened_to_pieces_and_files_cut_to_them() {
        let shape = Shape::plain(HashType::Blake3, 2500, 1024);
        let range = |start, end| ByteRange { start, end };
        assert_eq!(whole_around(&shape, range(1030, 1031)), range(1024, 2048));
        assert_eq!(whole_around(&shape, range(0, 2049)), range(0, 2500));
        assert_eq!(whole_around(&shape, range(2500, 3000)), range(2048, 2500));
        assert_eq!(whole_pieces(&shape, 2047), range(0, 1024));
        assert_eq!(whole_pieces(&shape, 2500), range(0, 2500));
        assert_eq!(whole_pieces(&shape, 9999), range(0, 2500));
        let pieces: Vec<_> = (0..3).map(|n| Digest::new(&[n; 32]).expect("a digest")).collect();
        assert_eq!(pieces_of(&shape, range(1024, 2500), &pieces), &pieces[1..]);
        assert_eq!(pieces_of(&shape, range(2500, 2500), &pieces), &[]);
    }
}
