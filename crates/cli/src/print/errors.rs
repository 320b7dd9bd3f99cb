//! Lists of errors: the recorded errors of a job, and `--errors-to`, which writes errors as they happen.
use dmover_journal::RecordedError;
use dmover_model::{ErrorClass, Event};
use dmover_observe::Monitor;
use dmover_schedule::sync::Mutex;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, PoisonError};

use super::json::{SCHEMA, path_fields};
use super::time::utc;
use crate::args::OutputArgs;
use dmover_job::quote::quoted;

/// An error as a line of JSON, without the newline.
pub(crate) fn as_json(error: &RecordedError) -> String {
    let mut value = json!({
        "type": "error", "schema": SCHEMA, "pass": error.pass, "time": utc(error.time_ms),
        "side": error.side, "operation": error.operation, "class": error.class,
        "errno": error.errno, "attempt": error.attempt, "message": words(error),
    });
    if let Value::Object(fields) = &mut value {
        fields.extend(path_fields(&error.path.to_path()));
    }
    value.to_string()
}

/// An error as a line of text, without the newline.
pub(crate) fn as_text(error: &RecordedError) -> String {
    let path = quoted(&error.path.0);
    format!("{path}: {}: {} [{}]", error.operation, words(error), error.class)
}

fn words(error: &RecordedError) -> String {
    match (error.errno, error.detail.as_str()) {
        (0, detail) => detail.to_owned(),
        (errno, "") => std::io::Error::from_raw_os_error(errno).to_string(),
        (errno, detail) => format!("{}; {detail}", std::io::Error::from_raw_os_error(errno)),
    }
}

/// The file of `--errors-to`, if the option was given.
pub(crate) struct ErrorsTo(Option<ErrorFile>);

struct ErrorFile {
    file: File,
    shown: String,
    has_failed: bool,
    /// The list of an earlier run is removed, if there was one.
    has_begun: bool,
}

impl ErrorsTo {
    /// Opens the file, and creates it if it does not exist. It keeps its content until the job starts, because the same
    /// command may already be running. Call this before the umask is cleared.
    ///
    /// # Errors
    /// A message that says why the file cannot be written.
    pub fn create(args: &OutputArgs) -> Result<Self, String> {
        let Some(path) = &args.errors_to else { return Ok(Self(None)) };
        let shown = quoted(path.as_bytes());
        match OpenOptions::new().append(true).create(true).open(path) {
            Ok(file) => {
                let (has_failed, has_begun) = (false, false);
                Ok(Self(Some(ErrorFile { file, shown, has_failed, has_begun })))
            }
            Err(error) => Err(format!("cannot write the list of errors {shown}: {error}")),
        }
    }

    /// A monitor that writes each error to the file and then passes the event to `next`.
    pub fn monitor(self, next: Arc<dyn Monitor>) -> Arc<dyn Monitor> {
        self.listing(next, false)
    }

    /// The same for a job whose differences are those of its read-back: the list has them as errors.
    pub fn monitor_with_read_back(self, next: Arc<dyn Monitor>) -> Arc<dyn Monitor> {
        self.listing(next, true)
    }

    fn listing(self, next: Arc<dyn Monitor>, reads_back: bool) -> Arc<dyn Monitor> {
        match self.0 {
            Some(file) => Arc::new(Listing { list: Mutex::new(file), next, reads_back }),
            None => next,
        }
    }
}

impl ErrorFile {
    /// Empties the file. The job has its locks by now. A dry run and jobs with other destinations do not exclude each other,
    /// so a lock of the file decides between them.
    fn begin(&mut self) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let is_file = self.file.metadata().is_ok_and(|found| found.is_file());
        if !is_file {
            return;
        }
        if matches!(self.file.try_lock(), Err(TryLockError::WouldBlock)) {
            let message = format!("another job writes the list of errors {}", self.shown);
            super::say(&format!("dmover: note: {message}: the errors of this job are added to it"));
        } else if let Err(error) = self.file.set_len(0) {
            self.has_failed = true;
            let message = format!("cannot empty the list of errors {}: {error}", self.shown);
            super::failure(&message, "the list has old errors as well; the job continues");
        }
    }

    fn put(&mut self, error: &RecordedError) {
        let written = self.file.write_all((as_json(error) + "\n").as_bytes());
        if let Err(error) = written
            && !std::mem::replace(&mut self.has_failed, true)
        {
            let message = format!("cannot write the list of errors {}: {error}", self.shown);
            super::failure(&message, "the list is incomplete; the job continues");
        }
    }
}

struct Listing {
    list: Mutex<ErrorFile>,
    next: Arc<dyn Monitor>,
    reads_back: bool,
}

impl Monitor for Listing {
    fn event(&self, event: &Event) {
        if matches!(event, Event::Start { .. } | Event::Error(_)) {
            self.list.lock().unwrap_or_else(PoisonError::into_inner).begin();
        }
        // A cancelled entry was not attempted, so it has no error to list.
        if let Event::Error(error) = event
            && error.class != ErrorClass::Cancelled
        {
            let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            list.put(&RecordedError::now(error));
        }
        if let Event::Difference(difference) = event
            && self.reads_back
        {
            let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            list.put(&RecordedError::now(&difference.as_error()));
        }
        self.next.event(event);
    }

    fn wants_items(&self) -> bool {
        self.next.wants_items()
    }
}
