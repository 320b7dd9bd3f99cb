//! Digests of content that is read for them, and the comparison of content with digests.
use dmover_digest::{Fold, Pieces, Stream};
use dmover_model::{
    ByteRange, Content as Recorded, Digest, DigestPolicy, EntryError, ErrorClass, Operation,
    PathBytes, Shape, Side,
};
use dmover_observe::{Activity, activity};
use dmover_plan::verify::{differing, merged};
use dmover_schedule::thread;
use dmover_sys::{Errno, file};
use dmover_tree::RemoteFile;
use std::time::Duration;

use crate::content::Run;
use crate::error::{at_destination, entry_error};
use crate::handle::FileHandle;
use crate::reading::{self, Shown};
use crate::session::Session;
use crate::source::Content;

/// The block size; a block should still be in a processor's second-level cache after it was read.
const BLOCK: usize = 256 << 10;

/// The pause before an empty pipe is read again.
const AGAIN_AFTER: Duration = Duration::from_millis(5);

/// The range of a digest, and how it is computed.
#[derive(Clone, Copy)]
pub struct Part {
    /// How the digest is computed.
    pub shape: Shape,
    /// First byte of the content.
    pub start: u64,
}

impl Part {
    /// A whole file.
    pub(crate) fn whole(shape: Shape) -> Self {
        Self { shape, start: 0 }
    }

    /// Everything that the digest is of, from its start on.
    pub fn all(&self) -> ByteRange {
        ByteRange { start: 0, end: self.shape.length() }
    }
}

/// Hashes some pieces.
///
/// # Errors
/// The content cannot be read, or is shorter by now.
pub fn digest(
    session: &mut Session<'_>,
    content: &Content,
    Part { shape, start }: Part,
    range: ByteRange,
    shown: &dyn Fn() -> PathBytes,
) -> Result<Vec<Digest>, EntryError> {
    let [pieces] = digests(session, content, ([shape], start), range, shown)?;
    Ok(pieces)
}

/// Computes several digests of the content from `start` on, reading it once.
///
/// # Errors
/// The content cannot be read, or is shorter by now.
pub fn digests<const N: usize>(
    session: &mut Session<'_>,
    content: &Content,
    (shapes, start): ([Shape; N], u64),
    range: ByteRange,
    shown: &dyn Fn() -> PathBytes,
) -> Result<[Vec<Digest>; N], EntryError> {
    if let FileHandle::Remote(file) = &content.file {
        return remote_digests(session, &**file, (shapes, start), range, shown);
    }
    let local = session.local;
    let mut all = shapes.map(|shape| Pieces::new(shape, range.start));
    let wanted = ByteRange { start: start + range.start, end: start + range.end };
    let direct = reading::way_to_read(&local, content, wanted, shown)?;
    let reading = reading::reading(&local, content, direct, shown, session.permit);
    let whole = session.tools.buffer.len();
    let block = if direct { whole } else { whole.min(BLOCK) };
    let buffer = &mut session.tools.buffer[..block];
    let mut feed = |run: Run<'_>| all.iter_mut().for_each(|pieces| run.feed(pieces));
    local.content().read_range(reading, wanted, buffer, &mut feed)?;
    Ok(all.map(Pieces::finish))
}

/// Has digests computed where the file is.
fn remote_digests<const N: usize>(
    session: &Session<'_>,
    file: &dyn RemoteFile,
    (shapes, start): ([Shape; N], u64),
    range: ByteRange,
    shown: Shown<'_>,
) -> Result<[Vec<Digest>; N], EntryError> {
    activity::at(Activity::SourceData);
    let content = session.local.content();
    let mut step = |bytes| {
        session.permit.bytes(bytes);
        content.account_hashed(session.permit, bytes);
        check_hashing(session, shown)
    };
    let made = file.digests(&shapes, start, range, &mut step)?;
    <[_; N]>::try_from(made).map_err(|_| {
        let words = "the other host sent another number of digests than were asked for";
        let (side, class) = (Side::Source, ErrorClass::Other);
        EntryError::plain(side, Operation::Read, class, shown(), words)
    })
}

