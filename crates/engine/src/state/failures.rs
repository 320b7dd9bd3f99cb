//! The list of errors for verbs without a journal: a file with one JSON object a line in the directory of the job.
use dmover_model::{EntryError, ErrorClass, JobId};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::StateDirectory;
use crate::context::lock;
use crate::driver::Job;
use crate::journal::{JournalReader, RecordedError};

/// Its file name in the directory of the job.
pub(super) const FILE: &str = "errors.jsonl";

/// Where the errors of a job are listed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ErrorList {
    /// Nowhere: the job has no state.
    #[default]
    Nowhere,
    /// In this state directory.
    In(PathBuf),
    /// The list lacks some errors, for this reason.
    Incomplete(String),
}

/// The list of a run. The first error creates the file.
#[derive(Debug)]
pub(crate) struct Failures {
    state: PathBuf,
    path: PathBuf,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    file: Option<File>,
    lost: Option<String>,
}

impl Failures {
    /// Starts the list of a run, whose job must be locked. `None`: its errors go to a journal, or are not listed.
    pub fn of(job: &Job, id: &JobId, has_journal: bool) -> Option<Self> {
        if let Some((state, whole)) = &job.part_of {
            return Some(Self::new(state, whole));
        }
        let state = job.state.as_ref().filter(|_| !job.spec.policy.dry_run)?;
        let list = Self::new(state, id);
        match std::fs::remove_file(&list.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => list.lose(&error),
            _ => {}
        }
        (!has_journal).then_some(list)
    }

    fn new(state: &StateDirectory, id: &JobId) -> Self {
        let (state, path) = (state.path().to_owned(), state.of_job(id).join(FILE));
        Self { state, path, kept: Mutex::default() }
    }

    /// Writes an error at once, because the process may be killed. Entries that were not attempted are not listed.
    pub fn note(&self, error: &EntryError) {
        if error.class == ErrorClass::Cancelled {
            return;
        }
        if let Err(error) = self.append(&RecordedError::now(error)) {
            self.lose(&error);
        }
    }

    fn append(&self, error: &RecordedError) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(error)?;
        line.push(b'\n');
        let mut kept = lock(&self.kept);
        let mut file = match kept.file.take() {
            Some(file) => file,
            None => OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?,
        };
        let written = file.write_all(&line);
        kept.file = Some(file);
        written
    }

    fn lose(&self, error: &std::io::Error) {
        let mut kept = lock(&self.kept);
        if kept.lost.is_none() {
            tracing::warn!(%error, path = %self.path.display(), "errors are missing from the list");
            kept.lost = Some(format!("cannot write {}: {error}", self.path.display()));
        }
    }

    /// Where the errors are listed.
    pub fn list(&self) -> ErrorList {
        match &lock(&self.kept).lost {
            None => ErrorList::In(self.state.clone()),
            Some(why) => ErrorList::Incomplete(why.clone()),
        }
    }
}

/// Passes each line of a list to `each` until that returns false. An incomplete last line is skipped.
fn read(path: &Path, each: &mut dyn FnMut(RecordedError) -> bool) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => BufReader::new(opened.map_err(fail)?),
    };
    let mut line = Vec::new();
    while file.read_until(b'\n', &mut line).map_err(fail)? > 0 && line.ends_with(b"\n") {
        let error = serde_json::from_slice(&line).map_err(|error| fail(error.into()))?;
        if !each(error) {
            break;
        }
        line.clear();
    }
    Ok(())
}

impl StateDirectory {
    /// Passes each error of the last run of a job to `each` until that returns false. Returns whether there is such a
    /// list.
    ///
    /// # Errors
    /// A message that says why it cannot be read.
    pub fn errors(
        &self,
        job: &str,
        each: &mut dyn FnMut(RecordedError) -> bool,
    ) -> Result<bool, String> {
        // A job that leaves nothing behind has a run in its name.
        if job.contains('-') {
            return Ok(false);
        }
        let directory = self.directory(job);
        let mut goes_on = true;
        if let Some(journal) = JournalReader::open(&directory)? {
            journal.each_error(&mut |error| {
                goes_on = each(error);
                goes_on
            })?;
        }
        if goes_on {
            read(&directory.join(FILE), each)?;
        }
        Ok(true)
    }
}
