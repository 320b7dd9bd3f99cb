//! One side of a copy, past the page cache where that was chosen and is possible.
//!
//! Direct I/O takes offsets, lengths and memory on borders only. Heads and tails that lie between borders
//! go through the page cache, and a refusal anywhere makes the rest go there as well.
use dmover_model::{EntryError, Operation, PathBytes};
use dmover_observe::{Activity, Counter, station};
use dmover_sys::buffer::PAGE;
use dmover_sys::{BorrowedFd, Errno, cache, file, stat};
use std::sync::atomic::Ordering;

use crate::capability::Facts;
use crate::context::{Engine, entry_error};

/// Bytes after which the page cache is told to forget what was moved.
pub(super) const FORGET_EVERY: u64 = 8 << 20;

/// One side of a copy.
pub(super) struct Side<'a> {
    pub fd: BorrowedFd<'a>,
    pub facts: &'a Facts,
    /// Offsets that direct I/O takes are multiples of this; `None`: through the page cache.
    pub border: Option<u64>,
    /// The descriptor is set to direct I/O now.
    is_direct: bool,
    /// Drop from the page cache what went through it, from here on.
    pub forget_from: Option<u64>,
}

/// The border of direct I/O that a file system names, or a page where it names none; `None` if it names
/// one that a page does not satisfy.
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

    /// Sets the descriptor to what the next call needs. Answers whether it is set to direct I/O.
    pub fn set(&mut self, engine: &Engine, direct: bool) -> Result<bool, Errno> {
        if self.is_direct != direct {
            if cache::set_direct(self.fd, direct)? {
                self.is_direct = direct;
            } else {
                self.refuse(engine);
            }
        }
        Ok(self.is_direct)
    }

    /// Direct I/O does not work here, whatever the file system said.
    pub fn refuse(&mut self, engine: &Engine) {
        engine.count(Counter::DirectRefusals);
        self.facts.no_direct.store(true, Ordering::Relaxed);
        self.border = None;
    }

    /// How many of `length` bytes at `offset` can go directly.
    pub fn direct_length(&self, memory: &[u8], offset: u64, length: usize) -> usize {
        let Some(border) = self.border else { return 0 };
        let fits = offset.is_multiple_of(border) && (memory.as_ptr() as u64).is_multiple_of(PAGE);
        if fits { length - length % border as usize } else { 0 }
    }
}

/// Reads a file from some place on.
pub(crate) struct Reader<'a> {
    engine: &'a Engine,
    side: Side<'a>,
    path: &'a dyn Fn() -> PathBytes,
}

impl<'a> Reader<'a> {
    /// `direct`: past the page cache, as far as that is possible.
    pub fn new(
        engine: &'a Engine,
        (fd, facts): (BorrowedFd<'a>, &'a Facts),
        direct: bool,
        start: u64,
        path: &'a dyn Fn() -> PathBytes,
    ) -> Self {
        let forget_from = engine.spec.policy.forget_read.then_some(start);
        Self { engine, side: Side::new(fd, facts, direct, forget_from), path }
    }

    fn fail(&self, error: Errno) -> EntryError {
        entry_error(dmover_model::Side::Source, Operation::Read, (self.path)(), error)
    }

    /// Reads up to `buffer` bytes, 0 at the end of the file.
    pub fn read(&mut self, buffer: &mut [u8], at: u64) -> Result<usize, EntryError> {
        station::at(Activity::SourceData);
        self.try_to_read(buffer, at).map_err(|error| self.fail(error))
    }

    fn try_to_read(&mut self, buffer: &mut [u8], at: u64) -> Result<usize, Errno> {
        let (engine, side) = (self.engine, &mut self.side);
        let direct = side.direct_length(buffer, at, buffer.len());
        if direct > 0 && side.set(engine, true)? {
            match file::read_at(side.fd, &mut buffer[..direct], at) {
                Err(Errno::INVAL | Errno::OPNOTSUPP) => side.refuse(engine),
                result => {
                    let read = result?;
                    engine.add(Counter::BytesReadDirect, read as u64);
                    return Ok(read);
                }
            }
        }
        side.set(engine, false)?;
        let read = file::read_at(side.fd, buffer, at)?;
        if let Some(from) = side.forget_from
            && at + read as u64 >= from + FORGET_EVERY
        {
            cache::forget(side.fd, from, at + read as u64 - from);
            side.forget_from = Some(at + read as u64);
        }
        Ok(read)
    }

    /// Sets the descriptor back to what it was, and forgets what was read up to `end`.
    pub fn finish(&mut self, end: u64) -> Result<(), EntryError> {
        let engine = self.engine;
        self.side.set(engine, false).map_err(|error| self.fail(error))?;
        if let Some(from) = self.side.forget_from {
            cache::forget(self.side.fd, from, end.saturating_sub(from));
        }
        Ok(())
    }
}
