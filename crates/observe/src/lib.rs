//! What a job counts and reports: one documented enum of counters, a trait for observers, and the set-up of the log.
//! Nothing here prints.
#![forbid(unsafe_code)]

pub mod activity;
mod counters;
pub mod exposition;
mod histograms;
mod log;
mod mutex;
mod outlook;
mod slowest;
pub mod view;

pub use activity::{Activity, CLASSES, CurrentActivity};
pub use counters::{Counter, Counters, Snapshot};
pub use histograms::Quantity;
pub use log::{LogFormat, LogLevel, LogLine, overhear, start_log};
pub use mutex::lock;
pub use outlook::{Amount, Outlook, Slot, Stage, Total};
pub use slowest::{Slow, Slowest};
pub use view::{Board, JobView, MountView, MoverView, NicView, ProcessView, SessionView};

use dmover_model::Event;

/// An observer of a job, such as a terminal, a JSON stream or a test.
pub trait Monitor: Send + Sync {
    /// Receives one event.
    fn event(&self, event: &Event);

    /// Whether the observer wants an [`Event::Item`] for every entry; if not, none is built.
    fn wants_items(&self) -> bool {
        false
    }
}

/// An observer that ignores all events.
#[derive(Debug, Default)]
pub struct NoMonitor;

impl Monitor for NoMonitor {
    fn event(&self, _event: &Event) {}
}
