//! Blocks from one file to another, past the page cache where that was chosen and is possible.
//!
//! Direct I/O takes offsets, lengths and memory on borders only. Heads and tails that lie between borders
//! go through the page cache, and a refusal anywhere makes the rest go there as well.
use dmover_model::EntryError;
use dmover_observe::{Activity, Counter, station};
use dmover_plan::engine::Sides;
use dmover_sys::buffer::PAGE;
use dmover_sys::{BorrowedFd, Errno, cache, file, stat};
use std::sync::atomic::Ordering;

use super::Transfer;
use crate::capability::Facts;
use crate::context::Engine;

/// Bytes after which the page cache is told to forget what was moved.
const FORGET_EVERY: u64 = 8 << 20;

/// One side of a copy.
struct Side<'a> {
    fd: BorrowedFd<'a>,
    facts: &'a Facts,
    /// Offsets that direct I/O takes are multiples of this; `None`: through the page cache.
    border: Option<u64>,
    /// The descriptor is set to direct I/O now.
    is_direct: bool,
    /// Drop from the page cache what went through it, from here on.
    forget_from: Option<u64>,
}

/// Both sides.
pub(super) struct Pipe<'a> {
    engine: &'a Engine,
    transfer: Transfer<'a>,
    source: Side<'a>,
    destination: Side<'a>,
    /// The stretch of the destination that is on its way to storage, to be forgotten then.
    sent: Option<(u64, u64)>,
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
    fn new(fd: BorrowedFd<'a>, facts: &'a Facts, direct: bool, forget_from: Option<u64>) -> Self {
        let border = direct.then(|| border(fd)).flatten();
        Self { fd, facts, border, is_direct: false, forget_from }
    }

    /// Sets the descriptor to what the next call needs. Answers whether it is set to direct I/O.
    fn set(&mut self, engine: &Engine, direct: bool) -> Result<bool, Errno> {
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
    fn refuse(&mut self, engine: &Engine) {
        engine.count(Counter::DirectRefusals);
        self.facts.no_direct.store(true, Ordering::Relaxed);
        self.border = None;
    }

    /// How many of `length` bytes at `offset` can go directly.
    fn direct_length(&self, memory: &[u8], offset: u64, length: usize) -> usize {
        let Some(border) = self.border else { return 0 };
        let fits = offset.is_multiple_of(border) && (memory.as_ptr() as u64).is_multiple_of(PAGE);
        if fits { length - length % border as usize } else { 0 }
    }
}

impl<'a> Pipe<'a> {
    pub fn new(
        engine: &'a Engine,
        transfer: Transfer<'a>,
        sides: Sides,
        start: (u64, u64),
    ) -> Self {
        let policy = &engine.spec.policy;
        let source = Side::new(
            transfer.source,
            transfer.source_facts,
            sides.read,
            policy.forget_read.then_some(start.0),
        );
        let destination = Side::new(
            transfer.destination,
            transfer.facts,
            sides.write,
            policy.forget_written.then_some(start.1),
        );
        Self { engine, transfer, source, destination, sent: None }
    }

    /// Reads up to `buffer` bytes, 0 at the end of the file.
    pub fn read(&mut self, buffer: &mut [u8], at: u64) -> Result<usize, EntryError> {
        station::at(Activity::SourceData);
        let (engine, transfer) = (self.engine, self.transfer);
        let fail = |e| transfer.read_error(e);
        let side = &mut self.source;
        let direct = side.direct_length(buffer, at, buffer.len());
        if direct > 0 && side.set(engine, true).map_err(fail)? {
            match file::read_at(side.fd, &mut buffer[..direct], at) {
                Err(Errno::INVAL | Errno::OPNOTSUPP) => side.refuse(engine),
                result => {
                    let read = result.map_err(fail)?;
                    engine.add(Counter::BytesReadDirect, read as u64);
                    return Ok(read);
                }
            }
        }
        let side = &mut self.source;
        side.set(engine, false).map_err(fail)?;
        let read = file::read_at(side.fd, buffer, at).map_err(fail)?;
        if let Some(from) = side.forget_from
            && at + read as u64 >= from + FORGET_EVERY
        {
            cache::forget(side.fd, from, at + read as u64 - from);
            side.forget_from = Some(at + read as u64);
        }
        Ok(read)
    }

    /// Writes all of `bytes`.
    pub fn write(&mut self, mut bytes: &[u8], mut to: u64) -> Result<(), EntryError> {
        station::at(Activity::TargetData);
        let (engine, transfer) = (self.engine, self.transfer);
        let fail = |e| transfer.write_error(e);
        let end = to + bytes.len() as u64;
        while !bytes.is_empty() {
            let side = &mut self.destination;
            let direct = side.direct_length(bytes, to, bytes.len());
            let written = if direct > 0 && side.set(engine, true).map_err(fail)? {
                match file::write_at(side.fd, &bytes[..direct], to) {
                    Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                        side.refuse(engine);
                        continue;
                    }
                    result => {
                        let written = result.map_err(fail)?;
                        engine.add(Counter::BytesWrittenDirect, written as u64);
                        written
                    }
                }
            } else {
                side.set(engine, false).map_err(fail)?;
                // Up to the next border, from which on it may go directly again.
                let apart = (bytes.as_ptr() as u64).wrapping_sub(to) % PAGE;
                let border = side.border.filter(|_| direct == 0 && apart == 0);
                let rest = border.map_or(bytes.len(), |b| (b - to % b) as usize);
                let piece = bytes.len().min(rest);
                file::write_at(side.fd, &bytes[..piece], to).map_err(fail)?
            };
            bytes = &bytes[written..];
            to += written as u64;
        }
        self.forget_written(end)
    }

    /// What was written can only be forgotten once it is on storage. Each stretch is sent there as soon as it is
    /// full and waited for when the next one is, so that writing never stands still.
    fn forget_written(&mut self, end: u64) -> Result<(), EntryError> {
        let transfer = self.transfer;
        let side = &mut self.destination;
        let Some(from) = side.forget_from.filter(|from| end >= from + FORGET_EVERY) else {
            return Ok(());
        };
        cache::start_writing(side.fd, from, end - from).map_err(|e| transfer.write_error(e))?;
        side.forget_from = Some(end);
        let sent = self.sent.replace((from, end));
        self.forget_sent(sent)
    }

    fn forget_sent(&self, sent: Option<(u64, u64)>) -> Result<(), EntryError> {
        let Some((from, end)) = sent else { return Ok(()) };
        let fd = self.destination.fd;
        cache::wait_for_writing(fd, from, end - from).map_err(|e| self.transfer.write_error(e))?;
        cache::forget(fd, from, end - from);
        Ok(())
    }

    /// Sets the descriptors back to what they were, and forgets the last stretch.
    pub fn finish(mut self, at: (u64, u64)) -> Result<(), EntryError> {
        let (engine, transfer) = (self.engine, self.transfer);
        self.source.set(engine, false).map_err(|e| transfer.read_error(e))?;
        self.destination.set(engine, false).map_err(|e| transfer.write_error(e))?;
        if let Some(from) = self.source.forget_from {
            cache::forget(self.source.fd, from, at.0.saturating_sub(from));
        }
        let sent = self.sent.take();
        self.forget_sent(sent)?;
        let rest = self.destination.forget_from.filter(|from| *from < at.1);
        self.forget_sent(rest.map(|from| (from, at.1)))
    }
}
