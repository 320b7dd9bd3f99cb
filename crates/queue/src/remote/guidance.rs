//! What the coordinator has last sent to a mover about the run and about itself.
use dmover_engine::queue::Class;
use dmover_observe::CLASSES;
use dmover_schedule::sync::Mutex;
use dmover_wire::Control;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::lock;

/// The last messages of the coordinator, as far as they decide which tasks this mover requests and hands on.
#[derive(Default)]
pub(super) struct Guidance {
    /// The last broadcast.
    control: Mutex<Control>,
    /// For each class, whether movers wait for work; a copy from the broadcast, so that movers need no lock for each entry.
    hungry: [AtomicBool; CLASSES],
    /// How many tasks could be prefetched at the last claim.
    spare: AtomicU32,
    /// Other movers are much faster.
    is_slow: AtomicBool,
    /// Tasks fail on this host.
    is_left_out: AtomicBool,
}

impl Guidance {
    /// The last broadcast.
    pub fn control(&self) -> Control {
        *lock(&self.control)
    }

    /// Records a broadcast.
    pub fn set_control(&self, control: Control) {
        *lock(&self.control) = control;
        for (hungry, now) in self.hungry.iter().zip(control.hungry) {
            hungry.store(now, Ordering::Relaxed);
        }
    }

    /// Records how this mover compares with the others.
    pub fn set_assessment(&self, is_slow: bool, is_left_out: bool) {
        self.is_slow.store(is_slow, Ordering::Relaxed);
        self.is_left_out.store(is_left_out, Ordering::Relaxed);
    }

    /// Records how many tasks this mover may prefetch.
    pub fn set_spare(&self, spare: u32) {
        self.spare.store(spare, Ordering::Relaxed);
    }

    /// Whether tasks may be requested now.
    pub fn allows_tasks(&self) -> bool {
        let control = self.control();
        !control.held && !control.stopping && !self.is_left_out()
    }

    /// Whether this mover gets no tasks, because they fail on its host.
    pub fn is_left_out(&self) -> bool {
        self.is_left_out.load(Ordering::Relaxed)
    }

    /// Whether tasks may be prefetched at all.
    pub fn has_spare(&self) -> bool {
        self.spare.load(Ordering::Relaxed) > 0
    }

    /// How many tasks of a class may be prefetched now.
    pub fn ahead_max(&self, class: Class) -> usize {
        let spare = self.spare.load(Ordering::Relaxed) as usize;
        // What a slow mover has taken would wait with it.
        match (self.is_slow.load(Ordering::Relaxed), self.control().hungry[class as usize]) {
            // Others have nothing to do.
            (_, true) => 0,
            (true, _) => spare.min(1),
            _ => spare,
        }
    }

    /// Whether movers anywhere wait for work of a class.
    pub fn others_wait(&self, class: Class) -> bool {
        self.hungry[class as usize].load(Ordering::Relaxed)
    }

    /// Whether this mover should hand on its work, because other movers wait and are much faster.
    pub fn is_slow(&self) -> bool {
        // Threads here that wait are no reason: they are as slow.
        let others_wait = Class::ALL.into_iter().any(|class| self.others_wait(class));
        self.is_slow.load(Ordering::Relaxed) && others_wait
    }
}
