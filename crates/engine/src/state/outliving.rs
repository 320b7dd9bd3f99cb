//! A note that the movers of a job are elsewhere, so that whoever goes on with it knows that they may be at work still.
use dmover_model::{Event, JobId};
use std::path::PathBuf;
use std::time::Duration;

use crate::driver::Job;
use crate::error::Fatal;

/// Takes note, where a job keeps its state, that its movers are elsewhere: they may outlive it.
pub(crate) struct Outliving {
    note: Option<PathBuf>,
    /// The run before had such movers, and was cut off.
    pub before: bool,
}

impl Outliving {
    /// Reads and writes the note, and waits until movers of a run that was cut off have stopped.
    pub fn begin(job: &Job, id: &JobId) -> Result<Self, Fatal> {
        let state = job.state.as_ref().filter(|_| !job.spec.policy.dry_run);
        let Some(note) = state.map(|state| state.of_job(id).join("movers-elsewhere")) else {
            return Ok(Self { note: None, before: false });
        };
        let fail =
            |error: std::io::Error| Fatal::Ledger { path: note.clone(), reason: error.to_string() };
        let known = match std::fs::read_to_string(&note) {
            Ok(text) => Some(text.trim().parse::<u64>().unwrap_or(60_000)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(fail(error)),
        };
        let lease = job.fleets.as_ref().map(|fleets| fleets.lease());
        if let Some(lease_ms) = known {
            let wait = Duration::from_millis(lease_ms + lease_ms / 5);
            let seconds = wait.as_secs();
            let words = format!(
                "waiting {seconds} s until movers of the run that was cut off have stopped"
            );
            job.monitor.event(&Event::Movers { words });
            // Also if the job is to stop: what is begun after this must not meet them.
            std::thread::sleep(wait);
        }
        if let Some(lease) = lease {
            let text = format!("{}\n", lease.as_millis());
            std::fs::write(&note, text).map_err(fail)?;
        }
        Ok(Self { note: Some(note), before: known.is_some() })
    }

    /// The run has ended, and its movers know.
    pub fn end(&self) {
        if let Some(note) = &self.note
            && let Err(error) = std::fs::remove_file(note)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "a note cannot be removed");
        }
    }
}
