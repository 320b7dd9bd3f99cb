//! One hash function over bytes as they come.
use digest::Digest as _;
use dmover_model::{Digest, HashType};
use md5::{Digest as _, Md5};

use crate::crc::Register;
use crate::value::digest_of;

/// Takes bytes in order and makes a digest of them.
pub struct Hasher(State);

enum State {
    // Boxed: it has room for a whole stack of chaining values.
    Blake3(Box<blake3::Hasher>),
    Md5(Md5),
    Sha1(sha1::Sha1),
    Sha224(sha2::Sha224),
    Sha256(sha2::Sha256),
    Sha384(sha2::Sha384),
    Sha512(sha2::Sha512),
    Crc(Register),
    Xxh3(Box<twox_hash::XxHash3_128>),
}

impl std::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hasher").finish_non_exhaustive()
    }
}

impl Hasher {
    /// A hasher that has taken nothing yet.
    pub fn new(hash: HashType) -> Self {
        Self(match hash {
            HashType::Blake3 => State::Blake3(Box::default()),
            HashType::Md5 => State::Md5(Md5::new()),
            HashType::Sha1 => State::Sha1(sha1::Sha1::new()),
            HashType::Sha224 => State::Sha224(sha2::Sha224::new()),
            HashType::Sha256 => State::Sha256(sha2::Sha256::new()),
            HashType::Sha384 => State::Sha384(sha2::Sha384::new()),
            HashType::Sha512 => State::Sha512(sha2::Sha512::new()),
            HashType::Xxh3 => State::Xxh3(Box::new(twox_hash::XxHash3_128::new())),
            HashType::Crc32
            | HashType::Crc32Rfc1510
            | HashType::Crc24Rfc2440
            | HashType::Crc32c => State::Crc(Register::new(hash)),
        })
    }

    /// Takes more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Blake3(state) => drop(state.update(bytes)),
            State::Md5(state) => state.update(bytes),
            State::Sha1(state) => state.update(bytes),
            State::Sha224(state) => state.update(bytes),
            State::Sha256(state) => state.update(bytes),
            State::Sha384(state) => state.update(bytes),
            State::Sha512(state) => state.update(bytes),
            State::Crc(state) => state.update(bytes),
            State::Xxh3(state) => state.write(bytes),
        }
    }

    /// The digest of all bytes taken.
    pub fn finish(self) -> Digest {
        match self.0 {
            State::Blake3(state) => digest_of(state.finalize().as_bytes()),
            State::Md5(state) => digest_of(&state.finalize()),
            State::Sha1(state) => digest_of(&state.finalize()),
            State::Sha224(state) => digest_of(&state.finalize()),
            State::Sha256(state) => digest_of(&state.finalize()),
            State::Sha384(state) => digest_of(&state.finalize()),
            State::Sha512(state) => digest_of(&state.finalize()),
            State::Crc(state) => state.finish(),
            State::Xxh3(state) => digest_of(&state.finish_128().to_be_bytes()),
        }
    }

    /// The digest of some bytes.
    pub fn digest(hash: HashType, bytes: &[u8]) -> Digest {
        if hash == HashType::Blake3 {
            return digest_of(blake3::hash(bytes).as_bytes());
        }
        let mut hasher = Self::new(hash);
        hasher.update(bytes);
        hasher.finish()
    }
}
