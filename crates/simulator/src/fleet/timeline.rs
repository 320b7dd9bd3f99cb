//! Simulated time.
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Microseconds of a millisecond.
pub(super) const MS: u64 = 1000;

/// The present time, and the events that follow. Events of the same time happen in the order in which they were added.
#[derive(Debug)]
pub(super) struct Timeline<E> {
    /// The present time in microseconds.
    now_us: u64,
    /// The number of events so far.
    added: u64,
    /// Time, number, event.
    events: BinaryHeap<Reverse<(u64, u64, E)>>,
}

impl<E: Ord> Timeline<E> {
    /// Time starts at 0.
    pub fn new() -> Self {
        Self { now_us: 0, added: 0, events: BinaryHeap::new() }
    }

    /// Adds an event after this many microseconds.
    pub fn after(&mut self, us: u64, event: E) {
        self.added += 1;
        self.events.push(Reverse((self.now_us + us, self.added, event)));
    }

    /// Moves the time to the next event.
    pub fn next(&mut self) -> Option<E> {
        let Reverse((at_us, _, event)) = self.events.pop()?;
        self.now_us = at_us;
        Some(event)
    }

    /// The present time in microseconds.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// The present time in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.now_us / MS
    }
}
