//! Detects whether more movers still make a job faster.
//!
//! The total rate is recorded for each number of movers. When a larger fleet is hardly faster than a smaller one, a
//! message says so once: a shared resource limits the job, and further movers only compete for it.
use std::collections::BTreeMap;

/// Below this share of the expected gain, more movers do not help.
const GAIN_MIN: f64 = 0.15;
/// Periods before the rate of a fleet size is known, and how many are remembered.
const STRETCHES_MIN: usize = 3;
const STRETCHES_MAX: usize = 16;

/// More movers have not made the job faster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plateau {
    /// This many movers were about as fast.
    pub before: usize,
    /// The present number of movers.
    pub now: usize,
    /// How many times as fast they are.
    pub times: f64,
}

impl Plateau {
    /// The message.
    pub fn words(&self, limit: &str) -> String {
        let Self { before, now, times } = self;
        format!(
            "{now} movers are {times:.2} times as fast as {before}: more movers do not help; the \
            limit is {limit}"
        )
    }
}

/// The rates of a fleet by its size.
#[derive(Debug, Default)]
pub struct Scaling {
    rates: BTreeMap<usize, Vec<f64>>,
    last: Option<(u64, u64, usize)>,
    told: Option<usize>,
}

impl Scaling {
    /// Adds the total work of this many movers. `starved`: they waited for tasks, so that the sample is ignored.
    pub fn tell(
        &mut self,
        movers: usize,
        work: u64,
        starved: bool,
        now_ms: u64,
    ) -> Option<Plateau> {
        let (then_ms, before, size) = self.last.replace((now_ms, work, movers))?;
        // A period in which a mover joined or left belongs to neither size.
        if size != movers || starved || movers == 0 || now_ms <= then_ms {
            return None;
        }
        let rate = work.saturating_sub(before) as f64 * 1000.0 / (now_ms - then_ms) as f64;
        let rates = self.rates.entry(movers).or_default();
        rates.push(rate);
        if rates.len() > STRETCHES_MAX {
            rates.remove(0);
        }
        let plateau = self.plateau(movers)?;
        let is_new = self.told != Some(movers);
        self.told = Some(movers);
        is_new.then_some(plateau)
    }

    /// Whether this many movers are hardly faster than fewer were.
    pub fn plateau(&self, movers: usize) -> Option<Plateau> {
        let now = self.rate(movers)?;
        let (before, then) = self
            .rates
            .range(..movers)
            .rev()
            .find_map(|(size, _)| Some((*size, self.rate(*size)?)))?;
        let times = now / then.max(1.0);
        let hoped = movers as f64 / before as f64;
        (times - 1.0 < GAIN_MIN * (hoped - 1.0)).then_some(Plateau { before, now: movers, times })
    }

    /// The median rate of a fleet of this size.
    fn rate(&self, movers: usize) -> Option<f64> {
        let mut rates = self.rates.get(&movers)?.clone();
        rates.sort_unstable_by(f64::total_cmp);
        (rates.len() >= STRETCHES_MIN).then(|| rates[rates.len() / 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has fleets of these sizes work for ten stretches each, each mover as fast as it can, up to what they share.
    fn run(sizes: &[usize], each: u64, shared: u64) -> Vec<Plateau> {
        let mut scaling = Scaling::default();
        let (mut work, mut now, mut told) = (0, 0, Vec::new());
        for size in sizes {
            for _ in 0..10 {
                now += 2000;
                work += 2 * (each * *size as u64).min(shared);
                told.extend(scaling.tell(*size, work, false, now));
            }
        }
        told
    }

    #[test]
    fn twelve_movers_that_bring_nothing_are_told_once() {
        // A published measurement: 8 and 20 movers read the same from one file system.
        let told = run(&[8, 20], 845_000_000, 6_760_000_000);
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!((told[0].before, told[0].now), (8, 20));
        let words = told[0].words("source");
        assert!(words.starts_with("20 movers are 1.00 times as fast as 8:"), "{words}");
    }

    #[test]
    fn as_long_as_they_bring_something_nothing_is_said() {
        assert_eq!(run(&[1, 2, 4, 8], 100, u64::MAX), []);
        assert_eq!(run(&[8, 20], 100, 1400), [], "three quarters more are something");
    }

    #[test]
    fn who_waits_for_tasks_says_nothing() {
        let mut scaling = Scaling::default();
        for (turn, movers) in (0..20).map(|turn| (turn, if turn < 10 { 2 } else { 9 })) {
            assert_eq!(scaling.tell(movers, turn * 1000, turn >= 10, turn * 2000), None);
        }
    }
}
