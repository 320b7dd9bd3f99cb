//! Trees at other hosts as sources of a job.
//!
//! [`TreeService`] is the far side: it serves one tree of its host to one job. [`RemoteSource`] is the near side: it
//! answers what a job asks of a source, with messages to the far side, which it sends ahead where it can. With [`Delegate`] and
//! [`Delegated`] the job runs at the far side, where its destination is, and the near side serves.
#![forbid(unsafe_code)]

pub mod bench;
mod chunks;
mod delegate;
mod delegated;
mod hashing;
mod joined;
mod serve;
mod source;
mod sources;

pub use chunks::{ChunkBounds, ChunkMover, ChunkMoverPlace, OtherHosts};
pub use delegate::{Delegate, DelegatedSource, JobHosts, Places, Print, Rules, ThirdSource};
pub use delegated::{Delegated, DelegatedSources};
pub use dmover_wire::agent::WithHead;
pub use dmover_wire::delegation::{DelegateRole, DelegatedJob, OutputStream};
pub use serve::{Introduction, TreeService};
pub use source::{Connect, Line, Opening, RemoteSource};
pub use sources::Sources;
