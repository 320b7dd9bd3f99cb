//! Cutting large files into chunks.
use dmover_model::ByteRange;

const MIB: u64 = 1 << 20;
/// Below this size, the two extra tasks and the flush of a split file cost more than a second mover saves.
const SPLIT_AT_LEAST: u64 = 128 * MIB;
const CHUNK_AT_LEAST: u64 = 64 * MIB;
/// The same if movers at other hosts get chunks, so that there are some for each of them.
const SHARED_CHUNK_AT_LEAST: u64 = 16 * MIB;
/// The most chunks of one file, whatever its size.
const CHUNKS_MAX: u64 = 1024;

/// The chunk size for a file; `None`: one task copies the whole file. `threads`: those of this process; `is_shared`: movers at
/// other hosts get chunks.
pub fn chunk_bytes(
    size: u64,
    (threads, is_shared): (usize, bool),
    demanded: Option<u64>,
) -> Option<u64> {
    let (threshold, chunk) = match demanded {
        Some(0) => return None,
        Some(bytes) => (bytes.saturating_add(1), bytes),
        None if is_shared => (SPLIT_AT_LEAST, SHARED_CHUNK_AT_LEAST),
        None if threads < 2 => return None,
        None => (SPLIT_AT_LEAST, CHUNK_AT_LEAST),
    };
    if size < threshold {
        return None;
    }
    let at_least = size.div_ceil(CHUNKS_MAX);
    // Whole MiB keep chunk borders on block and stripe borders, unless smaller chunks were asked for.
    Some(if chunk >= at_least { chunk } else { at_least.div_ceil(MIB) * MIB })
}

/// The chunks of a file of `size` bytes, in order and without gaps.
pub fn chunks(size: u64, chunk_bytes: u64) -> impl Iterator<Item = ByteRange> {
    assert!(chunk_bytes > 0, "a chunk holds at least one byte");
    (0..size.div_ceil(chunk_bytes))
        .map(move |i| ByteRange { start: i * chunk_bytes, end: ((i + 1) * chunk_bytes).min(size) })
}

/// The ranges that are missing in a file of `size` bytes. `done`: the completed ranges, in order.
pub fn missing(done: &[ByteRange], size: u64) -> Vec<ByteRange> {
    let mut missing = Vec::new();
    let mut start = 0;
    for range in done.iter().chain([&ByteRange { start: size, end: size }]) {
        if range.start.min(size) > start {
            missing.push(ByteRange { start, end: range.start.min(size) });
        }
        start = start.max(range.end);
    }
    missing
}

/// The aimed duration of a step in milliseconds: short enough for movers that wait, and long enough that the pause
/// between two steps does not count.
const STEP_MS: std::ops::Range<u64> = 50..200;
/// The smallest step, and the smallest range that is shared with other movers.
pub const STEP_AT_LEAST: u64 = MIB / 4;
/// The same if the content of the other half may be on its way from another host already: it would be sent again.
pub const SENT_AHEAD_AT_LEAST: u64 = 64 * MIB;
/// The same if movers at other hosts wait, who have connections of their own that would be idle.
pub const SHARED_AT_LEAST: u64 = 8 * MIB;
/// The first step under a rate limit. A mover may get a small share of the limit, and a step that does not end before a
/// stop is lost.
const LIMITED_STEP: u64 = 16 << 10;

/// How much of a chunk a mover copies before it checks whether other movers want a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    bytes: u64,
    at_least: u64,
}

impl Default for Step {
    fn default() -> Self {
        Self { bytes: MIB, at_least: STEP_AT_LEAST }
    }
}

impl Step {
    /// The first step under a limit of bytes per second.
    pub fn limited() -> Self {
        Self { bytes: LIMITED_STEP, at_least: LIMITED_STEP }
    }

    /// The length in bytes; it holds whole pieces of a digest.
    pub fn bytes(self, piece: u64) -> u64 {
        self.bytes.checked_next_multiple_of(piece.max(1)).unwrap_or(piece)
    }

    /// The next step, after one that took this long.
    #[must_use]
    pub fn after(self, elapsed_ms: u64) -> Self {
        let bytes = if elapsed_ms < STEP_MS.start {
            (self.bytes * 2).min(CHUNK_AT_LEAST / 2)
        } else if elapsed_ms > STEP_MS.end {
            (self.bytes / 2).max(self.at_least)
        } else {
            self.bytes
        };
        Self { bytes, ..self }
    }
}

/// The most names that a mover handles before it checks whether other movers want a part of its work. A smaller part is
/// not worth opening the directory again if its files are copied at once.
const STRIDE_MAX: usize = 16;
/// The aimed duration of a stride in milliseconds; below a quarter of it, strides get longer.
const STRIDE_MS: u64 = 20;

/// How many names a mover copies before it checks whether other movers want a part of the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stride(usize);

impl Default for Stride {
    fn default() -> Self {
        Self(STRIDE_MAX)
    }
}

impl Stride {
    /// The number of names.
    pub fn names(self) -> usize {
        self.0
    }

