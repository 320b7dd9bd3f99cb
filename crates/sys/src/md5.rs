//! MD5 by AWS-LC, which has it in assembler: a quarter faster than what compilers make of the function.
#![allow(unsafe_code)]
use aws_lc_sys::{MD5_CTX, MD5_Final, MD5_Init, MD5_Update};
use std::mem::MaybeUninit;

/// The state of an MD5 over bytes as they come (RFC 1321). Good for comparing, not against forgery.
pub struct Md5(MD5_CTX);

impl std::fmt::Debug for Md5 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Md5").finish_non_exhaustive()
    }
}

impl Md5 {
    /// Nothing taken yet.
    #[expect(clippy::new_without_default, reason = "a hasher is made, not assumed")]
    pub fn new() -> Self {
        let mut state = MaybeUninit::zeroed();
        // SAFETY: the state is plain old data with room for it; the call writes it and nothing else, and cannot fail.
        unsafe {
            MD5_Init(state.as_mut_ptr());
            Self(state.assume_init())
        }
    }

    /// Takes more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        // SAFETY: the state was initialised; the bytes are read, as many as there are. It cannot fail.
        unsafe {
            MD5_Update(&raw mut self.0, bytes.as_ptr().cast(), bytes.len());
        }
    }

    /// The digest of all bytes taken.
    pub fn finish(mut self) -> [u8; 16] {
        let mut digest = [0; 16];
        // SAFETY: the state was initialised and is not used again; the digest has the 16 bytes that are written.
        unsafe {
            MD5_Final(digest.as_mut_ptr(), &raw mut self.0);
        }
        digest
    }
}
