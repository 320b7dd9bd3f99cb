//! The switch that stops a job: softly (end what is in hand), then hard (drop it).
use serde::{Deserialize, Serialize};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use dmover_model::ErrorClass;

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
            Self::Signal(signal) => format!("by signal {signal}"),
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

/// Stops a running job from another thread.
#[derive(Debug, Default)]
pub struct Control {
    level: AtomicU8,
    first: Mutex<Option<(StopReason, Instant)>>,
}

impl Control {
    /// How long work in hand may go on after a soft stop.
    pub const GRACE: Duration = Duration::from_secs(10);

    /// Asks for a soft stop; the first reason is kept. Answers whether this was the first.
    pub fn stop(&self, reason: StopReason) -> bool {
        let mut first = self.first.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_first = first.is_none();
        first.get_or_insert((reason, Instant::now()));
        self.level.fetch_max(SOFT, Ordering::SeqCst);
        is_first
    }

    /// Drops what is in hand at the next block.
    pub fn stop_now(&self, reason: StopReason) {
        self.stop(reason);
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
            SOFT => self.since_stop().is_some_and(|t| t >= Self::GRACE),
            _ => true,
        }
    }

    /// Whether work in hand should have been dropped this long ago.
    pub fn has_been_over_for(&self, patience: Duration) -> bool {
        let past_grace = self.since_stop().is_some_and(|t| t >= Self::GRACE + patience);
        self.is_over() && past_grace
    }

    /// Why the job stops, if it does.
    pub fn reason(&self) -> Option<StopReason> {
        self.stopped().map(|(reason, _)| reason)
    }

    fn since_stop(&self) -> Option<Duration> {
        self.stopped().map(|(_, at)| at.elapsed())
    }

    fn stopped(&self) -> Option<(StopReason, Instant)> {
        *self.first.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
