//! The list of errors for verbs without a journal: a file with one JSON object a line in the directory of the job.
use dmover_model::{EntryError, ErrorClass, JobId};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{JobPhase, StateDirectory};
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
pub struct Failures {
    state: PathBuf,
    path: PathBuf,
    /// Whether this is the list of a whole job, which replaces that of the run before.
    replaces: bool,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    begun: bool,
    list: Option<Lines>,
    lost: Option<String>,
}

/// A file to which whole lines are added.
#[derive(Debug)]
struct Lines {
    file: File,
    /// Where the last whole line ends.
    end: u64,
    /// The file ends with a part of a line that could not be removed.
    is_torn: bool,
}

impl Lines {
    fn open(path: &Path) -> std::io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).read(true).mode(0o600).open(path)?;
        let end = file.metadata()?.len();
        let mut last = [b'\n'];
        if end > 0 {
            file.read_exact_at(&mut last, end - 1)?;
        }
        Ok(Self { file, end, is_torn: last != [b'\n'] })
    }

    /// Adds a line, which must end with a newline. After a failure the file ends with a whole line again: a full file
    /// system takes a part of a line, and may have space for the next one.
    fn add(&mut self, line: &[u8]) -> std::io::Result<()> {
        let begun = if self.is_torn { &b"\n"[..] } else { b"" };
        let text = [begun, line].concat();
        if let Err(error) = self.file.write_all(&text) {
            self.is_torn |= self.file.set_len(self.end).is_err();
            return Err(error);
        }
        self.end = self.file.metadata()?.len();
        self.is_torn = false;
        Ok(())
    }
}

impl Failures {
    /// The list of a job, which has to be locked. `replaces`: this run is the whole job, so that its list replaces that of
    /// the run before.
    pub fn new(state: &StateDirectory, id: &JobId, replaces: bool) -> Self {
        let (state, path) = (state.path().to_owned(), state.of_job(id).join(FILE));
        Self { state, path, replaces, kept: Mutex::default() }
    }

    /// Begins the list: that of the run before is removed. Call this when nothing can keep the run from starting.
    pub fn begin(&self) {
        let begun = self.begin_with(&mut lock(&self.kept));
        if let Err(error) = begun {
            self.lose(&error);
        }
    }

    fn begin_with(&self, kept: &mut Kept) -> std::io::Result<()> {
        if std::mem::replace(&mut kept.begun, true) || !self.replaces {
            return Ok(());
        }
        remove(&self.path)
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
        self.begin_with(&mut kept)?;
        if kept.list.is_none() {
            kept.list = Some(Lines::open(&self.path)?);
        }
        kept.list.as_mut().map_or(Ok(()), |list| list.add(&line))
    }

    fn lose(&self, error: &std::io::Error) {
        let mut kept = lock(&self.kept);
        if kept.lost.is_none() {
            tracing::warn!(%error, path = %self.path.display(), "errors are missing from the list");
            kept.lost = Some(format!("cannot write {}: {error}", self.path.display()));
        }
    }

    /// Why errors are missing from the list; `None` if it has all.
    pub fn lost(&self) -> Option<String> {
        lock(&self.kept).lost.clone()
    }

    /// Where the errors are listed.
    pub fn list(&self) -> ErrorList {
        self.lost().map_or_else(|| ErrorList::In(self.state.clone()), ErrorList::Incomplete)
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What a list of errors has, and what is missing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listed {
    /// Errors that were listed.
    pub errors: u64,
    /// Lines that are damaged.
    pub damaged: u64,
    /// Errors that the run has counted, if that is more than are listed.
    pub of: Option<u64>,
    /// Why some are missing, if that is known.
    pub why: Option<String>,
}

impl Listed {
    /// Whether nothing is missing, as far as that is known.
    pub fn is_complete(&self) -> bool {
        self.damaged == 0 && self.of.is_none() && self.why.is_none()
    }
}

/// Why a list of errors cannot be read.
#[derive(Debug)]
pub enum Unlisted {
    /// The job keeps no list.
    None,
    /// The journal cannot be read, in words.
    Journal(String),
    /// The file beside it cannot be read, in words.
    File(String),
}

/// Passes each line of a list to `each` until that returns false. Returns the number of damaged lines. An incomplete
/// last line counts as damaged, unless the job may be writing it.
fn read(
    path: &Path,
    is_written: bool,
    each: &mut dyn FnMut(RecordedError) -> bool,
) -> Result<u64, String> {
    let fail = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        opened => BufReader::new(opened.map_err(fail)?),
    };
    let (mut line, mut damaged) = (Vec::new(), 0);
    while file.read_until(b'\n', &mut line).map_err(fail)? > 0 {
        match serde_json::from_slice(&line) {
            _ if is_written && !line.ends_with(b"\n") => break,
            _ if line == b"\n" => {}
            Ok(error) => {
                if !each(error) {
                    break;
                }
            }
            Err(_) => damaged += 1,
        }
        line.clear();
    }
    Ok(damaged)
}

impl StateDirectory {
    /// Removes the list that a run of a job with a journal has left: errors of its read-back.
    pub fn forget_errors(&self, job: &JobId) {
        if let Err(error) = remove(&self.of_job(job).join(FILE)) {
            tracing::warn!(%error, "cannot remove the list of errors of the run before");
        }
    }

    /// Passes each error of the last run of a job to `each` until that returns false. Returns what was listed, compared
    /// with what the job has counted.
    ///
    /// # Errors
    /// A message that says why it cannot be read.
    pub fn errors(
        &self,
        job: &str,
        each: &mut dyn FnMut(RecordedError) -> bool,
    ) -> Result<Listed, Unlisted> {
        // A job that leaves nothing behind has a run in its name.
        if job.contains('-') {
            return Err(Unlisted::None);
        }
        let directory = self.directory(job);
        let before = self.status(job).unwrap_or_default();
        let (mut errors, mut continues) = (0, true);
        let mut take = |error| {
            errors += 1;
            continues = each(error);
            continues
        };
        let journal = JournalReader::open(&directory).map_err(Unlisted::Journal)?;
        if let Some(journal) = &journal {
            journal.each_error(&mut take).map_err(Unlisted::Journal)?;
        }
        let is_written = before.phase.has_process();
        let path = directory.join(FILE);
        let damaged = read(&path, is_written, &mut take).map_err(Unlisted::File)?;
        let mut listed = Listed { errors, damaged, ..Listed::default() };
        let after = self.status(job).unwrap_or_default();
        // Another run has begun, or the caller has had enough.
        if !continues || (before.pid, before.begun_ms) != (after.pid, after.begun_ms) {
            return Ok(listed);
        }
        // A journal is written later than the status of a job that runs. What is missing after a kill is still to be done.
        let is_settled = journal.is_none() || !(is_written || before.phase == JobPhase::Died);
        listed.of = Some(before.errors_counted()).filter(|n| *n > errors && is_settled);
        let unknown = (before.begun_ms == 0).then(|| "the status of the run is missing".into());
        listed.why = before.unlisted.or(after.unlisted).or(unknown);
        Ok(listed)
    }
}
