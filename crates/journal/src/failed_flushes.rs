//! Flushes that have failed, for all jobs of a state directory.
//!
//! The kernel reports each failure to write back once to every descriptor that is open at that time, and once to a descriptor
//! that is opened later (syncfs(2)). A failure that is reported to one job may concern the data of any of them.
use dmover_sys::file::wait_for_lock;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::journal::now_ms;
use crate::state::StateDirectory;

/// Its file name in the state directory.
const FILE: &str = "failed-flushes";

/// A flush that has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedFlush {
    /// The boot id: device numbers are only valid for one boot.
    boot: String,
    device: u64,
    /// Data written before this time may not be on storage.
    at_ms: i64,
}

impl FailedFlush {
    /// Whether it may concern data written to a device after a time and not flushed before.
    pub fn concerns(&self, device: u64, since_ms: i64) -> bool {
        self.device == device && self.at_ms >= since_ms
    }
}

/// The list of a state directory.
#[derive(Debug, Clone, Default)]
pub struct FailedFlushes {
    /// `None`: there is no state directory.
    path: Option<PathBuf>,
    boot: String,
}

impl FailedFlushes {
    /// The list of a state directory. `boot`: the boot id of the kernel.
    pub fn of(state: Option<&StateDirectory>, boot: &str) -> Self {
        Self { path: state.map(|state| state.path().join(FILE)), boot: boot.to_owned() }
    }

    /// Records that flushes of these devices have failed.
    pub fn note(&self, devices: &[u64]) {
        let Some(path) = self.path.as_ref().filter(|_| !devices.is_empty()) else { return };
        if let Err(error) = self.append(path, devices) {
            tracing::warn!(%error, path = %path.display(), "cannot record a failed flush");
        }
    }

    fn append(&self, path: &PathBuf, devices: &[u64]) -> std::io::Result<()> {
        let mut options = std::fs::OpenOptions::new();
        let mut notes = options.create(true).read(true).append(true).mode(0o600).open(path)?;
        wait_for_lock(&notes)?;
        // Another boot has other devices, and compares what was not flushed in any case.
        if read(&notes, &self.boot).is_empty() {
            notes.set_len(0)?;
        }
        let mut text = Vec::new();
        for device in devices {
            let (boot, device, at_ms) = (self.boot.clone(), *device, now_ms());
            serde_json::to_writer(&mut text, &FailedFlush { boot, device, at_ms })?;
            text.push(b'\n');
        }
        notes.write_all(&text)?;
        notes.sync_all()
    }

    /// Failures under this kernel.
    pub fn all(&self) -> Vec<FailedFlush> {
        let notes = self.path.as_ref().and_then(|path| std::fs::File::open(path).ok());
        notes.map(|notes| read(&notes, &self.boot)).unwrap_or_default()
    }
}

/// Reads the notes. An incomplete line is skipped: its writer has not continued.
fn read(mut notes: &std::fs::File, boot: &str) -> Vec<FailedFlush> {
    let mut text = Vec::new();
    if let Err(error) = notes.read_to_end(&mut text) {
        tracing::warn!(%error, "cannot read the record of failed flushes");
    }
    let lines = text.split(|byte| *byte == b'\n');
    let failures = lines.filter_map(|line| serde_json::from_slice::<FailedFlush>(line).ok());
    failures.filter(|failure| failure.boot == boot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_known_to_all_jobs_until_the_next_boot() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::new(directory.path());
        let (old, one) =
            (FailedFlushes::of(Some(&state), "a"), FailedFlushes::of(Some(&state), "b"));
        old.note(&[7]);
        assert_eq!(one.all(), []);
        let before = now_ms();
        one.note(&[7, 8]);
        one.note(&[9]);
        assert_eq!(old.all(), [], "another boot");
        let [first, _, last] = &FailedFlushes::of(Some(&state), "b").all()[..] else { panic!() };
        assert!(first.concerns(7, before) && last.concerns(9, before));
        assert!(!first.concerns(8, before) && !first.concerns(7, first.at_ms + 1));
    }
}
