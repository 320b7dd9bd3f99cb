//! Simulations, and the processes in them.
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};

use super::core::{Core, Killed, Me, ProcessState, me, object_of_thread, set_me};
use super::thread::{JoinHandle, spawn_in};

/// How a simulation is run.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Decides who runs.
    pub seed: u64,
    /// A simulation with so many steps fails: it does not end.
    pub steps_max: u64,
    /// When it begins, in seconds since 1970.
    pub begins_s: i64,
}

/// What a simulation was like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    /// Number of steps.
    pub steps: u64,
    /// Depends on each decision: the same for the same run.
    pub fingerprint: u64,
}

/// Lets the others unwind, also if the body has panicked: they wait for their turn.
struct End(Me);

impl Drop for End {
    fn drop(&mut self) {
        self.0.core.kill_others();
        while !self.0.core.have_others_ended() {
            self.0.step();
        }
        set_me(None);
    }
}

/// Runs `body` as the first thread of a simulation. Processes that it leaves behind are killed.
///
/// # Panics
/// If `body` does, if nobody can go on, or if there are too many steps.
pub fn simulate<T>(settings: Settings, body: impl FnOnce() -> T) -> (T, Trace) {
    let core = Core::new(settings.seed, settings.steps_max, settings.begins_s);
    let process = Arc::new(ProcessState {
        name: "test".into(),
        is_killed: AtomicBool::new(false),
        host: Arc::new(()),
    });
    let first = core.add("first".into(), &process);
    first.begin_first();
    set_me(Some(first.clone()));
    let end = End(first);
    let value = body();
    drop(end);
    let (steps, fingerprint) = core.trace();
    assert!(core.failure().is_none(), "the simulation cannot go on: {:?}", core.failure());
    (value, Trace { steps, fingerprint })
}

/// Whether the calling thread belongs to a simulation.
pub fn is_running() -> bool {
    me().is_some()
}

/// One step of the calling thread, as a system call is one: others may run, and the process may be killed. Nothing happens
/// outside of a simulation.
pub fn step() {
    if let Some(me) = me() {
        me.step();
    }
}

/// Whether the calling thread belongs to a process that was killed, and unwinds.
pub fn is_dead() -> bool {
    me().is_some_and(|me| me.process.is_killed.load(std::sync::atomic::Ordering::Relaxed))
}

/// Waits until the threads of all processes that were killed have ended.
pub fn settle() {
    if let Some(me) = me() {
        while !me.core.have_killed_ended() {
            me.step();
        }
    }
}

/// A number that the seed decides.
pub fn random() -> Option<u64> {
    me().map(|me| me.core.random())
}

/// The clock of the simulation: nanoseconds since 1970.
pub fn clock() -> Option<Arc<AtomicI64>> {
    me().map(|me| Arc::clone(&me.core.time))
}

/// What the process of the calling thread was given as its host.
pub fn host<H: Any + Send + Sync>() -> Option<Arc<H>> {
    Arc::clone(&me()?.process.host).downcast().ok()
}

/// Kills the process of the calling thread: all its threads unwind at their next step, this one too.
pub fn kill_own_process() {
    if let Some(me) = me() {
        me.core.kill(&me.process);
    }
}

/// Why a process gave no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failed {
    /// It was killed.
    Killed,
    /// Its first thread panicked, with these words.
    Panicked(String),
}

/// A process of a simulation.
#[derive(Debug)]
pub struct Process<T> {
    thread: JoinHandle<T>,
    number: usize,
    state: Arc<ProcessState>,
}

impl<T: Send + 'static> Process<T> {
    /// Starts one. When `body` returns, its other threads end, as with exit(3).
    ///
    /// # Panics
    /// Outside of a simulation.
    pub fn start(
        name: &str,
        host: Arc<dyn Any + Send + Sync>,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Self {
        let parent = me().expect("a thread of a simulation");
        let is_killed = AtomicBool::new(false);
        let state = Arc::new(ProcessState { name: name.into(), is_killed, host });
        let own = Arc::clone(&state);
        let (thread, number) = spawn_in(&parent, &state, name.to_owned(), move || {
            let value = body();
            if let Some(me) = me() {
                me.core.kill(&own);
            }
            value
        })
        .expect("a thread");
        Self { thread, number, state }
    }

    /// Kills it, as SIGKILL does.
    pub fn kill(&self) {
        if let Some(me) = me() {
            me.core.kill(&self.state);
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It was killed, or has panicked.
    pub fn join(self) -> Result<T, Failed> {
        if let Some(me) = me() {
            while !me.core.has_ended(self.number) {
                me.wait_for_lock(object_of_thread(self.number));
            }
        }
        self.thread.join().map_err(|payload| {
            if payload.is::<Killed>() {
                return Failed::Killed;
            }
            let words = payload.downcast_ref::<String>().cloned();
            let words = words.or_else(|| payload.downcast_ref::<&str>().map(|it| (*it).to_owned()));
            Failed::Panicked(words.unwrap_or_else(|| "a panic without words".into()))
        })
    }
}
