//! Frames: how messages of several channels share one stream of bytes in each direction.
//!
//! A header of 16 bytes, integers with the least significant byte first, then the payload:
//!
//! | bytes | field |
//! |---|---|
//! | 0–3 | length of the payload |
//! | 4 | kind ([`Kind`]) |
//! | 5–7 | zero |
//! | 8–15 | number of the channel; zero for the connection as a whole |
use std::io::{self, IoSlice, Read, Write};

use crate::vectored;

/// The length of a header.
pub const HEADER_BYTES: usize = 16;
/// The longest payload of a request or a message.
pub const PAYLOAD_MAX: usize = 1 << 20;
/// The longest reason of [`Kind::Cancel`].
pub const REASON_MAX: usize = 1 << 10;

/// What a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Says that the sender is alive.
    Heartbeat = 0,
    /// Opens a channel, with its first message.
    Request = 1,
    /// A further message of a channel.
    Message = 2,
    /// The sender sends no more messages on the channel.
    End = 3,
    /// The receiver of messages has room for more: four bytes, the number of bytes.
    Credit = 4,
    /// The sender neither sends nor receives on the channel any more; the payload is the reason, as text.
    Cancel = 5,
    /// The sender ends the connection in order.
    Goodbye = 6,
}

/// The fixed part of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The length of the payload.
    pub length: usize,
    /// What it is for.
    pub kind: Kind,
    /// The number of its channel.
    pub channel: u64,
}

/// Why a frame cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The stream ends inside a frame.
    #[error("it ends in the middle of a message")]
    Truncated,
    /// The bytes are not a frame.
    #[error("{0}")]
    Malformed(&'static str),
}

