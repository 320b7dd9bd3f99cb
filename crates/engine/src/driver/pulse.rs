//! The periodic progress line in the log.
use dmover_observe::Counter;
use dmover_schedule::time::Instant;
use std::time::Duration;

use crate::context::Engine;

/// Writes the progress of the job to the log.
pub(super) struct Pulse {
    every: Duration,
    told: Instant,
}

impl Pulse {
    /// `every`: the interval; zero: never.
    pub fn new(every: Duration) -> Self {
        Self { every, told: Instant::now() }
    }

    /// Writes the line if it is due.
    pub fn turn(&mut self, engine: &Engine, tasks_left: u64) {
        if self.every.is_zero() || self.told.elapsed() < self.every {
            return;
        }
        self.told = Instant::now();
        let get = |counter| engine.reports.counters.get(counter);
        tracing::info!(
            elapsed_s = engine.reports.started.elapsed().as_secs(),
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
