//! How a message becomes bytes: postcard behind one byte that says whether it is compressed (LZ4).
//!
//! Bytes from other processes are never trusted: [`decode`] returns an error for everything that is not exactly one
//! message, and what it allocates is limited by [`SIZE_MAX`] and [`NUMBERS_MAX`].
use bytes::Bytes;
use lz4_flex::block;
use postcard::de_flavors::{Flavor, Slice};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The largest decompressed message in bytes.
pub const SIZE_MAX: usize = 256 << 20;
/// The most bytes of a decompressed message that are not in strings: numbers, lengths, variants. Each element of a list
/// has at least one, so this limits the memory for lists, whose elements can be much larger than their bytes.
pub const NUMBERS_MAX: usize = 8 << 20;

/// A longer message is compressed.
const PLAIN_MAX: usize = 1024;
/// The first byte of a message that is not compressed, and of one that is.
const PLAIN: u8 = 0;
const COMPRESSED: u8 = 1;
/// No LZ4 block has more content than this many times its bytes.
const LZ4_RATIO_MAX: usize = 255;

/// Why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It is in no form that this program knows.
    #[error("its first byte is unknown")]
    Form,
    /// It is larger than [`SIZE_MAX`], or than its compressed bytes can be.
    #[error("its size of {0} bytes is too large")]
    Size(usize),
    /// It has more than [`NUMBERS_MAX`] bytes of numbers.
    #[error("it has too many elements")]
    Elements,
    /// The compressed bytes are damaged.
    #[error("it cannot be decompressed: {0}")]
    Compression(String),
    /// Bytes are missing.
    #[error("it is incomplete")]
    Incomplete,
    /// Bytes are left over.
    #[error("it has {0} bytes too many")]
    Rest(usize),
    /// A value is not allowed: a variant that does not exist in this version, a name with a slash, a bad length.
    #[error("it has an invalid value, or one of another version of dmover ({0})")]
    Value(postcard::Error),
}

/// Encodes a message.
pub fn encode<T: Serialize>(what: &T) -> Bytes {
    // Serialising to memory fails only for sequences of unknown length, and there are none.
    let plain = postcard::to_stdvec(what).unwrap_or_else(|error| {
        tracing::error!(%error, "cannot encode a message; please report this");
        Vec::new()
    });
    if plain.len() <= PLAIN_MAX {
        return [&[PLAIN], &plain[..]].concat().into();
    }
    [&[COMPRESSED], &block::compress_prepend_size(&plain)[..]].concat().into()
}

/// Encodes a message without compression, in place of what is in the buffer.
pub(crate) fn encode_plain<T: Serialize>(what: &T, mut buffer: Vec<u8>) -> Vec<u8> {
    buffer.clear();
    buffer.push(PLAIN);
    // As in `encode`: it cannot fail.
    postcard::to_extend(what, buffer).unwrap_or_default()
}

/// Decodes a message.
///
/// # Errors
/// The bytes are not one message of this type, or are too large.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    decode_within(bytes, SIZE_MAX)
}

/// Decodes a message that has no more than this many bytes without compression. Few compressed bytes can become many, and
/// those a list that takes much more memory.
///
/// # Errors
/// The bytes are not one message of this type, or are too large.
pub fn decode_within<T: DeserializeOwned>(bytes: &[u8], size_max: usize) -> Result<T, DecodeError> {
    from_plain(&content(bytes, size_max)?)
}

/// Decodes a message that is not compressed, without a copy of its bytes.
///
/// # Errors
/// The bytes are not one such message of this type, or are too large.
pub fn decode_in_place<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    match bytes.split_first() {
        Some((&PLAIN, plain)) => from_plain(plain),
        _ => Err(DecodeError::Form),
    }
}

/// Decodes what a message begins with, whatever follows it.
pub(crate) fn decode_beginning<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    beginning(&content(bytes, SIZE_MAX)?).map(|(value, _rest)| value)
}

