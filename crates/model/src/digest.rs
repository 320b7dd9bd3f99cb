//! Digests of content: the hash functions, and digest values.
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::fmt;

macro_rules! hash_types {
    ($($(#[$doc:meta])* $variant:ident = $word:literal, $tag:literal, $bytes:literal;)*) => {
        /// A hash function for content.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        pub enum HashType { $($(#[$doc])* #[serde(rename = $word)] $variant),* }

        impl HashType {
            /// Every function, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The word on the command line and in JSON.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }

            /// The name of the function in BSD-style lines (`--tag`).
            pub fn tag(self) -> &'static str {
                match self { $(Self::$variant => $tag),* }
            }

            /// Length of a digest in bytes.
            pub fn digest_bytes(self) -> usize {
                match self { $(Self::$variant => $bytes),* }
            }
        }
    };
}

hash_types! {
    /// BLAKE3, which is a tree hash: any number of movers compute parts of the one standard digest.
    #[default]
    Blake3 = "blake3", "BLAKE3", 32;
    /// MD5 (RFC 1321).
    Md5 = "md5", "MD5", 16;
    /// SHA-1 (FIPS 180-4).
    Sha1 = "sha1", "SHA1", 20;
    /// SHA-224 (FIPS 180-4).
    Sha224 = "sha224", "SHA224", 28;
    /// SHA-256 (FIPS 180-4).
    Sha256 = "sha256", "SHA256", 32;
    /// SHA-384 (FIPS 180-4).
    Sha384 = "sha384", "SHA384", 48;
    /// SHA-512 (FIPS 180-4).
    Sha512 = "sha512", "SHA512", 64;
    /// CRC-32 of ISO 3309, as in gzip and zlib.
    Crc32 = "crc32", "CRC32", 4;
    /// The same polynomial without inversion at either end (RFC 1510, as in libgcrypt).
    Crc32Rfc1510 = "crc32rfc1510", "CRC32RFC1510", 4;
    /// CRC-24 of OpenPGP (RFC 2440).
    Crc24Rfc2440 = "crc24rfc2440", "CRC24RFC2440", 3;
    /// CRC-32C of Castagnoli (RFC 3720), as in iSCSI and btrfs.
    Crc32c = "crc32c", "CRC32C", 4;
    /// XXH3 with 128 bits, as xxhsum prints it.
    Xxh3 = "xxh3-128", "XXH128", 16;
}

impl HashType {
    /// The function with this name, in upper or lower case.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.word().eq_ignore_ascii_case(word))
    }

    /// Whether the plain digest of a file can be computed from digests of its parts, so that several movers can work on
    /// one file.
    pub fn is_parallel(self) -> bool {
        use HashType::{Blake3, Crc24Rfc2440, Crc32, Crc32Rfc1510, Crc32c};
        matches!(self, Blake3 | Crc32 | Crc32Rfc1510 | Crc24Rfc2440 | Crc32c)
    }
}

impl fmt::Display for HashType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The length of the longest digest in bytes.
const DIGEST_BYTES_MAX: usize = 64;

/// The value of a digest; its text form is lower-case hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    length: u8,
    bytes: [u8; DIGEST_BYTES_MAX],
}

impl Digest {
    /// A digest with these 1 to 64 bytes.
    pub fn new(value: &[u8]) -> Option<Self> {
        if value.is_empty() || value.len() > DIGEST_BYTES_MAX {
            return None;
        }
        let mut bytes = [0; DIGEST_BYTES_MAX];
        bytes[..value.len()].copy_from_slice(value);
        Some(Self { length: value.len() as u8, bytes })
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length.into()]
    }

    /// Appends the digest in hexadecimal.
    pub fn push_hex(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(&self.hex()[..2 * usize::from(self.length)]);
    }

    fn hex(&self) -> [u8; 2 * DIGEST_BYTES_MAX] {
        // By hand: one formatting call a byte costs more than hashing a small file.
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 2 * DIGEST_BYTES_MAX];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.as_bytes()) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        text
    }

    /// Parses hexadecimal digits of either case.
    pub fn from_hex(text: &[u8]) -> Option<Self> {
        if !text.len().is_multiple_of(2) || text.len() > 2 * DIGEST_BYTES_MAX {
            return None;
        }
        let digit = |c: u8| (c as char).to_digit(16).map(|d| d as u8);
        let pair = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
        let bytes = text.chunks(2).map(pair).collect::<Option<Vec<u8>>>()?;
        Self::new(&bytes)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.hex();
        let text = &text[..2 * usize::from(self.length)];
        f.write_str(std::str::from_utf8(text).unwrap_or_default())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_bytes(self.as_bytes())
        }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = if deserializer.is_human_readable() {
            Self::from_hex(String::deserialize(deserializer)?.as_bytes())
        } else {
            Self::new(&serde_bytes::ByteBuf::deserialize(deserializer)?)
        };
        value.ok_or_else(|| D::Error::custom("a digest has 1 to 64 bytes"))
    }
}

