//! Controls how many movers run at a time, and adds movers as long as that makes the job faster.
//!
//! The controller knows nothing about file systems. For each window of time it gets the work done and the time that
//! movers took, and returns how many movers should run. It has three rules:
//!
//! - **Climb while it pays.** An increase is kept if the work per second rose by a fair share of its cost; otherwise it
//!   is undone. Steps double at the start and are a quarter later.
//! - **Return what does not pay.** At intervals fewer movers are tried, and kept if nothing was lost.
//! - **Yield to others.** If each unit of work takes several times as long as at best, a server is crowded, by this job
//!   or by others: no movers are added, and above a second threshold a third of them stop. Small increases and
//!   proportional decreases make several controllers on one server converge to equal shares.

/// The range of the number of movers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The least number, at least 1.
    pub least: usize,
    /// A number below this is kept only if it is faster, as with a lock or a disk that seeks: among few movers, one
    /// mover is a large share, and a short disturbance must not leave a processor idle.
    pub usual: usize,
    /// The greatest number, not below `least`.
    pub most: usize,
}

/// The observations between two decisions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// Its length in seconds.
    pub elapsed_s: f64,
    /// The work done, in any constant unit.
    pub work: f64,
    /// The average number of busy movers; it is below the allowed number if there was not enough work.
    pub movers: f64,
    /// The processors were saturated: more movers cannot help.
    pub saturated: bool,
}

impl Window {
    fn rate(&self) -> f64 {
        self.work / self.elapsed_s.max(1e-9)
    }

    /// The time of one mover for one unit of work.
    fn cost(&self) -> f64 {
        self.movers / self.rate().max(1e-9)
    }
}

/// A step must bring at least this share of what it costs.
const FAIR_PART: f64 = 0.4;
/// A rate of at least this share of the old one counts as equal.
const SAME: f64 = 0.97;
/// Fewer movers than `usual` must be faster by this factor.
const FASTER: f64 = 1.05;
/// A failed trial of fewer movers is costly, so it waits until the patience has grown to this many windows.
const RARELY: u32 = 32;
/// If work takes this many times as long as at best, the server is crowded, and no movers are added.
const CROWDED: f64 = 2.5;
/// Above this factor, movers stop.
const OVERCROWDED: f64 = 3.5;
/// The share of movers that remains then.
const YIELD: f64 = 0.7;
/// Windows between two trials: at least, and at most after trials that brought nothing.
const PATIENCE: (u32, u32) = (4, 64);
/// The best cost grows by this factor in each window, because the kind of work changes.
const FORGETTING: f64 = 1.005;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// A new number is being tried; `from` movers with `rate` are the alternative.
    Trial { from: usize, rate: f64, fast: bool },
    /// No trial for this many windows.
    Rest { windows: u32 },
}

/// Controls the number of movers of one class.
#[derive(Debug, Clone)]
pub struct Controller {
    bounds: Bounds,
    width: usize,
    phase: Phase,
    /// The smoothed rate with the present number.
    rate: Option<f64>,
    /// The least time of one mover for one unit of work so far.
    best_cost: Option<f64>,
    patience: u32,
    /// The next trial tries fewer movers.
    downward: bool,
    /// More movers did not help, or are not allowed.
    at_limit: bool,
}

impl Controller {
    /// A controller that starts with `start` movers.
    pub fn new(bounds: Bounds, start: usize) -> Self {
        let width = start.clamp(bounds.least, bounds.most);
        Self {
            bounds,
            width,
            phase: Phase::Rest { windows: 0 },
            rate: None,
            best_cost: None,
            patience: PATIENCE.0,
            downward: false,
            at_limit: bounds.least == bounds.most,
        }
    }

    /// How many movers should run.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether the upper bound prevents a trial of more movers.
    pub fn is_bounded(&self) -> bool {
        self.width == self.bounds.most
    }

    /// Whether more movers were tried without a gain.
    pub fn is_settled(&self) -> bool {
        self.at_limit
    }

