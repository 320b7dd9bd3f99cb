//! The description and status of a job in files, which every host that sees the state directory can read.
use dmover_model::{ConnectionReport, ErrorClass, JobId, PathBytes, Verb};
use dmover_observe::MoverView;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use super::{JobLock, StateDirectory, failures, is_held};
use crate::journal::now_ms;

/// The description of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobFile {
    /// Its id.
    pub job: String,
    /// The verb.
    pub verb: String,
    /// The label that the user gave it.
    pub label: Option<String>,
    /// The command as the user typed it.
    pub command: Vec<PathBytes>,
    /// The working directory of the command.
    pub directory: PathBytes,
    /// The sources as the user typed them.
    pub sources: Vec<PathBytes>,
    /// The sources are on other hosts, as `HOST:PATH`.
    #[serde(default)]
    pub sources_are_remote: bool,
    /// The destination as the user typed it.
    pub destination: PathBytes,
    /// The file with the messages of its last run, if they went to one.
    #[serde(default)]
    pub output: Option<PathBytes>,
    /// When the command was first run, in milliseconds since 1970.
    pub created_ms: i64,
}

/// The phase of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// It is running.
    #[default]
    Running,
    /// Everything is done, and it waits for changes.
    Watching,
    /// Its process waits for `resume`.
    Paused,
    /// It was stopped, and the same command resumes it.
    Stopped,
    /// It is complete.
    Finished,
    /// It was cancelled; the same command starts again.
    Cancelled,
    /// Its process died without a final status; the same command resumes it.
    Died,
}

impl JobPhase {
    /// All phases, in the order of the documentation.
    pub const ALL: [Self; 7] = [
        Self::Running,
        Self::Watching,
        Self::Paused,
        Self::Stopped,
        Self::Finished,
        Self::Cancelled,
        Self::Died,
    ];

    /// Whether it has a process that will update the status.
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

/// The status of a job, as its process has recorded it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct JobStatus {
    /// The phase.
    pub phase: JobPhase,
    /// Why it does not run.
    pub reason: Option<String>,
    /// The exit code, once it has ended.
    pub exit_code: Option<u8>,
    /// The process id.
    pub pid: u32,
    /// The host of the process.
    pub host: String,
    /// Start time of this run in milliseconds since 1970.
    pub begun_ms: i64,
    /// When this was written, in milliseconds since 1970.
    pub updated_ms: i64,
    /// This run resumed the work of an earlier run.
    pub resumed: bool,
    /// Tasks that are known and not done.
    pub tasks_left: u64,
    /// The present stage, by the word of `dmover_observe::Stage`.
    #[serde(default)]
    pub stage: String,
    /// Entries and bytes of content of the whole source, if they are known.
    #[serde(default)]
    pub total: Option<(u64, u64)>,
    /// A digest of what the run selected of its source, if it scanned the whole selection; a later run of the same selection
    /// finds about as much.
    #[serde(default)]
    pub selection: Option<String>,
    /// All counters of this run, by name.
    pub counters: BTreeMap<String, u64>,
    /// Errors by class.
    pub errors: BTreeMap<String, u64>,
    /// Why some errors are missing from the list of errors, if so.
    #[serde(default)]
    pub unlisted: Option<String>,
    /// What limits its speed.
    pub limit: Option<String>,
    /// The connections to the hosts of its sources, with the SOURCE of each.
    #[serde(default)]
    pub connections: Vec<(PathBytes, ConnectionReport)>,
    /// Its remote movers, if it has any.
    #[serde(default)]
    pub movers: Option<Vec<MoverView>>,
}

impl JobStatus {
    /// The number of failed entries. Entries that were not attempted are not listed.
    pub(crate) fn errors_counted(&self) -> u64 {
        let not_attempted = ErrorClass::Cancelled.word();
        self.errors.iter().filter(|(class, _)| *class != not_attempted).map(|(_, n)| n).sum()
    }
}

/// A request to a running job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Take no new tasks for now.
    Pause,
    /// Continue.
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
/// A request while it is written.
const ASK_NEW: &str = "ask.new";
/// The last request that the job has read.
const ASK_HEARD: &str = "ask.heard";
/// There from a request to cancel until the next run begins.
const CANCEL: &str = "cancel";
/// The lock of a process that waits to take over the job.
pub(super) const STANDBY: &str = "standby";
/// The lock of the job.
pub(super) const LOCK: &str = "lock";

