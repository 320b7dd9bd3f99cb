//! The life of a job: it starts, makes its passes, is proven and ends, and other processes find it and steer it. A command
//! line, a server or another program calls this, and prints what it wants to.
//!
//! Nothing here prints, reads arguments or the environment, or ends the process. A job that runs asks a [`Client`]; a job
//! of another process is a [`KnownJob`]. A request that is refused says why ([`Refusal`]).
//!
//! ```no_run
//! use dmover_job::{Client, ReadBack, Request, find};
//! # use dmover_engine::Job;
//! # use dmover_journal::StateDirectory;
//! # fn example(job: Job, client: &dyn Client) -> Result<(), Box<dyn std::error::Error>> {
//! // In one process: run a job to its end.
//! let outcome = dmover_job::run(Request { job, manifest: None, read_back: ReadBack::None }, client);
//! let code = outcome.end().map_or_else(|failed| failed.code, |(_report, code)| code);
//!
//! // In another process: find it by its label, pause it, and wait for its end.
//! let job = find(&StateDirectory::new("/var/lib/dmover"), "nightly")?;
//! job.pause()?;
//! job.resume()?;
//! job.follow(None, &mut |status| assert!(status.phase.has_process()));
//! # let _ = code; Ok(()) }
//! ```
#![forbid(unsafe_code)]

pub mod background;
pub mod cleanup;
mod comparison;
pub mod description;
mod digests;
mod find;
mod follow;
mod known;
mod labels;
mod life;
mod manifest;
mod messages;
mod notify;
#[cfg(test)]
mod on_record;
pub mod quote;
mod read_back;
mod records;
mod refusal;
mod retry;
mod snapshots;
pub mod standby;
mod steer;
mod watch;

pub use comparison::{Compared, compare, entries_changed};
pub use digests::{Checked, ListedLines, checked, code_of_digests};
pub use find::{Choice, Filter, choose, find, list};
pub use follow::{Followed, code_of_end};
pub use known::{KnownJob, can_retry};
pub use labels::take_label;
pub use life::{Client, Failed, Outcome, Published, ReadBack, Request, run};
pub use manifest::{ManifestFile, Recorded};
pub use notify::Notification;
pub use refusal::{Reason, Refusal};
pub use retry::only_failed;
pub use snapshots::{
    Concluded, FoundCounts, Naming, NotNamed, Snapshot, SnapshotCounts, SnapshotDirectory,
    SnapshotInProgress, SnapshotPlan, SnapshotStart, kept,
};
pub use steer::{Rerun, Resumed};
pub use watch::{WatchEnd, check_watch_limit, open_feed, watch};
