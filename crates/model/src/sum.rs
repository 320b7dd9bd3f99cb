//! Hashing of files: the requests and the results.
use serde::{Deserialize, Serialize};

use crate::{ByteRange, Digest, EntryError, FileRef, HashType, PathBytes, Shape, Version};

/// Which digest a job computes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestPolicy {
    /// The hash function.
    pub hash: HashType,
    /// Length of a leaf in bytes, for a tree digest; `None` means the plain digest.
    pub leaf_bytes: Option<u64>,
    /// Content of at most this many bytes always gets the plain digest.
    pub plain_up_to_bytes: u64,
    /// Length in bytes of the pieces that get digests of their own; `None` chooses by size. Large content has larger
    /// pieces, so that there are at most about a million.
    pub piece_bytes: Option<u64>,
    /// Whether to report the digests of pieces.
    pub pieces: bool,
    /// Whether to skip files of a list that do not exist.
    pub ignore_missing: bool,
}

impl DigestPolicy {
    /// Only the plain digest.
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

    /// How to compute the digest of `length` bytes.
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

/// One MiB, or more for large content, so that there are at most 16,384 pieces.
fn piece_bytes(length: u64) -> u64 {
    const PIECES_MAX: u64 = 16_384;
    const AT_LEAST: u64 = 1 << 20;
    length.div_ceil(PIECES_MAX).next_power_of_two().max(AT_LEAST)
}

/// The source of content to hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// An entry of a tree.
    Entry(FileRef),
    /// The file at a path that a user typed or a list names.
    Path(PathBytes),
    /// Standard input.
    Stdin,
}

/// The digest that a list expects of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// The hash function.
    pub hash: HashType,
    /// Length of a leaf in bytes, if it is a tree digest.
    pub leaf: Option<u64>,
    /// Length of a piece in bytes, if each piece has a digest; `None`: one digest for the whole file.
    pub piece: Option<u64>,
    /// The digests.
    pub digests: Vec<Digest>,
    /// Set if the function is a guess.
    #[serde(default)]
    pub guess: Option<Guess>,
}

/// The state of a guess: a digest of 64 digits without a named function is BLAKE3 or SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Guess {
    /// No evidence: both functions are tried.
    Open,
    /// Earlier files had this function; the other one is tried if it does not match.
    Likely,
    /// The other function was tried; this is the last attempt.
    Last,
}

impl Expected {
    /// The policy that computes this digest.
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

/// A file in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumItem {
    /// Its index in the list, counting from 0 without gaps.
    pub number: u64,
    /// The file.
    pub subject: Subject,
    /// Only these bytes; an end of `u64::MAX` means the end of the file.
    pub range: Option<ByteRange>,
    /// The expected digest.
    pub expected: Option<Expected>,
    /// The number of attempts, counting from 1.
    pub round: u32,
}

/// A file that is hashed in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashedFile {
    /// The file, and what to do with its digest.
    pub item: SumItem,
    /// The version that every part must have.
    pub version: Version,
    /// First byte of the content.
    pub start: u64,
    /// How the digest is computed.
    pub shape: Shape,
    /// When hashing began, in milliseconds since the start of the job.
    pub begun_ms: u64,
}

/// A task that hashes some pieces of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashTask {
    /// The file.
    pub file: HashedFile,
    /// A range of its content, aligned to pieces.
    pub range: ByteRange,
}

/// Digests of consecutive pieces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashedPieces {
    /// Offset of the first piece in the content.
    pub start: u64,
    /// The digests.
    pub digests: Vec<Digest>,
}

/// The last task of a file that was hashed in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishHashTask {
    /// The file.
    pub file: HashedFile,
    /// The digests of its pieces, filled in by the coordinator.
    pub pieces: Vec<HashedPieces>,
    /// The failure of a part, filled in by the coordinator.
    pub failure: Option<Box<EntryError>>,
}

/// The digest of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// The file.
    pub path: PathBytes,
    /// Its index in the list.
    pub number: Option<u64>,
    /// How the digest is computed.
    pub shape: Shape,
    /// The range, if only a part of the file was hashed.
    pub range: Option<ByteRange>,
    /// The digest.
    pub digest: Digest,
    /// The digests of its pieces, if requested.
    pub pieces: Vec<Digest>,
    /// Duration in microseconds.
    pub elapsed_us: u64,
}

/// The result of checking a file against a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// The content matches the list.
    Same,
    /// The content differs. If the list has digests of pieces, the ranges that differ.
    Differs {
        /// Ranges of the file, in order.
        ranges: Vec<ByteRange>,
    },
    /// The file does not exist.
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
