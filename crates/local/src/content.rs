//! Copying of file content: shared blocks, copies inside the kernel, or read and write; holes stay holes.
use dmover_digest::Pieces;
use dmover_model::{
    ByteRange, CopyPolicy, EntryError, ErrorClass, Metadata, MountId, Operation, PathBytes, Side,
    VerifyLevel, When,
};
use dmover_observe::{Activity, Counter, activity};
use dmover_plan::engine::{self, Method, Sides, Situation};
use dmover_sys::buffer::PAGE;
use dmover_sys::copy::KernelAnswer;
use dmover_sys::file::{self, DataRange};
use dmover_sys::ring::{RingError, Span};
use dmover_sys::{BorrowedFd, Errno, cache, copy, stat};
use dmover_tree::{Permit, Reports};
use std::cell::RefCell;

use crate::capability::Facts;
use crate::error::{cancelled, denied, entry_error};
use crate::handle::FileRef;
use gaps::{Gaps, run_at};
use pipe::Pipe;
use side::Reader;

mod changed;
mod compare;
mod gaps;
mod patch;
mod pipe;
mod side;
mod tools;

pub use changed::{COMPARED_AT_ONCE, compared_by};
pub(crate) use changed::{OlderVersion, hash_at_both};
pub(crate) use gaps::data_bytes;
pub(crate) use tools::RING_PIECE_MIN;
pub use tools::Tools;

/// One copy between two open files.
#[derive(Clone, Copy)]
pub(crate) struct Transfer<'a> {
    /// The open source file.
    pub source: FileRef<'a>,
    /// The open destination file.
    pub destination: BorrowedFd<'a>,
    /// Size of the source.
    pub size: u64,
    /// The destination is flushed before it is complete.
    pub flushed: bool,
    /// The number of the source's file system.
    pub source_mount: MountId,
    /// The facts of the source's file system.
    pub source_facts: &'a Facts,
    /// The facts of the destination's file system.
    pub facts: &'a Facts,
    /// The path of the source, for messages.
    pub source_path: &'a dyn Fn() -> PathBytes,
    /// The path of the destination, for messages.
    pub target_path: &'a dyn Fn() -> PathBytes,
    /// Says when to stop and how fast to go.
    pub permit: &'a dyn Permit,
    /// Receives every byte of the range, to compute a digest.
    pub tap: Option<&'a RefCell<Pieces>>,
}

/// A file that is read only.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'a> {
    /// The open file, and the facts of its file system.
    pub source: (FileRef<'a>, &'a Facts),
    /// Read past the page cache.
    pub direct: bool,
    /// Skip holes that the file system reports.
    pub skips_holes: bool,
    /// Its path, for messages.
    pub path: &'a dyn Fn() -> PathBytes,
    /// Says when to stop and how fast to go.
    pub permit: &'a dyn Permit,
}

impl<'a> Reading<'a> {
    fn gaps(&self, range: ByteRange) -> Gaps<'a> {
        Gaps::new(self.source.0.fd().filter(|_| self.skips_holes), range)
    }
}

/// A run of content.
pub(crate) enum Run<'a> {
    /// Bytes of the file.
    Bytes(&'a [u8]),
    /// This many zeroes from a hole.
    Zeroes(u64),
}

impl Run<'_> {
    /// Adds the run to digests.
    pub(crate) fn feed(&self, pieces: &mut Pieces) {
        match self {
            Self::Bytes(bytes) => pieces.update(bytes),
            Self::Zeroes(length) => pieces.zeroes(*length),
        }
    }
}

fn shrunk(path: &dyn Fn() -> PathBytes) -> EntryError {
    let (side, class) = (Side::Source, ErrorClass::Changed);
    let words = "the file shrank while it was read";
    EntryError::plain(side, Operation::Read, class, path(), words)
}

/// The progress of a range.
#[derive(Debug, Clone, Copy)]
struct Cursor {
    at: u64,
    to: u64,
    end: u64,
    /// Bytes written, without holes.
    moved: u64,
}

