//! Which thread of a simulation runs.
//!
//! Each simulated thread is a thread of the system that waits for its turn. The one that has the turn passes it on when it
//! waits, and now and then between two steps. When all wait, time advances to the first deadline; without a deadline
//! nobody can go on, which fails the simulation.
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use std::any::Any;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Of so many steps, one passes the turn to another thread.
const STEPS_OF_A_TURN: u32 = 4;
/// Time that a step takes.
const STEP_NS: i64 = 1_000;

/// Why a thread of a process unwinds: the process was killed.
#[derive(Debug)]
pub(crate) struct Killed;

/// A process: threads that end together.
#[derive(Debug)]
pub(crate) struct ProcessState {
    pub name: String,
    pub is_killed: AtomicBool,
    pub host: Arc<dyn Any + Send + Sync>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    /// It runs, or can.
    Ready,
    /// It waits for somebody to wake those who wait for an object, or for a time.
    Waits { on: usize, until: Option<i64> },
    /// It has ended.
    Ended,
}

#[derive(Debug)]
struct Thread {
    name: String,
    process: Arc<ProcessState>,
    status: Status,
    has_timed_out: bool,
    turn: Arc<Turn>,
}

/// The turn of one thread.
#[derive(Debug, Default)]
struct Turn {
    is_on: AtomicBool,
    thread: Mutex<Option<std::thread::Thread>>,
}

impl Turn {
    fn begin(&self) {
        self.is_on.store(true, Ordering::Release);
        if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.unpark();
        }
    }

    fn wait(&self) {
        while !self.is_on.swap(false, Ordering::Acquire) {
            std::thread::park();
        }
    }
}

#[derive(Debug)]
struct State {
    threads: Vec<Thread>,
    random: ChaCha8Rng,
    steps: u64,
    steps_max: u64,
    fingerprint: u64,
    failure: Option<String>,
}

/// A simulation.
#[derive(Debug)]
pub(crate) struct Core {
    state: Mutex<State>,
    /// Nanoseconds since 1970.
    pub time: Arc<AtomicI64>,
}

/// A thread of a simulation, as itself sees it.
#[derive(Debug, Clone)]
pub(crate) struct Me {
    pub core: Arc<Core>,
    pub number: usize,
    pub process: Arc<ProcessState>,
}

thread_local! {
    static ME: RefCell<Option<Me>> = const { RefCell::new(None) };
}

/// The calling thread, if it is one of a simulation.
pub(crate) fn me() -> Option<Me> {
    ME.try_with(|me| me.borrow().clone()).ok().flatten()
}

pub(crate) fn set_me(me: Option<Me>) {
    ME.with(|it| *it.borrow_mut() = me);
}

impl State {
    /// The thread whose turn is next. Advances the time if all wait.
    fn choose(&mut self, me: usize, time: &AtomicI64) -> usize {
        loop {
            let now = time.load(Ordering::Relaxed);
            let mut next: Option<i64> = None;
            for thread in &mut self.threads {
                if let Status::Waits { until: Some(until), .. } = thread.status {
                    if until <= now {
                        (thread.status, thread.has_timed_out) = (Status::Ready, true);
                    } else {
                        next = Some(next.map_or(until, |it| it.min(until)));
                    }
                }
            }
            let is_ready = |thread: &Thread| thread.status == Status::Ready;
            let ready = self.threads.iter().filter(|thread| is_ready(thread)).count();
            if ready == 0 {
                match next {
                    Some(until) => time.store(until, Ordering::Relaxed),
                    None => self.fail("nobody can go on"),
                }
                continue;
            }
            if is_ready(&self.threads[me]) && self.random.random_range(0..STEPS_OF_A_TURN) > 0 {
                return me;
            }
            let nth = self.random.random_range(0..ready);
            let mut found = self.threads.iter().enumerate().filter(|(_, thread)| is_ready(thread));
            let chosen = found.nth(nth).map_or(me, |(number, _)| number);
            let mixed = self.fingerprint.rotate_left(5) ^ chosen as u64 ^ (self.steps << 16);
            self.fingerprint = mixed.wrapping_mul(0x517c_c1b7_2722_0a95);
            return chosen;
        }
    }

