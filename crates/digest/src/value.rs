//! Digests from the bytes that hash functions return.
use dmover_model::Digest;

/// Every function has a digest of 3 to 64 bytes.
pub(crate) fn digest_of(value: &[u8]) -> Digest {
    Digest::new(value).expect("a digest has 1 to 64 bytes")
}
