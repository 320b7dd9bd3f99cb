//! Simulated time, and the clocks of the hosts in it.
//!
//! Time does not pass by itself. It advances when a test says so, or by the tick of a clock at each call, so that the
//! times of two changes may differ, or be equal if the file system keeps them coarser than that.
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use dmover_model::Timestamp;

const NS_PER_S: i64 = 1_000_000_000;

/// The one time of a simulation, in nanoseconds since 1970; clones share it.
#[derive(Debug, Clone)]
pub struct SimulatedTime(Arc<AtomicI64>);

impl SimulatedTime {
    /// A time that begins so many seconds after 1970.
    pub fn starting_at(seconds: i64) -> Self {
        Self(Arc::new(AtomicI64::new(seconds.saturating_mul(NS_PER_S))))
    }

    /// A time that others let pass as well: nanoseconds since 1970.
    pub fn sharing(nanoseconds: Arc<AtomicI64>) -> Self {
        Self(nanoseconds)
    }

    /// Nanoseconds since 1970.
    pub fn now_ns(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Lets so many nanoseconds pass.
    pub fn advance_ns(&self, by_ns: u64) {
        self.0.fetch_add(by_ns as i64, Ordering::Relaxed);
    }
}

/// The wall clock of one host: simulated time with an offset.
#[derive(Debug, Clone)]
pub struct Clock {
    time: SimulatedTime,
    offset_ns: i64,
    tick_ns: u64,
}

impl Clock {
    /// A clock that shows `time` exactly, and lets `tick_ns` pass at each call of a disk.
    pub fn new(time: SimulatedTime, tick_ns: u64) -> Self {
        Self { time, offset_ns: 0, tick_ns }
    }

    /// The same clock, so many nanoseconds ahead (or behind, if negative).
    #[must_use]
    pub fn with_offset_ns(mut self, offset_ns: i64) -> Self {
        self.offset_ns = offset_ns;
        self
    }

    /// Steps the clock, as an administrator does; simulated time does not change.
    pub fn step_ns(&mut self, by_ns: i64) {
        self.offset_ns = self.offset_ns.saturating_add(by_ns);
    }

    /// What the clock shows.
    pub fn now(&self) -> Timestamp {
        let now_ns = self.time.now_ns().saturating_add(self.offset_ns);
        Timestamp {
            seconds: now_ns.div_euclid(NS_PER_S),
            nanoseconds: now_ns.rem_euclid(NS_PER_S) as u32,
        }
    }

    /// The time that this clock shows, shared with the clocks of other hosts.
    pub fn time(&self) -> &SimulatedTime {
        &self.time
    }

    /// One call begins.
    pub(crate) fn tick(&self) {
        self.time.advance_ns(self.tick_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_share_time_and_differ_by_their_offset() {
        let time = SimulatedTime::starting_at(100);
        let here = Clock::new(time.clone(), 0);
        let mut there = Clock::new(time.clone(), 0).with_offset_ns(-500_000_000);
        time.advance_ns(1);
        assert_eq!(here.now(), Timestamp { seconds: 100, nanoseconds: 1 });
        assert_eq!(there.now(), Timestamp { seconds: 99, nanoseconds: 500_000_001 });
        there.step_ns(500_000_000);
        assert_eq!(here.now(), there.now());
    }
}
