//! The engine: source half, plan, apply half, and the driver.
//!
//! A job runs as one *coordinator* (a state machine of `dmover-plan`, driven by [`run_job`]) and a number of *movers*
//! (threads here) that lease tasks from a [`queue::Queue`]. The *source half* (`scan`) reads directories and passes
//! batches of records without descriptors, with the decision of `plan` for each, to the *apply half* (`apply`). The
//! library prints nothing: it reports to a [`Monitor`](dmover_observe::Monitor) and counts.
#![forbid(unsafe_code)]

mod alike;
mod answers;
mod apply;
mod bounds;
mod case;
mod catalog_survey;
mod checked_tree;
mod compare_content;
mod concurrency_driver;
mod context;
mod control;
mod coordinator_client;
mod delete_guard;
mod directory;
mod doubts;
mod driver;
mod engine_builder;
mod extra;
mod file;
mod finding;
mod fleet;
mod following;
mod hash_guesses;
mod hear;
mod inspect;
mod job_identity;
mod job_list;
mod large;
mod level;
mod limits;
mod links;
mod made;
mod manifest_attributes;
mod mover;
mod mover_pool;
mod mover_report;
mod narrow;
mod periodic_flush;
mod permit;
mod plan_entry;
mod plan_names;
mod planned;
mod precount;
mod project;
pub mod queue;
mod quick_check;
mod recheck;
mod recorder;
mod rename;
mod report;
mod rights;
mod root_marks;
mod run_facts;
mod run_task;
mod same_copy;
mod scan;
mod settable;
mod sharing;
mod snapshot;
mod snapshot_base;
mod storage;
mod submounts;
mod sum;
mod trust;
mod verbs;
mod verify;
mod waiting_files;
mod watch;
mod written_parts;

pub use bounds::{Bounds, REPAIR};
pub use context::Engine;
pub use control::{Control, StopReason};
pub use coordinator_client::CoordinatorClient;
pub use delete_guard::Withheld;
pub use dmover_local::capability;
pub use dmover_local::comparison::compared_by;
pub use dmover_local::destination_lock::DestinationLock;
pub use dmover_local::fanotify_feed::FanotifyFeed;
pub use dmover_local::mounts::mounts_here;
pub use dmover_local::stale_temporaries::remove_leftovers;
pub use dmover_model::{Answer, CoordinatorRequest, Notice, WithheldReason};
pub use dmover_tree::RemoteTrees;
pub use driver::{Job, Then, run_job};
pub use fleet::{Fleet, Fleets, JobOffer, Joined, Joining, MoverPlace};
pub use job_identity::job_id;
pub use job_list::{JobList, Pair, RecordSupply, SumSupply};
pub use mover_report::{MoverReport, take_reports};
pub use recorder::Recorder;
pub use report::{JobReport, JobState};
pub use watch::{WatchOptions, Watched, watch};
