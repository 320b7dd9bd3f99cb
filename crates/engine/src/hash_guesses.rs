//! Which of two hash functions with digests of one length a list without their names has.
use dmover_model::HashType;
use std::sync::atomic::{AtomicBool, Ordering};

/// The two functions, the more likely one first.
pub(crate) const FUNCTIONS: [HashType; 2] = [HashType::Blake3, HashType::Sha256];

/// Which functions have matched so far.
#[derive(Debug, Default)]
pub(crate) struct Guesses([AtomicBool; 2]);

impl Guesses {
    pub fn matched(&self, hash: HashType) {
        if let Some(at) = FUNCTIONS.iter().position(|function| *function == hash) {
            self.0[at].store(true, Ordering::Relaxed);
        }
    }

    /// The only function that has matched so far. `None`: none has, or the list is mixed, and both are tried.
    pub fn only(&self) -> Option<HashType> {
        match self.0.each_ref().map(|matched| matched.load(Ordering::Relaxed)) {
            [true, false] => Some(FUNCTIONS[0]),
            [false, true] => Some(FUNCTIONS[1]),
            _ => None,
        }
    }
}
