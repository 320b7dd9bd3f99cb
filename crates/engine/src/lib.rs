//! The engine: source half, plan, apply half, and the driver.
//!
//! A job runs as one *coordinator* (a state machine of `dmover-plan`, driven by [`run_job`]) and a number of *movers*
//! (threads here) that lease tasks from a [`queue::Queue`]. The *source half* ([`scan`]) reads directories and passes
//! batches of records without descriptors, with the decision of `plan` for each, to the *apply half* ([`apply`]). The
//! library prints nothing: it reports to a [`Monitor`](dmover_observe::Monitor) and counts.
#![forbid(unsafe_code)]

mod answers;
pub mod apply;
mod assemble;
mod attributes;
mod backup;
mod below;
mod bounds;
pub mod capability;
mod catalog;
mod content;
mod context;
mod control;
mod crew;
mod desk;
mod directory;
mod driver;
mod error;
mod extended;
mod extra;
mod file;
mod fleet;
mod flush;
mod glance;
mod journal;
mod large;
mod later;
pub mod layout;
pub mod ledger;
mod leftovers;
mod level;
mod limits;
mod links;
mod list;
mod look;
mod made;
mod mounts;
mod mover;
mod mutex;
mod narrow;
mod other;
mod overlaps;
mod pace;
mod patient_open;
mod precount;
mod project;
pub mod queue;
mod report;
mod rights;
mod root;
mod roots;
pub mod scan;
mod settable;
mod snapshot;
mod state;
mod storage;
mod sum;
mod sync;
mod told;
mod trash_mark;
mod unflushed;
mod verify;
mod watch;

pub use bounds::{Bounds, REPAIR};
pub use context::Engine;
pub use control::{Control, StopReason};
pub use desk::Desk;
pub use dmover_model::{Answer, Fact, Question, WithheldReason};
pub use driver::{Job, JobList, Pair, RecordSupply, SumSupply, Then, run_job};
pub use error::Fatal;
pub use fleet::{Fleet, Fleets, JobOffer, Joined, Joining, MoverPlace};
pub use journal::{FailedList, FailedPaths, JournalReader, RecordedError, RecordedPass};
pub use leftovers::remove_leftovers;
pub use made::Recorder;
pub use mounts::mounts_here;
pub use report::{JobReport, JobState};
pub use snapshot::{
    Based, FoundCounts, OWN as OWN_SNAPSHOTS, Snapshot, SnapshotCounts, SnapshotDirectory,
    check_snapshot_paths,
};
pub use state::{
    Ask, DestinationLock, ErrorList, JobFile, JobLock, JobPhase, JobStatus, LabelHeld, LabelTurn,
    Listed, StateDirectory, Unlisted, job_id,
};
pub use sync::Withheld;
pub use told::Told;
pub use watch::{FanotifyFeed, WatchOptions, Watched, watch};