/// Hashes a stream until its end.
///
/// # Errors
/// It cannot be read.
pub fn digest_stream<const N: usize>(
    session: &mut Session<'_>,
    content: &Content,
    range: Option<ByteRange>,
    policies: [DigestPolicy; N],
    shown: &dyn Fn() -> PathBytes,
) -> Result<[(Part, Vec<Digest>); N], EntryError> {
    let range = range.unwrap_or(ByteRange { start: 0, end: u64::MAX });
    let Some(fd) = content.file.fd() else {
        // Only regular files are read through messages.
        return Err(entry_error(Side::Source, Operation::Read, shown(), Errno::OPNOTSUPP));
    };
    let mut streams = policies.map(|policy| (Stream::new(&policy), policy));
    let mut at = 0;
    while at < range.end {
        check_hashing(session, shown)?;
        activity::at(Activity::SourceData);
        let block = session.tools.buffer.len().min(BLOCK);
        let read = match file::read(fd, &mut session.tools.buffer[..block]) {
            Err(Errno::AGAIN) => {
                // Another program has set the pipe to non-blocking mode.
                session.permit.progress();
                thread::sleep(AGAIN_AFTER);
                continue;
            }
            read => read.map_err(|e| entry_error(Side::Source, Operation::Read, shown(), e))?,
        };
        if read == 0 {
            break;
        }
        let skip = range.start.saturating_sub(at).min(read as u64) as usize;
        let end = (range.end - at).min(read as u64) as usize;
        let bytes = &session.tools.buffer[skip..end.max(skip)];
        for (stream, _) in &mut streams {
            stream.update(bytes);
        }
        session.local.content().account_read(session.permit, read as u64);
        at += read as u64;
    }
    // No other process may have read from it meanwhile.
    check_hashing(session, shown)?;
    Ok(streams.map(|(stream, policy)| {
        let (shape, digest) = stream.finish(&policy);
        (Part { shape, start: range.start }, vec![digest])
    }))
}

fn check_hashing(session: &Session<'_>, shown: Shown<'_>) -> Result<(), EntryError> {
    session.local.content().check_held(session.permit, (Side::Source, Operation::Read), shown)
}

/// Hashes a whole file, which must stay unchanged meanwhile.
///
/// # Errors
/// It cannot be read, or has changed.
pub fn digest_of_file(
    session: &mut Session<'_>,
    content: &Content,
    shape: Shape,
    shown: &dyn Fn() -> PathBytes,
) -> Result<Vec<Digest>, EntryError> {
    let part = Part::whole(shape);
    let pieces = digest(session, content, part, part.all(), shown)?;
    session.local.check_unchanged(content, shown)?;
    Ok(pieces)
}

/// Compares pieces with their expected digests, beginning at `range`; `expected` has one digest for each.
///
/// # Errors
/// The content cannot be read, or is shorter by now.
pub fn compare_pieces(
    session: &mut Session<'_>,
    content: &Content,
    shape: &Shape,
    range: ByteRange,
    expected: &[Digest],
    shown: &dyn Fn() -> PathBytes,
) -> Result<Vec<ByteRange>, EntryError> {
    let made = digest(session, content, Part::whole(*shape), range, shown)?;
    let ranges = differing(shape, range.start, &made, expected);
    Ok(ranges.into_iter().map(|r| ByteRange { end: r.end.min(range.end), ..r }).collect())
}

