//! Digests of content, computed while it is copied.
use dmover_digest::Pieces;
use dmover_model::{Digest, Shape};
use std::cell::RefCell;

use crate::end::Rules;

/// The digest of a file or of a range, in pieces.
#[derive(Debug)]
pub struct Made {
    /// How the pieces were made.
    pub shape: Shape,
    /// The offsets at the source and at the destination, if it is not about the whole file.
    pub at: Option<(u64, u64)>,
    /// The digest of each piece.
    pub pieces: Vec<Digest>,
}

/// Receives the bytes of a copy as they are read.
pub struct Tap {
    /// The digests so far.
    pub(crate) pieces: RefCell<Pieces>,
    shape: Shape,
}

impl Tap {
    /// Begins at `start`, which is the beginning of a piece.
    pub(crate) fn new(shape: Shape, start: u64) -> Self {
        Self { pieces: RefCell::new(Pieces::new(shape, start)), shape }
    }

    /// The digests; `at`: the offsets of a range on both sides.
    pub(crate) fn into_made(self, at: Option<(u64, u64)>) -> Made {
        let pieces = self.pieces.into_inner().finish();
        Made { shape: self.shape, at, pieces }
    }
}

impl Rules<'_> {
    /// How the digest of a copied file of this size is computed, if one is required.
    pub fn digest_shape(&self, size: u64) -> Option<Shape> {
        self.policy.digest.as_ref().map(|policy| policy.shape(size))
    }

    /// A tap for a file of this size, if a digest is required.
    pub fn tap(&self, size: u64) -> Option<Tap> {
        self.digest_shape(size).map(|shape| Tap::new(shape, 0))
    }
}
