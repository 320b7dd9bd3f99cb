//! The line that a log has of a job now and then.
use dmover_observe::Counter;
use std::time::{Duration, Instant};

use crate::context::Engine;

/// Tells the log how far the job is.
pub(super) struct Pulse {
    every: Duration,
    told: Instant,
}

impl Pulse {
    /// A line this often; zero: never.
    pub fn new(every: Duration) -> Self {
        Self { every, told: Instant::now() }
    }

    /// Writes the line if its time has come.
    pub fn turn(&mut self, engine: &Engine, tasks_left: u64) {
        if self.every.is_zero() || self.told.elapsed() < self.every {
            return;
        }
        self.told = Instant::now();
        let get = |counter| engine.counters.get(counter);
        tracing::info!(
            elapsed_s = engine.started.elapsed().as_secs(),
            entries_found = get(Counter::EntriesFound),
            files_copied = get(Counter::FilesCopied),
            entries_skipped = get(Counter::EntriesSkipped),
            bytes_found = get(Counter::BytesFound),
            bytes_copied = get(Counter::BytesCopied) + get(Counter::BytesShared),
            bytes_compared = get(Counter::BytesCompared),
            bytes_hashed = get(Counter::BytesHashed),
            errors = get(Counter::Errors),
            tasks_left,
            "progress"
        );
    }
}
