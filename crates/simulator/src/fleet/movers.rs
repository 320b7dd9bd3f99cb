//! The movers of a simulated fleet.
use dmover_plan::leases::MoverId;
use std::collections::VecDeque;

/// A process with movers.
#[derive(Debug)]
pub(super) struct Mover {
    /// The coordinator knows it by this; it changes when the process starts again.
    pub id: MoverId,
    /// It has not crashed, or has returned.
    pub alive: bool,
    /// Until when it neither works nor sends messages.
    pub silent_until_us: u64,
    /// Tenths of the usual speed.
    pub tenths: u64,
}

/// All movers of a fleet, and their places that wait for tasks. A mover is named by its position.
#[derive(Debug)]
pub(super) struct SimulatedMovers {
    /// The movers, by position.
    all: Vec<Mover>,
    /// Tasks that each mover can have in progress.
    places: usize,
    /// The mover of each place that waits, in the order in which they began to wait.
    idle: VecDeque<usize>,
    /// Work at the usual speed that crashes have cost, in seconds.
    lost_s: f64,
}

impl SimulatedMovers {
    /// No movers; each one that follows has this many places.
    pub fn new(places: usize) -> Self {
        Self { all: Vec::new(), places, idle: VecDeque::new(), lost_s: 0.0 }
    }

    /// Adds a mover, which waits at all of its places. Returns its id.
    pub fn add(&mut self, tenths: u64) -> MoverId {
        let mover = self.all.len();
        let id = mover as MoverId + 1;
        self.all.push(Mover { id, alive: true, silent_until_us: 0, tenths });
        self.wait_everywhere(mover);
        id
    }

    /// A mover.
    pub fn get(&self, mover: usize) -> &Mover {
        &self.all[mover]
    }

    /// Seconds that the fleet needs for work of this many seconds if no place ever waits.
    pub fn ideal_s(&self, work_s: f64) -> f64 {
        let speed: f64 = self.all.iter().map(Mover::speed).sum();
        (work_s + self.lost_s) / (speed * self.places as f64)
    }

    /// The number of places that wait.
    pub fn idle(&self) -> usize {
        self.idle.len()
    }

    /// The mover of the place that has waited for longest; the place waits no longer.
    pub fn take_idle(&mut self) -> Option<usize> {
        while let Some(mover) = self.idle.pop_front() {
            if self.all[mover].alive {
                return Some(mover);
            }
        }
        None
    }

    /// A place of a mover waits again.
    pub fn wait(&mut self, mover: usize) {
        self.idle.push_back(mover);
    }

    /// A mover dies. It is away for this many seconds, and has a new id when it returns.
    pub fn crash(&mut self, mover: usize, away_s: f64) {
        let movers = self.all.len() as MoverId;
        let known = &mut self.all[mover];
        known.alive = false;
        known.id += movers;
        self.lost_s += away_s * self.places as f64 * known.speed();
        self.idle.retain(|waiting| *waiting != mover);
    }

    /// A dead mover returns. Returns its id.
    pub fn revive(&mut self, mover: usize) -> MoverId {
        self.all[mover].alive = true;
        self.wait_everywhere(mover);
        self.all[mover].id
    }

    /// A mover is silent until this time.
    pub fn silence(&mut self, mover: usize, until_us: u64) {
        self.all[mover].silent_until_us = until_us;
    }

    fn wait_everywhere(&mut self, mover: usize) {
        self.idle.extend(std::iter::repeat_n(mover, self.places));
    }
}

impl Mover {
    /// Its speed; 1 is the usual one.
    fn speed(&self) -> f64 {
        self.tenths as f64 / 10.0
    }
}
