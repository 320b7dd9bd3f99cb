//! Files whose older version at the destination is partly reused.
use dmover_model::{ByteRange, EntryError, EntryKind, Metadata, Operation, Side, Timestamp, When};
use dmover_plan::equality::same_time;
use dmover_sys::copy::KernelAnswer;
use dmover_sys::stat::FileType;
use dmover_sys::{cache, copy, file, path, set, stat};

use super::{FileOrder, Unfinished, Written};
use crate::content::{OlderVersion, Transfer};
use crate::directory::TargetDirectory;
use crate::end::Local;
use crate::error::entry_error;
use crate::file::finish_file;
use crate::handle::FileRef;
use crate::session::Session;
use crate::source::{self, OpenedSource};

/// A modification time that marks an incomplete file: older than that of its source, so that `--update` copies it as
/// well. If the source has the oldest time that fits into 32 bits, it is another time.
pub(crate) fn unfinished_time(source: Timestamp) -> (i64, u32) {
    const DAY: i64 = 86_400;
    const EARLIEST: i64 = i32::MIN as i64 + 2 * DAY;
    if (EARLIEST..DAY).contains(&source.seconds) { (source.seconds - DAY, 0) } else { (0, 0) }
}

/// Smaller files are written completely.
pub(super) const PATCHED_MIN: u64 = 256 << 10;

/// An older version of a file, of which a new one may share blocks.
#[derive(Clone, Copy)]
pub struct OldVersion<'a> {
    /// The directory in which it has the name that the new one gets.
    pub holder: &'a TargetDirectory,
    /// Its metadata.
    pub metadata: &'a Metadata,
}

/// Whether a temporary file now shares the blocks of an older version, and has its final size, so that only
/// differences must be written.
///
/// # Errors
/// Its size cannot be set.
pub(crate) fn begins_with_old(
    local: &Local<'_>,
    order: FileOrder<'_>,
    source: &Metadata,
    file: &Unfinished<'_>,
) -> Result<bool, EntryError> {
    let FileOrder { to, last, .. } = order;
    let (rules, mount) = (local.rules, to.metadata.identity.mount);
    let Some(OldVersion { holder, metadata: old }) = order.old else { return Ok(false) };
    if old.kind != EntryKind::File || old.size == 0 {
        return Ok(false);
    }
    let wanted =
        rules.updates && rules.policy.reflink != When::Never && !to.facts.no_clone_from.is(mount);
    // Where the source has holes and the old version has none, they would stay filled.
    let fills = source.may_have_holes() && old.blocks > source.blocks;
    if !wanted || fills || old.identity.mount != mount {
        return Ok(false);
    }
    // What cannot be opened for reading is replaced as a whole.
    let Ok(fd) = path::open_file_at(&holder.fd, last, false) else { return Ok(false) };
    match copy::clone_file(&fd, file.fd()) {
        Ok(KernelAnswer::Done(())) => {}
        Ok(KernelAnswer::Never) => {
            to.facts.no_clone_from.set(mount);
            return Ok(false);
        }
        Ok(KernelAnswer::NotThese) | Err(_) => return Ok(false),
    }
    let fail = |e| entry_error(Side::Destination, Operation::Allocate, to.place.entry(last), e);
    file::set_size(file.fd(), source.size).map(|()| true).map_err(fail)
}

impl Local<'_> {
    /// The version of a file that is there, if the new one is sent by another host and is long enough that only what
    /// differs should be.
    pub(crate) fn older_version(
        &self,
        to: &TargetDirectory,
        last: &[u8],
        (source, size): (FileRef<'_>, u64),
    ) -> Option<OlderVersion> {
        let is_worth = source.fd().is_none()
            && size >= PATCHED_MIN
            && !self.rules.policy.whole_files
            // copy_file_range(2) shares blocks where it can.
            && self.rules.policy.reflink != When::Never
            && self.rules.policy.sparse != When::Always;
        // It is read only, and what is made of it is compared with the source, so it may be any file.
        let fd = is_worth.then(|| path::open_file_at(&to.fd, last, false).ok()).flatten()?;
        let found = stat::stat_fd(&fd).ok()?;
        let is_file = found.file_type() == FileType::RegularFile && found.size > 0;
        is_file.then(|| OlderVersion::new(fd))
    }
}

/// Makes an existing file equal to its source, in place, and writes only the differences.
pub(super) fn update_existing(
    session: &mut Session<'_>,
    order: FileOrder<'_>,
    file: &Unfinished<'_>,
    supply: &OpenedSource,
    transfer: Transfer<'_>,
) -> Result<Written, EntryError> {
    let shown = || order.to.place.entry(order.last);
    let (local, identity) = (session.local, file.metadata.identity);
    let patched = patch_existing(session, order, file, supply, transfer);
    let finished = patched.and_then(|written| {
        finish_file(&local, file, &supply.metadata, &supply.attributes, true, &shown)?;
        Ok(written)
    });
    let unflushed = &local.end.unflushed;
    match &finished {
        Ok(_) => unflushed.settle(identity),
        Err(error) if error.operation == Operation::Sync => {
            unflushed.add(identity, &[ByteRange { start: 0, end: supply.metadata.size }]);
        }
        Err(_) => {}
    }
    finished
}

/// Writes the differences into an existing file.
fn patch_existing(
    session: &mut Session<'_>,
    order: FileOrder<'_>,
    file: &Unfinished<'_>,
    supply: &OpenedSource,
    transfer: Transfer<'_>,
) -> Result<Written, EntryError> {
    let (local, size) = (session.local, supply.metadata.size);
    let shown = || order.to.place.entry(order.last);
    let fail = |operation, e| entry_error(Side::Destination, operation, shown(), e);
    let step = file.target.facts.granularity_ns();
    if same_time(supply.metadata.mtime, file.metadata.mtime, step) {
        // Until the end its time has to say that it is not what it should be, also after a power cut.
        let unfinished = unfinished_time(supply.metadata.mtime);
        set::times(file.fd(), None, Some(unfinished)).map_err(|e| fail(Operation::SetTimes, e))?;
        file::sync_all(file.fd()).map_err(|e| fail(Operation::Sync, e))?;
    }
    file::set_size(file.fd(), size).map_err(|e| fail(Operation::Allocate, e))?;
    let tap = local.rules.tap(size);
    let transfer = Transfer { tap: tap.as_ref().map(|tap| &tap.pieces), ..transfer };
    let range = ByteRange { start: 0, end: size };
    // What an earlier attempt could not flush is equal in the page cache, and perhaps not on storage. What an earlier run could
    // not flush is dropped from the cache.
    let compares = local.end.unflushed.of(file.metadata.identity).is_empty();
    cache::forget(file.fd(), 0, size);
    let bytes = local.content().patch_range(transfer, range, compares, session.tools)?;
    source::check_version(&local, order.from, order.name, supply)?;
    let made = tap.map(|tap| tap.into_made(None)).into_iter().collect();
    Ok(Written { bytes, made, waits: None })
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
