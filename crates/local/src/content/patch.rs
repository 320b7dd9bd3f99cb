//! Writes only the ranges that differ from the existing content.
use dmover_model::{ByteRange, EntryError, When};
use dmover_observe::{Activity, Counter, activity};
use dmover_sys::file::{self, DataRange};
use dmover_sys::{BorrowedFd, Errno};

use super::{ContentRules, Tools, Transfer};
use crate::handle::FileRef;

/// The unit in which content is compared and written: the block size of usual file systems.
const PIECE: usize = 4096;
/// The block size; blocks of both sides should fit into a processor's second-level cache.
const BLOCK: usize = 256 << 10;

impl ContentRules<'_> {
    /// Makes a range of the destination equal to the source. The destination already has its final size. `compares`:
    /// equal content is not written.
    pub(crate) fn patch_range(
        &self,
        transfer: Transfer<'_>,
        range: ByteRange,
        compares: bool,
        tools: &mut Tools,
    ) -> Result<u64, EntryError> {
        // What is read is announced below: perhaps it is little.
        let mut written = 0;
        let mut at = range.start;
        while at < range.end {
            self.check_running(transfer)?;
            let data = match transfer.source.next_data(at, transfer.source_path)? {
                DataRange::End => ByteRange { start: range.end, end: range.end },
                DataRange::Data(start, end) if end > at => {
                    ByteRange { start: start.clamp(at, range.end), end: end.min(range.end) }
                }
                // No books are kept on holes, or the answer leads nowhere.
                DataRange::Data(..) | DataRange::Unknown => ByteRange { start: at, end: range.end },
            };
            if data.start > at {
                let hole = ByteRange { start: at, end: data.start };
                written += self.patch_hole(transfer, hole, tools)?;
            }
            if data.end > data.start {
                written += self.patch_data(transfer, data, compares, tools)?;
            }
            at = data.end.max(data.start);
        }
        Ok(written)
    }

    /// Makes a hole in the destination where the source has one.
    fn patch_hole(
        &self,
        transfer: Transfer<'_>,
        hole: ByteRange,
        tools: &mut Tools,
    ) -> Result<u64, EntryError> {
        let there = file::next_data(transfer.destination, hole.start);
        let empty = match there.map_err(|e| transfer.write_error(e))? {
            DataRange::End => true,
            DataRange::Data(start, _) => start >= hole.end,
            DataRange::Unknown => false,
        };
        let punched = empty
            || file::punch_hole(transfer.destination, hole.start, hole.len())
                .map_err(|e| transfer.write_error(e))?;
        if !punched {
            return self.patch_data(transfer, hole, true, tools);
        }
        self.add(Counter::BytesKept, hole.len());
        self.feed_zeroes(transfer, hole.len())?;
        Ok(0)
    }

    fn patch_data(
        &self,
        transfer: Transfer<'_>,
        range: ByteRange,
        mut compare: bool,
        tools: &mut Tools,
    ) -> Result<u64, EntryError> {
        if let FileRef::Remote(file) = transfer.source
            && compare
            && self.compares_by_digests(range)
        {
            return self.patch_from_host(transfer, file, range, tools);
        }
        transfer.source.will_read(range);
        let half = (tools.buffer.len() / 2).min(BLOCK) / PIECE * PIECE;
        let (new, old) = tools.buffer.split_at_mut(half);
        // Until the file system turns out not to punch holes.
        let mut detects = self.policy.sparse == When::Always;
        let mut written = 0;
        let mut at = range.start;
        while at < range.end {
            self.check_running(transfer)?;
            // Pieces begin at multiples of their size.
            let room = half as u64 - at % PIECE as u64;
            let wanted = (range.end - at).min(room) as usize;
            let wanted = transfer.permit.block_bytes(wanted);
            transfer.permit.bytes(wanted as u64);
            activity::at(Activity::SourceData);
            let got = read_source(transfer, &mut new[..wanted], at)?;
            if got < wanted {
                return Err(transfer.shrunk());
            }
            transfer.feed(&new[..wanted]);
            activity::at(Activity::TargetData);
            if compare {
                let there = read_all(transfer.destination, &mut old[..wanted], at)
                    .map_err(|e| transfer.write_error(e))?;
                // Beyond its end there is nothing to compare with.
                compare = there == wanted;
            }
            let mut block_written = 0;
            let mut runs = differing(at, &new[..wanted], compare.then_some(&old[..wanted]));
            if detects {
                let zeroes = zero_runs(at, &new[..wanted]);
                detects = punch(transfer, at, &zeroes)?;
                if detects {
                    runs = without(&runs, &zeroes);
                }
            }
            for run in runs {
                let bytes = &new[run.0..run.1];
                file::write_all_at(transfer.destination, bytes, at + run.0 as u64)
                    .map_err(|e| transfer.write_error(e))?;
                block_written += bytes.len() as u64;
            }
            self.account(transfer, block_written);
            self.add(Counter::BytesKept, wanted as u64 - block_written);
            written += block_written;
            at += wanted as u64;
        }
        Ok(written)
    }
}

