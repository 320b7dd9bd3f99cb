//! How content is read that is hashed or compared: through the page cache, past it, or from storage only.
use dmover_model::{ByteRange, EntryError, Operation, PathBytes, Side};
use dmover_plan::engine::{self, Method, Situation};
use dmover_sys::{cache, stat};
use dmover_tree::Permit;

use crate::content::Reading;
use crate::end::Local;
use crate::error::entry_error;
use crate::source::Content;

/// The path of an entry for messages.
pub(crate) type Shown<'a> = &'a dyn Fn() -> PathBytes;

impl Local<'_> {
    /// Drops a range from the page cache, so that the next reader gets the data from storage.
    ///
    /// # Errors
    /// It cannot be written back.
    pub fn write_back_and_forget(
        &self,
        content: &Content,
        range: ByteRange,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<(), EntryError> {
        // Through messages only the host of the file decides what it reads from storage.
        let Some(fd) = content.file.fd() else { return Ok(()) };
        let length = range.len();
        // The kernel keeps what is not written out yet. An error here is one of writing.
        cache::start_writing(fd, range.start, length)
            .and_then(|()| cache::wait_for_writing(fd, range.start, length))
            .map_err(|e| entry_error(Side::Destination, Operation::Sync, shown(), e))?;
        cache::forget(fd, range.start, length);
        Ok(())
    }
}

/// What is needed to read content. `direct`: past the page cache.
pub(crate) fn reading<'r>(
    local: &Local<'_>,
    content: &'r Content,
    direct: bool,
    path: Shown<'r>,
    permit: &'r dyn Permit,
) -> Reading<'r> {
    let mount = content.metadata.identity.mount;
    // A file that is mounted by itself may lie on another file system than its directory.
    let is_local = || {
        let fd = content.file.fd();
        fd.is_some_and(|fd| local.end.capabilities.facts(mount, fd).local)
    };
    let skips_holes = local.content().skips_holes(&content.metadata, is_local);
    Reading { source: content.held(), direct, skips_holes, path, permit }
}

/// How to read content: whether past the page cache. If only storage counts, nothing stays in the page cache.
pub(crate) fn way_to_read(
    local: &Local<'_>,
    content: &Content,
    range: ByteRange,
    shown: Shown<'_>,
) -> Result<bool, EntryError> {
    if !content.stored {
        return Ok(reads_direct(local, content, range));
    }
    local.write_back_and_forget(content, range, shown)?;
    let refused = content.facts.is(&content.facts.no_direct);
    Ok(!refused && content.file.fd().is_some_and(|fd| stat::direct_io_alignment(fd).is_some()))
}

fn reads_direct(local: &Local<'_>, content: &Content, range: ByteRange) -> bool {
    let Some(fd) = content.file.fd() else { return false };
    let size = content.metadata.size;
    let large = size >= engine::LARGE_BYTES;
    let cached = large.then(|| cache::cached_bytes(fd, range.start, range.len()));
    let situation = Situation {
        size,
        kernel: false,
        direct_read: large
            && !content.facts.is(&content.facts.no_direct)
            && stat::direct_io_alignment(fd).is_some(),
        direct_write: false,
        flushed: false,
        cached: cached.flatten().map(|bytes| bytes as f64 / range.len().max(1) as f64),
    };
    match engine::choose(local.rules.policy, &situation) {
        Method::Blocks(sides) | Method::Ring(sides) => sides.read,
        Method::Kernel => false,
    }
}