/// How the digest of a file or of a range is computed: content is cut into leaves; leaves form pieces, which movers
/// hash independently; the digests of pieces form the digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawShape")]
pub struct Shape {
    hash: HashType,
    /// Length of the content in bytes.
    length: u64,
    /// Length of a leaf in bytes.
    leaf: u64,
    /// Length of a piece in bytes: a leaf times a power of two.
    piece: u64,
}

/// A shape from a file or message, not yet validated.
#[derive(Deserialize)]
struct RawShape {
    hash: HashType,
    length: u64,
    leaf: u64,
    piece: u64,
}

impl TryFrom<RawShape> for Shape {
    type Error = &'static str;

    fn try_from(RawShape { hash, length, leaf, piece }: RawShape) -> Result<Self, Self::Error> {
        let shape = if leaf == UNBOUNDED || hash.is_parallel() {
            Self::plain(hash, length, piece)
        } else {
            Self::tree(hash, length, leaf, piece)
        };
        let same = (shape.leaf, shape.piece) == (leaf, piece) && length <= UNBOUNDED;
        if same { Ok(shape) } else { Err("no tree has such leaves and pieces") }
    }
}

/// The smallest subtree of BLAKE3.
const BLAKE3_CHUNK: u64 = 1024;
/// More than the length of any file.
const UNBOUNDED: u64 = 1 << 62;

impl Shape {
    /// The plain digest, as the standard tools print it. If the function allows pieces, they have about `piece` bytes.
    pub fn plain(hash: HashType, length: u64, piece: u64) -> Self {
        if !hash.is_parallel() {
            return Self { hash, length, leaf: UNBOUNDED, piece: UNBOUNDED };
        }
        let piece = piece.clamp(BLAKE3_CHUNK, UNBOUNDED).next_power_of_two();
        Self { hash, length, leaf: piece, piece }
    }

    /// The digest of a tree with leaves of `leaf` bytes and pieces of about `piece` bytes. A function that is a tree
    /// hash itself has only its standard digest.
    pub fn tree(hash: HashType, length: u64, leaf: u64, piece: u64) -> Self {
        if hash.is_parallel() {
            return Self::plain(hash, length, piece);
        }
        let leaf = leaf.clamp(1, UNBOUNDED);
        let leaves = (piece / leaf).max(1);
        // The largest power of two that fits.
        let piece = leaf.saturating_mul(1 << leaves.ilog2());
        Self { hash, length, leaf, piece }
    }

    /// The function.
    pub fn hash(&self) -> HashType {
        self.hash
    }

    /// Bytes of content.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes of a leaf.
    pub fn leaf(&self) -> u64 {
        self.leaf
    }

    /// Length of a piece in bytes; the last one may be shorter.
    pub fn piece(&self) -> u64 {
        self.piece
    }

    /// Number of pieces; empty content has one.
    pub fn pieces(&self) -> u64 {
        self.length.div_ceil(self.piece).max(1)
    }

    /// First byte and end of a piece.
    pub fn bounds(&self, piece: u64) -> (u64, u64) {
        let start = piece.saturating_mul(self.piece).min(self.length);
        (start, start.saturating_add(self.piece).min(self.length))
    }

    /// Whether this is the digest that standard tools print.
    pub fn is_plain(&self) -> bool {
        self.hash.is_parallel() || self.length <= self.leaf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_goes_both_ways_and_nothing_else_is_taken() {
        let digest = Digest::from_hex(b"00fFa7").unwrap();
        assert_eq!(digest.as_bytes(), [0, 255, 167]);
        assert_eq!(digest.to_string(), "00ffa7");
        for bad in [&b""[..], b"0", b"0g", b"000", &[b'0'; 130]] {
            assert_eq!(Digest::from_hex(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn every_word_names_its_type() {
        for hash in HashType::ALL {
            assert_eq!(HashType::parse(&hash.word().to_uppercase()), Some(*hash));
        }
        assert_eq!(HashType::parse("sha3"), None);
    }
}