impl Header {
    /// The bytes of the header.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let length = u32::try_from(self.length).expect("payloads are short");
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[4] = self.kind as u8;
        bytes[8..].copy_from_slice(&self.channel.to_le_bytes());
        bytes
    }

    /// Reads a header and checks that its fields fit together. Nothing is allocated.
    ///
    /// # Errors
    /// [`FrameError::Malformed`].
    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let [l0, l1, l2, l3, kind, z0, z1, z2, channel @ ..] = bytes;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let channel = u64::from_le_bytes(channel);
        let (kind, lengths) = match kind {
            0 => (Kind::Heartbeat, 0..=0),
            1 => (Kind::Request, 0..=PAYLOAD_MAX),
            2 => (Kind::Message, 0..=PAYLOAD_MAX),
            3 => (Kind::End, 0..=0),
            4 => (Kind::Credit, 4..=4),
            5 => (Kind::Cancel, 0..=REASON_MAX),
            6 => (Kind::Goodbye, 0..=0),
            _ => return Err(FrameError::Malformed("a message is of an unknown kind")),
        };
        if [z0, z1, z2] != [0; 3] {
            return Err(FrameError::Malformed("a message has unknown flags"));
        }
        if !lengths.contains(&length) {
            return Err(FrameError::Malformed("a message has a wrong length"));
        }
        let of_connection = matches!(kind, Kind::Heartbeat | Kind::Goodbye);
        if of_connection != (channel == 0) {
            return Err(FrameError::Malformed("a message has a wrong channel"));
        }
        Ok(Self { length, kind, channel })
    }

    /// Reads the next header; `None`: the stream ends before it.
    ///
    /// # Errors
    /// The stream cannot be read, ends inside the header, or has no header there.
    pub fn read(input: &mut impl Read) -> Result<Option<Self>, FrameError> {
        let mut bytes = [0; HEADER_BYTES];
        let mut filled = 0;
        while filled < HEADER_BYTES {
            match input.read(&mut bytes[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(FrameError::Truncated),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Self::decode(bytes).map(Some)
    }

    /// Reads the payload that follows this header. The caller has checked that it wants so many bytes.
    ///
    /// # Errors
    /// The stream cannot be read, or ends too early.
    pub fn read_payload(self, input: &mut impl Read) -> Result<Vec<u8>, FrameError> {
        // Not filled with zeros first: that costs as much as reading.
        let mut payload = Vec::with_capacity(self.length);
        input.take(self.length as u64).read_to_end(&mut payload)?;
        if payload.len() < self.length { Err(FrameError::Truncated) } else { Ok(payload) }
    }
}

/// Writes one frame, without a copy of the payload.
///
/// # Errors
/// Those of the stream.
pub fn write_frame(
    output: &mut (impl Write + ?Sized),
    kind: Kind,
    channel: u64,
    payload: &[u8],
) -> io::Result<()> {
    let header = Header { length: payload.len(), kind, channel }.encode();
    vectored::write_all(output, &mut [IoSlice::new(&header), IoSlice::new(payload)])?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: [Kind; 7] = [
        Kind::Heartbeat,
        Kind::Request,
        Kind::Message,
        Kind::End,
        Kind::Credit,
        Kind::Cancel,
        Kind::Goodbye,
    ];

    fn payload_of(kind: Kind) -> &'static [u8] {
        match kind {
            Kind::Heartbeat | Kind::End | Kind::Goodbye => b"",
            Kind::Credit => &[1, 2, 3, 4],
            Kind::Request | Kind::Message | Kind::Cancel => b"some words",
        }
    }

    fn channel_of(kind: Kind) -> u64 {
        if matches!(kind, Kind::Heartbeat | Kind::Goodbye) { 0 } else { 0x0102_0304_0506_0708 }
    }

    fn all_kinds() -> Vec<u8> {
        let mut stream = Vec::new();
        for kind in KINDS {
            write_frame(&mut stream, kind, channel_of(kind), payload_of(kind)).unwrap();
        }
        stream
    }

    type Frames = Vec<(Header, Vec<u8>)>;

    /// All frames of a stream, and how it ends.
    fn read_all(mut input: &[u8]) -> (Frames, Result<(), FrameError>) {
        let mut frames = Vec::new();
        loop {
            let header = match Header::read(&mut input) {
                Ok(Some(header)) => header,
                Ok(None) => return (frames, Ok(())),
                Err(error) => return (frames, Err(error)),
            };
            match header.read_payload(&mut input) {
                Ok(payload) => frames.push((header, payload)),
                Err(error) => return (frames, Err(error)),
            }
        }
    }

    /// Takes and gives one byte at a time.
    struct OneByOne<T>(T);
    impl<W: Write> Write for OneByOne<W> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(&bytes[..bytes.len().min(1)])
        }
        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }

    #[test]
    fn every_kind_has_its_bytes() {
        let mut stream = Vec::new();
        write_frame(&mut stream, Kind::Message, 0x0102, b"ab").unwrap();
        assert_eq!(stream, [2, 0, 0, 0, 2, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, b'a', b'b']);
        let (frames, end) = read_all(&all_kinds());
        assert!(end.is_ok());
        let kinds: Vec<Kind> = frames.iter().map(|(header, _)| header.kind).collect();
        assert_eq!(kinds, KINDS);
        for (header, payload) in frames {
            assert_eq!(payload, payload_of(header.kind));
            assert_eq!(header.channel, channel_of(header.kind));
        }
    }

    #[test]
    fn short_writes_lose_nothing() {
        let mut stream = OneByOne(Vec::new());
        write_frame(&mut stream, Kind::Request, 7, b"words").unwrap();
        let (frames, end) = read_all(&stream.0);
        assert!(end.is_ok() && frames[0].1 == b"words");
    }

    #[test]
    fn a_stream_that_is_cut_anywhere_says_so() {
        let stream = all_kinds();
        let mut ends = vec![0];
        for (header, payload) in read_all(&stream).0 {
            assert_eq!(header.length, payload.len());
            ends.push(ends.last().unwrap() + HEADER_BYTES + payload.len());
        }
        for length in 0..stream.len() {
            let end = read_all(&stream[..length]).1;
            if ends.contains(&length) {
                assert!(end.is_ok(), "{length}");
            } else {
                assert!(matches!(end, Err(FrameError::Truncated)), "{length}: {end:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (frames, _) = read_all(&bytes);
            let mut again = Vec::new();
            for (header, payload) in frames {
                write_frame(&mut again, header.kind, header.channel, &payload).unwrap();
            }
            prop_assert!(bytes.starts_with(&again));
        }

        #[test]
        fn a_flipped_bit_does_no_harm(at in 0usize..1000, bit in 0u8..8) {
            let mut stream = all_kinds();
            let at = at % stream.len();
            stream[at] ^= 1 << bit;
            let (frames, _) = read_all(&stream);
            prop_assert!(frames.iter().all(|(header, _)| header.length <= PAYLOAD_MAX));
        }
    }
}
