//! What a seed chooses about a source at another host.
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

/// The share of seeds whose source is at another host.
const SHARE: f64 = 0.25;
const NS_PER_S: i64 = 1_000_000_000;

/// A source at another host.
#[derive(Debug, Clone)]
pub struct Far {
    /// How far its clock is ahead of that of the job, in nanoseconds.
    pub clock_ns: i64,
    /// The difference of the clocks is known. If it is not, the clocks differ by less than an hour.
    pub knows_skew: bool,
    /// Runs with a bad connection, before all others.
    pub runs: Vec<BadRun>,
    /// Right after a complete run, some extended attributes change, and nothing else.
    pub is_annotated: bool,
}

/// A run with a bad connection to the source.
#[derive(Debug, Clone, Copy)]
pub struct BadRun {
    /// The connection is lost at this request.
    pub lost_at: Option<u64>,
    /// The source changes at this request.
    pub changes_at: Option<u64>,
    /// The process is killed at this call.
    pub killed_at: Option<u64>,
    /// Requests fail with this chance.
    pub errors: f64,
}

impl Far {
    /// The far source of a seed, if it has one.
    pub fn of(seed: u64) -> Option<Self> {
        // Numbers of its own, so that the rest of the plan does not depend on it.
        let mut random = ChaCha8Rng::seed_from_u64(seed ^ 0x6661_7220);
        let random = &mut random;
        if !random.random_bool(SHARE) {
            return None;
        }
        let knows_skew = random.random_bool(0.7);
        let most = if knows_skew { 7.0 } else { 3.5 };
        let ahead_ns = (10_f64.powf(random.random_range(-3.0..most)) * NS_PER_S as f64) as i64;
        let clock_ns = if random.random_bool(0.5) { ahead_ns } else { -ahead_ns };
        let runs = (0..random.random_range(0..4_u32)).map(|_| BadRun::of(random)).collect();
        Some(Self { clock_ns, knows_skew, runs, is_annotated: random.random_bool(0.5) })
    }

    /// What the tree says about the clocks.
    pub fn skew(&self) -> Option<Duration> {
        self.knows_skew.then(|| Duration::from_nanos(self.clock_ns.unsigned_abs()))
    }
}

impl BadRun {
    fn of(random: &mut ChaCha8Rng) -> Self {
        // As many of the first ten as of the next hundred.
        let mut some = |chance, most| {
            let at = 10_f64.powf(random.random_range(0.0..most)) as u64;
            random.random_bool(chance).then_some(at)
        };
        let (lost_at, changes_at, killed_at) = (some(0.7, 2.7), some(0.5, 2.7), some(0.2, 3.7));
        let errors = if random.random_bool(0.3) { 0.03 } else { 0.0 };
        Self { lost_at, changes_at, killed_at, errors }
    }
}
