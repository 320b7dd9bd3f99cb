//! The switch that stops a job: softly (end what is in hand), then hard (drop it).
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use dmover_model::ErrorClass;
use dmover_sys::process::signal_name;

/// Why a job stops before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// A signal, by its number.
    Signal(i32),
    /// `--max-errors` was reached.
    Errors,
    /// `--max-duration` was reached.
    Duration,
    /// What it has to say cannot be written.
    Output,
    /// The manifest cannot be written.
    Manifest,
    /// It was given up.
    Cancelled,
    /// Errors of this class are systemic.
    Systemic(ErrorClass),
}

impl StopReason {
    /// Why, in words that follow "stopped".
    pub fn words(self) -> String {
        match self {
            Self::Signal(signal) => format!("by {}", signal_name(signal)),
            Self::Errors => "by --max-errors".into(),
            Self::Duration => "by --max-duration".into(),
            Self::Output => "standard output cannot be written".into(),
            Self::Manifest => "the manifest cannot be written".into(),
            Self::Cancelled => "it was cancelled".into(),
            Self::Systemic(class) => {
                format!("every entry fails alike ({}): {}", class.word(), class.advice())
            }
        }
    }
}

const RUNNING: u8 = 0;
const SOFT: u8 = 1;
const HARD: u8 = 2;

/// After a soft stop, work in hand may go on for so long.
const WORK: Duration = Duration::from_secs(7);
/// A mover that hangs in a system call, or behind a broker that does not answer, is waited for this much longer.
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
    /// When work in hand has to be dropped.
    drop_at: Instant,
}

impl Control {
    /// A job ends within this time after a stop, whatever hangs.
    const GRACE: Duration = Duration::from_secs(10);

    /// Asks for a soft stop; the first reason is kept. Answers whether this was the first.
    pub fn stop(&self, reason: StopReason) -> bool {
        let mut stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = stop.is_none();
        let at = Instant::now();
        stop.get_or_insert(Stop { reason, at, drop_at: at + WORK });
        self.level.fetch_max(SOFT, Ordering::SeqCst);
        is_first
    }

    /// Drops what is in hand at the next block.
    pub fn stop_now(&self, reason: StopReason) {
        self.stop(reason);
        let mut stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stop) = &mut *stop {
            stop.drop_at = stop.drop_at.min(Instant::now());
        }
        self.level.store(HARD, Ordering::SeqCst);
    }

    /// Whether no new entry may be begun.
    pub fn is_stopping(&self) -> bool {
        self.level.load(Ordering::Relaxed) != RUNNING
    }

    /// Whether work in hand has to be dropped as well.
    pub fn is_over(&self) -> bool {
        match self.level.load(Ordering::Relaxed) {
            RUNNING => false,
            SOFT => self.stopped().is_some_and(|stop| Instant::now() >= stop.drop_at),
            _ => true,
        }
    }

    /// Whether movers that have not dropped their work by now are waited for no longer.
    pub fn is_given_up(&self) -> bool {
        self.is_over()
            && self.stopped().is_some_and(|stop| Instant::now() >= stop.drop_at + PATIENCE)
    }

    /// Why the job stops, if it does.
    pub fn reason(&self) -> Option<StopReason> {
        self.stopped().map(|stop| stop.reason)
    }

    /// How long a job that is stopped may still take.
    pub fn time_to_end(&self) -> Option<Duration> {
        self.stopped().map(|stop| Self::GRACE.saturating_sub(stop.at.elapsed()))
    }

    fn stopped(&self) -> Option<Stop> {
        *self.stop.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