/// Writes a file that the user of the job can read, whatever the umask of this process.
fn write_for_job(path: &std::path::Path, text: &str) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mut file = std::fs::File::create(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())
}

fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

impl StateDirectory {
    /// Records the description of a job, or that it was requested again.
    pub fn describe(&self, job: &JobId, file: &JobFile) -> std::io::Result<()> {
        let known = self.job_file(&job.0);
        let created_ms = known.as_ref().map_or(file.created_ms, |known| known.created_ms);
        // A pass without a label does not take it away.
        let label = file.label.clone().or_else(|| known?.label);
        // Only passes are resumed.
        let flushed = file.verb == Verb::Sync.word();
        put(self, job, JOB, &JobFile { label, created_ms, ..file.clone() }, flushed)
    }

    /// Records the status of a job.
    pub fn put_status(&self, job: &JobId, status: &JobStatus) -> std::io::Result<()> {
        match put(self, job, STATUS, status, false) {
            Err(error) if is_full(&error) => put_in_place(self, job, status).map_err(|_| error),
            written => written,
        }
    }

    /// Records the phase of a job between two passes.
    pub fn tell_phase(&self, job: &JobId, phase: JobPhase, end: Option<(String, u8)>) {
        let Some(mut status) = get::<JobStatus>(self, &job.0, STATUS) else { return };
        if let Some((reason, code)) = end {
            (status.reason, status.exit_code) = (Some(reason), Some(code));
        }
        if let Err(error) =
            self.put_status(job, &JobStatus { phase, updated_ms: now_ms(), ..status })
        {
            tracing::warn!(%error, "cannot write the status of the job");
        }
    }

    /// Records the state of a run that is a part of a job, beside the results of the job itself.
    pub fn tell_part(&self, job: &JobId, part: &JobStatus) {
        let Some(whole) = get::<JobStatus>(self, &job.0, STATUS) else { return };
        let unlisted = whole.unlisted.clone().or_else(|| part.unlisted.clone());
        let status = JobStatus { phase: part.phase, unlisted, updated_ms: now_ms(), ..whole };
        if let Err(error) = self.put_status(job, &status) {
            tracing::warn!(%error, "cannot write the status of the job");
        }
    }

    /// Records how a job has ended: the phase, the reason and the exit code.
    pub fn put_end(&self, job: &JobId, (phase, reason): (JobPhase, Option<String>), code: u8) {
        let Some(status) = get::<JobStatus>(self, &job.0, STATUS) else { return };
        let (exit_code, updated_ms) = (Some(code), now_ms());
        let status = JobStatus { phase, reason, exit_code, updated_ms, ..status };
        if let Err(error) = self.put_status(job, &status) {
            tracing::warn!(%error, "cannot write the status of the job");
        }
    }

    /// Records that a job failed before its end.
    pub fn tell_failure(&self, job: &JobId, reason: String, code: u8) {
        self.tell_phase(job, JobPhase::Stopped, Some((reason, code)));
    }

    /// The request to a running job since the last call. A request to cancel stays.
    pub fn asked(&self, job: &JobId) -> Option<Ask> {
        let path = self.job(job).join(ASK);
        let heard = self.job(job).join(ASK_HEARD);
        // A request that arrives now has a file of its own.
        let taken = std::fs::rename(&path, &heard).and_then(|()| std::fs::read_to_string(&heard));
        if is_being_cancelled(self, &job.0) {
            return Some(Ask::Cancel);
        }
        Ask::ALL.into_iter().find(|ask| taken.as_ref().is_ok_and(|text| ask.word() == text.trim()))
    }

    pub(super) fn withdraw(&self, job: &JobId) {
        for name in [ASK, CANCEL] {
            // If it is already gone, another process has withdrawn the request.
            let _ = std::fs::remove_file(self.job(job).join(name));
        }
    }