    /// Ends the simulation: all threads unwind.
    fn fail(&mut self, why: &str) {
        let mut said = why.to_owned();
        for thread in self.threads.iter().filter(|thread| thread.status != Status::Ended) {
            let _ = write!(
                said,
                "\n  {} of {}: {:?}{}",
                thread.name,
                thread.process.name,
                thread.status,
                if thread.process.is_killed.load(Ordering::Relaxed) { ", killed" } else { "" }
            );
        }
        self.failure.get_or_insert(said);
        for thread in &mut self.threads {
            thread.process.is_killed.store(true, Ordering::Relaxed);
            if thread.status != Status::Ended {
                thread.status = Status::Ready;
            }
        }
    }
}

impl Core {
    pub fn new(seed: u64, steps_max: u64, since_1970_s: i64) -> Arc<Self> {
        let state = State {
            threads: Vec::new(),
            random: ChaCha8Rng::seed_from_u64(seed),
            steps: 0,
            steps_max,
            fingerprint: seed,
            failure: None,
        };
        let time = Arc::new(AtomicI64::new(since_1970_s.saturating_mul(1_000_000_000)));
        Arc::new(Self { state: Mutex::new(state), time })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a thread, which may run at once.
    pub fn add(self: &Arc<Self>, name: String, process: &Arc<ProcessState>) -> Me {
        let mut state = self.state();
        let number = state.threads.len();
        state.threads.push(Thread {
            name,
            process: Arc::clone(process),
            status: Status::Ready,
            has_timed_out: false,
            turn: Arc::default(),
        });
        Me { core: Arc::clone(self), number, process: Arc::clone(process) }
    }

    /// A number that the seed decides.
    pub fn random(&self) -> u64 {
        self.state().random.random()
    }

    /// Number of steps, and a number that depends on all choices.
    pub fn trace(&self) -> (u64, u64) {
        let state = self.state();
        (state.steps, state.fingerprint)
    }

    /// Why the simulation failed.
    pub fn failure(&self) -> Option<String> {
        self.state().failure.clone()
    }

    /// Whether a thread has ended.
    pub fn has_ended(&self, number: usize) -> bool {
        self.state().threads[number].status == Status::Ended
    }

    /// Whether all threads but the first one have ended.
    pub fn have_others_ended(&self) -> bool {
        self.state().threads.iter().skip(1).all(|thread| thread.status == Status::Ended)
    }

    /// Whether all threads of killed processes have ended.
    pub fn have_killed_ended(&self) -> bool {
        let is_over = |thread: &Thread| {
            thread.status == Status::Ended || !thread.process.is_killed.load(Ordering::Relaxed)
        };
        self.state().threads.iter().all(is_over)
    }

    /// All threads of a process unwind as soon as they have the turn.
    pub fn kill(&self, process: &Arc<ProcessState>) {
        process.is_killed.store(true, Ordering::Relaxed);
        for thread in &mut self.state().threads {
            if Arc::ptr_eq(&thread.process, process) && thread.status != Status::Ended {
                thread.status = Status::Ready;
            }
        }
    }

    /// All processes but that of the first thread are killed.
    pub fn kill_others(&self) {
        let mut state = self.state();
        let first = Arc::clone(&state.threads[0].process);
        for thread in &mut state.threads {
            if !Arc::ptr_eq(&thread.process, &first) && thread.status != Status::Ended {
                thread.process.is_killed.store(true, Ordering::Relaxed);
                thread.status = Status::Ready;
            }
        }
    }
}

impl Me {
    /// Waits for the first turn; the thread has just begun.
    pub fn begin(&self) {
        let turn = Arc::clone(&self.core.state().threads[self.number].turn);
        *turn.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
        turn.wait();
    }

