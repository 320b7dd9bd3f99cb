//! The life of a job: its passes, its proof, and its end. A command line, a server or another program calls it, and
//! prints what it wants to.
#![forbid(unsafe_code)]

mod life;
mod manifest;
mod notify;
pub mod quote;
mod read_back;
mod snapshots;

pub use life::{Client, Failed, Outcome, Published, ReadBack, Request, code_of_comparison, run};
pub use manifest::{ManifestFile, Recorded};
pub use notify::Notification;
pub use snapshots::{
    Begun, FoundCounts, Snapshot, SnapshotCounts, SnapshotDirectory, check_snapshot_paths,
};
