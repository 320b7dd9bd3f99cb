//! Content of which the other side has an older version: only blocks that differ are sent.
use dmover_digest::Pieces;
use dmover_model::{EntryError, ErrorClass, Operation, Side};
use dmover_net::connection::{Broken, Channel};
use dmover_tree::KnownBlocks;
use dmover_wire::agent::{Answer, ChangedPart, FileAt, encode_content_into};
use std::ops::Range;

use super::digests::no_range;
use super::tree::{OpenFile, Tree};

/// Bytes that are read, compared and perhaps sent at a time: whole blocks.
const STEP: usize = 256 << 10;

impl Tree {
    /// Sends the blocks of a file that differ from those whose digests came with the request.
    pub(super) fn changed(
        &self,
        at: &FileAt,
        known: &[KnownBlocks],
        channel: &Channel,
    ) -> Result<(), Broken> {
        let mut message = Vec::new();
        let sent = match self.file(at) {
            Ok(file) if known.iter().all(KnownBlocks::is_complete) => {
                match self.check_version(at) {
                    Ok(()) => {
                        let sent = send_changed(&file, known, (channel, &mut message))?;
                        sent.and_then(|()| self.check_version(at))
                    }
                    changed => changed,
                }
            }
            Ok(file) => Err(no_range(file.shown.clone())),
            Err(error) => Err(error),
        };
        let last = sent.map_or_else(ChangedPart::<&[u8]>::Failed, |()| ChangedPart::End);
        channel.send(&encode_content_into(&last, message))
    }
}

fn send_changed(
    file: &OpenFile,
    known: &[KnownBlocks],
    (channel, message): (&Channel, &mut Vec<u8>),
) -> Result<Answer<()>, Broken> {
    let mut buffer = vec![0; STEP];
    let digests_of_step = STEP / KnownBlocks::BLOCK as usize * KnownBlocks::DIGEST;
    for KnownBlocks { range, digests } in known {
        let steps = (range.start..range.end).step_by(STEP).zip(digests.chunks(digests_of_step));
        for (start, theirs) in steps {
            let length = (range.end - start).min(STEP as u64) as usize;
            let bytes = &mut buffer[..length];
            if let Err(error) = read_whole(file, bytes, start) {
                return Ok(Err(error));
            }
            for run in differing(bytes, theirs) {
                let part = ChangedPart::Blocks(start + run.start as u64, &bytes[run]);
                *message = encode_content_into(&part, std::mem::take(message));
                channel.send(message)?;
            }
        }
    }
    Ok(Ok(()))
}

/// Runs of blocks whose digests differ, as offsets in the bytes.
fn differing(bytes: &[u8], theirs: &[u8]) -> Vec<Range<usize>> {
    let ours = Pieces::of(&KnownBlocks::shape(bytes.len() as u64), 0, bytes);
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (number, pair) in ours.iter().zip(theirs.chunks(KnownBlocks::DIGEST)).enumerate() {
        let start = number * KnownBlocks::BLOCK as usize;
        let end = bytes.len().min(start + KnownBlocks::BLOCK as usize);
        match (pair.0.as_bytes() == pair.1, runs.last_mut()) {
            (true, _) => {}
            (false, Some(last)) if last.end == start => last.end = end,
            (false, _) => runs.push(start..end),
        }
    }
    runs
}

fn read_whole(
    OpenFile { content, shown }: &OpenFile,
    bytes: &mut [u8],
    at: u64,
) -> Result<(), EntryError> {
    let mut filled = 0;
    while filled < bytes.len() {
        match content.read_at(&mut bytes[filled..], at + filled as u64, &|| shown.clone())? {
            0 => {
                let (side, class) = (Side::Source, ErrorClass::Changed);
                let words = "the file shrank while it was read";
                let path = shown.clone();
                return Err(EntryError::plain(side, Operation::Read, class, path, words));
            }
            read => filled += read,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_blocks_that_differ_are_found() {
        let block = KnownBlocks::BLOCK as usize;
        let old = vec![7; 5 * block + 100];
        let digests = |bytes: &[u8]| -> Vec<u8> {
            let made = Pieces::of(&KnownBlocks::shape(bytes.len() as u64), 0, bytes);
            made.iter().flat_map(|digest| digest.as_bytes().to_vec()).collect()
        };
        assert!(differing(&old, &digests(&old)).is_empty());
        let mut new = old.clone();
        new[block] = 8;
        new[3 * block - 1] = 8;
        new[5 * block + 99] = 8;
        let last = 5 * block..5 * block + 100;
        assert_eq!(differing(&new, &digests(&old)), [block..3 * block, last]);
    }
}
