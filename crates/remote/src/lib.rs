//! Trees at other hosts as sources of a job.
//!
//! [`TreeService`] is the far side: it serves one tree of its host to one job. [`RemoteSource`] is the near side: it
//! answers what a job asks of a source, with messages to the far side, which it sends ahead where it can.
#![forbid(unsafe_code)]

mod hashing;
mod joined;
mod serve;
mod source;
mod sources;

pub use serve::TreeService;
pub use source::{Line, Opening, RemoteSource};
pub use sources::{Sources, connect};
