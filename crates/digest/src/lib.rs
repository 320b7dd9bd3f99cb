//! Digests: hash functions, trees of them, and the lines that `sha256sum` and its family read and write.
//!
//! Content is cut into *leaves*; leaves are put together to *pieces*, which movers make independently of each
//! other, and pieces to the digest of the whole. The value depends on the content, the function and (for
//! functions that are not trees by themselves) the size of a leaf, never on who hashed which part.
#![forbid(unsafe_code)]

pub mod crc;
mod hasher;
pub mod lines;
pub mod manifest;
mod stream;
mod tree;
mod value;

pub use hasher::Hasher;
pub use stream::Stream;
pub use tree::{Fold, Pieces};