/// The content of a message, without compression.
fn content(bytes: &[u8], size_max: usize) -> Result<Cow<'_, [u8]>, DecodeError> {
    match bytes.split_first() {
        Some((&PLAIN, plain)) => Ok(plain.into()),
        Some((&COMPRESSED, packed)) => unpack(packed, size_max).map(Cow::from),
        _ => Err(DecodeError::Form),
    }
}

/// Decompresses an LZ4 block behind its size.
fn unpack(packed: &[u8], size_max: usize) -> Result<Vec<u8>, DecodeError> {
    let (size, block) = block::uncompressed_size(packed).map_err(|_| DecodeError::Incomplete)?;
    if size > size_max || size > block.len().saturating_mul(LZ4_RATIO_MAX) {
        return Err(DecodeError::Size(size));
    }
    let plain = block::decompress(block, size);
    let plain = plain.map_err(|error| DecodeError::Compression(error.to_string()))?;
    // The block may end before its announced size.
    if plain.len() == size { Ok(plain) } else { Err(DecodeError::Incomplete) }
}

/// Joins messages into one.
pub fn bundle<'a>(messages: impl Iterator<Item = &'a Bytes>) -> Bytes {
    let all: Vec<_> = messages.map(|message| serde_bytes::Bytes::new(message)).collect();
    // As in `encode`: it cannot fail.
    postcard::to_stdvec(&all).unwrap_or_default().into()
}

/// Splits a joined message.
///
/// # Errors
/// The bytes are not joined messages.
pub fn unbundle(bytes: &[u8]) -> Result<Vec<&[u8]>, DecodeError> {
    from_plain(bytes)
}

/// Reads one value from all of these bytes.
pub(crate) fn from_plain<'a, T: Deserialize<'a>>(plain: &'a [u8]) -> Result<T, DecodeError> {
    match beginning(plain)? {
        (value, 0) => Ok(value),
        (_, rest) => Err(DecodeError::Rest(rest)),
    }
}

/// Reads one value from the beginning of these bytes, and counts the others.
fn beginning<'a, T: Deserialize<'a>>(plain: &'a [u8]) -> Result<(T, usize), DecodeError> {
    if plain.len() > SIZE_MAX {
        return Err(DecodeError::Size(plain.len()));
    }
    let counted = Counted { slice: Slice::new(plain), left: NUMBERS_MAX };
    let mut deserializer = postcard::Deserializer::from_flavor(counted);
    let value = T::deserialize(&mut deserializer);
    let end = deserializer.finalize().map_err(DecodeError::Value)?;
    match value {
        Ok(value) => Ok((value, end.rest)),
        Err(_) if end.is_exhausted => Err(DecodeError::Elements),
        Err(postcard::Error::DeserializeUnexpectedEnd) => Err(DecodeError::Incomplete),
        Err(error) => Err(DecodeError::Value(error)),
    }
}

/// A slice from which at most so many bytes are read one by one. Content of strings is taken in one piece.
struct Counted<'de> {
    slice: Slice<'de>,
    left: usize,
}

/// What is left when a value was read.
struct End {
    rest: usize,
    is_exhausted: bool,
}

impl<'de> Flavor<'de> for Counted<'de> {
    type Remainder = End;
    type Source = &'de [u8];

    fn pop(&mut self) -> postcard::Result<u8> {
        self.left = self.left.checked_sub(1).ok_or(postcard::Error::DeserializeUnexpectedEnd)?;
        self.slice.pop()
    }

    fn size_hint(&self) -> Option<usize> {
        self.slice.size_hint()
    }

    fn try_take_n(&mut self, count: usize) -> postcard::Result<&'de [u8]> {
        self.slice.try_take_n(count)
    }

    fn finalize(self) -> postcard::Result<End> {
        let is_exhausted = self.left == 0;
        Ok(End { rest: self.slice.finalize()?.len(), is_exhausted })
    }
}
