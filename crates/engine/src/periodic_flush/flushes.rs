//! Flushes of the file systems that a job writes to, and a note of those that failed.
//!
//! The kernel reports each failure to write back once to every descriptor that is open at that time, and once to a descriptor
//! that is opened later (syncfs(2)). A run therefore holds a descriptor of each file system until it ends. A failure that is
//! reported to one job is noted in the state directory for all jobs, because it may concern the data of any of them.
use dmover_journal::FailedFlushes;
use dmover_sys::{Errno, OwnedFd, file};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::control::Control;

/// How often to check during a flush whether the job must end.
const LOOK: Duration = Duration::from_millis(20);

/// The file systems that a job writes to.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    held: Vec<(u64, OwnedFd)>,
    failed: FailedFlushes,
}

impl Flushes {
    /// `failed`: the list of failures.
    pub fn new(failed: FailedFlushes) -> Self {
        Self { held: Vec::new(), failed }
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
        self.failed.note(&failed);
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
}