/// Compares the content of a file with its manifest record, up to the end of the file.
///
/// # Errors
/// The content cannot be read, or has changed.
pub fn compare_recorded(
    session: &mut Session<'_>,
    content: &Content,
    recorded: &Recorded,
    shown: &dyn Fn() -> PathBytes,
) -> Result<Vec<ByteRange>, EntryError> {
    let (shape, size) = (&recorded.shape, content.metadata.size);
    let part = Part::whole(*shape);
    let there = whole_pieces(shape, size);
    let mut ranges = if recorded.pieces.is_empty() {
        let made = if size >= shape.length() {
            Fold::of(shape, &digest(session, content, part, part.all(), shown)?)
        } else {
            None
        };
        if made == Some(recorded.digest) { Vec::new() } else { vec![part.all()] }
    } else {
        let expected = pieces_of(shape, there, &recorded.pieces);
        let mut ranges = compare_pieces(session, content, shape, there, expected, shown)?;
        ranges.push(ByteRange { start: there.end, end: shape.length() });
        ranges
    };
    // Where nothing should be there is nothing to differ.
    ranges.retain(|range| !range.is_empty());
    session.local.check_unchanged(content, shown).map_err(at_destination)?;
    Ok(merged(ranges))
}

/// Whether the content of a file differs from its manifest record. It must have the recorded size.
///
/// # Errors
/// The content cannot be read, or has changed.
pub fn differs_from_record(
    session: &mut Session<'_>,
    content: &Content,
    recorded: &Recorded,
    ranges: &[ByteRange],
    shown: &dyn Fn() -> PathBytes,
) -> Result<bool, EntryError> {
    let shape = &recorded.shape;
    if content.metadata.size != shape.length() {
        return Ok(true);
    }
    if recorded.pieces.is_empty() {
        return Ok(!compare_recorded(session, content, recorded, shown)?.is_empty());
    }
    for range in ranges {
        let range = whole_around(shape, *range);
        let expected = pieces_of(shape, range, &recorded.pieces);
        if !compare_pieces(session, content, shape, range, expected, shown)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The whole pieces that a range touches.
fn whole_around(shape: &Shape, range: ByteRange) -> ByteRange {
    let (piece, length) = (shape.piece(), shape.length());
    let start = (range.start - range.start % piece).min(length);
    ByteRange { start, end: range.end.div_ceil(piece).saturating_mul(piece).min(length) }
}

/// The complete pieces of a file of `size` bytes, or all of them.
pub fn whole_pieces(shape: &Shape, size: u64) -> ByteRange {
    let end = if size >= shape.length() { shape.length() } else { size - size % shape.piece() };
    ByteRange { start: 0, end }
}

/// The digests of the pieces in a range that is aligned to pieces.
pub fn pieces_of<'a>(shape: &Shape, range: ByteRange, pieces: &'a [Digest]) -> &'a [Digest] {
    if range.is_empty() {
        return &[];
    }
    let (from, to) = (range.start / shape.piece(), range.end.div_ceil(shape.piece()));
    &pieces[(from as usize).min(pieces.len())..(to as usize).min(pieces.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::HashType;

    #[test]
    fn ranges_are_widened_to_pieces_and_files_cut_to_them() {
        let shape = Shape::plain(HashType::Blake3, 2500, 1024);
        let range = |start, end| ByteRange { start, end };
        assert_eq!(whole_around(&shape, range(1030, 1031)), range(1024, 2048));
        assert_eq!(whole_around(&shape, range(0, 2049)), range(0, 2500));
        assert_eq!(whole_around(&shape, range(2500, 3000)), range(2048, 2500));
        assert_eq!(whole_pieces(&shape, 2047), range(0, 1024));
        assert_eq!(whole_pieces(&shape, 2500), range(0, 2500));
        assert_eq!(whole_pieces(&shape, 9999), range(0, 2500));
        let pieces: Vec<_> = (0..3).map(|n| Digest::new(&[n; 32]).expect("a digest")).collect();
        assert_eq!(pieces_of(&shape, range(1024, 2500), &pieces), &pieces[1..]);
        assert_eq!(pieces_of(&shape, range(2500, 2500), &pieces), &[]);
    }
}
