//! Estimates how much of a job is done, and how long the rest takes.
//!
//! The cost of a job has two parts: one for each entry and one for each byte that is copied. Both are estimated from
//! recent samples of the job itself. So small files at the start do not distort the estimate for large files, once the
//! job has seen some of both. Under `--bwlimit`, no byte costs less than the limit allows, so the estimate is right
//! before the first large file, too.

/// Before samples exist, one entry costs as much as this many bytes: a file of 64 KiB takes about as long as its entry,
/// on disks, on servers and in memory.
const ENTRY_BYTES: f64 = (64 << 10) as f64;
/// The weight of that assumption relative to the samples.
const CLING: f64 = 0.01;
/// There is no estimate before the job has run for this long.
const SETTLE_S: f64 = 10.0;
/// The age at which a sample has half its weight.
const HALF_LIFE_S: f64 = 120.0;
/// The length of the recent period.
const RECENT_S: f64 = 20.0;
/// The least half-width of the estimated range, as a share of it.
const SPREAD_MIN: f64 = 0.1;

/// The work that a job has done at one time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Done {
    /// Seconds since the job began.
    pub at_s: f64,
    /// Entries that were processed.
    pub entries: u64,
    /// Bytes of content of these entries, whether they were copied or not.
    pub bytes: u64,
    /// Bytes among them that were copied, compared or hashed.
    pub moved: u64,
}

/// The estimated progress of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The share of the whole work that is done, from 0 to 1.
    pub fraction: f64,
    /// The remaining time in seconds, from and to, as far as it can be estimated.
    pub left_s: Option<(f64, f64)>,
}

/// Learns the cost of the work from samples.
#[derive(Debug, Default)]
pub struct Estimator {
    last: Done,
    /// Weighted sums over all samples; older samples have less weight.
    all: Sums,
    /// Weighted sums over the last seconds.
    recent: Sums,
    /// The fraction shown so far; it never decreases.
    shown: f64,
}

/// Sums of products of entries (x), bytes (y) and seconds (t); each sample is one observation.
#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    xx: f64,
    xy: f64,
    yy: f64,
    xt: f64,
    yt: f64,
    x: f64,
    y: f64,
    t: f64,
}

impl Sums {
    fn fade(&mut self, factor: f64) {
        for sum in [
            &mut self.xx,
            &mut self.xy,
            &mut self.yy,
            &mut self.xt,
            &mut self.yt,
            &mut self.x,
            &mut self.y,
            &mut self.t,
        ] {
            *sum *= factor;
        }
    }

    fn add(&mut self, x: f64, y: f64, t: f64) {
        self.xx += x * x;
        self.xy += x * y;
        self.yy += y * y;
        self.xt += x * t;
        self.yt += y * t;
        self.x += x;
        self.y += y;
        self.t += t;
    }

    /// Seconds for one x and one y: a least-squares fit that keeps the assumed ratio unless the samples differ, with
    /// neither cost below zero, and the second not below `byte_s_min`.
    fn costs(&self, byte_s_min: f64) -> (f64, f64) {
        let (x, y) = self.free_costs();
        if y >= byte_s_min {
            return (x, y);
        }
        let rest = (self.xt - self.xy * byte_s_min) / self.xx.max(f64::MIN_POSITIVE);
        (rest.max(0.0), byte_s_min)
    }

    fn free_costs(&self) -> (f64, f64) {
        let cling = CLING * (self.xx + self.yy);
        let [first, cross, second] = [self.xx + cling, self.xy - cling, self.yy + cling];
        let determinant = first * second - cross * cross;
        if determinant <= 0.0 {
            return (1.0, 1.0);
        }
        let x = (self.xt * second - self.yt * cross) / determinant;
        let y = (self.yt * first - self.xt * cross) / determinant;
        if x < 0.0 {
            (0.0, self.yt / self.yy.max(f64::MIN_POSITIVE))
        } else if y < 0.0 {
            (self.xt / self.xx.max(f64::MIN_POSITIVE), 0.0)
        } else {
            (x, y)
        }
    }

    /// The ratio of the real time to the time that these costs predict.
    fn slowness(&self, (x, y): (f64, f64)) -> Option<f64> {
        let foretold = self.x * x + self.y * y;
        (foretold > 0.0).then(|| self.t / foretold)
    }
}

impl Estimator {
    /// Adds a sample, about once a second. The samples of a job that starts again begin at zero.
    pub fn sample(&mut self, done: Done) {
        let last = std::mem::replace(&mut self.last, done);
        if done.at_s < last.at_s || done.entries < last.entries || done.moved < last.moved {
            *self = Self { last: done, ..Self::default() };
            return;
        }
        let t = done.at_s - last.at_s;
        let x = (done.entries - last.entries) as f64 * ENTRY_BYTES;
        let y = (done.moved - last.moved) as f64;
        self.all.fade(0.5_f64.powf(t / HALF_LIFE_S));
        self.recent.fade(0.5_f64.powf(t / RECENT_S));
        self.all.add(x, y, t);
        self.recent.add(x, y, t);
    }

