//! Moving file content: shared blocks, copies inside the kernel, or read and write; holes stay holes.
use dmover_model::{
    ByteRange, EntryError, ErrorClass, Metadata, MountId, Operation, PathBytes, Side, When,
};
use dmover_observe::Counter;
use dmover_sys::file::{self, DataRange};
use dmover_sys::{BorrowedFd, copy};
use std::sync::atomic::Ordering;

use crate::capability::Facts;
use crate::context::{Engine, entry_error};
use crate::queue::Lease;

/// One copy of bytes between two open files.
#[derive(Clone, Copy)]
pub(crate) struct Transfer<'a> {
    pub source: BorrowedFd<'a>,
    pub destination: BorrowedFd<'a>,
    pub source_mount: MountId,
    pub facts: &'a Facts,
    pub source_path: &'a dyn Fn() -> PathBytes,
    pub target_path: &'a dyn Fn() -> PathBytes,
    pub lease: &'a Lease,
}

/// How holes are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holes {
    /// There are none, or they are to be filled.
    Fill,
    /// The source's file system says where they are.
    Seek,
    /// Runs of zeroes become holes.
    Detect,
}

/// Zeroes are looked for in pieces of this size: the block size of the usual file systems.
const PIECE: usize = 4096;
/// One call of copy_file_range(2): large enough that the call does not count, small enough that a
/// stop is heard soon.
const KERNEL_BLOCK: u64 = 8 << 20;

impl Transfer<'_> {
    fn read_error(&self, error: dmover_sys::Errno) -> EntryError {
        entry_error(Side::Source, Operation::Read, (self.source_path)(), error)
    }

    fn write_error(&self, error: dmover_sys::Errno) -> EntryError {
        entry_error(Side::Destination, Operation::Write, (self.target_path)(), error)
    }

    fn shrunk(&self) -> EntryError {
        let (side, class) = (Side::Source, ErrorClass::Changed);
        let words = "the file became shorter while it was read";
        EntryError::plain(side, Operation::Read, class, (self.source_path)(), words)
    }
}

impl Engine {
    /// How the holes of a file are to be treated.
    pub(crate) fn holes(&self, metadata: &Metadata) -> Holes {
        match self.spec.policy.sparse {
            When::Never => Holes::Fill,
            When::Always => Holes::Detect,
            When::Auto if metadata.may_have_holes() => Holes::Seek,
            When::Auto => Holes::Fill,
        }
    }

    /// Tries to share the source's blocks.
    pub(crate) fn share(&self, transfer: Transfer<'_>, size: u64) -> Result<bool, EntryError> {
        let facts = transfer.facts;
        let wanted = match self.spec.policy.reflink {
            When::Never => false,
            When::Auto => !facts.is(&facts.no_clone),
            When::Always => true,
        };
        if !wanted || size == 0 {
            return Ok(false);
        }
        let cloned = copy::clone_file(transfer.source, transfer.destination)
            .map_err(|e| transfer.write_error(e))?;
        if cloned {
            self.add(Counter::BytesShared, size);
        } else if transfer.source_mount == self.mount_of(transfer.destination) {
            facts.no_clone.store(true, Ordering::Relaxed);
        }
        Ok(cloned)
    }

    fn mount_of(&self, fd: BorrowedFd<'_>) -> MountId {
        dmover_sys::stat::stat_fd(fd).map_or(MountId(u32::MAX), |s| self.mounts.id(s.device))
    }

    /// Copies a range; bytes land `shift` further (or, if negative, nearer) than they were.
    pub(crate) fn copy_range(
        &self,
        transfer: Transfer<'_>,
        range: ByteRange,
        destination_offset: u64,
        holes: Holes,
        buffer: &mut [u8],
    ) -> Result<u64, EntryError> {
        let shift = |offset: u64| destination_offset + (offset - range.start);
        if holes == Holes::Fill {
            return self.copy_data(transfer, range, destination_offset, false, buffer);
        }
        let mut detect = holes == Holes::Detect;
        let mut moved = 0;
        let mut at = range.start;
        while at < range.end {
            self.check_running(transfer)?;
            let data = match file::next_data(transfer.source, at) {
                Ok(DataRange::End) => break,
                Ok(DataRange::Data(start, end)) => {
                    // A file system that keeps no books on holes reports one range of data.
                    detect |= at == range.start && start <= at && end >= range.end;
                    ByteRange { start: start.max(at), end: end.min(range.end) }
                }
                Ok(DataRange::Unknown) => {
                    detect = true;
                    ByteRange { start: at, end: range.end }
                }
                Err(error) => return Err(transfer.read_error(error)),
            };
            if data.start >= range.end {
                break;
            }
            // An answer that leads nowhere: read what is left instead.
            let stuck = data.end <= at;
            detect |= stuck;
            let data = if stuck { ByteRange { start: at, end: range.end } } else { data };
            moved += self.copy_data(transfer, data, shift(data.start), detect, buffer)?;
            at = data.end;
        }
        Ok(moved)
    }