    /// Takes the observations of a window and returns the new number of movers.
    pub fn observe(&mut self, window: &Window) -> usize {
        let starved = window.movers < self.width as f64 * 0.75;
        // Those that are to stop end what they are at first.
        let leaving = window.movers > self.width as f64 * 1.1 + 0.5;
        if window.work <= 0.0 || starved || leaving || self.bounds.least == self.bounds.most {
            // Nothing can be learnt from movers that had nothing to do, nor from another number of them.
            return self.width;
        }
        let (rate, cost) = (window.rate(), window.cost());
        let best = self.best_cost.map_or(cost, |best| (best * FORGETTING).min(cost));
        self.best_cost = Some(best);
        let crowding = cost / best;
        match self.phase {
            Phase::Trial { from, rate: before, fast } => {
                self.judge((from, before), rate, crowding, fast);
            }
            Phase::Rest { windows } => self.rest(windows, window, crowding),
        }
        self.width
    }

    fn rest(&mut self, windows: u32, window: &Window, crowding: f64) {
        let rate = window.rate();
        let first = self.rate.is_none();
        let smooth = self.rate.map_or(rate, |old| 0.5 * old + 0.5 * rate);
        self.rate = Some(smooth);
        if crowding > OVERCROWDED && self.width > self.bounds.least {
            self.yield_some();
            return;
        }
        if windows > 0 {
            self.phase = Phase::Rest { windows: windows - 1 };
            return;
        }
        if window.saturated && first {
            // The first window with time to spare is the first that says something.
            self.rate = None;
            self.at_limit = true;
        } else if window.saturated && !self.downward {
            self.at_limit = true;
            self.downward = true;
            self.phase = Phase::Rest { windows: self.patience };
        } else if first || (crowding <= CROWDED && !self.downward) {
            self.try_more(smooth, first);
        } else {
            self.try_fewer(smooth);
        }
    }

    fn try_more(&mut self, rate: f64, fast: bool) {
        let from = self.width;
        let step = if fast { from } else { (from / 4).max(1) };
        let width = (from + step).min(self.bounds.most);
        if width == from {
            self.at_limit = true;
            self.downward = true;
            self.phase = Phase::Rest { windows: self.patience };
            return;
        }
        self.width = width;
        self.phase = Phase::Trial { from, rate, fast };
    }

    fn try_fewer(&mut self, rate: f64) {
        let from = self.width;
        let width = (from - (from / 4).max(1).min(from - 1)).max(self.bounds.least);
        self.downward = false;
        if width == from || (width < self.bounds.usual && self.patience < RARELY) {
            self.phase = Phase::Rest { windows: self.patience };
            return;
        }
        self.width = width;
        self.phase = Phase::Trial { from, rate, fast: false };
    }

    /// Decides a trial by its rate.
    fn judge(&mut self, (from, before): (usize, f64), rate: f64, crowding: f64, fast: bool) {
        let gain = rate / before.max(1e-9);
        if self.width < from {
            if gain >= if self.width < self.bounds.usual { FASTER } else { SAME } {
                self.settle(Some(rate), true);
                self.downward = self.width > self.bounds.usual;
            } else {
                self.width = from;
                self.settle(None, false);
            }
            return;
        }
        let cost = self.width as f64 / from as f64;
        let pays = gain >= 1.0 + FAIR_PART * (cost - 1.0) && crowding <= CROWDED;
        if pays {
            self.patience = PATIENCE.0;
            self.at_limit = false;
            self.rate = Some(rate);
            self.try_more(rate, fast);
        } else if fast && gain > 1.0 + FAIR_PART * (cost - 1.0) / 2.0 {
            // Half the step may be right.
            self.width = usize::midpoint(from, self.width);
            self.settle(None, true);
        } else {
            self.width = from;
            self.at_limit = true;
            self.settle(None, false);
            self.downward = true;
        }
    }

    /// Ends a trial. After a success, the next trial comes soon.
    fn settle(&mut self, rate: Option<f64>, success: bool) {
        if rate.is_some() {
            self.rate = rate;
        }
        self.patience = if success { PATIENCE.0 } else { (self.patience * 2).min(PATIENCE.1) };
        self.phase = Phase::Rest { windows: self.patience };
    }

    fn yield_some(&mut self) {
        let width = (self.width as f64 * YIELD) as usize;
        self.width = width.clamp(self.bounds.least, self.width - 1);
        self.rate = None;
        self.patience = PATIENCE.0;
        self.downward = false;
        self.phase = Phase::Rest { windows: PATIENCE.0 };
        // Not a first window: what follows is no start from nothing.
        self.rate = self.rate.or(Some(0.0));
    }
}

#[cfg(test)]
#[path = "concurrency_tests.rs"]
mod tests;
