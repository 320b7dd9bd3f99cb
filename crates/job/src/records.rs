//! What a job has on record: its passes and the entries that failed.
use dmover_journal::{JournalReader, Listed, RecordedError, RecordedPass, Unlisted};

use crate::known::KnownJob;
use crate::refusal::{Reason, Refusal};

/// The hint for a journal that cannot be read.
const UNREADABLE: &str = "if the journal is damaged, move it away: the next run starts a new one. \
     After an interrupted pass, run that command with --checksum";

/// The hint for a list of a job without a journal that cannot be read.
const UNREADABLE_LIST: &str =
    "check the storage of the state directory; the next run of the job starts a new list";

impl KnownJob {
    /// The passes of the job, the first one first. A pass without an end whose process is gone has died.
    ///
    /// # Errors
    /// The job has no journal, or it cannot be read.
    pub fn passes(&self) -> Result<Vec<RecordedPass>, Refusal> {
        let journal = JournalReader::open(&self.state.directory(self.id())).map_err(|message| {
            let hint = "if the job runs on another host, run this command there";
            Refusal::new(Reason::Unavailable, message, hint)
        })?;
        let journal = journal.ok_or_else(|| {
            let message = format!("job {} has no journal: only 'sync' keeps one", self.id());
            let hint = "see the messages of the job, or its --log-file";
            Refusal::new(Reason::NoRecord, message, hint)
        })?;
        let passes = journal.passes();
        let runs = self.is_running();
        let mut passes =
            passes.map_err(|message| Refusal::new(Reason::Failed, message, UNREADABLE))?;
        for pass in &mut passes {
            if pass.state == "running" && !runs {
                pass.state = "died".into();
            }
        }
        Ok(passes)
    }

    /// Calls a function with each error of the job until it returns `false`. There may be millions: none is kept in memory.
    /// Returns whether the list is complete.
    ///
    /// # Errors
    /// The job has no list of errors, or it cannot be read.
    pub fn each_error(
        &self,
        each: &mut dyn FnMut(RecordedError) -> bool,
    ) -> Result<Listed, Refusal> {
        self.state.errors(self.id(), each).map_err(|why| match why {
            Unlisted::None => {
                let message = format!("job {} has no list of errors", self.id());
                let hint = "see the messages of the job; --errors-to FILE records a list";
                Refusal::new(Reason::NoRecord, message, hint)
            }
            Unlisted::Journal(message) => Refusal::new(Reason::Failed, message, UNREADABLE),
            Unlisted::File(message) => Refusal::new(Reason::Failed, message, UNREADABLE_LIST),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::on_record::OnRecord;

    #[test]
    fn a_copy_has_no_passes_on_record() {
        let job = OnRecord::new().put("a1", |_| {});
        assert_eq!(job.passes().unwrap_err().reason, Reason::NoRecord);
    }
}
