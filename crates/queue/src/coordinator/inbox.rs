//! What the driver of a job receives from its movers.
use async_nats::jetstream;
use dmover_engine::queue::Reported;
use dmover_model::Fatal;
use dmover_schedule::sync::{Condvar, Mutex};
use std::sync::PoisonError;
use std::time::Duration;

use super::lock;

/// The most entries in received reports that the driver has not processed; further reports wait.
const UNHEARD_MAX: usize = 1 << 15;

/// Reports of movers that wait for the driver, and the reason why the run cannot continue.
pub(super) struct Inbox {
    /// Reports that the driver has not taken, in order.
    reports: Mutex<Vec<Reported>>,
    /// The number of entries in the reports.
    unheard: Mutex<usize>,
    /// Wakes the driver.
    arrival: Condvar,
    /// Messages that were received; they are acknowledged when the driver has recorded their reports.
    messages: Mutex<Vec<jetstream::Message>>,
    /// The first reason why the run cannot continue.
    failure: Mutex<Option<Fatal>>,
}

impl Inbox {
    /// Without reports.
    pub fn new() -> Self {
        Self {
            reports: Mutex::default(),
            unheard: Mutex::new(0),
            arrival: Condvar::new(),
            messages: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    /// Passes reports about this many entries to the driver.
    pub fn put(&self, reports: Vec<Reported>, entries: usize) {
        lock(&self.reports).extend(reports);
        *lock(&self.unheard) += entries;
        self.arrival.notify_all();
    }

    /// All reports. Waits for the first one for at most this long.
    pub fn take(&self, wait: Duration) -> Vec<Reported> {
        let reports = lock(&self.reports);
        let (mut reports, _) = self
            .arrival
            .wait_timeout_while(reports, wait, |reports| reports.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *reports);
        drop(reports);
        *lock(&self.unheard) = 0;
        all
    }

    /// Whether further reports must wait.
    pub fn is_full(&self) -> bool {
        *lock(&self.unheard) > UNHEARD_MAX
    }

    /// Keeps a received message until its reports are recorded.
    pub fn keep(&self, message: jetstream::Message) {
        lock(&self.messages).push(message);
    }

    /// The messages to acknowledge.
    pub fn take_messages(&self) -> Vec<jetstream::Message> {
        std::mem::take(&mut *lock(&self.messages))
    }

    /// Reports that the run cannot continue.
    pub fn fail(&self, why: Fatal) {
        lock(&self.failure).get_or_insert(why);
        self.arrival.notify_all();
    }

    /// Whether there is a reason that the driver has not taken.
    pub fn has_failed(&self) -> bool {
        lock(&self.failure).is_some()
    }

    /// The reason why the run cannot continue; it is returned once.
    pub fn take_failure(&self) -> Option<Fatal> {
        lock(&self.failure).take()
    }
}