    fn copy_data(
        &self,
        transfer: Transfer<'_>,
        range: ByteRange,
        mut to: u64,
        detect: bool,
        buffer: &mut [u8],
    ) -> Result<u64, EntryError> {
        let mut at = range.start;
        let mut moved = 0;
        let limit = self.spec.limits.bytes_per_s;
        while at < range.end {
            self.check_running(transfer)?;
            let left = range.end - at;
            if !detect && self.may_copy_in_kernel(transfer) {
                let block = self.limits.block_bytes(KERNEL_BLOCK as usize, limit) as u64;
                let block = left.min(block);
                self.limits.bytes(block, &self.control);
                if let Some(copied) = self.copy_in_kernel(transfer, at, to, block)? {
                    at += copied;
                    to += copied;
                    moved += copied;
                    self.account(transfer, copied);
                    continue;
                }
            }
            let most = self.limits.block_bytes(buffer.len(), limit) as u64;
            let block = &mut buffer[..left.min(most) as usize];
            self.limits.bytes(block.len() as u64, &self.control);
            let read =
                file::read_at(transfer.source, block, at).map_err(|e| transfer.read_error(e))?;
            if read == 0 {
                return Err(transfer.shrunk());
            }
            let written = write_block(&transfer, &block[..read], to, detect)?;
            at += read as u64;
            to += read as u64;
            moved += written;
            self.account(transfer, written);
        }
        Ok(moved)
    }

    fn account(&self, transfer: Transfer<'_>, bytes: u64) {
        self.add(Counter::BytesCopied, bytes);
        transfer.lease.extend();
    }

    fn check_running(&self, transfer: Transfer<'_>) -> Result<(), EntryError> {
        if self.control.is_over() {
            return Err(Self::cancelled((transfer.target_path)()));
        }
        if transfer.lease.holds() {
            return Ok(());
        }
        let (side, class) = (Side::Destination, ErrorClass::Fenced);
        let words = "this mover lost its lease";
        Err(EntryError::plain(side, Operation::Write, class, (transfer.target_path)(), words))
    }

    fn may_copy_in_kernel(&self, transfer: Transfer<'_>) -> bool {
        let refused = transfer.facts.no_kernel_copy_from.load(Ordering::Relaxed);
        // copy_file_range(2) shares blocks where it can, so "never share" rules it out.
        self.spec.policy.reflink != When::Never && refused != transfer.source_mount.0 + 1
    }

    /// `None`: read and write instead.
    fn copy_in_kernel(
        &self,
        transfer: Transfer<'_>,
        at: u64,
        to: u64,
        length: u64,
    ) -> Result<Option<u64>, EntryError> {
        let (source, destination) = (transfer.source, transfer.destination);
        match copy::copy_range(source, at, destination, to, length as usize) {
            // Nothing copied before the end: some file systems say so instead of refusing. Reading
            // will show whether the file has become shorter.
            Ok(None | Some(0)) => {
                let refused = &transfer.facts.no_kernel_copy_from;
                refused.store(transfer.source_mount.0 + 1, Ordering::Relaxed);
                Ok(None)
            }
            Ok(Some(bytes)) => Ok(Some(bytes as u64)),
            // The call does not say which side failed; reading and writing will.
            Err(
                error @ (dmover_sys::Errno::NOSPC
                | dmover_sys::Errno::DQUOT
                | dmover_sys::Errno::FBIG),
            ) => Err(transfer.write_error(error)),
            Err(_) => Ok(None),
        }
    }
}

fn write_block(
    transfer: &Transfer<'_>,
    block: &[u8],
    to: u64,
    detect: bool,
) -> Result<u64, EntryError> {
    if !detect {
        file::write_all_at(transfer.destination, block, to).map_err(|e| transfer.write_error(e))?;
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
            file::write_all_at(transfer.destination, &block[start..end], to + start as u64)
                .map_err(|e| transfer.write_error(e))?;
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
