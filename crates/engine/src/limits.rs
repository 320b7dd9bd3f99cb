//! The rate limits that the user set, shared by all movers.
use dmover_model::Limits;
use dmover_observe::{Activity, activity};
use dmover_plan::rate::TokenBucket;
use dmover_schedule::sync::Mutex;
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::control::Control;
use crate::queue::Lease;

/// Rate limits of one job.
#[derive(Debug)]
pub(crate) struct RateLimits {
    started: Instant,
    bytes: Option<Mutex<TokenBucket>>,
    operations: Option<Mutex<TokenBucket>>,
    opens: Option<Mutex<TokenBucket>>,
    creates: Option<Mutex<TokenBucket>>,
    /// The number of processes that share them evenly.
    shares: AtomicU32,
    /// The rate limit of this process for any job.
    own: Option<Mutex<TokenBucket>>,
    /// The rates of `bytes` and `own`.
    rates: [Option<u64>; 2],
}

impl RateLimits {
    /// The limits of a job, and the limit of this process.
    pub fn new(limits: &Limits, own_bytes_per_s: Option<u64>) -> Self {
        let bucket = |rate: Option<u64>| rate.map(|r| Mutex::new(TokenBucket::new(r, 0)));
        Self {
            started: Instant::now(),
            bytes: bucket(limits.bytes_per_s),
            operations: bucket(limits.operations_per_s),
            opens: bucket(limits.opens_per_s),
            creates: bucket(limits.creates_per_s),
            shares: AtomicU32::new(1),
            own: bucket(own_bytes_per_s),
            rates: [limits.bytes_per_s, own_bytes_per_s],
        }
    }

    /// Sets how many processes share the limits.
    pub fn share(&self, processes: u32) {
        self.shares.store(processes.max(1), Ordering::Relaxed);
    }

    /// Waits until `amount` bytes may be copied.
    pub fn bytes(&self, amount: u64, control: &Control, lease: &Lease) {
        let shares = u64::from(self.shares.load(Ordering::Relaxed));
        self.wait(self.bytes.as_ref(), amount * shares, (control, lease));
        self.wait(self.own.as_ref(), amount, (control, lease));
    }

    /// Waits until one more entry may be processed.
    pub fn operation(&self, control: &Control, lease: &Lease) {
        self.one(self.operations.as_ref(), control, lease);
    }

    /// Waits until one more source file may be opened.
    pub fn open(&self, control: &Control, lease: &Lease) {
        self.one(self.opens.as_ref(), control, lease);
    }

    /// Waits until one more entry may be created at the destination.
    pub fn create(&self, control: &Control, lease: &Lease) {
        self.one(self.creates.as_ref(), control, lease);
    }

    fn one(&self, bucket: Option<&Mutex<TokenBucket>>, control: &Control, lease: &Lease) {
        let shares = u64::from(self.shares.load(Ordering::Relaxed));
        self.wait(bucket, shares, (control, lease));
    }

    /// Whether bytes are limited.
    pub fn has_rate(&self) -> bool {
        self.rates.iter().any(Option::is_some)
    }

    /// The largest block that keeps the rate smooth: what may be copied in an eighth of a second.
    pub fn block_bytes(&self, block: usize) -> usize {
        let shares = 8 * u64::from(self.shares.load(Ordering::Relaxed));
        let [shared, own] = self.rates;
        let least = shared.map(|rate| rate / shares).into_iter().chain(own.map(|rate| rate / 8));
        least.min().map_or(block, |bytes| block.min(bytes.max(4096) as usize))
    }

    fn wait(
        &self,
        bucket: Option<&Mutex<TokenBucket>>,
        amount: u64,
        (control, lease): (&Control, &Lease),
    ) {
        let Some(bucket) = bucket else { return };
        let wait_ns = {
            let now = self.started.elapsed().as_nanos() as u64;
            let mut bucket = bucket.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            bucket.take(amount, now)
        };
        if wait_ns == 0 {
            return;
        }
        let before = activity::at(Activity::Capped);
        let until = Instant::now() + Duration::from_nanos(wait_ns);
        // In slices, so that a stop is heard and the task does not count as stalled.
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if control.is_over() || left.is_zero() {
                break;
            }
            thread::sleep(left.min(Duration::from_millis(50)));
            lease.extend();
        }
        activity::at(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::{Budget, Task, TaskId, TaskKind};

    #[test]
    fn who_waits_for_a_limit_does_not_stand_still() {
        let limits = Limits { creates_per_s: Some(10), ..Limits::default() };
        let (limits, control) = (RateLimits::new(&limits, None), Control::default());
        let budget = Budget { entries: 1, bytes: 1, time_ms: 1 };
        let task = Task::new(TaskId(1), TaskKind::Catalog(Vec::new()), budget);
        let lease = Lease::granted(task, 1, Lease::now_ms() + 60_000);
        limits.create(&control, &lease);
        assert!(!lease.take_progress(), "there was nothing to wait for");
        limits.create(&control, &lease);
        assert!(lease.take_progress());
    }
}
