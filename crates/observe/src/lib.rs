//! What a job counts and tells: one documented enum of counters, a trait for those who watch, and the
//! set-up of the log. Nothing here prints.
#![forbid(unsafe_code)]

mod counters;
pub mod exposition;
mod log;
mod outlook;
mod slowest;
mod spread;
pub mod station;
pub mod view;

pub use counters::{Counter, Counters, Snapshot};
pub use log::{LogFormat, LogLevel, LogLine, overhear, start_log};
pub use outlook::{Amount, Outlook, Slot, Stage, Total};
pub use slowest::{Slow, Slowest};
pub use spread::Spread;
pub use station::{Activity, CLASSES, Station};
pub use view::{Board, JobView, MountView, MoverView, NicView, ProcessView, SessionView};

use dmover_model::Event;

/// Someone who watches a job: a terminal, a JSON stream, a test.
pub trait Monitor: Send + Sync {
    /// Something happened.
    fn event(&self, event: &Event);

    /// Whether an [`Event::Item`] for every entry is wanted; if not, none is built.
    fn wants_items(&self) -> bool {
        false
    }
}

/// Watches nothing.
#[derive(Debug, Default)]
pub struct NoMonitor;

impl Monitor for NoMonitor {
    fn event(&self, _event: &Event) {}
}
