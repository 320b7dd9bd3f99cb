//! The movers of one process: threads that are started as needed.
use dmover_model::{Fatal, Limit};
use dmover_observe::CurrentActivity;
use dmover_plan::stragglers::Done;
use dmover_schedule::thread;
use dmover_schedule::thread::JoinHandle;
use std::sync::Arc;
use std::time::Duration;

use crate::concurrency_driver::{Allowance, Pace};
use crate::context::Engine;
use crate::queue::{Class, Gate, Queue};
use crate::run_task::run_mover;

/// How often to check whether movers have ended.
const LOOK: Duration = Duration::from_micros(200);

/// The movers of one process for a job.
pub(crate) struct MoverPool {
    engine: Arc<Engine>,
    queue: Arc<dyn Queue>,
    gate: Arc<dyn Gate>,
    movers: Vec<JoinHandle<()>>,
    pace: Pace,
    /// The system refused to create a thread.
    no_more: bool,
    /// A user has paused the job.
    held: bool,
}

impl MoverPool {
    /// Creates the pool without any threads.
    pub fn new(
        engine: Arc<Engine>,
        queue: Arc<dyn Queue>,
        gate: Arc<dyn Gate>,
        allowance: Allowance,
    ) -> Self {
        let pace = Pace::new(allowance);
        Self { engine, queue, gate, movers: Vec::new(), pace, no_more: false, held: false }
    }

    /// Starts with an estimated number of movers.
    pub fn begin(&mut self) -> Result<(), Fatal> {
        self.pace.apply(&self.engine, &*self.gate);
        self.call_movers()
    }

    /// Checks the activity of movers, and sets their number. `held`: none for now.
    pub fn turn(&mut self, held: bool) -> Result<(), Fatal> {
        if held {
            for class in Class::ALL {
                self.gate.allow(class, 0);
            }
        } else if self.held {
            self.pace.apply(&self.engine, &*self.gate);
        } else {
            self.pace.turn(&self.engine, &*self.gate);
        }
        self.held = held;
        self.call_movers()?;
        if self.movers.iter().all(JoinHandle::is_finished) {
            let reason = "all mover threads have ended";
            return Err(Fatal::Thread(std::io::Error::other(reason)));
        }
        Ok(())
    }

    /// Starts movers up to the allowed number.
    fn call_movers(&mut self) -> Result<(), Fatal> {
        while self.movers.len() < self.pace.movers() && !self.no_more {
            let (engine, queue) = (Arc::clone(&self.engine), Arc::clone(&self.queue));
            let activity = Arc::new(CurrentActivity::default());
            let place = Arc::clone(&activity);
            let spawned = thread::Builder::new()
                .name(format!("mover-{}", self.movers.len()))
                .spawn(move || run_mover(&engine, &*queue, &place));
            match spawned {
                Ok(mover) => {
                    self.movers.push(mover);
                    self.pace.watch(activity);
                }
                Err(error) if self.movers.is_empty() => return Err(Fatal::Thread(error)),
                Err(error) => {
                    tracing::warn!(%error, movers = self.movers.len(), "cannot start more mover threads");
                    self.no_more = true;
                }
            }
        }
        Ok(())
    }

    /// The work that the movers have done so far.
    pub fn done(&self) -> Done {
        self.pace.done()
    }

    /// The present limit, once it is known.
    pub fn limit(&self) -> Option<&Limit> {
        self.pace.limit()
    }

    /// The limit over the whole job.
    pub fn summary(&mut self) -> Limit {
        self.pace.summary(&self.engine)
    }

    /// Waits until all movers have ended; the queue is closed. After a stop, a mover that hangs in a system call is not
    /// waited for.
    pub fn end(&mut self) {
        while !self.movers.iter().all(JoinHandle::is_finished) {
            if self.engine.control.is_given_up() {
                break;
            }
            thread::sleep(LOOK);
        }
        let (ended, hanging): (Vec<_>, Vec<_>) =
            self.movers.drain(..).partition(JoinHandle::is_finished);
        self.movers = hanging;
        for mover in ended {
            if mover.join().is_err() {
                tracing::error!("a mover thread panicked");
            }
        }
    }

    /// Whether a mover hangs that may still write. Valid after the end.
    pub fn has_left_any(&self) -> bool {
        !self.movers.iter().all(JoinHandle::is_finished)
    }
}
