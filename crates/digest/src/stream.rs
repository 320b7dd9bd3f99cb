//! Content whose length is only known at its end.
use dmover_model::{Digest, DigestPolicy, Shape};

use crate::{Fold, Hasher};

/// Takes content that comes without a length, such as that of a pipe.
#[derive(Debug)]
pub struct Stream {
    length: u64,
    plain: Hasher,
    tree: Option<Leaves>,
}

#[derive(Debug)]
struct Leaves {
    bytes: u64,
    leaf: Hasher,
    filled: u64,
    fold: Fold,
}

impl Stream {
    /// A stream that has taken nothing yet.
    pub fn new(policy: &DigestPolicy) -> Self {
        let hash = policy.hash;
        let leaves = policy.leaf_bytes.filter(|_| !hash.is_parallel());
        let tree = leaves.map(|bytes| {
            let bytes = bytes.max(1);
            Leaves { bytes, leaf: Hasher::new(hash), filled: 0, fold: Fold::new(hash) }
        });
        Self { length: 0, plain: Hasher::new(hash), tree }
    }

    /// Takes more bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.plain.update(bytes);
        let Some(tree) = &mut self.tree else { return };
        while !bytes.is_empty() {
            let left = (tree.bytes - tree.filled).min(bytes.len() as u64) as usize;
            let (now, rest) = bytes.split_at(left);
            tree.leaf.update(now);
            tree.filled += left as u64;
            if tree.filled == tree.bytes {
                tree.end_leaf();
            }
            bytes = rest;
        }
    }

    /// The digest of all bytes taken, as one piece.
    pub fn finish(self, policy: &DigestPolicy) -> (Shape, Digest) {
        let Self { length, plain, tree } = self;
        let shape = policy.shape(length);
        // It was not made in pieces, so it is one.
        let one = Shape::plain(policy.hash, length, length);
        let Some(mut tree) = tree.filter(|_| !shape.is_plain()) else {
            return (one, plain.finish());
        };
        if tree.filled > 0 {
            tree.end_leaf();
        }
        let digest = tree.fold.finish().unwrap_or_else(|| plain.finish());
        (Shape::tree(policy.hash, length, tree.bytes, u64::MAX), digest)
    }
}

impl Leaves {
    fn end_leaf(&mut self) {
        let leaf = std::mem::replace(&mut self.leaf, Hasher::new(self.fold.hash()));
        self.fold.push(leaf.finish(), self.filled);
        self.filled = 0;
    }
}
