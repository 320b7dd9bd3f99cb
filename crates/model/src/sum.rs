//! Files whose content is hashed: what to hash, and what came out.
use serde::{Deserialize, Serialize};

use crate::{ByteRange, Digest, EntryError, FileRef, HashType, PathBytes, Shape, Version};

/// Which digest a job makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestPolicy {
    /// The function.
    pub hash: HashType,
    /// Bytes of a leaf, for the digest of a tree; `None` makes the plain digest.
    pub leaf_bytes: Option<u64>,
    /// Content of at most so many bytes gets the plain digest all the same.
    pub plain_up_to_bytes: u64,
    /// Bytes for which there is a digest each, besides that of the whole; `None` chooses by size. Large content
    /// has larger pieces, so that there are at most about a million.
    pub piece_bytes: Option<u64>,
    /// Whether those are wanted.
    pub pieces: bool,
    /// Files of a list that are not there are passed over.
    pub ignore_missing: bool,
}

impl DigestPolicy {
    /// The plain digest and nothing else.
    pub fn plain(hash: HashType) -> Self {
        Self {
            hash,
            leaf_bytes: None,
            plain_up_to_bytes: 0,
            piece_bytes: None,
            pieces: false,
            ignore_missing: false,
        }
    }

    /// How the digest of `length` bytes is put together.
    pub fn shape(&self, length: u64) -> Shape {
        let at_least = length.div_ceil(1 << 20).next_power_of_two();
        let piece = self.piece_bytes.map_or_else(|| piece_bytes(length), |b| b.max(at_least));
        match self.leaf_bytes {
            Some(leaf) if length > self.plain_up_to_bytes => {
                Shape::tree(self.hash, length, leaf, piece)
            }
            _ => Shape::plain(self.hash, length, piece),
        }
    }
}

/// A MiB, or more for large content, so that nothing has more than 16,384 pieces.
fn piece_bytes(length: u64) -> u64 {
    const PIECES_MAX: u64 = 16_384;
    const AT_LEAST: u64 = 1 << 20;
    length.div_ceil(PIECES_MAX).next_power_of_two().max(AT_LEAST)
}

/// Where content comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// An entry of a tree.
    Entry(FileRef),
    /// What a path leads to, as a person typed it or a list names it.
    Path(PathBytes),
    /// Standard input.
    Stdin,
}

/// What a list says of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// The function.
    pub hash: HashType,
    /// Bytes of a leaf, if it is the digest of a tree.
    pub leaf: Option<u64>,
    /// Bytes for each of which there is a digest; `None`: there is one digest of the whole.
    pub piece: Option<u64>,
    /// The digests.
    pub digests: Vec<Digest>,
    /// The function was guessed.
    #[serde(default)]
    pub guess: Option<Guess>,
}

/// How much is known of the function of a digest of 64 digits, which is BLAKE3 or SHA-256, where the list does not name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Guess {
    /// Nothing: both functions are tried.
    Open,
    /// Files before this one had this function; the other one is tried if it does not match.
    Likely,
    /// The other function was tried.
    Last,
}

impl Expected {
    /// How the digest of `length` bytes is put together.
    pub fn policy(&self) -> DigestPolicy {
        DigestPolicy {
            hash: self.hash,
            leaf_bytes: self.leaf,
            plain_up_to_bytes: 0,
            piece_bytes: self.piece,
            pieces: self.piece.is_some(),
            ignore_missing: false,
        }
    }
}

/// A file of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumItem {
    /// Its place in the list, counting from 0 without a gap.
    pub number: u64,
    /// The file.
    pub subject: Subject,
    /// Only these bytes; an end of `u64::MAX` means the end of the file.
    pub range: Option<ByteRange>,
    /// What the digest should be.
    pub expected: Option<Expected>,
    /// How often it was begun, counting from 1.
    pub round: u32,
}

/// A file that is hashed in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashedFile {
    /// What to hash, and what for.
    pub item: SumItem,
    /// The version that every part has to come from.
    pub version: Version,
    /// First byte of the content.
    pub start: u64,
    /// How the digest is put together.
    pub shape: Shape,
    /// Milliseconds since the job began when it was begun.
    pub begun_ms: u64,
}

/// Some pieces of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashTask {
    /// The file.
    pub file: HashedFile,
    /// Bytes of its content, on borders of pieces.
    pub range: ByteRange,
}

/// Digests of pieces that follow each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashedPieces {
    /// Where the first one begins in the content.
    pub start: u64,
    /// The digests.
    pub digests: Vec<Digest>,
}

/// The end of a file that was hashed in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConcludeTask {
    /// The file.
    pub file: HashedFile,
    /// Its pieces, filled in by the coordinator.
    pub pieces: Vec<HashedPieces>,
    /// What went wrong with a part, filled in by the coordinator.
    pub failure: Option<Box<EntryError>>,
}

/// The digest of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// The file.
    pub path: PathBytes,
    /// Its place in the list that named it.
    pub number: Option<u64>,
    /// How the digest is put together.
    pub shape: Shape,
    /// It is of these bytes only.
    pub range: Option<ByteRange>,
    /// The digest.
    pub digest: Digest,
    /// Those of its pieces, if they were asked for.
    pub pieces: Vec<Digest>,
    /// Time it took in microseconds.
    pub elapsed_us: u64,
}

/// What a check of a file against a list found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// The content is as the list says.
    Same,
    /// It is not. Where the list has digests of pieces, the ranges of those that differ.
    Differs {
        /// Bytes of the file, in order.
        ranges: Vec<ByteRange>,
    },
    /// It is not there.
    Missing,
    /// It could not be read.
    Unreadable,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_has_too_many_pieces() {
        for length in [0, 1, 1 << 20, 1 << 34, (1 << 34) + 1, 1 << 50, u64::MAX >> 2] {
            let shape = DigestPolicy::plain(HashType::Blake3).shape(length);
            assert!(shape.pieces() <= 16_384, "{length}: {}", shape.pieces());
            assert!(shape.piece() >= 1 << 20);
        }
    }

    #[test]
    fn what_is_short_enough_has_the_plain_digest() {
        let policy = DigestPolicy {
            leaf_bytes: Some(1024),
            plain_up_to_bytes: 4096,
            ..DigestPolicy::plain(HashType::Md5)
        };
        assert!(policy.shape(4096).is_plain());
        assert!(!policy.shape(4097).is_plain());
    }
}
