//! What is too large, too slow or too rare to have: fleets, and whole jobs whose threads, time and disks a seed decides.
#![forbid(unsafe_code)]

mod fleet;
#[cfg(feature = "jobs")]
pub mod jobs;
mod tree;

pub use fleet::{Result, Scenario, simulate};
pub use tree::TreeSize;
