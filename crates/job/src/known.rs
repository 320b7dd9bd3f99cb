//! A job that a state directory has on record.
use dmover_journal::{JobFile, JobStatus, StateDirectory};
use dmover_model::Verb;

/// A job and its state directory.
#[derive(Debug, Clone)]
pub struct KnownJob {
    /// The directory with its records.
    pub state: StateDirectory,
    /// Its description.
    pub file: JobFile,
}

impl KnownJob {
    /// The id of the job.
    pub fn id(&self) -> &str {
        &self.file.job
    }

    /// The status that its process has recorded last.
    pub fn status(&self) -> JobStatus {
        self.state.status(&self.file.job).unwrap_or_default()
    }

    /// Whether a process works on it.
    pub fn is_running(&self) -> bool {
        self.state.is_running(&self.file.job)
    }
}

/// Whether the failed entries of a job can be retried separately: a watch retries them by itself, and a snapshot gets its
/// name after a whole pass only.
pub fn can_retry(file: &JobFile) -> bool {
    let mut words = file.command.iter().skip(1);
    file.verb == Verb::Sync.word()
        && words.next().is_none_or(|verb| verb.0 != b"snapshot")
        && words.take_while(|word| word.0 != b"--").all(|word| word.0 != b"--watch")
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::PathBytes;

    #[test]
    fn only_a_plain_sync_can_retry_its_failed_entries() {
        let can = |verb: &str, command: &str| {
            let command =
                command.split(' ').map(|word| PathBytes(word.as_bytes().to_vec())).collect();
            can_retry(&JobFile { verb: verb.into(), command, ..JobFile::default() })
        };
        assert!(can("sync", "dmover sync a b"));
        assert!(can("sync", "dmover sync -- --watch b"));
        assert!(!can("sync", "dmover sync --watch a b"));
        assert!(!can("sync", "dmover snapshot create a b"));
        assert!(!can("copy", "dmover copy a b"));
    }
}
