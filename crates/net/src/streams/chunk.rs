//! The header of a chunk on a data stream.
//!
//! 16 bytes, integers with the least significant byte first: length of what follows (4), kind (1), zero (3), number (8).
use std::io::{self, Read};

/// The length of a header.
pub(super) const HEADER_BYTES: usize = 16;
/// The most bytes of a chunk. Streams differ in speed, and a chunk that a slow one carries holds up those after it.
pub(super) const CHUNK_MAX: usize = 128 << 10;
/// What a chunk that waits takes besides its bytes. Both sides count it: otherwise the one that keeps few bytes in many chunks
/// would send more than the other one may take.
pub(super) const CHUNK_OVERHEAD: usize = 128;

/// What a header announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A part of what the other side sends; the number is its place among all parts.
    Data,
    /// All chunks before this number have come. Also says that the stream is alive.
    Received,
    /// The side that accepts streams wants so many.
    Wanted,
    /// Like `Data`, compressed: one frame of Zstandard, whose content is at most as long as a chunk may be.
    Packed,
}

/// The header of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: Kind,
    pub length: usize,
    pub number: u64,
}

/// The bytes are no header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl Header {
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&(self.length as u32).to_le_bytes());
        bytes[4] = match self.kind {
            Kind::Data => 0,
            Kind::Received => 1,
            Kind::Wanted => 2,
            Kind::Packed => 3,
        };
        bytes[8..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// `None`: the bytes are no header.
    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Option<Self> {
        let [l0, l1, l2, l3, kind, z0, z1, z2, number @ ..] = bytes;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let number = u64::from_le_bytes(number);
        let kind = match (kind, length) {
            (0, 1..=CHUNK_MAX) => Kind::Data,
            (1, 0) => Kind::Received,
            (2, 0) => Kind::Wanted,
            (3, 1..=CHUNK_MAX) => Kind::Packed,
            _ => return None,
        };
        ([z0, z1, z2] == [0; 3]).then_some(Self { kind, length, number })
    }

    /// Reads the next header; `None`: the stream ends before it.
    ///
    /// # Errors
    /// The stream cannot be read or ends inside the header ([`Ok`] within), or has no header there.
    pub fn read(input: &mut impl Read) -> Result<io::Result<Option<Self>>, Malformed> {
        let mut bytes = [0; HEADER_BYTES];
        let mut filled = 0;
        while filled < HEADER_BYTES {
            match input.read(&mut bytes[filled..]) {
                Ok(0) if filled == 0 => return Ok(Ok(None)),
                Ok(0) => return Ok(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Ok(Err(error)),
            }
        }
        Self::decode(bytes).map(|header| Ok(Some(header))).ok_or(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_has_its_bytes() {
        let header = Header { kind: Kind::Data, length: 0x0102, number: 0x0304 };
        let bytes = [2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0];
        assert_eq!(header.encode(), bytes);
        assert_eq!(Header::decode(bytes), Some(header));
        let end = Header { kind: Kind::Received, length: 0, number: u64::MAX };
        assert_eq!(Header::decode(end.encode()), Some(end));
    }

    #[test]
    fn a_header_that_is_cut_is_an_error_and_a_missing_one_is_an_end() {
        let bytes = Header { kind: Kind::Data, length: 1, number: 0 }.encode();
        assert!(matches!(Header::read(&mut &bytes[..0]), Ok(Ok(None))));
        for length in 1..HEADER_BYTES {
            let read = Header::read(&mut &bytes[..length]).expect("no wrong byte");
            assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{length}");
        }
    }

    proptest! {
        #[test]
        fn what_is_accepted_is_what_is_sent(bytes in any::<[u8; HEADER_BYTES]>()) {
            if let Some(header) = Header::decode(bytes) {
                prop_assert_eq!(header.encode(), bytes);
                prop_assert!(header.length <= CHUNK_MAX);
            }
        }
    }
}