    /// The next stride, after one that took this long.
    #[must_use]
    pub fn after(self, elapsed_ms: u64) -> Self {
        if elapsed_ms > STRIDE_MS {
            Self((self.0 / 2).max(1))
        } else if elapsed_ms < STRIDE_MS / 4 {
            Self((self.0 * 2).min(STRIDE_MAX))
        } else {
            self
        }
    }
}

/// The second half of the rest of a chunk, in whole steps; `None` if there are fewer than two steps.
pub fn half(left: ByteRange, step: u64) -> Option<ByteRange> {
    let kept = (left.len() / 2).div_ceil(step) * step;
    let start = left.start + kept;
    (left.len() >= 2 * step && start < left.end).then_some(ByteRange { start, ..left })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn halves_are_whole_steps_and_leave_nothing_out(
            steps in 0u64..1000, start in 0u64..1000, rest in 0u64..(16 << 20), piece in 1u64..(64 << 20)
        ) {
            let step = Step::default().bytes(piece);
            prop_assert_eq!(step % piece, 0);
            let left = ByteRange { start: start * step, end: (start + steps) * step + rest % step };
            if let Some(half) = half(left, step) {
                prop_assert!(half.start > left.start && half.end == left.end && !half.is_empty());
                prop_assert_eq!((half.start - left.start) % step, 0);
                prop_assert!(half.len() <= half.start - left.start);
            } else {
                prop_assert!(left.len() < 2 * step);
            }
        }

        #[test]
        fn chunks_cover_the_file_once(size in 0u64..1 << 50, chunk in (1u64 << 40)..1 << 50) {
            let mut next = 0;
            for range in chunks(size, chunk) {
                prop_assert_eq!(range.start, next);
                prop_assert!(!range.is_empty() && range.len() <= chunk);
                next = range.end;
            }
            prop_assert_eq!(next, size);
        }

        #[test]
        fn no_file_makes_too_many_chunks(size in 0u64..1 << 60, threads in 1usize..64) {
            if let Some(bytes) = chunk_bytes(size, (threads, false), None) {
                prop_assert!(size.div_ceil(bytes) <= CHUNKS_MAX);
                prop_assert!(bytes >= CHUNK_AT_LEAST);
            }
        }
    }

    #[test]
    fn what_is_missing_lies_between_what_is_done() {
        let range = |(start, end)| ByteRange { start, end };
        for (done, expected) in [
            (vec![], vec![(0, 10)]),
            (vec![(0, 10)], vec![]),
            (vec![(2, 4), (4, 5), (8, 10)], vec![(0, 2), (5, 8)]),
            (vec![(0, 3), (1, 2), (12, 13)], vec![(3, 10)]),
        ] {
            let done: Vec<ByteRange> = done.into_iter().map(range).collect();
            let expected: Vec<ByteRange> = expected.into_iter().map(range).collect();
            assert_eq!(missing(&done, 10), expected);
        }
        assert!(missing(&[], 0).is_empty());
    }

    #[test]
    fn an_explicit_size_decides() {
        assert_eq!(chunk_bytes(10 * MIB, (1, false), Some(MIB)), Some(MIB));
        assert_eq!(chunk_bytes(MIB, (8, false), Some(MIB)), None);
        assert_eq!(chunk_bytes(u64::MAX / 2, (8, false), Some(0)), None);
    }

    #[test]
    fn strides_shrink_where_each_name_takes_long_and_grow_again() {
        let run = |from: Stride, us: u64| {
            (0..20).fold(from, |stride, _| stride.after(stride.names() as u64 * us / 1000))
        };
        let fast = Stride::default();
        assert_eq!(run(fast, 10).names(), 16);
        let slow = run(fast, 25_000);
        assert_eq!(slow.names(), 1);
        assert_eq!(run(slow, 10), fast);
        assert_eq!((run(fast, 3_000).names(), run(slow, 3_000).names()), (4, 2));
    }

    #[test]
    fn steps_grow_where_storage_is_fast_and_shrink_where_it_is_slow() {
        let run = |from: Step, bytes_per_ms: u64| {
            (0..20).fold(from, |step, _| step.after(step.bytes(1) / bytes_per_ms))
        };
        let fast = run(Step::default(), 2 * MIB);
        assert_eq!(fast.bytes(1), 32 * MIB);
        let slow = run(fast, MIB / 1000);
        assert_eq!(slow.bytes(1), MIB / 4);
        assert_eq!(run(slow, 2 * MIB), fast);
        assert_eq!((slow.bytes(5 * MIB), fast.bytes(5 * MIB)), (5 * MIB, 35 * MIB));
        // Under a limit a mover with little of it takes small steps from the start, and one with much large ones.
        let limited = Step::limited();
        assert_eq!((limited.bytes(1), run(limited, 10).bytes(1)), (16 << 10, 16 << 10));
        assert_eq!(run(limited, 2 * MIB).bytes(1), 32 * MIB);
    }
}
