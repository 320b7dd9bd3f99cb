//! Jobs on record without a process, for tests.
use dmover_journal::{JobFile, JobLock, JobPhase, JobStatus, StateDirectory};
use dmover_model::{JobId, PathBytes};

use crate::known::KnownJob;

/// A state directory with jobs.
pub(crate) struct OnRecord {
    state: StateDirectory,
    /// Removed at the end.
    _place: tempfile::TempDir,
}

impl OnRecord {
    pub fn new() -> Self {
        let place = tempfile::tempdir().expect("a temporary directory");
        Self { state: StateDirectory::new(place.path().join("state")), _place: place }
    }

    pub fn state(&self) -> &StateDirectory {
        &self.state
    }

    /// A copy of `/s` to `/d`, with other values if they are changed.
    pub fn put(&self, job: &str, change: impl FnOnce(&mut JobFile)) -> KnownJob {
        let words = ["dmover", "copy", "s", "d"];
        let mut file = JobFile {
            job: job.into(),
            verb: "copy".into(),
            command: words.map(|word| PathBytes(word.as_bytes().to_vec())).to_vec(),
            directory: PathBytes(b"/".to_vec()),
            sources: vec![PathBytes(b"s".to_vec())],
            destination: PathBytes(b"d".to_vec()),
            ..JobFile::default()
        };
        change(&mut file);
        drop(self.runs(job));
        self.state.describe(&JobId(job.into()), &file).expect("the state is writable");
        KnownJob { state: self.state.clone(), file }
    }

    /// Records a phase. The time stands for the start and for the last update.
    pub fn status(&self, job: &str, phase: JobPhase, ms: i64) {
        let status = JobStatus { phase, begun_ms: ms, updated_ms: ms, ..JobStatus::default() };
        self.state.put_status(&JobId(job.into()), &status).expect("the state is writable");
    }

    /// Makes a job run until the lock is dropped.
    pub fn runs(&self, job: &str) -> JobLock {
        self.state.lock(&JobId(job.into())).expect("no other test runs this job")
    }
}
