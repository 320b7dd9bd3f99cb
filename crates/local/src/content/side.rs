//! One side of a copy, past the page cache where this was chosen and is possible.
//!
//! Direct I/O needs aligned offsets, lengths and memory. Unaligned heads and tails use the page cache, and after a
//! refusal the rest does as well.
use dmover_model::{EntryError, Operation, PathBytes};
use dmover_observe::{Activity, Counter, activity};
use dmover_sys::buffer::PAGE;
use dmover_sys::{BorrowedFd, Errno, cache, file, stat};
use dmover_tree::RemoteFile;
use std::sync::atomic::Ordering;

use super::ContentRules;
use crate::capability::Facts;
use crate::error::entry_error;
use crate::handle::FileRef;

/// After this many bytes, copied data is dropped from the page cache.
pub(crate) const FORGET_EVERY: u64 = 8 << 20;

/// One side of a copy.
pub(crate) struct Side<'a> {
    pub fd: BorrowedFd<'a>,
    pub facts: &'a Facts,
    /// The alignment of offsets for direct I/O; `None`: use the page cache.
    pub border: Option<u64>,
    /// The descriptor is in direct I/O mode.
    is_direct: bool,
    /// Drop data from the page cache from this offset on.
    pub forget_from: Option<u64>,
}

/// The alignment that a file system reports for direct I/O, or a page if it reports none; `None` if a page does not
/// satisfy it.
fn border(fd: BorrowedFd<'_>) -> Option<u64> {
    match stat::direct_io_alignment(fd) {
        Some((memory, _)) if u64::from(memory) > PAGE => None,
        Some((_, offset)) if u64::from(offset) > PAGE => Some(offset.into()),
        // A smaller one would do, but then a block would be written in two ways.
        _ => Some(PAGE),
    }
}

impl<'a> Side<'a> {
    pub fn new(
        fd: BorrowedFd<'a>,
        facts: &'a Facts,
        direct: bool,
        forget_from: Option<u64>,
    ) -> Self {
        let border = direct.then(|| border(fd)).flatten();
        Self { fd, facts, border, is_direct: false, forget_from }
    }

    /// Sets the mode of the descriptor for the next call. Returns whether it is direct I/O.
    pub fn set(&mut self, rules: ContentRules<'_>, direct: bool) -> Result<bool, Errno> {
        if self.is_direct != direct {
            if cache::set_direct(self.fd, direct)? {
                self.is_direct = direct;
            } else {
                self.refuse(rules);
            }
        }
        Ok(self.is_direct)
    }

    /// Records that direct I/O does not work here, whatever the file system reported.
    pub fn refuse(&mut self, rules: ContentRules<'_>) {
        rules.count(Counter::DirectRefusals);
        self.facts.no_direct.store(true, Ordering::Relaxed);
        self.border = None;
    }

    /// How many of `length` bytes at `offset` can be transferred directly.
    pub(crate) fn direct_length(&self, memory: &[u8], offset: u64, length: usize) -> usize {
        let Some(border) = self.border else { return 0 };
        let fits = offset.is_multiple_of(border) && (memory.as_ptr() as u64).is_multiple_of(PAGE);
        if fits { length - length % border as usize } else { 0 }
    }
}

/// Reads a file from any offset.
pub struct Reader<'a> {
    rules: ContentRules<'a>,
    from: From<'a>,
    path: &'a dyn Fn() -> PathBytes,
}

/// Where content is read from.
enum From<'a> {
    /// A file of this host.
    Here(Side<'a>),
    /// A file that is read through messages.
    Remote(&'a dyn RemoteFile),
}

impl<'a> Reader<'a> {
    /// `direct`: past the page cache, as far as possible.
    pub fn new(
        rules: ContentRules<'a>,
        (file, facts): (FileRef<'a>, &'a Facts),
        direct: bool,
        start: u64,
        path: &'a dyn Fn() -> PathBytes,
    ) -> Self {
        let forget_from = rules.policy.forget_read.then_some(start);
        let from = match file {
            FileRef::Open(fd) => From::Here(Side::new(fd, facts, direct, forget_from)),
            FileRef::Remote(file) => From::Remote(file),
        };
        Self { rules, from, path }
    }

    fn fail(&self, error: Errno) -> EntryError {
        entry_error(dmover_model::Side::Source, Operation::Read, (self.path)(), error)
    }

    /// Reads up to `buffer` bytes, 0 at the end of the file.
    pub fn read(&mut self, buffer: &mut [u8], at: u64) -> Result<usize, EntryError> {
        activity::at(Activity::SourceData);
        let read = match &mut self.from {
            From::Here(side) => read_here(self.rules, side, buffer, at),
            From::Remote(file) => return file.read(at, buffer),
        };
        read.map_err(|error| self.fail(error))
    }

    /// Restores the flags of the descriptor, and drops data up to `end` from the page cache.
    pub fn finish(&mut self, end: u64) -> Result<(), EntryError> {
        let From::Here(side) = &mut self.from else { return Ok(()) };
        if let Err(error) = side.set(self.rules, false) {
            return Err(self.fail(error));
        }
        if let Some(from) = side.forget_from {
            cache::forget(side.fd, from, end.saturating_sub(from));
        }
        Ok(())
    }
}

fn read_here(
    rules: ContentRules<'_>,
    side: &mut Side<'_>,
    buffer: &mut [u8],
    at: u64,
) -> Result<usize, Errno> {
    let direct = side.direct_length(buffer, at, buffer.len());
    if direct > 0 && side.set(rules, true)? {
        match file::read_at(side.fd, &mut buffer[..direct], at) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => side.refuse(rules),
            result => {
                let read = result?;
                rules.add(Counter::BytesReadDirect, read as u64);
                return Ok(read);
            }
        }
    }
    side.set(rules, false)?;
    let read = file::read_at(side.fd, buffer, at)?;
    if let Some(from) = side.forget_from
        && at + read as u64 >= from + FORGET_EVERY
    {
        cache::forget(side.fd, from, at + read as u64 - from);
        side.forget_from = Some(at + read as u64);
    }
    Ok(read)
}
