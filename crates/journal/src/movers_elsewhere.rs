//! A note that the movers of a job are remote, so that a run that resumes the job knows that they may still be running.
use dmover_model::{Fatal, JobId};
use std::io::{Error, ErrorKind};
use std::path::PathBuf;

use crate::state::StateDirectory;

/// The lease, in milliseconds, of a note that cannot be read.
const LEASE_MS: u64 = 60_000;

/// The note of a job. It contains the lease of the movers.
#[derive(Debug)]
pub struct MoversElsewhere(PathBuf);

impl MoversElsewhere {
    /// The note of a job, which may not exist.
    pub fn of(state: &StateDirectory, id: &JobId) -> Self {
        Self(state.of_job(id).join("movers-elsewhere"))
    }

    /// The lease of the movers of an interrupted run, in milliseconds; `None`: there is no note.
    pub fn lease_ms(&self) -> Result<Option<u64>, Fatal> {
        match std::fs::read_to_string(&self.0) {
            Ok(text) => Ok(Some(text.trim().parse().unwrap_or(LEASE_MS))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.fail(&error)),
        }
    }

    /// Records that there are such movers.
    pub fn put(&self, lease_ms: u64) -> Result<(), Fatal> {
        std::fs::write(&self.0, format!("{lease_ms}\n")).map_err(|error| self.fail(&error))
    }

    /// Removes the note: the run has ended, and its movers know it.
    pub fn remove(&self) {
        if let Err(error) = std::fs::remove_file(&self.0)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, "cannot remove a note");
        }
    }

    fn fail(&self, error: &Error) -> Fatal {
        Fatal::Ledger { path: self.0.clone(), reason: error.to_string() }
    }
}