/// Punches holes for zeroes that are not holes yet. Returns whether the file system supports it.
fn punch(transfer: Transfer<'_>, at: u64, runs: &[(usize, usize)]) -> Result<bool, EntryError> {
    for (start, end) in runs {
        let (start, end) = (at + *start as u64, at + *end as u64);
        let there = file::next_data(transfer.destination, start);
        let is_hole = match there.map_err(|e| transfer.write_error(e))? {
            DataRange::End => true,
            DataRange::Data(data, _) => data >= end,
            DataRange::Unknown => false,
        };
        let punched = is_hole
            || file::punch_hole(transfer.destination, start, end - start)
                .map_err(|e| transfer.write_error(e))?;
        if !punched {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Runs of whole zero pieces, as offsets in the buffer.
fn zero_runs(at: u64, new: &[u8]) -> Vec<(usize, usize)> {
    let first = (PIECE as u64 - at % PIECE as u64) as usize % PIECE;
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let mut start = first;
    while start + PIECE <= new.len() {
        let end = start + PIECE;
        if new[start..end].iter().all(|byte| *byte == 0) {
            match runs.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => runs.push((start, end)),
            }
        }
        start = end;
    }
    runs
}

/// The parts of some runs that are not in holes. Both are sorted.
fn without(runs: &[(usize, usize)], holes: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut left = Vec::new();
    for (start, end) in runs {
        let mut at = *start;
        for hole in holes.iter().filter(|hole| hole.1 > *start && hole.0 < *end) {
            if hole.0 > at {
                left.push((at, hole.0));
            }
            at = at.max(hole.1);
        }
        if at < *end {
            left.push((at, *end));
        }
    }
    left
}

/// Fills a buffer from the source; it is short only at the end of the file.
fn read_source(transfer: Transfer<'_>, buffer: &mut [u8], at: u64) -> Result<usize, EntryError> {
    match transfer.source {
        FileRef::Open(fd) => read_all(fd, buffer, at).map_err(|e| transfer.read_error(e)),
        FileRef::Remote(file) => {
            let mut filled = 0;
            while filled < buffer.len() {
                match file.read(at + filled as u64, &mut buffer[filled..])? {
                    0 => break,
                    read => filled += read,
                }
            }
            Ok(filled)
        }
    }
}

/// Fills a buffer; it is short only at the end of the file.
pub(super) fn read_all(fd: BorrowedFd<'_>, buffer: &mut [u8], at: u64) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file::read_at(fd, &mut buffer[filled..], at + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

/// Runs of pieces that differ, as offsets in the buffers; everything if there is no old content.
fn differing(at: u64, new: &[u8], old: Option<&[u8]>) -> Vec<(usize, usize)> {
    let Some(old) = old else { return vec![(0, new.len())] };
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let mut start = 0;
    while start < new.len() {
        let piece = PIECE - ((at + start as u64) % PIECE as u64) as usize;
        let end = (start + piece).min(new.len());
        if new[start..end] != old[start..end] {
            match runs.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => runs.push((start, end)),
            }
        }
        start = end;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_differing_pieces_begin_and_end_at_pieces() {
        let old = vec![1u8; 5 * PIECE];
        let mut new = old.clone();
        new[PIECE + 5] = 2;
        new[3 * PIECE - 1] = 2;
        new[5 * PIECE - 1] = 2;
        assert_eq!(differing(0, &new, Some(&old)), [(PIECE, 3 * PIECE), (4 * PIECE, 5 * PIECE)]);
        // A range that begins inside a piece.
        assert_eq!(differing(10, &new[10..], Some(&old[10..]))[0], (PIECE - 10, 3 * PIECE - 10));
        assert_eq!(differing(0, &old, Some(&old)), []);
        assert_eq!(differing(0, &old, None), [(0, 5 * PIECE)]);
    }

    #[test]
    fn runs_of_zeroes_are_whole_pieces_and_are_not_written() {
        let mut new = vec![1u8; 6 * PIECE];
        new[PIECE..3 * PIECE].fill(0);
        new[4 * PIECE - 1..5 * PIECE].fill(0);
        let holes = zero_runs(0, &new);
        assert_eq!(holes, [(PIECE, 3 * PIECE), (4 * PIECE, 5 * PIECE)]);
        // A range that begins inside a piece.
        assert_eq!(zero_runs(10, &new[10..])[0], (PIECE - 10, 3 * PIECE - 10));
        assert_eq!(zero_runs(0, &new[..PIECE - 1]), []);
        let all = [(0, 6 * PIECE)];
        let left = [(0, PIECE), (3 * PIECE, 4 * PIECE), (5 * PIECE, 6 * PIECE)];
        assert_eq!(without(&all, &holes), left);
        assert_eq!(without(&[(PIECE, 2 * PIECE), (5 * PIECE, 6 * PIECE)], &holes), [left[2]]);
        assert_eq!(without(&all, &[]), all);
    }
}
