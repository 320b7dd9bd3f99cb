//! Files whose older version at the destination is partly reused.
use dmover_model::{
    ByteRange, EntryError, EntryKind, EntryRecord, Operation, Side, Timestamp, Verb, When,
};
use dmover_plan::decide::Decision;
use dmover_plan::equality::same_time;
use dmover_sys::copy::Offer;
use dmover_sys::{cache, copy, file, path, set};

use super::{Supply, Unfinished};
use crate::apply::{Moved, Planned};
use crate::level::{Level, TargetDirectory};
use crate::mover::Mover;
use dmover_local::content::Transfer;
use dmover_local::error::entry_error;

/// A modification time that marks an incomplete file: older than that of its source, so that `--update` copies it as
/// well. If the source has the oldest time that fits into 32 bits, it is another time.
pub(crate) fn unfinished_time(source: Timestamp) -> (i64, u32) {
    const DAY: i64 = 86_400;
    const EARLIEST: i64 = i32::MIN as i64 + 2 * DAY;
    if (EARLIEST..DAY).contains(&source.seconds) { (source.seconds - DAY, 0) } else { (0, 0) }
}

/// Smaller files are written completely.
pub(super) const PATCHED_MIN: u64 = 256 << 10;

impl Mover<'_> {
    /// Whether a temporary file now shares the blocks of the version that it replaces, and has its final size, so that
    /// only differences must be written.
    pub(crate) fn begins_with_old(
        &self,
        level: &Level,
        target: &TargetDirectory,
        planned: &Planned,
        file: &Unfinished<'_>,
        size: u64,
    ) -> Result<bool, EntryError> {
        let (engine, mount) = (self.engine, target.metadata.identity.mount);
        let (old, holder) = match (&planned.existing, &planned.base, &level.base) {
            (Some(old), ..) if planned.decision != Decision::Create => (old, &target.fd),
            // The new one shares with the snapshot before what has not changed.
            (None, Some(based), Some(base)) => (&based.metadata, &base.fd),
            _ => return Ok(false),
        };
        if old.kind != EntryKind::File || old.size == 0 {
            return Ok(false);
        }
        let wanted = engine.spec.verb == Verb::Sync
            && engine.spec.policy.reflink != When::Never
            && !target.facts.no_clone_from.is(mount);
        // Where the source has holes and the old version has none, they would stay filled.
        let source = &planned.record.metadata;
        let fills = source.may_have_holes() && old.blocks > source.blocks;
        if !wanted || fills || old.identity.mount != mount {
            return Ok(false);
        }
        let last = planned.record.destination_name().as_bytes();
        // What cannot be opened for reading is replaced as a whole.
        let Ok(fd) = path::open_file_at(holder, last, false) else { return Ok(false) };
        match copy::clone_file(&fd, file.fd()) {
            Ok(Offer::Done(())) => {}
            Ok(Offer::Never) => {
                target.facts.no_clone_from.set(mount);
                return Ok(false);
            }
            Ok(Offer::NotThese) | Err(_) => return Ok(false),
        }
        let fail =
            |e| entry_error(Side::Destination, Operation::Allocate, level.target_path(last), e);
        file::set_size(file.fd(), size).map(|()| true).map_err(fail)
    }

    /// Makes an existing file equal to its source, in place, and writes only the differences.
    pub(super) fn update_existing(
        &mut self,
        level: &Level,
        file: &Unfinished<'_>,
        (record, supply): (&EntryRecord, &Supply),
        transfer: Transfer<'_>,
    ) -> Result<Moved, EntryError> {
        let engine = self.engine;
        let shown = || level.target_path(record.destination_name().as_bytes());
        let identity = file.metadata.identity;
        let patched = self.patch_existing(level, file, (record, supply), transfer);
        let finished = patched.and_then(|moved| {
            engine.finish_file(file, &supply.metadata, &supply.attributes, true, &shown)?;
            Ok(moved)
        });
        if let Err(error) = &finished
            && error.operation == Operation::Sync
        {
            let whole = ByteRange { start: 0, end: supply.metadata.size };
            engine.unflushed.add(identity, &[whole]);
        }
        if finished.is_ok() {
            engine.unflushed.settle(identity);
        }
        finished
    }

    /// Writes the differences into an existing file.
    fn patch_existing(
        &mut self,
        level: &Level,
        file: &Unfinished<'_>,
        (record, supply): (&EntryRecord, &Supply),
        transfer: Transfer<'_>,
    ) -> Result<Moved, EntryError> {
        let (engine, size) = (self.engine, supply.metadata.size);
        let shown = || level.target_path(record.destination_name().as_bytes());
        let fail = |operation, e| entry_error(Side::Destination, operation, shown(), e);
        let step = file.target.facts.granularity_ns();
        if same_time(supply.metadata.mtime, file.metadata.mtime, step) {
            // Until the end its time has to say that it is not what it should be, also after a power cut.
            let unfinished = unfinished_time(supply.metadata.mtime);
            set::times(file.fd(), None, Some(unfinished))
                .map_err(|e| fail(Operation::SetTimes, e))?;
            file::sync_all(file.fd()).map_err(|e| fail(Operation::Sync, e))?;
        }
        file::set_size(file.fd(), size).map_err(|e| fail(Operation::Allocate, e))?;
        let tap = engine.tap(size);
        let transfer = Transfer { tap: tap.as_ref().map(|tap| &tap.pieces), ..transfer };
        let range = ByteRange { start: 0, end: size };
        // What an earlier attempt could not flush is equal in the page cache, and perhaps not on storage. What an earlier run could
        // not flush is dropped from the cache.
        let compares = engine.unflushed.of(file.metadata.identity).is_empty();
        cache::forget(file.fd(), 0, size);
        let bytes = engine.content().patch_range(transfer, range, compares, self.tools)?;
        engine.check_version(level, record.name.as_bytes(), &supply.fd, &supply.metadata)?;
        let made = tap.map(|tap| tap.into_made(None)).into_iter().collect();
        Ok(Moved { bytes, made, ..Moved::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_done_is_older_than_its_source() {
        let earliest = i64::from(i32::MIN);
        for seconds in [1_700_000_000, 86_400, 86_399, 1, 0, -1, -86_400, earliest + 200_000] {
            let (time, _) = unfinished_time(Timestamp { seconds, nanoseconds: 0 });
            assert!(time < seconds && time >= earliest, "{seconds}: {time}");
        }
        let (time, _) = unfinished_time(Timestamp { seconds: earliest, nanoseconds: 0 });
        assert_ne!(time, earliest);
    }
}
