//! Which ranges of a file are copied, and to which offsets.
use dmover_model::{ByteRange, RangeCopy};

/// Ranges of the source, clipped to its size, and their destination offsets.
pub(super) fn ranges(wanted: Option<&RangeCopy>, size: u64) -> Vec<(ByteRange, u64)> {
    let Some(wanted) = wanted else {
        return vec![(ByteRange { start: 0, end: size }, 0)];
    };
    let clip = |r: &ByteRange| ByteRange { start: r.start.min(size), end: r.end.min(size) };
    let first = wanted.ranges.first().map_or(0, |r| r.start);
    let to = |start: u64| match wanted.destination_offset {
        Some(offset) => offset + start.saturating_sub(first),
        None => start,
    };
    let ranges = wanted.ranges.iter().map(clip).filter(|r| !r.is_empty());
    ranges.map(|r| (r, to(r.start))).collect()
}

/// Whether the ranges cover the whole file at the same offsets.
pub(super) fn covers_all(wanted: Option<&RangeCopy>, size: u64) -> bool {
    let mut pieces = ranges(wanted, size);
    pieces.sort_unstable_by_key(|(range, _)| range.start);
    let mut end = 0;
    for (range, to) in pieces {
        if range.start > end || to != range.start {
            return false;
        }
        end = end.max(range.end);
    }
    end >= size
}
