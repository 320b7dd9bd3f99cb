//! Compares two files byte by byte.
use dmover_model::{ByteRange, EntryError, Operation, Side};
use dmover_observe::Counter;
use dmover_sys::buffer::PAGE;

use super::side::Reader;
use super::{ContentRules, Reading, run_at, shrunk};
use crate::error::at_destination;

/// The unit of the comparison; pieces that differ are compared byte by byte.
const PIECE: usize = 4096;
/// Differing bytes closer than this are one range.
const APART: u64 = 64;
/// The most ranges that are reported separately; beyond that the closest ones are joined.
const RANGES_MAX: usize = 1024;
/// The block size; blocks of both sides should fit into a processor's second-level cache.
const BLOCK: usize = 128 << 10;

impl ContentRules<'_> {
    /// The ranges in which two files differ. `buffer` is shared between the two.
    pub(crate) fn compare_bytes(
        &self,
        [one, other]: [Reading<'_>; 2],
        range: ByteRange,
        buffer: &mut [u8],
    ) -> Result<Vec<ByteRange>, EntryError> {
        let half = buffer.len() / 2 / PAGE as usize * PAGE as usize;
        let half = if one.direct || other.direct { half } else { half.min(BLOCK) };
        let (left, right) = buffer.split_at_mut(half);
        let mut readers = [one, other].map(|reading| {
            reading.source.0.will_read(range);
            Reader::new(*self, reading.source, reading.direct, range.start, reading.path)
        });
        let mut gaps = [one, other].map(|reading| reading.gaps(range));
        let mut ranges = Ranges::default();
        let mut at = range.start;
        while at < range.end {
            self.check_held(one.permit, (Side::Source, Operation::Read), one.path)?;
            let [(first_end, first_is_hole), (second_end, second_is_hole)] =
                gaps.each_mut().map(|gaps| run_at(gaps, at));
            let end = first_end.min(second_end);
            if first_is_hole && second_is_hole {
                self.add(Counter::BytesCompared, end - at);
                one.permit.progress();
                at = end;
                continue;
            }
            let wanted = (end - at).min(half as u64) as usize;
            let wanted = one.permit.block_bytes(wanted);
            let sides_read = 2 - u64::from(first_is_hole) - u64::from(second_is_hole);
            one.permit.bytes(sides_read * wanted as u64);
            let [first, second] = &mut readers;
            if first_is_hole {
                left[..wanted].fill(0);
            } else if !read_all(first, left, at, wanted, one.direct)? {
                return Err(shrunk(one.path));
            }
            if second_is_hole {
                right[..wanted].fill(0);
            } else {
                let read = read_all(second, right, at, wanted, other.direct);
                let read =
                    read.and_then(|read| if read { Ok(()) } else { Err(shrunk(other.path)) });
                read.map_err(at_destination)?;
            }
            compare_blocks(&left[..wanted], &right[..wanted], at, &mut ranges);
            self.account_read(one.permit, sides_read * wanted as u64);
            self.add(Counter::BytesCompared, wanted as u64);
            at += wanted as u64;
        }
        for reader in &mut readers {
            reader.finish(at)?;
        }
        Ok(ranges.0)
    }
}

/// Fills the first `wanted` bytes. Returns whether there were so many.
fn read_all(
    reader: &mut Reader<'_>,
    buffer: &mut [u8],
    at: u64,
    wanted: usize,
    direct: bool,
) -> Result<bool, EntryError> {
    let mut filled = 0;
    while filled < wanted {
        // A direct read takes whole blocks; what it reads beyond the range is not used.
        let whole = (wanted - filled).next_multiple_of(PAGE as usize).min(buffer.len() - filled);
        let room = if direct { whole } else { wanted - filled };
        let read = reader.read(&mut buffer[filled..filled + room], at + filled as u64)?;
        if read == 0 {
            return Ok(false);
        }
        filled += read;
    }
    Ok(true)
}

/// A sorted and limited list of ranges.
#[derive(Debug, Default)]
struct Ranges(Vec<ByteRange>, u32);

impl Ranges {
    fn apart(&self) -> u64 {
        APART << self.1
    }

    fn push(&mut self, at: u64) {
        let apart = self.apart();
        match self.0.last_mut() {
            Some(last) if at <= last.end + apart => last.end = at + 1,
            _ => self.0.push(ByteRange { start: at, end: at + 1 }),
        }
        while self.0.len() > RANGES_MAX {
            self.1 += 1;
            let apart = self.apart();
            self.0.dedup_by(|next, last| {
                let near = next.start <= last.end + apart;
                if near {
                    last.end = next.end;
                }
                near
            });
        }
    }
}

fn compare_blocks(left: &[u8], right: &[u8], at: u64, ranges: &mut Ranges) {
    if left == right {
        return;
    }
    for (number, (a, b)) in left.chunks(PIECE).zip(right.chunks(PIECE)).enumerate() {
        if a == b {
            continue;
        }
        let base = at + (number * PIECE) as u64;
        for (offset, _) in a.iter().zip(b).enumerate().filter(|(_, (a, b))| a != b) {
            ranges.push(base + offset as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_bytes_are_found_to_the_byte() {
        let left = vec![7u8; 20_000];
        let mut right = left.clone();
        for at in [0, 4_095, 4_096, 10_000, 10_010, 19_999] {
            right[at] = 8;
        }
        let mut ranges = Ranges::default();
        compare_blocks(&left, &right, 1_000_000, &mut ranges);
        let range =
            |start: u64, end: u64| ByteRange { start: 1_000_000 + start, end: 1_000_000 + end };
        let expected =
            [range(0, 1), range(4_095, 4_097), range(10_000, 10_011), range(19_999, 20_000)];
        assert_eq!(ranges.0, expected);
        let mut none = Ranges::default();
        compare_blocks(&left, &left, 0, &mut none);
        assert!(none.0.is_empty());
    }

    #[test]
    fn there_are_never_too_many_ranges_and_none_is_lost() {
        let mut ranges = Ranges::default();
        let places: Vec<u64> = (0..100_000).map(|number| number * 5_000).collect();
        for at in &places {
            ranges.push(*at);
        }
        assert!(ranges.0.len() <= RANGES_MAX);
        let covered = |at: &u64| ranges.0.iter().any(|range| (range.start..range.end).contains(at));
        assert!(places.iter().step_by(997).all(covered));
    }
}
