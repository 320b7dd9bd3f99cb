//! Movers at several hosts that share DEST. One host runs the job; the others ask it for chunks of large files, which they
//! read from SOURCE on connections of their own.
mod hosts;
mod mover;
mod queue;

pub use hosts::OtherHosts;
pub use mover::{ChunkBounds, ChunkMover, ChunkMoverPlace};

use std::time::Duration;

/// How long a host may continue without contact to the one that runs the job. Shorter outages cost nothing; after a longer one
/// files begin again that the host has written to.
const LEASE: Duration = Duration::from_mins(1);
