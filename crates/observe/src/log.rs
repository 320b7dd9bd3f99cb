//! The log, for people who debug a problem. Scripts read JSON, and users watch the progress lines.
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

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Plain text.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts the log, once per process: into `file`, or to standard error.
///
/// `filter` is a `tracing` filter such as `info` or `dmover_engine=debug`.
///
/// # Errors
/// A message, if the filter is invalid.
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
    // With a closed standard error, printing an internal error of the log would panic.
    let lines = tracing_subscriber::fmt::layer();
    let lines = lines.with_ansi(ansi).with_writer(writer).log_internal_errors(false);
    let base = tracing_subscriber::registry().with(filter).with(Overhear);
    let result = match format {
        LogFormat::Text => base.with(lines).try_init(),
        LogFormat::Json => base.with(lines.json()).try_init(),
    };
    result.map_err(|e| format!("the log is already set up: {e}"))
}

/// A log line that is sent to another process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// The level.
    pub level: LogLevel,
    /// The module that wrote the line.
    pub target: String,
    /// The message, with its fields after it.
    pub text: String,
    /// Number of earlier lines that were dropped.
    pub missed: u64,
}

/// The level of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogLevel {
    /// An error.
    Error,
    /// A warning.
    Warn,
    /// Information about normal operation.
    Info,
}

/// Receivers of log lines, and how many lines each has missed.
static LISTENERS: Mutex<Vec<(SyncSender<LogLine>, u64)>> = Mutex::new(Vec::new());

/// Receives the log lines of this process at level info and above from now on. At most `most` lines are buffered;
/// further ones are dropped and counted.
pub fn overhear(most: usize) -> Receiver<LogLine> {
    let (sender, receiver) = sync_channel(most);
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner).push((sender, 0));
    receiver
}

/// A log layer that sends lines to the receivers.
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