impl Cursor {
    fn left(&self) -> u64 {
        self.end - self.at
    }

    fn advance(&mut self, by: u64, moved: u64) {
        self.at += by;
        self.to += by;
        self.moved += moved;
    }
}

/// How to treat holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holes {
    /// There are none, or they are filled.
    Fill,
    /// The source file system reports them.
    Seek,
    /// Runs of zeroes become holes.
    Detect,
}

/// The unit in which zeroes are detected: the block size of usual file systems.
const PIECE: usize = 4096;
/// The most zeroes of a hole that are hashed before a stop is noticed.
const ZEROES_AT_ONCE: u64 = 16 << 20;
/// Bytes of one call of copy_file_range(2): large enough that the call itself does not matter, small enough that a stop
/// is noticed soon.
const KERNEL_BLOCK: u64 = 8 << 20;

impl Transfer<'_> {
    fn read_error(&self, error: Errno) -> EntryError {
        entry_error(Side::Source, Operation::Read, (self.source_path)(), error)
    }

    fn write_error(&self, error: Errno) -> EntryError {
        entry_error(Side::Destination, Operation::Write, (self.target_path)(), error)
    }

    fn feed(&self, bytes: &[u8]) {
        if let Some(tap) = self.tap {
            tap.borrow_mut().update(bytes);
        }
    }

    fn shrunk(&self) -> EntryError {
        shrunk(self.source_path)
    }
}

/// What the copy of content obeys, and where it counts.
#[derive(Clone, Copy)]
pub struct ContentRules<'a> {
    /// What the user has chosen: how to copy, and how to treat holes.
    pub policy: &'a CopyPolicy,
    /// The job is a comparison.
    pub compares: bool,
    /// Receives counts of bytes.
    pub reports: &'a dyn Reports,
}

