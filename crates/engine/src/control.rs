//! The switch that stops a job: softly (finish tasks in progress), then hard (drop them).
use dmover_host::signals;
use dmover_schedule::sync::Mutex;
use dmover_schedule::time::Instant;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

pub use dmover_model::StopReason;

/// The reason for a stop, in words that follow "stopped".
pub(crate) fn stop_words(reason: StopReason) -> String {
    match reason {
        StopReason::Signal(signal) => format!("by {}", signals::name(signal)),
        StopReason::Errors => "by --max-errors".into(),
        StopReason::Duration => "by --max-duration".into(),
        StopReason::Output => "cannot write to standard output".into(),
        StopReason::Manifest => "cannot write the manifest".into(),
        StopReason::Cancelled => "it was cancelled".into(),
        StopReason::Systemic(class) => {
            format!("all entries fail with the same error ({}): {}", class.word(), class.advice())
        }
    }
}

const RUNNING: u8 = 0;
const SOFT: u8 = 1;
const HARD: u8 = 2;

/// After a soft stop, tasks in progress may continue for this long.
const WORK: Duration = Duration::from_secs(7);
/// How much longer to wait for a mover that hangs in a system call, or behind a broker that does not answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Stops a running job from another thread.
#[derive(Debug, Default)]
pub struct Control {
    level: AtomicU8,
    stop: Mutex<Option<Stop>>,
}

#[derive(Debug, Clone, Copy)]
struct Stop {
    reason: StopReason,
    at: Instant,
    /// When tasks in progress must be dropped.
    drop_at: Instant,
}

impl Control {
    /// A job ends within this time after a stop, even if a mover hangs.
    const GRACE: Duration = Duration::from_secs(10);

    /// Requests a soft stop; the first reason is kept. Returns whether this was the first request.
    pub fn stop(&self, reason: StopReason) -> bool {
        let mut stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = stop.is_none();
        let at = Instant::now();
        stop.get_or_insert(Stop { reason, at, drop_at: at + WORK });
        self.level.fetch_max(SOFT, Ordering::SeqCst);
        is_first
    }

    /// Drops tasks in progress at the next block.
    pub fn stop_now(&self, reason: StopReason) {
        self.stop(reason);
        let mut stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stop) = &mut *stop {
            stop.drop_at = stop.drop_at.min(Instant::now());
        }
        self.level.store(HARD, Ordering::SeqCst);
    }

    /// Whether no new entry may be started.
    pub fn is_stopping(&self) -> bool {
        self.level.load(Ordering::Relaxed) != RUNNING
    }

    /// Whether tasks in progress must be dropped as well.
    pub fn is_over(&self) -> bool {
        match self.level.load(Ordering::Relaxed) {
            RUNNING => false,
            SOFT => self.stopped().is_some_and(|stop| Instant::now() >= stop.drop_at),
            _ => true,
        }
    }

    /// Whether to stop waiting for movers that have not dropped their tasks.
    pub fn is_given_up(&self) -> bool {
        self.is_over()
            && self.stopped().is_some_and(|stop| Instant::now() >= stop.drop_at + PATIENCE)
    }

    /// The reason of the stop, if any.
    pub fn reason(&self) -> Option<StopReason> {
        self.stopped().map(|stop| stop.reason)
    }

    /// How long a stopped job may still take.
    pub fn time_to_end(&self) -> Option<Duration> {
        self.stopped().map(|stop| Self::GRACE.saturating_sub(stop.at.elapsed()))
    }

    fn stopped(&self) -> Option<Stop> {
        *self.stop.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
