//! The tasks of a mover process, and how many more it wants.
use dmover_engine::queue::{Class, Lease};
use dmover_observe::CLASSES;
use dmover_schedule::time::Instant;
use dmover_wire::MoverReport;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// A mover that prefers one class takes tasks of the other after this many milliseconds without its own.
const STEAL_AFTER: u64 = 1000;
/// How much work a mover prefetches where there is plenty, in time and in number of tasks: tasks that are delivered
/// together share their overhead.
const AHEAD: Duration = Duration::from_millis(4);
/// The assumed duration of tasks before any has ended.
const UNKNOWN: Duration = Duration::from_secs(1);
const AHEAD_MAX: usize = 32;

/// A task in progress here.
pub(super) struct Held {
    pub lease: Lease,
    /// The number of reports about it.
    pub sequence: u32,
    pub progressed_ms: u64,
    /// When a thread took it.
    pub taken: Option<Instant>,
    /// The failures so far.
    pub errors: MoverReport,
}

/// The tasks of this process, and the threads that wait for more.
#[derive(Default)]
pub(super) struct State {
    /// The class of tasks to prefer.
    own: Option<Class>,
    /// Claimed tasks that wait for a thread.
    pub ready: VecDeque<Lease>,
    pub held: HashMap<u32, Held>,
    /// Delivered numbers.
    pub claimed: BTreeSet<u32>,
    pub running: [usize; CLASSES],
    pub allowed: [usize; CLASSES],
    /// Requests for tasks that are open.
    pub fetching: [usize; CLASSES],
    /// Threads that wait for a task.
    pub waiting: usize,
    /// There was a task at some time.
    pub has_worked: bool,
    /// When a task of each class was last in progress.
    pub had_ms: [u64; CLASSES],
    /// The recent duration of tasks of each class.
    pub typical: [Duration; CLASSES],
    /// Open claims.
    pub claiming: usize,
    /// Fetches no new tasks: this process is about to leave.
    pub draining: bool,
}

impl State {
    /// Without tasks. `own`: the class of tasks to prefer.
    pub fn preferring(own: Option<Class>) -> Self {
        Self { own, typical: [UNKNOWN; CLASSES], ..Self::default() }
    }

    /// Whether threads wait for tasks of a class that they could have.
    pub fn starves(&self, class: Class) -> bool {
        let index = class as usize;
        self.waiting > 0 && self.ready.is_empty() && self.running[index] < self.allowed[index]
    }

    /// Records the duration of a task.
    pub fn took(&mut self, class: usize, elapsed: Duration) {
        let typical = &mut self.typical[class];
        *typical = (*typical * 7 + elapsed) / 8;
    }

    /// How many tasks of a class keep the threads here busy for [`AHEAD`].
    pub fn soon_done(&self, class: usize) -> usize {
        let busy = self.running[class].min(self.allowed[class]);
        let most = AHEAD_MAX as u128;
        // A long task in progress is a better estimate than the tasks that have ended.
        let of_class = |held: &&Held| Class::of(&held.lease.task) as usize == class;
        let running = self.held.values().filter(of_class).filter_map(|held| held.taken);
        let longest = running.min().map_or(Duration::ZERO, |since| since.elapsed());
        let expected = self.typical[class].max(longest);
        let each = (AHEAD.as_nanos() / expected.as_nanos().max(1)).min(most) as usize;
        (busy * each).clamp(usize::from(busy > 0), AHEAD_MAX)
    }

    /// How many tasks of a class to request, with `ahead` tasks beyond the free threads.
    pub fn wanted(&self, class: usize, ahead: usize) -> usize {
        let (fetching, ready) = (self.fetching[class], self.ready.len());
        // They are asked for together, and not one for each that is done.
        if self.waiting <= ready && ready + fetching > ahead / 2 {
            return 0;
        }
        let room = self.allowed[class].saturating_sub(self.running[class]).saturating_sub(fetching);
        let wanted = (self.waiting + ahead).saturating_sub(ready);
        (room + ahead).min(wanted.saturating_sub(fetching))
    }

    /// Whether this process takes tasks of a class: others than it prefers only while there are none of its own.
    pub fn takes(&self, class: Class, now_ms: u64) -> bool {
        let Some(own) = self.own.filter(|own| *own != class) else { return true };
        self.running[own as usize] == 0 && now_ms >= self.had_ms[own as usize] + STEAL_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_taken_ahead_that_are_done_soon_and_several_at_a_time() {
        const SMALL: usize = Class::Small as usize;
        let mut state = State { typical: [AHEAD; CLASSES], ..State::default() };
        state.allowed[SMALL] = 2;
        state.waiting = 2;
        assert_eq!((state.soon_done(SMALL), state.wanted(SMALL, 0)), (0, 2), "nothing is done yet");
        (state.running[SMALL], state.waiting) = (2, 0);
        assert_eq!(state.soon_done(SMALL), 2, "what takes as long is asked for in time");
        for _ in 0..100 {
            state.took(SMALL, AHEAD / 10);
        }
        let ahead = state.soon_done(SMALL);
        assert!((18..=20).contains(&ahead), "{ahead}");
        assert_eq!(state.wanted(SMALL, ahead), ahead);
        state.fetching[SMALL] = ahead;
        assert_eq!(state.wanted(SMALL, ahead), 0, "they are on their way");
        state.fetching[SMALL] = ahead / 2 + 1;
        assert_eq!(state.wanted(SMALL, ahead), 0, "there are enough for now");
        state.fetching[SMALL] = ahead / 2;
        assert_eq!(state.wanted(SMALL, ahead), ahead - ahead / 2);
        assert_eq!(state.wanted(SMALL, 0), 0, "others wait");
        state.took(SMALL, Duration::from_secs(1));
        assert_eq!(state.soon_done(SMALL), 1, "one that takes long is believed at once");
        state.typical[SMALL] = Duration::ZERO;
        assert_eq!(state.soon_done(SMALL), AHEAD_MAX);
    }

    #[test]
    fn who_is_for_one_class_takes_the_other_after_a_while_without_its_own() {
        let mut state = State { had_ms: [5000; CLASSES], ..State::preferring(Some(Class::Small)) };
        assert!(state.takes(Class::Small, 5000) && !state.takes(Class::Large, 5999));
        assert!(state.takes(Class::Large, 6000), "it is idle");
        state.running[Class::Small as usize] = 1;
        assert!(!state.takes(Class::Large, 9000), "it has work of its own");
        state.own = None;
        assert!(state.takes(Class::Large, 5000), "it is for everything");
    }
}
