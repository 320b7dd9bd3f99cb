//! The log: for those who look for a fault, not for scripts (JSON) and not for eyes (progress).
use serde::{Deserialize, Serialize};
use std::fmt::{Debug, Write as _};
use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Plain text.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts the log once: into `file`, or to standard error.
///
/// `filter` is a `tracing` filter such as `info` or `dmover_engine=debug`.
///
/// # Errors
/// A sentence, if the filter is wrong.
pub fn start_log(
    file: Option<Box<dyn Write + Send>>,
    format: LogFormat,
    filter: &str,
) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|e| format!("log filter '{filter}': {e}"))?;
    let ansi = false;
    let writer = match file {
        Some(file) => BoxMakeWriter::new(Mutex::new(file)),
        None => BoxMakeWriter::new(std::io::stderr),
    };
    // A standard error that is gone must not end whoever has something to say: the words about it would go there as well.
    let lines = tracing_subscriber::fmt::layer();
    let lines = lines.with_ansi(ansi).with_writer(writer).log_internal_errors(false);
    let base = tracing_subscriber::registry().with(filter).with(Overhear);
    let result = match format {
        LogFormat::Text => base.with(lines).try_init(),
        LogFormat::Json => base.with(lines.json()).try_init(),
    };
    result.map_err(|e| format!("the log is already set up: {e}"))
}

/// A line of a log, for somebody elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// How bad it is.
    pub level: LogLevel,
    /// The part of the program that says it.
    pub target: String,
    /// The message, with its fields after it.
    pub text: String,
    /// So many lines before it were not kept.
    pub missed: u64,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogLevel {
    /// What should not be.
    Error,
    /// What may become worse.
    Warn,
    /// What is as it should be.
    Info,
}

/// Those who overhear the log, and how many lines each has missed.
static LISTENERS: Mutex<Vec<(SyncSender<LogLine>, u64)>> = Mutex::new(Vec::new());

/// From now on hears what the log of this process says at level info or above, at most so many lines behind.
pub fn overhear(most: usize) -> Receiver<LogLine> {
    let (sender, receiver) = sync_channel(most);
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner).push((sender, 0));
    receiver
}

/// Gives lines to those who overhear.
struct Overhear;

impl<S: Subscriber> Layer<S> for Overhear {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let about = event.metadata();
        let level = match *about.level() {
            Level::ERROR => LogLevel::Error,
            Level::WARN => LogLevel::Warn,
            Level::INFO => LogLevel::Info,
            _ => return,
        };
        let mut listeners = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
        if listeners.is_empty() || !about.target().starts_with("dmover") {
            return;
        }
        let mut words = Words::default();
        event.record(&mut words);
        let text = words.0 + &words.1;
        listeners.retain_mut(|(sender, missed)| {
            let line = LogLine {
                level,
                target: about.target().into(),
                text: text.clone(),
                missed: *missed,
            };
            match sender.try_send(line) {
                Ok(()) => *missed = 0,
                Err(TrySendError::Full(_)) => *missed += 1,
                Err(TrySendError::Disconnected(_)) => return false,
            }
            true
        });
    }
}

/// The message of an event, and its fields.
#[derive(Default)]
struct Words(String, String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to memory does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.1, " {name}={value:?}"),
        };
    }
}