    /// The very first thread has the turn already.
    pub fn begin_first(&self) {
        let turn = Arc::clone(&self.core.state().threads[self.number].turn);
        *turn.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
    }

    /// The thread has ended: those who wait for it may go on.
    pub fn end(&self) {
        let next = {
            let mut state = self.core.state();
            state.threads[self.number].status = Status::Ended;
            wake(&mut state, object_of_thread(self.number), true);
            let next = state.choose(self.number, &self.core.time);
            Arc::clone(&state.threads[next].turn)
        };
        next.begin();
    }

    /// One step: somebody else may have the turn now, and the process may be killed.
    pub fn step(&self) {
        self.core.time.fetch_add(STEP_NS, Ordering::Relaxed);
        self.pass(Status::Ready);
        self.unwind_if_killed();
    }

    /// Waits until somebody wakes those who wait for an object, or until a time. Answers whether the time came. Returns at
    /// once while a killed thread unwinds.
    pub fn wait(&self, on: usize, until: Option<i64>) -> bool {
        if self.is_unwinding() {
            self.pass(Status::Ready);
            return true;
        }
        self.pass(Status::Waits { on, until });
        self.unwind_if_killed();
        self.core.state().threads[self.number].has_timed_out
    }

    /// Waits for something that comes also while killed threads unwind: a lock, or the end of a thread.
    pub fn wait_for_lock(&self, on: usize) {
        let on =
            if self.is_unwinding() { Status::Ready } else { Status::Waits { on, until: None } };
        self.pass(on);
        self.unwind_if_killed();
    }

    /// Wakes one of those who wait for an object, or all.
    pub fn wake(&self, on: usize, all: bool) {
        wake(&mut self.core.state(), on, all);
    }

    fn is_unwinding(&self) -> bool {
        self.process.is_killed.load(Ordering::Relaxed) && std::thread::panicking()
    }

    fn unwind_if_killed(&self) {
        if !self.process.is_killed.load(Ordering::Relaxed) || std::thread::panicking() {
            return;
        }
        match self.core.failure().filter(|_| self.number == 0) {
            Some(why) => panic!("the simulation cannot go on: {why}"),
            None => resume_unwind(Box::new(Killed)),
        }
    }

    /// Gives the turn to whoever is next, and returns with the next own one.
    fn pass(&self, status: Status) {
        let (own, next) = {
            let mut state = self.core.state();
            state.steps += 1;
            if state.steps == state.steps_max {
                state.fail("too many steps");
            }
            let thread = &mut state.threads[self.number];
            thread.has_timed_out = false;
            // Who is killed does not wait.
            let is_killed = self.process.is_killed.load(Ordering::Relaxed);
            thread.status = if is_killed { Status::Ready } else { status };
            let next = state.choose(self.number, &self.core.time);
            if next == self.number {
                return;
            }
            (Arc::clone(&state.threads[self.number].turn), Arc::clone(&state.threads[next].turn))
        };
        next.begin();
        own.wait();
    }
}

fn wake(state: &mut State, on: usize, all: bool) {
    let waits = |thread: &Thread| matches!(thread.status, Status::Waits { on: it, .. } if it == on);
    let waiting = state.threads.iter().filter(|thread| waits(thread)).count();
    if waiting == 0 {
        return;
    }
    let chosen = if all { None } else { Some(state.random.random_range(0..waiting)) };
    let found = state.threads.iter_mut().filter(|thread| waits(thread)).enumerate();
    for (nth, thread) in found {
        if chosen.is_none_or(|chosen| chosen == nth) {
            thread.status = Status::Ready;
        }
    }
}

/// The number of an object by its address.
pub(crate) fn object<T: ?Sized>(of: &T) -> usize {
    std::ptr::from_ref(of).cast::<()>().addr()
}

/// The number of a thread as an object: no object has an odd address that small.
pub(crate) fn object_of_thread(number: usize) -> usize {
    number * 2 + 1
}
