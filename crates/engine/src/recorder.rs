//! Writes the manifest of a job while it runs.
use dmover_digest::manifest::{Header, Writer};
use dmover_model::Record;
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use std::io::Write;

/// Writes the manifest of a job.
pub struct Recorder {
    state: Mutex<State>,
    /// Only entries that this job writes are recorded.
    only_written: bool,
}

struct State {
    output: Box<dyn Write + Send>,
    writer: Option<Writer>,
    failure: Option<std::io::Error>,
    /// The manifest lacks an entry that was seen.
    left_out: bool,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder that writes the manifest to `output` while the job runs.
    pub fn new(output: Box<dyn Write + Send>) -> Self {
        let state = State { output, writer: None, failure: None, left_out: false };
        Self { state: Mutex::new(state), only_written: false }
    }

    /// A recorder for entries that this job writes, to read them back.
    pub fn of_written(output: Box<dyn Write + Send>) -> Self {
        Self { only_written: true, ..Self::new(output) }
    }

    /// Whether it records only entries that this job writes.
    pub(crate) fn is_of_written(&self) -> bool {
        self.only_written
    }

    pub(crate) fn begin(&self, header: &Header) {
        let state = &mut *lock(&self.state);
        state.writer = Some(Writer::new(header));
        state.write();
    }

    /// Writes a record. Returns whether everything could be written so far.
    pub(crate) fn keep(&self, record: &Record) -> bool {
        let state = &mut *lock(&self.state);
        if let Some(writer) = &mut state.writer {
            writer.push(record);
        }
        state.write();
        state.failure.is_none()
    }

    /// Records that an entry is missing in the manifest, which is then incomplete.
    pub(crate) fn note_left_out(&self) {
        lock(&self.state).left_out = true;
    }

    /// Ends the manifest. `complete`: it has every entry.
    ///
    /// # Errors
    /// The manifest could not be written.
    pub fn finish(&self, complete: bool) -> std::io::Result<()> {
        let state = &mut *lock(&self.state);
        if let Some(error) = state.failure.take() {
            return Err(error);
        }
        match state.writer.take() {
            Some(writer) => state.output.write_all(&writer.finish(complete && !state.left_out))?,
            None => return Ok(()),
        }
        state.output.flush()
    }
}

impl State {
    fn write(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        let bytes = writer.take();
        if self.failure.is_none()
            && !bytes.is_empty()
            && let Err(error) = self.output.write_all(&bytes)
        {
            self.failure = Some(error);
        }
    }
}