    /// Sends a request to a running job. Returns whether it was sent: a job that is being cancelled takes no other.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn ask(&self, job: &str, ask: Ask) -> std::io::Result<bool> {
        let directory = self.path.join("jobs").join(job);
        if ask == Ask::Cancel {
            write_for_job(&directory.join(CANCEL), "")?;
        } else if is_being_cancelled(self, job) {
            return Ok(false);
        }
        let temporary = directory.join(ASK_NEW);
        let asked = write_for_job(&temporary, ask.word())
            .and_then(|()| std::fs::rename(temporary, directory.join(ASK)));
        // The job finds a request to cancel without it.
        if ask == Ask::Cancel { Ok(true) } else { asked.map(|()| true) }
    }

    /// The ids of all jobs in this state directory.
    ///
    /// # Errors
    /// The directory exists and cannot be read.
    pub fn jobs(&self) -> std::io::Result<Vec<String>> {
        let mut jobs = names(self)?;
        jobs.retain(|name| self.job_file(name).is_some());
        Ok(jobs)
    }

    /// The description of a job.
    pub fn job_file(&self, job: &str) -> Option<JobFile> {
        get(self, job, JOB)
    }

    /// The status of a job. A job that is recorded as running but whose lock is free has died.
    pub fn status(&self, job: &str) -> Option<JobStatus> {
        // A power cut may leave an empty file, or none.
        let written = || get::<JobStatus>(self, job, STATUS).unwrap_or_default();
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

    /// Whether a process waits to take over a job if its process dies.
    pub fn is_stood_by(&self, job: &str) -> bool {
        is_held(&self.path.join("jobs").join(job).join("standby"))
    }

    /// The directory of a job.
    pub fn directory(&self, job: &str) -> std::path::PathBuf {
        self.path.join("jobs").join(job)
    }

    /// Removes the status files of killed runs of which nothing else is kept: their names contain a run.
    pub fn forget_passed(&self) {
        let jobs = self.jobs().unwrap_or_default();
        for job in jobs.iter().filter(|job| job.contains('-')) {
            if let Ok(lock) = self.lock(&JobId(job.clone())) {
                // The next caller tries again.
                let _ = self.forget(job, &lock);
            }
        }
    }

    /// Removes the record of a job, whose lock has to be held, and keeps what the next run of the same command needs, such as
    /// whether SOURCE goes into DEST.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn retire(&self, job: &str, held: &JobLock) -> std::io::Result<()> {
        let directory = self.directory(job);
        // The job is listed as long as its description exists.
        for name in [failures::FILE, STANDBY, ASK, ASK_NEW, ASK_HEARD, CANCEL, STATUS, JOB] {
            match std::fs::remove_file(directory.join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        for entry in std::fs::read_dir(&directory)? {
            if entry?.file_name() != LOCK {
                return Ok(());
            }
        }
        self.forget(job, held)
    }

    /// The ids of jobs whose record was removed and of which something is kept, or that never started.
    ///
    /// # Errors
    /// The directory exists and cannot be read.
    pub fn retired(&self) -> std::io::Result<Vec<String>> {
        let mut retired = names(self)?;
        retired.retain(|name| self.job_file(name).is_none());
        Ok(retired)
    }

    /// Removes the state of a job, whose lock must be held.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn forget(&self, job: &str, _held: &JobLock) -> std::io::Result<()> {
        std::fs::remove_dir_all(self.directory(job))?;
        self.volumes().forget_those_without_jobs()
    }
}

/// Overwrites the status where there is no space for another file. An old one would be taken for that of this run. A kill
/// within this leaves none.
fn put_in_place(state: &StateDirectory, job: &JobId, status: &JobStatus) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(status)?;
    text.push(b'\n');
    let file = std::fs::OpenOptions::new().write(true).open(state.job(job).join(STATUS))?;
    let written = file.write_all_at(&text, 0);
    file.set_len(if written.is_ok() { text.len() as u64 } else { 0 })?;
    written
}

/// Replaces a file atomically, so that a reader sees the old or the new content.
fn put(
    state: &StateDirectory,
    job: &JobId,
    name: &str,
    value: &impl Serialize,
    flushed: bool,
) -> std::io::Result<()> {
    let directory = state.job(job);
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

fn get<T: serde::de::DeserializeOwned>(state: &StateDirectory, job: &str, name: &str) -> Option<T> {
    let text = std::fs::read(state.path.join("jobs").join(job).join(name)).ok()?;
    serde_json::from_slice(&text).ok()
}

fn is_being_cancelled(state: &StateDirectory, job: &str) -> bool {
    let path = state.path.join("jobs").join(job).join(CANCEL);
    std::fs::read(path).is_ok()
}

/// The names of the directories of all jobs.
fn names(state: &StateDirectory) -> std::io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(state.path.join("jobs")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}
