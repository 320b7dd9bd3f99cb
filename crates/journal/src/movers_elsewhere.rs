//! A note that the movers of a job are remote, so that a run that resumes the job knows that they may still be running.
use dmover_model::{Fatal, JobId};
use std::io::{Error, ErrorKind, Write};
use std::path::PathBuf;

use crate::state::StateDirectory;

/// The lease, in milliseconds, of a note that cannot be read.
const LEASE_MS: u64 = 60_000;
/// The second line of a note that names each process that may write.
const NAMED: &str = "processes:";

/// The note of a job. It contains the lease of the movers, and perhaps their processes.
#[derive(Debug, Clone)]
pub struct MoversElsewhere(PathBuf);

/// Movers of an interrupted run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierMovers {
    /// How long they may continue without contact, in milliseconds.
    pub lease_ms: u64,
    /// Their processes, in words of whoever noted them; `None`: any may be left.
    pub processes: Option<Vec<String>>,
}

impl MoversElsewhere {
    /// The note of a job, which may not exist.
    pub fn of(state: &StateDirectory, id: &JobId) -> Self {
        Self(state.of_job(id).join("movers-elsewhere"))
    }

    /// The movers of an interrupted run; `None`: there is no note.
    pub fn read(&self) -> Result<Option<EarlierMovers>, Fatal> {
        let text = match std::fs::read_to_string(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.fail(&error)),
        };
        let mut lines = text.lines();
        let lease_ms = lines.next().and_then(|line| line.trim().parse().ok()).unwrap_or(LEASE_MS);
        let is_named = lines.next() == Some(NAMED);
        let processes = is_named.then(|| lines.map(str::to_owned).collect());
        Ok(Some(EarlierMovers { lease_ms, processes }))
    }

    /// Records that there are such movers. `is_named`: each process is named by [`Self::name`] before it works.
    pub fn put(&self, lease_ms: u64, is_named: bool) -> Result<(), Fatal> {
        let named = if is_named { format!("{NAMED}\n") } else { String::new() };
        std::fs::write(&self.0, format!("{lease_ms}\n{named}")).map_err(|error| self.fail(&error))
    }

    /// Adds a process, in words without a line break.
    pub fn name(&self, process: &str) -> Result<(), Fatal> {
        let add = || {
            let mut file = std::fs::OpenOptions::new().append(true).open(&self.0)?;
            file.write_all(format!("{process}\n").as_bytes())
        };
        add().map_err(|error| self.fail(&error))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_who_may_be_left() {
        let directory = tempfile::tempdir().unwrap();
        let note = MoversElsewhere(directory.path().join("note"));
        assert_eq!(note.read().unwrap(), None);
        note.put(700, false).unwrap();
        let any = EarlierMovers { lease_ms: 700, processes: None };
        assert_eq!(note.read().unwrap(), Some(any));
        note.put(800, true).unwrap();
        let none = EarlierMovers { lease_ms: 800, processes: Some(Vec::new()) };
        assert_eq!(note.read().unwrap(), Some(none));
        note.name("one").unwrap();
        note.name("two").unwrap();
        let two = note.read().unwrap().unwrap().processes;
        assert_eq!(two, Some(vec!["one".to_owned(), "two".to_owned()]));
        std::fs::write(&note.0, "damaged").unwrap();
        let damaged = EarlierMovers { lease_ms: LEASE_MS, processes: None };
        assert_eq!(note.read().unwrap(), Some(damaged));
        note.remove();
        assert_eq!(note.read().unwrap(), None);
    }
}