    /// The progress of the job if its total is this many entries and bytes of content. `byte_s_min` is the least time for a
    /// byte under a rate limit, in seconds; 0 without a limit.
    pub fn estimate(&mut self, entries: u64, bytes: u64, byte_s_min: f64) -> Estimate {
        let done = self.last;
        // Of what is left as large a share has to move as of what is done.
        let share = if done.bytes == 0 { 1.0 } else { done.moved as f64 / done.bytes as f64 };
        let x_left = entries.saturating_sub(done.entries) as f64 * ENTRY_BYTES;
        let y_left = bytes.saturating_sub(done.bytes) as f64 * share.min(1.0);
        let costs = self.all.costs(byte_s_min);
        let work = |x: f64, y: f64| x * costs.0 + y * costs.1;
        let was = work(done.entries as f64 * ENTRY_BYTES, done.moved as f64);
        let left = work(x_left, y_left);
        let fraction = if was + left > 0.0 { was / (was + left) } else { 0.0 };
        self.shown = self.shown.max(fraction.clamp(0.0, 1.0));
        let times = || {
            let mean = self.all.slowness(costs)?;
            let recent = self.recent.slowness(costs).unwrap_or(mean);
            let [low, high] = [mean.min(recent), mean.max(recent)];
            let middle = f64::midpoint(low, high);
            let [low, high] =
                [low.min(middle * (1.0 - SPREAD_MIN)), high.max(middle * (1.0 + SPREAD_MIN))];
            Some((left * low, left * high)).filter(|(_, high)| high.is_finite())
        };
        let left_s = if done.at_s < SETTLE_S { None } else { times() };
        Estimate { fraction: self.shown, left_s }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a job whose entries cost and whose bytes cost so many seconds, and answers the middle of the estimate
    /// divided by the truth once so much of its time is over.
    fn misjudgement(files: &[u64], (entry_s, byte_s): (f64, f64), limit_s: f64, when: f64) -> f64 {
        let cost = |size: &u64| entry_s + *size as f64 * byte_s;
        let whole: f64 = files.iter().map(cost).sum();
        let bytes: u64 = files.iter().sum();
        let (mut estimator, mut done, mut next) = (Estimator::default(), Done::default(), 1.0);
        for size in files {
            done.at_s += cost(size);
            done.entries += 1;
            done.bytes += size;
            done.moved += size;
            if done.at_s >= next {
                estimator.sample(done);
                next = done.at_s + 1.0;
            }
            if done.at_s >= whole * when {
                break;
            }
        }
        let estimate = estimator.estimate(files.len() as u64, bytes, limit_s);
        let (low, high) = estimate.left_s.expect("an estimate after a third");
        f64::midpoint(low, high) / (whole - done.at_s)
    }

    /// Sizes that differ, in an order that means nothing.
    fn sizes(count: u64, small: u64, large: u64, one_in: u64) -> Vec<u64> {
        let mixed = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        (0..count).map(|n| if mixed(n) % one_in == 0 { large } else { small }).collect()
    }

    #[test]
    fn a_third_of_a_job_tells_how_long_the_rest_takes() {
        let alike = sizes(60_000, 4096, 4096, 2);
        let mixed = sizes(30_000, 4096, 1 << 20, 10);
        for (files, entry_s, byte_s) in [
            (&alike, 5e-3, 0.0),
            (&alike, 5e-3, 1e-8),
            (&mixed, 1e-2, 1e-9),
            (&mixed, 0.0, 1e-7),
            (&mixed, 5e-3, 1e-7),
        ] {
            for when in [0.34, 0.5, 0.7, 0.9] {
                let ratio = misjudgement(files, (entry_s, byte_s), 0.0, when);
                assert!((0.8..1.25).contains(&ratio), "{entry_s} {byte_s} at {when}: {ratio}");
            }
        }
    }

    #[test]
    fn small_files_first_do_not_mislead_once_both_kinds_were_seen() {
        // A third of the time for small files with some large ones among them, then large ones alone.
        let mut files = sizes(20_000, 4096, 1 << 20, 100);
        files.extend(vec![1 << 20; 4_000]);
        // By the byte alone, as under --bwlimit.
        let ratio = misjudgement(&files, (0.0, 5e-8), 0.0, 0.34);
        assert!((0.75..1.25).contains(&ratio), "{ratio}");
    }

    #[test]
    fn small_files_alone_do_not_mislead_under_a_limit() {
        let mut files = vec![16 << 10; 20_000];
        files.extend(vec![4 << 20; 200]);
        for when in [0.1, 0.2, 0.27, 0.5, 0.9] {
            let ratio = misjudgement(&files, (0.0, 1e-7), 1e-7, when);
            assert!((0.8..1.25).contains(&ratio), "{when}: {ratio}");
            // A limit that is far above what the storage does changes nothing.
            let free = misjudgement(&files, (1e-3, 1e-7), 0.0, when);
            let limited = misjudgement(&files, (1e-3, 1e-7), 1e-12, when);
            assert!((free - limited).abs() < 1e-6, "{when}: {free} {limited}");
        }
    }

    #[test]
    fn what_need_not_move_is_not_waited_for() {
        let mut estimator = Estimator::default();
        // Of each ten bytes one has to move.
        for second in 0..30_u64 {
            let bytes = second * (1 << 30);
            let done =
                Done { at_s: second as f64, entries: second * 100, bytes, moved: bytes / 10 };
            estimator.sample(done);
        }
        let estimate = estimator.estimate(5800, 58 << 30, 0.0);
        let (low, high) = estimate.left_s.expect("after 29 s");
        assert!(low < 29.0 && 29.0 < high, "{low} to {high}");
        assert!((0.45..0.55).contains(&estimate.fraction), "{estimate:?}");
    }

    #[test]
    fn a_share_never_goes_back_and_an_estimate_waits() {
        let mut estimator = Estimator::default();
        estimator.sample(Done { at_s: 1.0, entries: 50, bytes: 0, moved: 0 });
        let first = estimator.estimate(100, 0, 0.0);
        assert!(first.left_s.is_none(), "a second says nothing");
        assert!((first.fraction - 0.5).abs() < 1e-9, "{first:?}");
        assert!(estimator.estimate(1000, 0, 0.0).fraction >= first.fraction);
    }
}
