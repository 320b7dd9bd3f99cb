//! Content that is like an older version at the destination: of a file of another host, only what differs is sent.
use dmover_digest::Pieces;
use dmover_model::{
    ByteRange, Digest, DigestPolicy, EntryError, ErrorClass, HashType, Metadata, Operation,
    PathBytes, Shape, Side, When,
};
use dmover_observe::{Activity, Counter, activity};
use dmover_plan::verify::differing;
use dmover_schedule::thread;
use dmover_sys::copy::{self, KernelAnswer};
use dmover_sys::{OwnedFd, file};
use dmover_tree::{KnownBlocks, RemoteFile};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::patch::read_all;
use super::{ContentRules, Holes, Tools, Transfer};
use crate::error::cancelled;
use crate::handle::FileRef;

/// The length of the pieces that are compared first. Only of those that differ, blocks are compared.
const PIECE: u64 = 64 << 10;
/// The length of a part, for which two round trips are needed. The digests of its blocks have to fit into one message.
pub const COMPARED_AT_ONCE: u64 = 64 << 20;
/// Shorter ranges are not worth the round trips.
const COMPARED_MIN: u64 = 256 << 10;
/// At most so much of the old version is copied at a time.
const COPIED_AT_ONCE: u64 = 8 << 20;

/// The digests by which files of two hosts are compared.
pub fn compared_by() -> DigestPolicy {
    DigestPolicy { piece_bytes: Some(PIECE), ..DigestPolicy::plain(HashType::Blake3) }
}

/// An older version of a file, from which the new one is made.
pub(crate) struct OlderVersion {
    file: OwnedFd,
    /// So far, some of it was as the new version is.
    is_of_use: Cell<bool>,
}

impl OlderVersion {
    pub fn new(file: OwnedFd) -> Self {
        Self { file, is_of_use: Cell::new(true) }
    }
}

/// The digests of a part of a file of another host, and those that `here` computes meanwhile, and how many bytes were
/// hashed there.
pub(crate) fn hash_at_both(
    file: &dyn RemoteFile,
    (shape, start): (Shape, u64),
    shown: &PathBytes,
    here: impl FnOnce() -> Result<Vec<Digest>, EntryError>,
) -> Result<([Vec<Digest>; 2], u64), EntryError> {
    let all = ByteRange { start: 0, end: shape.length() };
    let (is_given_up, hashed) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut step = |bytes| {
        hashed.fetch_add(bytes, Ordering::Relaxed);
        let stops = is_given_up.load(Ordering::Relaxed);
        if stops { Err(cancelled(shown.clone())) } else { Ok(()) }
    };
    let (there, here) = thread::scope(|scope| {
        let there = scope.spawn(|| file.digests(&[shape], start, all, &mut step));
        let here = here();
        is_given_up.store(here.is_err(), Ordering::Relaxed);
        (there.join(), here)
    });
    let here = here?;
    let mut there = there.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    Ok(([there.pop().unwrap_or_default(), here], hashed.load(Ordering::Relaxed)))
}

