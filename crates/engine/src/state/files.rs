//! What a job tells those who ask from outside, in files that can be read from any host that sees the state directory.
use dmover_model::{ErrorClass, JobId, PathBytes, Verb};
use dmover_observe::MoverView;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use super::{JobLock, StateDirectory, is_held};
use crate::journal::now_ms;
use crate::report::JobReport;

/// A job as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobFile {
    /// Its id.
    pub job: String,
    /// The verb.
    pub verb: String,
    /// What its owner calls it.
    pub label: Option<String>,
    /// The command as it was typed.
    pub command: Vec<PathBytes>,
    /// Where it was typed.
    pub directory: PathBytes,
    /// Sources and destination as they were typed.
    pub sources: Vec<PathBytes>,
    /// See `sources`.
    pub destination: PathBytes,
    /// The file with the messages of its last run, if they went to one.
    #[serde(default)]
    pub output: Option<PathBytes>,
    /// When the command was given first, in milliseconds since 1970.
    pub created_ms: i64,
}

/// How a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// At work.
    #[default]
    Running,
    /// Everything is done, and it waits for changes.
    Watching,
    /// Its process waits to be told to go on.
    Paused,
    /// It was stopped, and the same command goes on.
    Stopped,
    /// It came to its end.
    Finished,
    /// It was given up; the same command begins anew.
    Cancelled,
    /// Its process is gone without a word; the same command goes on.
    Died,
}

impl JobPhase {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 7] = [
        Self::Running,
        Self::Watching,
        Self::Paused,
        Self::Stopped,
        Self::Finished,
        Self::Cancelled,
        Self::Died,
    ];

    /// Whether there is a process that will say more.
    pub fn has_process(self) -> bool {
        matches!(self, Self::Running | Self::Paused | Self::Watching)
    }

    /// The word in text and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Watching => "watching",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Finished => "finished",
            Self::Cancelled => "cancelled",
            Self::Died => "died",
        }
    }
}

/// How a job stands, as its process has written it down.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct JobStatus {
    /// How it stands.
    pub phase: JobPhase,
    /// Why it does not run, in words.
    pub reason: Option<String>,
    /// The exit code, once it has ended.
    pub exit_code: Option<u8>,
    /// The process, and the host that it is on.
    pub pid: u32,
    /// See `pid`.
    pub host: String,
    /// When this run began, in milliseconds since 1970.
    pub begun_ms: i64,
    /// When this was written.
    pub updated_ms: i64,
    /// It goes on with what an earlier run has left.
    pub resumed: bool,
    /// Tasks that are known and not done.
    pub tasks_left: u64,
    /// What it does at present, by the word of `dmover_observe::Stage`.
    #[serde(default)]
    pub stage: String,
    /// Entries and bytes of content of the whole source, if they are known.
    #[serde(default)]
    pub total: Option<(u64, u64)>,
    /// A digest of what the run selected of its source, if it was to see all of that; a later run that selects the
    /// same finds about as much.
    #[serde(default)]
    pub selection: Option<String>,
    /// All counters of this run by name.
    pub counters: BTreeMap<String, u64>,
    /// Errors by class.
    pub errors: BTreeMap<String, u64>,
    /// Why some errors are missing from the list of errors, if so.
    #[serde(default)]
    pub unlisted: Option<String>,
    /// What limits it.
    pub limit: Option<String>,
    /// Who works for it, if that are processes elsewhere.
    #[serde(default)]
    pub movers: Option<Vec<MoverView>>,
}

impl JobStatus {
    /// How many entries have failed. What was not attempted is no error of its entry, and is not listed.
    pub(crate) fn errors_counted(&self) -> u64 {
        let not_attempted = ErrorClass::Cancelled.word();
        self.errors.iter().filter(|(class, _)| *class != not_attempted).map(|(_, n)| n).sum()
    }
}

/// What a running job is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Take no new work for now.
    Pause,
    /// Go on.
    Resume,
    /// Stop for good.
    Cancel,
}

