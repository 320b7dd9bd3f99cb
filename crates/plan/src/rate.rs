//! A token bucket for `--bwlimit` and `--ops-limit`.

/// Lets through `rate_per_s` units a second, with bursts of at most a tenth of a second's worth.
#[derive(Debug)]
pub struct TokenBucket {
    rate_per_s: f64,
    burst: f64,
    tokens: f64,
    last_ns: u64,
}

impl TokenBucket {
    /// A full bucket at time `now_ns`.
    pub fn new(rate_per_s: u64, now_ns: u64) -> Self {
        let rate = (rate_per_s.max(1)) as f64;
        let burst = (rate / 10.0).max(1.0);
        Self { rate_per_s: rate, burst, tokens: burst, last_ns: now_ns }
    }

    /// Takes `amount` units and returns how many nanoseconds to wait before using them.
    ///
    /// The bucket may go into debt, so that an amount above the burst still passes, but later.
    pub fn take(&mut self, amount: u64, now_ns: u64) -> u64 {
        let elapsed_s = now_ns.saturating_sub(self.last_ns) as f64 / 1e9;
        self.last_ns = self.last_ns.max(now_ns);
        self.tokens = (self.tokens + elapsed_s * self.rate_per_s).min(self.burst);
        self.tokens -= amount as f64;
        if self.tokens >= 0.0 { 0 } else { (-self.tokens / self.rate_per_s * 1e9) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_long_run_rate_is_kept(rate in 1u64..1 << 40, amounts in proptest::collection::vec(1u64..1 << 24, 1..200)) {
            let mut bucket = TokenBucket::new(rate, 0);
            let mut now = 0u64;
            for amount in &amounts {
                now += bucket.take(*amount, now);
            }
            let total: u64 = amounts.iter().sum();
            let least_s = (total as f64 - bucket.burst) / rate as f64;
            prop_assert!(now as f64 / 1e9 >= least_s * 0.999 - 1e-6);
            prop_assert!(now as f64 / 1e9 <= total as f64 / rate as f64 * 1.001 + 1e-6);
        }
    }
}
