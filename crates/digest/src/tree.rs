//! Trees of digests.
//!
//! Two inner nodes make a parent; the left one covers the largest power of two of leaves that leaves at least
//! one for the right. This is the shape of BLAKE3's own tree (section 2.1 of its paper) and of mutil's.
//! A parent of serial functions is the digest of both nodes' bytes, left one first.
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use dmover_model::{Digest, HashType, Shape};

use crate::crc;
use crate::hasher::Hasher;
use crate::value::digest_of;

/// Makes the pieces of a stretch of content that begins where a piece begins.
#[derive(Debug)]
pub struct Pieces {
    shape: Shape,
    /// Where the next byte lies in the content.
    at: u64,
    leaf: Option<Hasher>,
    blake3: Option<Box<blake3::Hasher>>,
    /// Leaves of the piece that is being made.
    fold: Fold,
    made: Vec<Digest>,
}

impl Pieces {
    /// Begins at `start`, which has to be the beginning of a piece.
    pub fn new(shape: Shape, start: u64) -> Self {
        assert!(start.is_multiple_of(shape.piece()), "{start} is no beginning of a piece");
        let fold = Fold::new(shape.hash());
        Self { shape, at: start, leaf: None, blake3: None, fold, made: Vec::new() }
    }

    /// The digests of the pieces of content that begins at an offset of what the shape is about.
    pub fn of(shape: &Shape, start: u64, content: &[u8]) -> Vec<Digest> {
        let mut pieces = Self::new(*shape, start);
        pieces.update(content);
        pieces.finish()
    }

    /// Takes the bytes that follow.
    pub fn update(&mut self, mut bytes: &[u8]) {
        if self.is_all_of_a_leaf(bytes.len() as u64) {
            // As with most files: without a state that takes its time to be made.
            self.made.push(Hasher::digest(self.shape.hash(), bytes));
            self.at += bytes.len() as u64;
            return;
        }
        while !bytes.is_empty() {
            let unit = if self.shape.hash() == HashType::Blake3 {
                self.shape.piece()
            } else {
                self.shape.leaf()
            };
            let left = unit - self.at % unit;
            let (now, rest) =
                bytes.split_at(bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
            self.take(now);
            self.at += now.len() as u64;
            bytes = rest;
            if self.at.is_multiple_of(unit) {
                self.end_unit();
            }
        }
    }

    /// Whether so many bytes are the whole content, and that is not put together of anything.
    fn is_all_of_a_leaf(&self, length: u64) -> bool {
        let whole = length == self.shape.length() && length > 0 && self.shape.pieces() == 1;
        whole && (self.shape.hash() == HashType::Blake3 || length <= self.shape.leaf())
    }

    /// Takes so many bytes of zeroes, which a hole stands for.
    pub fn zeroes(&mut self, mut length: u64) {
        static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
        while length > 0 {
            let now = length.min(ZEROES.len() as u64);
            self.update(&ZEROES[..now as usize]);
            length -= now;
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.shape.hash() == HashType::Blake3 {
            let start = self.at;
            let state = self.blake3.get_or_insert_with(|| {
                let mut state = Box::new(blake3::Hasher::new());
                state.set_input_offset(start);
                state
            });
            state.update(bytes);
        } else {
            let hash = self.shape.hash();
            self.leaf.get_or_insert_with(|| Hasher::new(hash)).update(bytes);
        }
    }

    /// A leaf, and maybe with it a piece, is complete.
    fn end_unit(&mut self) {
        if let Some(state) = self.blake3.take() {
            let only = self.shape.pieces() == 1;
            self.made.push(if only {
                digest_of(state.finalize().as_bytes())
            } else {
                digest_of(&state.finalize_non_root())
            });
            return;
        }
        let length = (self.at - 1) % self.shape.leaf() + 1;
        if let Some(leaf) = self.leaf.take() {
            self.fold.push(leaf.finish(), length);
        }
        if self.at.is_multiple_of(self.shape.piece()) || self.at == self.shape.length() {
            let fold = std::mem::replace(&mut self.fold, Fold::new(self.shape.hash()));
            self.made.extend(fold.finish());
        }
    }

    /// The pieces, once the stretch has come to its end: where a piece ends, or at the end of the content.
    pub fn finish(mut self) -> Vec<Digest> {
        if self.shape.length() == 0 {
            return vec![Hasher::digest(self.shape.hash(), &[])];
        }
        if self.blake3.is_some() || self.leaf.is_some() {
            self.end_unit();
        }
        if let Some(last) = self.fold.finish() {
            self.made.push(last);
        }
        self.made
    }
}

/// Puts nodes of equal size (the last one may be smaller) together, in order.
#[derive(Debug)]
pub struct Fold {
    hash: HashType,
    count: u64,
    /// Nodes that wait for a neighbour, and their bytes of content.
    stack: Vec<(Digest, u64)>,
}

impl Fold {
    /// A tree without nodes.
    pub fn new(hash: HashType) -> Self {
        Self { hash, count: 0, stack: Vec::new() }
    }

    /// The function that makes the nodes.
    pub fn hash(&self) -> HashType {
        self.hash
    }

    /// Takes the next node, which covers `length` bytes.
    pub fn push(&mut self, node: Digest, length: u64) {
        // Only now is it known that what came before is not the whole, which BLAKE3 treats differently.
        for _ in 0..self.count.trailing_zeros().min(self.stack.len().saturating_sub(1) as u32) {
            self.merge(false);
        }
        self.stack.push((node, length));
        self.count += 1;
    }

    fn merge(&mut self, root: bool) {
        let (Some((right, right_length)), Some((left, left_length))) =
            (self.stack.pop(), self.stack.pop())
        else {
            return;
        };
        let node = match self.hash {
            HashType::Blake3 => {
                let (left, right) = (chaining_value(&left), chaining_value(&right));
                if root {
                    digest_of(merge_subtrees_root(&left, &right, Mode::Hash).as_bytes())
                } else {
                    digest_of(&merge_subtrees_non_root(&left, &right, Mode::Hash))
                }
            }
            hash if hash.is_parallel() => crc::combine(hash, &left, &right, right_length),
            hash => {
                let mut hasher = Hasher::new(hash);
                hasher.update(left.as_bytes());
                hasher.update(right.as_bytes());
                hasher.finish()
            }
        };
        self.stack.push((node, left_length + right_length));
    }

    /// The digest of the whole; `None` if there was no node.
    pub fn finish(mut self) -> Option<Digest> {
        while self.stack.len() > 1 {
            self.merge(self.stack.len() == 2);
        }
        self.stack.pop().map(|(node, _)| node)
    }

    /// The digest of a whole whose pieces are given in order.
    pub fn of(shape: &Shape, pieces: &[Digest]) -> Option<Digest> {
        if pieces.len() as u64 != shape.pieces() {
            return None;
        }
        if let [only] = pieces {
            return Some(*only);
        }
        let mut fold = Self::new(shape.hash());
        for (number, node) in pieces.iter().enumerate() {
            let (start, end) = shape.bounds(number as u64);
            fold.push(*node, end - start);
        }
        fold.finish()
    }
}

fn chaining_value(node: &Digest) -> [u8; 32] {
    node.as_bytes().try_into().expect("a chaining value of BLAKE3 has 32 bytes")
}
