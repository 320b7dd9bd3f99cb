//! Percent escapes of RFC 3986 for names in text: batch input, job files and state files.
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};

/// Unreserved characters of RFC 3986 plus the path separator stay as they are.
const KEEP: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// Escapes every byte that is not an unreserved character or `/`.
pub fn percent_encode(bytes: &[u8]) -> String {
    percent_encoding::percent_encode(bytes, KEEP).to_string()
}

/// Decodes percent escapes; a `%` that begins no escape stays as it is.
pub fn percent_decode(bytes: &[u8]) -> Vec<u8> {
    percent_encoding::percent_decode(bytes).collect()
}