impl ContentRules<'_> {
    fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    fn add(&self, counter: Counter, amount: u64) {
        self.reports.add(counter, amount);
    }

    /// How to treat the holes of a file.
    pub fn holes(&self, metadata: &Metadata) -> Holes {
        match self.policy.sparse {
            When::Never => Holes::Fill,
            When::Always => Holes::Detect,
            When::Auto if metadata.may_have_holes() => Holes::Seek,
            When::Auto => Holes::Fill,
        }
    }

    /// Whether to trust the holes that a file system reports. Only file systems of this kernel (`is_local`) are trusted: a
    /// server with wrong answers would hide from a comparison what it hid from the copy.
    pub(crate) fn skips_holes(&self, metadata: &Metadata, is_local: impl FnOnce() -> bool) -> bool {
        let reads_all = |level| level == VerifyLevel::Bytes;
        metadata.size > gaps::SHORT
            && metadata.may_have_holes()
            && is_local()
            && !self.policy.verify.as_ref().is_some_and(|policy| reads_all(policy.level))
    }

    /// Tries to share the source's blocks.
    pub(crate) fn share(&self, transfer: Transfer<'_>, size: u64) -> Result<bool, EntryError> {
        let facts = transfer.facts;
        let wanted = match self.policy.reflink {
            When::Never => false,
            When::Auto => !facts.no_clone_from.is(transfer.source_mount),
            When::Always => true,
        };
        let Some(source) = transfer.source.fd().filter(|_| wanted && size > 0) else {
            return Ok(false);
        };
        let cloned =
            copy::clone_file(source, transfer.destination).map_err(|e| transfer.write_error(e))?;
        match cloned {
            KernelAnswer::Done(()) => self.add(Counter::BytesShared, size),
            KernelAnswer::Never => facts.no_clone_from.set(transfer.source_mount),
            KernelAnswer::NotThese => {}
        }
        Ok(cloned == KernelAnswer::Done(()))
    }

    /// Copies a range; bytes are written `shift` bytes further on (or back, if negative) than they were.
    pub(crate) fn copy_range(
        &self,
        transfer: Transfer<'_>,
        range: ByteRange,
        destination_offset: u64,
        holes: Holes,
        tools: &mut Tools,
    ) -> Result<u64, EntryError> {
        let shift = |offset: u64| destination_offset + (offset - range.start);
        transfer.source.will_read(range);
        if holes == Holes::Fill {
            return self.copy_data(transfer, range, destination_offset, false, tools);
        }
        let mut detect = holes == Holes::Detect;
        let mut moved = 0;
        let mut at = range.start;
        while at < range.end {
            self.check_running(transfer)?;
            let data = match transfer.source.next_data(at, transfer.source_path)? {
                DataRange::End => break,
                DataRange::Data(start, end) => {
                    // A file system that keeps no books on holes reports one range of data.
                    detect |= at == range.start && start <= at && end >= range.end;
                    ByteRange { start: start.max(at), end: end.min(range.end) }
                }
                DataRange::Unknown => {
                    detect = true;
                    ByteRange { start: at, end: range.end }
                }
            };
            if data.start >= range.end {
                break;
            }
            self.feed_zeroes(transfer, data.start - at)?;
            // An answer that leads nowhere: read what is left instead.
            let stuck = data.end <= at;
            detect |= stuck;
            let data = if stuck { ByteRange { start: at, end: range.end } } else { data };
            moved += self.copy_data(transfer, data, shift(data.start), detect, tools)?;
            at = data.end;
        }
        self.feed_zeroes(transfer, range.end.saturating_sub(at))?;
        Ok(moved)
    }

    /// Hashes the zeroes of a hole, which may be large.
    fn feed_zeroes(&self, transfer: Transfer<'_>, mut length: u64) -> Result<(), EntryError> {
        let Some(tap) = transfer.tap else { return Ok(()) };
        while length > 0 {
            self.check_running(transfer)?;
            let now = length.min(ZEROES_AT_ONCE);
            tap.borrow_mut().zeroes(now);
            transfer.permit.progress();
            length -= now;
        }
        Ok(())
    }

    /// Hashes content that was not copied, because its blocks are shared.
    pub(crate) fn read_for_digest(
        &self,
        transfer: Transfer<'_>,
        size: u64,
        tools: &mut Tools,
    ) -> Result<(), EntryError> {
        if transfer.tap.is_none() {
            return Ok(());
        }
        let reading = Reading {
            source: (transfer.source, transfer.source_facts),
            direct: false,
            skips_holes: false,
            path: transfer.source_path,
            permit: transfer.permit,
        };
        let range = ByteRange { start: 0, end: size };
        let mut feed = |run: Run<'_>| {
            if let Some(tap) = transfer.tap {
                run.feed(&mut tap.borrow_mut());
            }
        };
        self.read_range(reading, range, &mut tools.buffer, &mut feed)
    }

    /// Reads a range block by block, without writing it.
    pub(crate) fn read_range(
        &self,
        reading: Reading<'_>,
        range: ByteRange,
        buffer: &mut [u8],
        take: &mut dyn FnMut(Run<'_>),
    ) -> Result<(), EntryError> {
        let Reading { source, direct, path, permit, .. } = reading;
        source.0.will_read(range);
        let mut gaps = reading.gaps(range);
        let mut reader = Reader::new(*self, source, direct, range.start, path);
        let mut at = range.start;
        while at < range.end {
            self.check_held(permit, (Side::Source, Operation::Read), path)?;
            let (end, is_hole) = run_at(&mut gaps, at);
            if is_hole {
                let length = (end - at).min(ZEROES_AT_ONCE);
                take(Run::Zeroes(length));
                self.account_hashed(permit, length);
                at += length;
                continue;
            }
            let most = permit.block_bytes(buffer.len()) as u64;
            let left = (end - at).min(most) as usize;
            // A direct read takes whole blocks; what it reads beyond the range is not used.
            let whole = left.next_multiple_of(PAGE as usize).min(buffer.len());
            let room = if direct { whole } else { left };
            let read = reader.read(&mut buffer[..room], at)?.min(left);
            if read == 0 {
                return Err(shrunk(path));
            }
            // What was read counts, not what was asked for: a source on another host sends smaller blocks.
            permit.bytes(read as u64);
            take(Run::Bytes(&buffer[..read]));
            self.account_hashed(permit, read as u64);
            at += read as u64;
        }
        reader.finish(at)
    }

    /// Counts bytes read for a digest; a comparison compares it with another digest.
    pub(crate) fn account_hashed(&self, permit: &dyn Permit, bytes: u64) {
        if self.compares {
            self.add(Counter::BytesCompared, bytes);
        }
        self.account_read(permit, bytes);
    }

    /// Counts bytes read for a digest or a comparison.
    pub(crate) fn account_read(&self, permit: &dyn Permit, bytes: u64) {
        self.add(Counter::BytesHashed, bytes);
        activity::did(bytes);
        permit.progress();
    }

    /// Checks that the job continues and that this mover still has its task.
    pub(crate) fn check_held(
        &self,
        permit: &dyn Permit,
        (side, operation): (Side, Operation),
        path: &dyn Fn() -> PathBytes,
    ) -> Result<(), EntryError> {
        permit.step().map_err(|why| denied(why, (side, operation), path()))
    }

    fn copy_data(
        &self,
        transfer: Transfer<'_>,
        range: ByteRange,
        to: u64,
        detect: bool,
        tools: &mut Tools,
    ) -> Result<u64, EntryError> {
        let cursor = Cursor { at: range.start, to, moved: 0, end: range.end };
        let source = match transfer.source {
            FileRef::Open(source) => source,
            FileRef::Remote(_) => {
                let sides = Sides::default();
                let copied = self.copy_by_blocks(transfer, cursor, sides, detect, tools);
                return copied.map(|cursor| cursor.moved);
            }
        };
        let both = (source, transfer.destination);
        match self.method(transfer, source, range, detect) {
            Method::Kernel => self.copy_by_kernel(transfer, both, cursor, tools),
            Method::Blocks(sides) => self.copy_by_blocks(transfer, cursor, sides, detect, tools),
            Method::Ring(sides) => self.copy_by_ring(transfer, both, (cursor, sides), tools),
        }
        .map(|cursor| cursor.moved)
    }

    /// The method for a range.
    fn method(
        &self,
        transfer: Transfer<'_>,
        source: BorrowedFd<'_>,
        range: ByteRange,
        detect: bool,
    ) -> Method {
        let policy = &self.policy;
        let size = transfer.size;
        let large = size >= engine::LARGE_BYTES;
        let takes_direct = |facts: &Facts, fd| {
            large && !facts.is(&facts.no_direct) && stat::direct_io_alignment(fd).is_some()
        };
        let cached = large.then(|| cache::cached_bytes(source, range.start, range.len()));
        let situation = Situation {
            size,
            kernel: !detect && transfer.tap.is_none() && self.may_copy_in_kernel(transfer),
            direct_read: takes_direct(transfer.source_facts, source),
            direct_write: takes_direct(transfer.facts, transfer.destination),
            flushed: transfer.flushed,
            cached: cached.flatten().map(|bytes| bytes as f64 / range.len().max(1) as f64),
        };
        match engine::choose(policy, &situation) {
            // Runs of zeroes are only seen in blocks, and digests only made of them.
            Method::Ring(sides) if detect || transfer.tap.is_some() => Method::Blocks(sides),
            method => method,
        }
    }

    fn copy_by_kernel(
        &self,
        transfer: Transfer<'_>,
        both: (BorrowedFd<'_>, BorrowedFd<'_>),
        mut cursor: Cursor,
        tools: &mut Tools,
    ) -> Result<Cursor, EntryError> {
        activity::at(Activity::KernelCopy);
        while cursor.at < cursor.end {
            self.check_running(transfer)?;
            let block = transfer.permit.block_bytes(KERNEL_BLOCK as usize) as u64;
            let block = cursor.left().min(block);
            transfer.permit.bytes(block);
            let Some(copied) = self.copy_in_kernel(transfer, both, cursor, block)? else {
                return self.copy_by_blocks(transfer, cursor, Sides::default(), false, tools);
            };
            self.add(Counter::BytesInKernel, copied);
            self.account(transfer, copied);
            cursor.advance(copied, copied);
        }
        Ok(cursor)
    }

    fn copy_by_blocks(
        &self,
        transfer: Transfer<'_>,
        mut cursor: Cursor,
        sides: Sides,
        detect: bool,
        tools: &mut Tools,
    ) -> Result<Cursor, EntryError> {
        let mut pipe = Pipe::new(*self, transfer, sides, (cursor.at, cursor.to));
        while cursor.at < cursor.end {
            self.check_running(transfer)?;
            let most = transfer.permit.block_bytes(tools.buffer.len()) as u64;
            let wanted = cursor.left().min(most);
            // A direct read takes whole blocks; what it reads beyond the range is not used.
            let room = (wanted as usize).next_multiple_of(PAGE as usize).min(tools.buffer.len());
            let room = if sides.read { room } else { wanted as usize };
            let read = pipe.read(&mut tools.buffer[..room], cursor.at)?.min(wanted as usize);
            if read == 0 {
                return Err(transfer.shrunk());
            }
            // What was read counts, not what was asked for: a source on another host sends smaller blocks.
            transfer.permit.bytes(read as u64);
            transfer.feed(&tools.buffer[..read]);
            let written = write_block(&mut pipe, &tools.buffer[..read], cursor.to, detect)?;
            self.account(transfer, written);
            cursor.advance(read as u64, written);
        }
        pipe.finish((cursor.at, cursor.to))?;
        Ok(cursor)
    }

    /// Copies by io_uring; ranges that are not aligned, and everything without io_uring, are copied block by block.
    fn copy_by_ring(
        &self,
        transfer: Transfer<'_>,
        (source, destination): (BorrowedFd<'_>, BorrowedFd<'_>),
        (mut cursor, sides): (Cursor, Sides),
        tools: &mut Tools,
    ) -> Result<Cursor, EntryError> {
        let any = sides.read || sides.write;
        let align = if any { PAGE } else { 1 };
        let whole = cursor.left() - cursor.left() % align;
        let aligned = cursor.at.is_multiple_of(align) && cursor.to.is_multiple_of(align);
        let limited = transfer.permit.limits_bytes();
        let ring = if whole > 0 && aligned && !limited { tools.ring() } else { None };
        let Some(ring) = ring else {
            return self.copy_by_blocks(transfer, cursor, sides, false, tools);
        };
        let set =
            |fd, wanted: bool, direct| !wanted || cache::set_direct(fd, direct).unwrap_or(false);
        let source_set = set(source, sides.read, true);
        if !(source_set && set(transfer.destination, sides.write, true)) {
            self.count(Counter::DirectRefusals);
        }
        file::set_blocking(source).map_err(|e| transfer.read_error(e))?;
        file::set_blocking(transfer.destination).map_err(|e| transfer.write_error(e))?;
        // Queued, reads and writes are under way together; what storage is slower at is mostly writing.
        activity::at(Activity::TargetData);
        let span = Span { from: cursor.at, to: cursor.to, length: whole, align };
        let copied = ring.copy(source, destination, span, &mut |bytes| {
            if bytes > 0 {
                self.account(transfer, bytes);
                self.add(Counter::BytesByRing, bytes);
            }
            transfer.permit.step().is_ok()
        });
        let source_set = set(source, sides.read, false);
        if !(set(transfer.destination, sides.write, false) && source_set) {
            return Err(transfer.write_error(Errno::INVAL));
        }
        match copied {
            Ok(()) => cursor.advance(whole, whole),
            // A direct request that was refused: everything again, another way. What the ring has counted
            // already is counted twice, as the bytes of any attempt that failed are.
            Err(
                RingError::Read(Errno::INVAL | Errno::OPNOTSUPP)
                | RingError::Write(Errno::INVAL | Errno::OPNOTSUPP),
            ) if any => {
                self.count(Counter::DirectRefusals);
                return self.copy_by_blocks(transfer, cursor, Sides::default(), false, tools);
            }
            Err(RingError::Stuck) => {
                return self.copy_by_blocks(transfer, cursor, Sides::default(), false, tools);
            }
            Err(RingError::Read(error)) => return Err(transfer.read_error(error)),
            Err(RingError::Write(error)) => return Err(transfer.write_error(error)),
            Err(RingError::Queue(error)) => {
                tracing::warn!(%error, "io_uring failed; dmover no longer uses it");
                tools.give_up_ring();
                return Err(transfer.write_error(error));
            }
            Err(RingError::Shrunk) => return Err(transfer.shrunk()),
            Err(RingError::Stopped) => {
                self.check_running(transfer)?;
                return Err(cancelled((transfer.target_path)()));
            }
        }
        self.copy_by_blocks(transfer, cursor, Sides::default(), false, tools)
    }

    fn account(&self, transfer: Transfer<'_>, bytes: u64) {
        self.add(Counter::BytesCopied, bytes);
        activity::did(bytes);
        transfer.permit.progress();
    }

    fn check_running(&self, transfer: Transfer<'_>) -> Result<(), EntryError> {
        let at = (Side::Destination, Operation::Write);
        self.check_held(transfer.permit, at, transfer.target_path)
    }

    fn may_copy_in_kernel(&self, transfer: Transfer<'_>) -> bool {
        // copy_file_range(2) shares blocks where it can, so "never share" rules it out.
        self.policy.reflink != When::Never
            && !transfer.source_facts.fills_with_zeroes
            && !transfer.facts.no_kernel_copy_from.is(transfer.source_mount)
    }

    /// Copies inside the kernel. `None`: read and write instead.
    fn copy_in_kernel(
        &self,
        transfer: Transfer<'_>,
        (source, destination): (BorrowedFd<'_>, BorrowedFd<'_>),
        Cursor { at, to, .. }: Cursor,
        length: u64,
    ) -> Result<Option<u64>, EntryError> {
        match copy::copy_range(source, at, destination, to, length as usize) {
            // Nothing copied before the end: some file systems say so instead of refusing. Reading
            // will show whether the file has become shorter.
            Ok(KernelAnswer::NotThese | KernelAnswer::Done(0)) => Ok(None),
            Ok(KernelAnswer::Never) => {
                transfer.facts.no_kernel_copy_from.set(transfer.source_mount);
                Ok(None)
            }
            Ok(KernelAnswer::Done(bytes)) => Ok(Some(bytes as u64)),
            // The call does not say which side failed; reading and writing will.
            Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                Err(transfer.write_error(error))
            }
            Err(_) => Ok(None),
        }
    }
}

fn write_block(
    pipe: &mut Pipe<'_>,
    block: &[u8],
    to: u64,
    detect: bool,
) -> Result<u64, EntryError> {
    if !detect {
        pipe.write(block, to)?;
        return Ok(block.len() as u64);
    }
    let mut written = 0;
    let mut start = 0;
    while start < block.len() {
        // A run of pieces that are alike: all zero, or all not.
        let zero = is_zero(piece(block, start));
        let mut end = start;
        while end < block.len() && is_zero(piece(block, end)) == zero {
            end = (end + PIECE).min(block.len());
        }
        if !zero {
            pipe.write(&block[start..end], to + start as u64)?;
            written += (end - start) as u64;
        }
        start = end;
    }
    Ok(written)
}

fn piece(block: &[u8], start: usize) -> &[u8] {
    &block[start..(start + PIECE).min(block.len())]
}

fn is_zero(bytes: &[u8]) -> bool {
    // Comparing the slice with itself moved by one compiles to a memcmp, which is as fast as memory.
    match bytes {
        [] => true,
        [first, rest @ ..] => *first == 0 && *rest == bytes[..rest.len()],
    }
}