impl Ask {
    const ALL: [Self; 3] = [Self::Pause, Self::Resume, Self::Cancel];

    fn word(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
        }
    }
}

const JOB: &str = "job.json";
const STATUS: &str = "status.json";
const ASK: &str = "ask";

fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

impl StateDirectory {
    /// Writes down what a job is, or that it was asked for again.
    pub(crate) fn describe(&self, job: &JobId, file: &JobFile) -> std::io::Result<()> {
        let known = self.job_file(&job.0);
        let created_ms = known.as_ref().map_or(file.created_ms, |known| known.created_ms);
        // A pass without a label does not take it away.
        let label = file.label.clone().or_else(|| known?.label);
        // Only passes are gone on with.
        let flushed = file.verb == Verb::Sync.word();
        self.put(job, JOB, &JobFile { label, created_ms, ..file.clone() }, flushed)
    }

    /// Writes down how a job stands.
    pub(crate) fn put_status(&self, job: &JobId, status: &JobStatus) -> std::io::Result<()> {
        match self.put(job, STATUS, status, false) {
            Err(error) if is_full(&error) => self.put_in_place(job, status).map_err(|_| error),
            written => written,
        }
    }

    /// Overwrites the status where there is no space for another file. An old one would be taken for that of this run. A kill
    /// within this leaves none.
    fn put_in_place(&self, job: &JobId, status: &JobStatus) -> std::io::Result<()> {
        let mut text = serde_json::to_vec(status)?;
        text.push(b'\n');
        let file = std::fs::OpenOptions::new().write(true).open(self.job(job).join(STATUS))?;
        let written = file.write_all_at(&text, 0);
        file.set_len(if written.is_ok() { text.len() as u64 } else { 0 })?;
        written
    }

    /// Writes down how a job stands between two passes.
    pub(crate) fn tell_phase(&self, job: &JobId, phase: JobPhase, end: Option<(String, u8)>) {
        let Some(mut status) = self.get::<JobStatus>(&job.0, STATUS) else { return };
        if let Some((reason, code)) = end {
            (status.reason, status.exit_code) = (Some(reason), Some(code));
        }
        if let Err(error) =
            self.put_status(job, &JobStatus { phase, updated_ms: now_ms(), ..status })
        {
            tracing::warn!(%error, "cannot write the status of the job");
        }
    }

    /// Writes down how a run stands that is a part of a job, beside what the job has said of itself.
    pub(crate) fn tell_part(&self, job: &JobId, part: &JobStatus) {
        let Some(whole) = self.get::<JobStatus>(&job.0, STATUS) else { return };
        let unlisted = whole.unlisted.clone().or_else(|| part.unlisted.clone());
        let status = JobStatus { phase: part.phase, unlisted, updated_ms: now_ms(), ..whole };
        if let Err(error) = self.put_status(job, &status) {
            tracing::warn!(%error, "cannot write the status of the job");
        }
    }

    /// Writes down how a job has ended.
    pub fn tell_end(&self, report: &JobReport, code: u8) {
        let (phase, reason) = report.ending();
        let Some(status) = self.get::<JobStatus>(&report.job.0, STATUS) else { return };
        let (exit_code, updated_ms) = (Some(code), now_ms());
        let status = JobStatus { phase, reason, exit_code, updated_ms, ..status };
        if let Err(error) = self.put_status(&report.job, &status) {
            tracing::warn!(%error, "cannot write the status of the job");
        }
    }

    /// Writes down that a job could not come to its end.
    pub fn tell_failure(&self, job: &JobId, reason: String, code: u8) {
        self.tell_phase(job, JobPhase::Stopped, Some((reason, code)));
    }

