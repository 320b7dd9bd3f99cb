//! Finds holes of a file that is read, so that they need not be read.
use dmover_model::{ByteRange, PathBytes};
use dmover_sys::BorrowedFd;
use dmover_sys::file::{self, DataRange};

use crate::handle::FileRef;

/// Shorter holes are read, because finding them costs as much. Files up to this size are not checked.
pub(crate) const SHORT: u64 = 64 << 10;

/// The holes of a file, in order.
pub(crate) struct Gaps<'a> {
    /// `None`: everything counts as data.
    file: Option<BorrowedFd<'a>>,
    hole: ByteRange,
    /// Holes before this offset are known.
    known: u64,
    end: u64,
}

impl<'a> Gaps<'a> {
    pub fn new(file: Option<BorrowedFd<'a>>, range: ByteRange) -> Self {
        let ByteRange { start, end } = range;
        Self { file, hole: ByteRange { start, end: start }, known: start, end }
    }

    /// The next hole that ends after `at`; an empty one at the end of the range if there is none.
    pub fn next(&mut self, at: u64) -> ByteRange {
        while self.hole.end <= at {
            let Some(file) = self.file.filter(|_| self.known < self.end) else {
                return ByteRange { start: self.end, end: self.end };
            };
            let (start, end) = match file::next_data(file, self.known) {
                Ok(DataRange::Data(start, end)) if end > self.known => (start, end),
                // This includes offsets beyond the end of a file that was truncated meanwhile, which its size shows
                // later.
                Ok(DataRange::End) => (self.end, self.end),
                // An answer that leads nowhere, or none: what is left is read.
                _ => {
                    self.file = None;
                    continue;
                }
            };
            let hole = ByteRange { start: self.known, end: start.min(self.end) };
            if hole.len() >= SHORT {
                self.hole = hole;
            }
            self.known = end;
        }
        self.hole
    }
}

/// How many of the first `size` bytes of a file are not in holes.
pub(crate) fn data_bytes(file: FileRef<'_>, size: u64) -> u64 {
    let (mut at, mut bytes) = (0, 0);
    while at < size {
        match file.next_data(at, &PathBytes::default) {
            Ok(DataRange::Data(start, end)) if end > at => {
                bytes += end.min(size).saturating_sub(start.max(at));
                at = end;
            }
            Ok(DataRange::End) => break,
            _ => return bytes + (size - at),
        }
    }
    bytes
}

/// How far the data or hole at `at` continues, and whether it is a hole.
pub(crate) fn run_at(gaps: &mut Gaps<'_>, at: u64) -> (u64, bool) {
    let hole = gaps.next(at);
    if hole.start <= at && at < hole.end { (hole.end, true) } else { (hole.start, false) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_sys::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn long_holes_are_found_and_short_ones_are_data() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        let size = 10 << 20;
        file.set_len(size).unwrap();
        for at in [1 << 20, (1 << 20) + 8192, 5 << 20] {
            file.write_all_at(&[1; 4096], at).unwrap();
        }
        let mut gaps = Gaps::new(Some(file.as_fd()), ByteRange { start: 4096, end: size });
        let (mut at, mut runs) = (4096, Vec::new());
        while at < size {
            let (end, is_hole) = run_at(&mut gaps, at);
            runs.push((at, end, is_hole));
            at = end;
        }
        let (first, second) = (1 << 20, 5 << 20);
        assert_eq!(
            runs,
            [
                (4096, first, true),
                (first, first + 12_288, false),
                (first + 12_288, second, true),
                (second, second + 4096, false),
                (second + 4096, size, true),
            ]
        );
        let mut none = Gaps::new(None, ByteRange { start: 0, end: size });
        assert_eq!(run_at(&mut none, 0), (size, false));
    }
}
