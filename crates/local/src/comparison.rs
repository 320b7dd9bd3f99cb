//! Ranges of two files, compared byte by byte; or by digests of pieces if one of them is read through messages, so that only
//! pieces that differ are transferred.
use dmover_model::{ByteRange, Digest, EntryError};
use dmover_observe::Counter;
use dmover_plan::verify::{differing, merged};
use dmover_tree::RemoteFile;

pub use crate::content::compared_by;
use crate::content::hash_at_both;
use crate::digest::{self, Part};
use crate::handle::FileHandle;
use crate::reading::{self, Shown};
use crate::session::Session;
use crate::source::Content;

/// The length of a part, which both hosts hash at the same time.
const PART: u64 = 64 << 20;

/// Compares a range of two files, which may change meanwhile.
///
/// # Errors
/// A file cannot be read, or is shorter by now.
pub fn compare_contents(
    session: &mut Session<'_>,
    [one, other]: [&Content; 2],
    range: ByteRange,
    [first_shown, second_shown]: [Shown<'_>; 2],
) -> Result<Vec<ByteRange>, EntryError> {
    if let FileHandle::Remote(file) = &one.file {
        return compare_with_remote(
            session,
            &**file,
            [one, other],
            range,
            [first_shown, second_shown],
        );
    }
    compare_bytes(session, [one, other], range, [first_shown, second_shown])
}

/// Compares a range of two files byte by byte.
fn compare_bytes(
    session: &mut Session<'_>,
    [one, other]: [&Content; 2],
    range: ByteRange,
    [first_shown, second_shown]: [Shown<'_>; 2],
) -> Result<Vec<ByteRange>, EntryError> {
    let local = session.local;
    let first = reading::way_to_read(&local, one, range, first_shown)?;
    let second = reading::way_to_read(&local, other, range, second_shown)?;
    let readings = [
        reading::reading(&local, one, first, first_shown, session.permit),
        reading::reading(&local, other, second, second_shown, session.permit),
    ];
    local.content().compare_bytes(readings, range, &mut session.tools.buffer)
}

/// The ranges in which a file that is read through messages (`one`, which is `file`) differs from another one.
fn compare_with_remote(
    session: &mut Session<'_>,
    file: &dyn RemoteFile,
    [one, other]: [&Content; 2],
    range: ByteRange,
    shown: [Shown<'_>; 2],
) -> Result<Vec<ByteRange>, EntryError> {
    let mut ranges = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let part = ByteRange { start, end: range.end.min(start + PART) };
        let [expected, found] = digests_of_both(session, file, other, part, shown)?;
        if !session.local.rules.compares {
            // Otherwise hashing counts it.
            session.local.content().reports.add(Counter::BytesCompared, part.len());
        }
        let shape = compared_by().shape(part.len());
        for piece in differing(&shape, part.start, &found, &expected) {
            let piece = ByteRange { end: piece.end.min(part.end), ..piece };
            ranges.extend(compare_bytes(session, [one, other], piece, shown)?);
        }
        start = part.end;
    }
    Ok(merged(ranges))
}

/// The digests of the pieces of a part of both files, computed at the same time.
fn digests_of_both(
    session: &mut Session<'_>,
    file: &dyn RemoteFile,
    other: &Content,
    part: ByteRange,
    [first_shown, second_shown]: [Shown<'_>; 2],
) -> Result<[Vec<Digest>; 2], EntryError> {
    let shape = compared_by().shape(part.len());
    let all = ByteRange { start: 0, end: part.len() };
    let here =
        || digest::digest(session, other, Part { shape, start: part.start }, all, second_shown);
    let (digests, hashed) = hash_at_both(file, (shape, part.start), &first_shown(), here)?;
    session.local.content().account_read(session.permit, hashed);
    Ok(digests)
}