    /// In one step, so that whoever reads has the old or the new.
    fn put(
        &self,
        job: &JobId,
        name: &str,
        value: &impl Serialize,
        flushed: bool,
    ) -> std::io::Result<()> {
        let directory = self.job(job);
        let temporary = directory.join(format!("{name}.new"));
        let write = || {
            let mut options = std::fs::OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            let mut text = serde_json::to_vec(value)?;
            text.push(b'\n');
            file.write_all(&text)?;
            if flushed {
                // XFS does not by itself when another file is replaced, and would leave an empty one after a power cut.
                file.sync_data()?;
            }
            Ok(())
        };
        let written = write().and_then(|()| std::fs::rename(&temporary, directory.join(name)));
        if written.is_err() {
            // It may take the space that others need.
            let _ = std::fs::remove_file(temporary);
        }
        written
    }

    fn get<T: serde::de::DeserializeOwned>(&self, job: &str, name: &str) -> Option<T> {
        let text = std::fs::read(self.path.join("jobs").join(job).join(name)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// What was asked of a running job since it looked last.
    pub(crate) fn asked(&self, job: &JobId) -> Option<Ask> {
        let path = self.job(job).join(ASK);
        let text = std::fs::read_to_string(&path).ok()?;
        // Gone by itself: somebody else has taken it back.
        let _ = std::fs::remove_file(path);
        Ask::ALL.into_iter().find(|ask| ask.word() == text.trim())
    }

    /// Asks something of a running job.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn ask(&self, job: &str, ask: Ask) -> std::io::Result<()> {
        let path = self.path.join("jobs").join(job).join(ASK);
        let temporary = path.with_extension("new");
        std::fs::write(&temporary, ask.word())?;
        std::fs::rename(temporary, path)
    }

    /// The ids of all jobs that are known here.
    ///
    /// # Errors
    /// The directory is there and cannot be read.
    pub fn jobs(&self) -> std::io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(self.path.join("jobs")) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut jobs = Vec::new();
        for entry in entries {
            let name = entry?.file_name().into_string().unwrap_or_default();
            if self.job_file(&name).is_some() {
                jobs.push(name);
            }
        }
        jobs.sort();
        Ok(jobs)
    }

    /// A job as it was asked for.
    pub fn job_file(&self, job: &str) -> Option<JobFile> {
        self.get(job, JOB)
    }

    /// How a job stands. One that says that it runs and whose lock is free has died.
    pub fn status(&self, job: &str) -> Option<JobStatus> {
        // A power cut may leave an empty file, or none.
        let written = || self.get::<JobStatus>(job, STATUS).unwrap_or_default();
        self.job_file(job)?;
        let mut status = written();
        if status.phase.has_process() && !self.is_running(job) {
            // It may have ended between the two looks.
            status = written();
            if status.phase.has_process() {
                status.phase = JobPhase::Died;
            }
        }
        Some(status)
    }

    /// Whether a process holds the lock of a job.
    pub fn is_running(&self, job: &str) -> bool {
        is_held(&self.path.join("jobs").join(job).join("lock"))
    }

    /// Whether somebody stands by for a job, and goes on if its process is gone.
    pub fn is_stood_by(&self, job: &str) -> bool {
        is_held(&self.path.join("jobs").join(job).join("standby"))
    }

    /// Where a job keeps what it knows.
    pub fn directory(&self, job: &str) -> std::path::PathBuf {
        self.path.join("jobs").join(job)
    }

    /// Forgets what was to be seen of runs that were killed and of which nothing else is kept: their names have a run in them.
    pub(crate) fn forget_passed(&self) {
        let jobs = self.jobs().unwrap_or_default();
        for job in jobs.iter().filter(|job| job.contains('-')) {
            if let Ok(lock) = self.lock(&JobId(job.clone())) {
                // Whoever comes next tries again.
                let _ = self.forget(job, &lock);
            }
        }
    }

    /// Forgets a job, whose lock has to be held.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn forget(&self, job: &str, _held: &JobLock) -> std::io::Result<()> {
        std::fs::remove_dir_all(self.directory(job))?;
        self.forget_disks_without_jobs()
    }
}
