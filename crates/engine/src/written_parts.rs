//! Parts of large files that this process has written: what is to be flushed, and what is on record.
use dmover_model::{ByteRange, DoneParts, HashedPieces, Name};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_schedule::time::Instant;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// After this time a chunk ends, and its data is flushed and reported: a killed run loses no more than this.
pub(crate) const PART_TIME: Duration = Duration::from_secs(3);
/// The same if movers at other hosts may get the rest: what was sent ahead to this one would be sent again.
pub(crate) const SHARED_PART_TIME: Duration = Duration::from_secs(30);
/// With more files than this, unflushed parts of files without recent writes are forgotten: another run copies them again.
const FILES_MAX: usize = 256;

/// Parts of large files that this process has written, by temporary file.
#[derive(Debug, Default)]
pub(crate) struct WrittenParts {
    /// Those that were not flushed.
    files: Mutex<HashMap<Name, Written>>,
    /// Files that have parts on record: another run can continue them.
    recorded: Mutex<HashSet<Name>>,
    /// Files for which a write, a flush or a close has failed. The kernel reports an error only once, so later flushes
    /// prove nothing.
    failed: Mutex<HashSet<Name>>,
}

#[derive(Debug)]
struct Written {
    since: Instant,
    done: DoneParts,
}

/// A written chunk.
pub(crate) struct Part<'a> {
    pub temporary: &'a Name,
    pub range: ByteRange,
    pub pieces: Option<HashedPieces>,
    pub begun: Instant,
    /// No more parts may follow: flush at once.
    pub is_last: bool,
}

impl WrittenParts {
    /// The parts of the file that must be flushed now, with this one. `None`: it is for a later flush; `add` it when
    /// its file was closed without an error.
    pub(crate) fn due(&self, part: &Part<'_>) -> Option<DoneParts> {
        let mut files = lock(&self.files);
        let since = files.get(part.temporary).map_or(part.begun, |written| written.since);
        if !part.is_last && since.min(part.begun).elapsed() < PART_TIME {
            return None;
        }
        let mut done = files.remove(part.temporary).map_or_else(DoneParts::default, |w| w.done);
        done.ranges.push(part.range);
        done.pieces.extend(part.pieces.clone());
        Some(done)
    }

    /// Keeps a part for a later flush.
    pub(crate) fn add(&self, part: Part<'_>) {
        let Part { temporary, range, pieces, begun, .. } = part;
        if self.has_failed(temporary) {
            return;
        }
        let mut files = lock(&self.files);
        if files.len() >= FILES_MAX {
            files.retain(|_, written| written.since.elapsed() < 10 * PART_TIME);
        }
        let new = Written { since: begun, done: DoneParts::default() };
        let written = files.entry(temporary.clone()).or_insert(new);
        written.since = written.since.min(begun);
        written.done.ranges.push(range);
        written.done.pieces.extend(pieces);
    }

    /// Takes the parts that were not flushed.
    pub(crate) fn take(&self, temporary: &Name) -> Option<DoneParts> {
        lock(&self.files).remove(temporary).map(|written| written.done)
    }

    /// Notes that parts of the file are on record.
    pub(crate) fn note_recorded(&self, temporary: &Name) {
        lock(&self.recorded).insert(temporary.clone());
    }

    /// Whether parts of the file were written here and not flushed.
    pub(crate) fn has_unflushed(&self, temporary: &Name) -> bool {
        lock(&self.files).contains_key(temporary)
    }

    pub(crate) fn is_recorded(&self, temporary: &Name) -> bool {
        lock(&self.recorded).contains(temporary)
    }

    /// Forgets a file that has ended.
    pub(crate) fn forget(&self, temporary: &Name) {
        lock(&self.files).remove(temporary);
        lock(&self.recorded).remove(temporary);
    }

    /// Notes that what was written may be lost: no further parts of the file are recorded.
    pub(crate) fn fail(&self, temporary: &Name) {
        lock(&self.failed).insert(temporary.clone());
        self.forget(temporary);
    }

    pub(crate) fn has_failed(&self, temporary: &Name) -> bool {
        lock(&self.failed).contains(temporary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(temporary: &Name, number: u64, begun: Instant, is_last: bool) -> Part<'_> {
        let range = ByteRange { start: number, end: number + 1 };
        Part { temporary, range, pieces: None, begun, is_last }
    }

    #[test]
    fn parts_are_flushed_together_when_the_first_is_old() {
        let (unflushed, now) = (WrittenParts::default(), Instant::now());
        let (one, other) = (Name::new(*b"a").unwrap(), Name::new(*b"b").unwrap());
        let old = now.checked_sub(PART_TIME).unwrap();
        for name in [&one, &other] {
            assert!(unflushed.due(&part(name, 1, now, false)).is_none());
            unflushed.add(part(name, 1, now, false));
        }
        assert_eq!(unflushed.due(&part(&one, 2, old, false)).unwrap().ranges.len(), 2);
        assert_eq!(unflushed.due(&part(&one, 3, now, true)).unwrap().ranges.len(), 1);
        unflushed.forget(&other);
        assert_eq!(unflushed.due(&part(&other, 2, now, true)).unwrap().ranges.len(), 1);
    }

    #[test]
    fn nothing_of_a_file_that_has_failed_is_kept() {
        let (parts, now) = (WrittenParts::default(), Instant::now());
        let name = Name::new(*b"a").unwrap();
        parts.add(part(&name, 1, now, false));
        parts.note_recorded(&name);
        parts.fail(&name);
        parts.add(part(&name, 2, now, false));
        assert!(parts.take(&name).is_none() && !parts.is_recorded(&name));
    }
}
