//! How many movers work at one time: a controller that climbs while climbing pays.
//!
//! It knows nothing of file systems. It sees, window by window, how much was done and how long movers were at it,
//! and answers how many there should be. Three rules:
//!
//! - **Climb while it pays.** More movers are kept if the work done per second rose by a fair part of what they
//!   cost; else the step is taken back. Steps double at the start and are a quarter later.
//! - **Give back what does not pay.** Now and then fewer are tried, and kept if nothing was lost.
//! - **Yield to others.** If each piece of work takes several times as long as it did at best, a server is
//!   crowded, by us or by somebody else: no climbing, and beyond that a third of the movers stop. Adding
//!   little and giving up a share is what makes several controllers on one server end up alike.

/// Least and most movers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// At least one.
    pub least: usize,
    /// Fewer than this have to be faster to be kept, as with a lock or a disk that seeks: among few movers one is
    /// a large part, and a bad moment must not leave a processor idle.
    pub usual: usize,
    /// Not less than `least`.
    pub most: usize,
}

/// What was seen between two decisions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// How long it was, in seconds.
    pub elapsed_s: f64,
    /// Work that was done, in any unit that stays the same.
    pub work: f64,
    /// Movers that were at work on average; fewer than allowed if there was nothing more to do.
    pub movers: f64,
    /// The processors had no time left: more movers can bring nothing.
    pub saturated: bool,
}

impl Window {
    fn rate(&self) -> f64 {
        self.work / self.elapsed_s.max(1e-9)
    }

    /// Time of one mover for one unit of work.
    fn cost(&self) -> f64 {
        self.movers / self.rate().max(1e-9)
    }
}

/// A step has to bring at least this part of what it costs.
const FAIR_PART: f64 = 0.4;
/// A rate that is lower by no more than this is the same.
const SAME: f64 = 0.97;
/// Fewer movers than usual have to be faster.
const FASTER: f64 = 1.05;
/// Such a trial costs much where it fails, so it has to wait until patience has grown to so many windows.
const RARELY: u32 = 32;
/// Work that takes so many times as long as at best is a sign of a crowd, which is no place to climb in.
const CROWDED: f64 = 2.5;
/// From here on, movers stop.
const OVERCROWDED: f64 = 3.5;
/// What is left then.
const YIELD: f64 = 0.7;
/// Windows between two trials at the least and, after trials that brought nothing, at the most.
const PATIENCE: (u32, u32) = (4, 64);
/// The best cost is forgotten by this much a window: work changes its nature.
const FORGETTING: f64 = 1.005;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// A new number is being tried; `from` and its rate are the alternative.
    Trial { from: usize, rate: f64, fast: bool },
    /// Nothing is tried for so many windows.
    Rest { windows: u32 },
}

/// Controls the number of movers of one class.
#[derive(Debug, Clone)]
pub struct Controller {
    bounds: Bounds,
    width: usize,
    phase: Phase,
    /// Of a window with the present number, smoothed.
    rate: Option<f64>,
    /// The least time of one mover for one unit of work that was seen.
    best_cost: Option<f64>,
    patience: u32,
    /// The next trial goes down.
    downward: bool,
    /// More movers brought nothing, or there can be no more.
    at_limit: bool,
}

impl Controller {
    /// Begins with `start` movers.
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

    /// How many there should be.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether the upper bound is what keeps it from trying more.
    pub fn is_bounded(&self) -> bool {
        self.width == self.bounds.most
    }

    /// Whether more movers have been tried and brought nothing.
    pub fn is_settled(&self) -> bool {
        self.at_limit
    }

    /// Takes note of a window and decides anew.
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

    /// Judges a trial by its rate.
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

    /// Ends a trial. Success makes the next one come soon.
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