impl ContentRules<'_> {
    /// Whether a run that is interrupted may leave bytes of an older version where the source has holes: it copies the older
    /// version first, and what differs follows. A later run has to compare what is missing.
    pub(crate) fn may_leave_older(&self, source: FileRef<'_>, metadata: &Metadata) -> bool {
        // Without holes every byte is written again.
        source.fd().is_none() && self.holes(metadata) != Holes::Fill
    }

    /// Copies a range of a file of another host, of which the destination has an older version. Nothing of the range was
    /// written yet.
    pub(crate) fn copy_changed(
        &self,
        transfer: Transfer<'_>,
        range: ByteRange,
        (older, holes): (&OlderVersion, Holes),
        tools: &mut Tools,
    ) -> Result<u64, EntryError> {
        let mut written = 0;
        let mut start = range.start;
        while start < range.end && older.is_of_use.get() {
            let part = ByteRange { start, end: range.end.min(start + COMPARED_AT_ONCE) };
            let copied = self.copy_older(transfer, part, older)?;
            let like = ByteRange { end: start + copied, ..part };
            let sent = self.patch_range(transfer, like, true, tools)?;
            older.is_of_use.set(copied == part.len() && sent <= most_sent(part.len()));
            let rest = ByteRange { start: like.end, ..part };
            written += sent + self.copy_range(transfer, rest, rest.start, holes, tools)?;
            start = part.end;
        }
        let rest = ByteRange { start, ..range };
        if !rest.is_empty() {
            written += self.copy_range(transfer, rest, rest.start, holes, tools)?;
        }
        Ok(written)
    }

    /// Copies a part of an older version as it is. Returns how long it is.
    fn copy_older(
        &self,
        transfer: Transfer<'_>,
        part: ByteRange,
        older: &OlderVersion,
    ) -> Result<u64, EntryError> {
        let mut at = part.start;
        while at < part.end {
            self.check_running(transfer)?;
            let wanted = (part.end - at).min(COPIED_AT_ONCE) as usize;
            match copy::copy_range(&older.file, at, transfer.destination, at, wanted) {
                Ok(KernelAnswer::Done(copied)) if copied > 0 => at += copied as u64,
                // It ends here, or cannot be copied like this: the rest is sent.
                Ok(_) => break,
                // Some of it may have been copied, so all is compared.
                Err(_) => return Ok(part.len()),
            }
            transfer.permit.progress();
        }
        Ok(at - part.start)
    }

    /// Whether what differs is found by digests: then content that does not differ is not sent.
    pub(super) fn compares_by_digests(&self, range: ByteRange) -> bool {
        let policy = self.policy;
        range.len() >= COMPARED_MIN && policy.sparse != When::Always && !policy.whole_files
    }

    /// Makes a range of the destination equal to a file of another host.
    pub(super) fn patch_from_host(
        &self,
        transfer: Transfer<'_>,
        file: &dyn RemoteFile,
        range: ByteRange,
        tools: &mut Tools,
    ) -> Result<u64, EntryError> {
        let (mut written, mut start) = (0, range.start);
        let mut is_like = true;
        while start < range.end {
            let part = ByteRange { start, end: range.end.min(start + COMPARED_AT_ONCE) };
            let (pieces, there) = if is_like {
                self.differing_pieces(transfer, file, part, tools)?
            } else {
                (vec![part], Vec::new())
            };
            let differing: u64 = pieces.iter().map(|piece| piece.len()).sum();
            is_like &= differing <= most_sent(part.len());
            let sent = if is_like {
                let sent = self.fetch_blocks(transfer, file, &pieces, tools)?;
                self.feed_again(transfer, (part, &there), tools)?;
                sent
            } else {
                transfer.source.will_read(ByteRange { start, end: range.end });
                self.copy_data(transfer, part, part.start, false, tools)?
            };
            self.add(Counter::BytesKept, part.len().saturating_sub(sent));
            written += sent;
            start = part.end;
        }
        Ok(written)
    }

    /// Pieces of a part in which the destination differs, with neighbours joined, and the digests of all pieces of the source.
    fn differing_pieces(
        &self,
        transfer: Transfer<'_>,
        file: &dyn RemoteFile,
        part: ByteRange,
        tools: &mut Tools,
    ) -> Result<(Vec<ByteRange>, Vec<Digest>), EntryError> {
        activity::at(Activity::SourceData);
        let shape = compared_by().shape(part.len());
        let here = || {
            let mut pieces = Pieces::new(shape, 0);
            self.read_back(transfer, part, tools, &mut |bytes| pieces.update(bytes))?;
            Ok(pieces.finish())
        };
        let shown = (transfer.source_path)();
        let ([there, here], _) = hash_at_both(file, (shape, part.start), &shown, here)?;
        let ranges = differing(&shape, part.start, &here, &there);
        let ranges = ranges.into_iter().map(|r| ByteRange { end: r.end.min(part.end), ..r });
        Ok((ranges.collect(), there))
    }

    /// Writes the blocks that differ in some pieces. Returns how many bytes that were.
    fn fetch_blocks(
        &self,
        transfer: Transfer<'_>,
        file: &dyn RemoteFile,
        pieces: &[ByteRange],
        tools: &mut Tools,
    ) -> Result<u64, EntryError> {
        if pieces.is_empty() {
            return Ok(0);
        }
        let mut known = Vec::with_capacity(pieces.len());
        for range in pieces {
            let mut blocks = Pieces::new(KnownBlocks::shape(range.len()), 0);
            self.read_back(transfer, *range, tools, &mut |bytes| blocks.update(bytes))?;
            let digests = blocks.finish().iter().flat_map(|d| d.as_bytes().to_vec()).collect();
            known.push(KnownBlocks { range: *range, digests });
        }
        activity::at(Activity::SourceData);
        let mut written = 0;
        let mut take = |at, bytes: &[u8]| {
            self.check_running(transfer)?;
            transfer.permit.bytes(bytes.len() as u64);
            file::write_all_at(transfer.destination, bytes, at)
                .map_err(|e| transfer.write_error(e))?;
            self.account(transfer, bytes.len() as u64);
            written += bytes.len() as u64;
            Ok(())
        };
        if file.read_changed(&known, &mut take)? {
            return Ok(written);
        }
        // The host cannot do that: the pieces are sent whole.
        let untapped = Transfer { tap: None, ..transfer };
        for range in pieces {
            transfer.source.will_read(*range);
            written += self.copy_data(untapped, *range, range.start, false, tools)?;
        }
        Ok(written)
    }

    /// Hashes a part that is complete now, for the digest of the whole file. The digest is that of the source only if each piece is as it was
    /// there.
    fn feed_again(
        &self,
        transfer: Transfer<'_>,
        (part, there): (ByteRange, &[Digest]),
        tools: &mut Tools,
    ) -> Result<(), EntryError> {
        if transfer.tap.is_none() {
            return Ok(());
        }
        let mut pieces = Pieces::new(compared_by().shape(part.len()), 0);
        self.read_back(transfer, part, tools, &mut |bytes| {
            transfer.feed(bytes);
            pieces.update(bytes);
        })?;
        if pieces.finish() == there {
            return Ok(());
        }
        let words = "the file, or its copy, changed while its differences were copied";
        let (side, class) = (Side::Source, ErrorClass::Changed);
        Err(EntryError::plain(side, Operation::Read, class, (transfer.source_path)(), words))
    }

    /// Reads a range of the destination.
    fn read_back(
        &self,
        transfer: Transfer<'_>,
        range: ByteRange,
        tools: &mut Tools,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<(), EntryError> {
        let mut at = range.start;
        while at < range.end {
            self.check_running(transfer)?;
            let wanted = (range.end - at).min(tools.buffer.len() as u64) as usize;
            let block = &mut tools.buffer[..wanted];
            let read =
                read_all(transfer.destination, block, at).map_err(|e| transfer.write_error(e))?;
            if read < wanted {
                // It has had its final size.
                let words = "another program has cut it off while it was written";
                let (side, class) = (Side::Destination, ErrorClass::Changed);
                let path = (transfer.target_path)();
                return Err(EntryError::plain(side, Operation::Read, class, path, words));
            }
            each(block);
            transfer.permit.progress();
            at += wanted as u64;
        }
        Ok(())
    }
}

/// If more of a part differs, comparing costs more than it saves.
fn most_sent(length: u64) -> u64 {
    length / 4 * 3
}
