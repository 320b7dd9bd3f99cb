//! The log: for those who look for a fault, not for scripts (JSON) and not for eyes (progress).
use std::io::Write;
use std::sync::Mutex;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

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
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).with_writer(writer);
    // A standard error that is gone must not end whoever has something to say: the words about it would go there as well.
    let builder = builder.log_internal_errors(false);
    let result = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    result.map_err(|e| format!("the log is running already: {e}"))
}
