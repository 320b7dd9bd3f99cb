//! Flushes of the file systems that a job writes to, and a note of those that failed.
//!
//! The kernel reports each failure to write back once to every descriptor that is open at that time, and once to a descriptor
//! that is opened later (syncfs(2)). A run therefore holds a descriptor of each file system until it ends. A failure that is
//! reported to one job is noted in the state directory for all jobs, because it may concern the data of any of them.
use dmover_sys::{Errno, OwnedFd, file};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::StateDirectory;
use crate::control::Control;
use crate::journal::now_ms;

/// Its file name in the state directory.
const FILE: &str = "failed-flushes";

/// How often to check during a flush whether the job must end.
const LOOK: Duration = Duration::from_millis(20);

/// A flush that has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failure {
    /// The boot id: device numbers are only valid for one boot.
    boot: String,
    device: u64,
    /// Data written before this time may not be on storage.
    at_ms: i64,
}

impl Failure {
    /// Whether it may concern data written to a device after a time and not flushed before.
    pub fn concerns(&self, device: u64, since_ms: i64) -> bool {
        self.device == device && self.at_ms >= since_ms
    }
}

/// The file systems that a job writes to.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    held: Vec<(u64, OwnedFd)>,
    /// Where failures are recorded; `None`: nowhere.
    note: Option<PathBuf>,
    boot: String,
}

impl Flushes {
    pub fn new(state: Option<&StateDirectory>, boot: &str) -> Self {
        let note = state.map(|state| state.path.join(FILE));
        Self { held: Vec::new(), note, boot: boot.to_owned() }
    }

    /// Adds a file system by one of its directories.
    pub fn hold(&mut self, device: u64, directory: OwnedFd) {
        if !self.held.iter().any(|(known, _)| *known == device) {
            self.held.push((device, directory));
        }
    }

    /// Returns when everything written before is on storage.
    pub fn flush(&self) -> Result<(), Errno> {
        let mut failed = Vec::new();
        let mut result = Ok(());
        for (device, directory) in &self.held {
            if let Err(error) = file::sync_file_system(directory) {
                failed.push(*device);
                result = Err(error);
            }
        }
        self.note(&failed);
        result
    }

    /// Flushes until the job is stopped (EINTR): then the flush continues in the background and does not count. A disk
    /// that hangs does not block a job that must end.
    pub fn flush_unless_stopped(self: &Arc<Self>, control: &Control) -> Result<(), Errno> {
        let (sender, receiver) = channel();
        let flushes = Arc::clone(self);
        let work = move || {
            // After a stop there is no receiver.
            let _ = sender.send(flushes.flush());
        };
        if std::thread::Builder::new().name("flush".into()).spawn(work).is_err() {
            return self.flush();
        }
        loop {
            match receiver.recv_timeout(LOOK) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(Errno::IO),
                Err(RecvTimeoutError::Timeout) if control.is_stopping() => return Err(Errno::INTR),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Records that flushes of these devices have failed.
    pub fn note(&self, devices: &[u64]) {
        let Some(path) = self.note.as_ref().filter(|_| !devices.is_empty()) else { return };
        if let Err(error) = self.append(path, devices) {
            tracing::warn!(%error, path = %path.display(), "cannot record a failed flush");
        }
    }

    fn append(&self, path: &PathBuf, devices: &[u64]) -> std::io::Result<()> {
        let mut options = std::fs::OpenOptions::new();
        let mut notes = options.create(true).read(true).append(true).mode(0o600).open(path)?;
        file::wait_for_lock(&notes)?;
        // Another boot has other devices, and compares what was not flushed in any case.
        if read(&notes, &self.boot).is_empty() {
            notes.set_len(0)?;
        }
        let mut text = Vec::new();
        for device in devices {
            let (boot, device, at_ms) = (self.boot.clone(), *device, now_ms());
            serde_json::to_writer(&mut text, &Failure { boot, device, at_ms })?;
            text.push(b'\n');
        }
        notes.write_all(&text)?;
        notes.sync_all()
    }

    /// Failures under this kernel.
    pub fn failures(&self) -> Vec<Failure> {
        let notes = self.note.as_ref().and_then(|path| std::fs::File::open(path).ok());
        notes.map(|notes| read(&notes, &self.boot)).unwrap_or_default()
    }
}

/// Reads the notes. An incomplete line is skipped: its writer has not continued.
fn read(mut notes: &std::fs::File, boot: &str) -> Vec<Failure> {
    let mut text = Vec::new();
    if let Err(error) = notes.read_to_end(&mut text) {
        tracing::warn!(%error, "cannot read the record of failed flushes");
    }
    let lines = text.split(|byte| *byte == b'\n');
    let failures = lines.filter_map(|line| serde_json::from_slice::<Failure>(line).ok());
    failures.filter(|failure| failure.boot == boot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_known_to_all_jobs_until_the_next_boot() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::new(directory.path());
        let (old, one) = (Flushes::new(Some(&state), "a"), Flushes::new(Some(&state), "b"));
        old.note(&[7]);
        assert_eq!(one.failures(), []);
        let before = now_ms();
        one.note(&[7, 8]);
        one.note(&[9]);
        assert_eq!(old.failures(), [], "another boot");
        let [first, _, last] = &Flushes::new(Some(&state), "b").failures()[..] else { panic!() };
        assert!(first.concerns(7, before) && last.concerns(9, before));
        assert!(!first.concerns(8, before) && !first.concerns(7, first.at_ms + 1));
    }
}
