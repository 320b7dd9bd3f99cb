//! Requests to a job: pause, resume, cancel, retry.
use dmover_journal::Ask;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::known::{KnownJob, can_retry};
use crate::refusal::{Reason, Refusal};

/// How a job is resumed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resumed {
    /// Its process continues.
    Continues,
    /// It has no process: this command runs it again.
    Again(Rerun),
}

/// The command of a job, to be run again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rerun {
    /// The verb, and options that were not in the command.
    verb: Vec<OsString>,
    /// The arguments of the command.
    rest: Vec<OsString>,
    directory: PathBuf,
    state: PathBuf,
}

impl Rerun {
    /// The command, with the working directory of the last run. `detached`: it runs the job in the background.
    pub fn command(&self, program: &Path, detached: bool) -> Command {
        let mut command = Command::new(program);
        command.args(&self.verb).args(detached.then_some("--detach")).args(&self.rest);
        // A relative --state-dir was meant from the directory of this process, not from that of the job.
        let state = std::path::absolute(&self.state);
        command.env("DMOVER_STATE_DIR", state.as_deref().unwrap_or(&self.state));
        command.current_dir(&self.directory);
        command
    }
}

impl KnownJob {
    /// Asks the process of the job to start no more tasks.
    ///
    /// # Errors
    /// The job has no process, is being cancelled, or belongs to another user.
    pub fn pause(&self) -> Result<(), Refusal> {
        self.ask(Ask::Pause)
    }

    /// Asks the process of the job to end for good.
    ///
    /// # Errors
    /// The job has no process, or belongs to another user.
    pub fn cancel(&self) -> Result<(), Refusal> {
        self.ask(Ask::Cancel)
    }

    /// Resumes the job: asks its process to continue, or returns the command that runs the job again.
    ///
    /// # Errors
    /// The process cannot be asked, or no command is on record.
    pub fn resume(&self) -> Result<Resumed, Refusal> {
        if self.is_running() {
            return self.send(Ask::Resume).map(|()| Resumed::Continues);
        }
        self.rerun(&[]).map(Resumed::Again)
    }

    /// The command that retries the entries that failed in the last pass.
    ///
    /// # Errors
    /// The job is running, cannot retry failed entries separately, or has no command on record.
    pub fn retry(&self) -> Result<Rerun, Refusal> {
        let id = self.id();
        if self.file.verb != "sync" {
            let message = format!("job {id} has no journal: only 'sync' keeps one");
            let hint = "'dmover resume' runs the whole command again";
            return Err(Refusal::new(Reason::Unsuitable, message, hint));
        }
        if !can_retry(&self.file) {
            let message = format!("cannot retry only the failed entries of job {id}");
            let hint = "'sync --watch' retries them by itself; for a snapshot, 'dmover resume' runs the \
                        whole command again";
            return Err(Refusal::new(Reason::Unsuitable, message, hint));
        }
        if self.is_running() {
            let message = format!("job {id} is still running");
            let hint = "'dmover wait' waits for its end; then retry";
            return Err(Refusal::new(Reason::Running, message, hint));
        }
        self.rerun(&["--only-failed"])
    }

    fn ask(&self, ask: Ask) -> Result<(), Refusal> {
        if !self.is_running() {
            let message = format!("job {} is not running", self.id());
            return Err(Refusal::new(
                Reason::NotRunning,
                message,
                "'dmover status' shows its state",
            ));
        }
        self.send(ask)
    }

    fn send(&self, ask: Ask) -> Result<(), Refusal> {
        let sent = self.state.ask(self.id(), ask).map_err(|error| {
            let message = format!("cannot send the request to job {}: {error}", self.id());
            let hint = "run this command as the user who runs the job";
            Refusal::new(Reason::NotSent, message, hint)
        })?;
        if !sent {
            let message = format!("job {} is being cancelled", self.id());
            let hint =
                "'dmover wait' waits for its end; 'dmover resume' then runs its command again";
            return Err(Refusal::new(Reason::BeingCancelled, message, hint));
        }
        Ok(())
    }

    /// The command of the job, with more options.
    ///
    /// # Errors
    /// No command is on record.
    pub(crate) fn rerun(&self, more: &[&str]) -> Result<Rerun, Refusal> {
        let words: Vec<OsString> =
            self.file.command.iter().map(|word| word.to_path().into_os_string()).collect();
        let Some((_, words)) = words.split_first() else {
            let message = format!("the command of job {} is not recorded", self.id());
            return Err(Refusal::new(Reason::NoRecord, message, "run the command by hand"));
        };
        // The verb comes first; added options must come before a '--'.
        let verbs = if words.first().is_some_and(|verb| verb == "snapshot") { 2 } else { 1 };
        let (verb, rest) = words.split_at(verbs.min(words.len()));
        let more = more.iter().filter(|word| !rest.iter().any(|known| known == **word));
        Ok(Rerun {
            verb: verb.iter().cloned().chain(more.map(OsString::from)).collect(),
            rest: rest.to_vec(),
            directory: self.file.directory.to_path(),
            state: self.state.path().to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::on_record::OnRecord;
    use dmover_journal::JobPhase;
    use dmover_model::{ExitCode, JobId, PathBytes};

    fn words(text: &str) -> Vec<PathBytes> {
        text.split(' ').map(|word| PathBytes(word.as_bytes().to_vec())).collect()
    }

    fn shown(command: &Command) -> String {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    #[test]
    fn a_job_that_has_ended_takes_no_request() {
        let records = OnRecord::new();
        let job = records.put("a1", |_| {});
        records.status("a1", JobPhase::Finished, 1);
        for asked in [job.pause(), job.cancel()] {
            let refused = asked.unwrap_err();
            assert_eq!(refused.reason, Reason::NotRunning);
            assert_eq!(refused.exit_code(), ExitCode::Usage);
        }
    }

    #[test]
    fn a_running_job_hears_requests_until_it_is_cancelled() {
        let records = OnRecord::new();
        let job = records.put("a1", |_| {});
        let _lock = records.runs("a1");
        let heard = || records.state().asked(&JobId("a1".into()));
        job.pause().unwrap();
        assert_eq!(heard(), Some(Ask::Pause));
        assert_eq!(job.resume().unwrap(), Resumed::Continues);
        assert_eq!(heard(), Some(Ask::Resume));
        job.cancel().unwrap();
        let refused = job.pause().unwrap_err();
        assert_eq!(refused.reason, Reason::BeingCancelled);
        assert_eq!(refused.exit_code(), ExitCode::Temporary);
        assert_eq!(heard(), Some(Ask::Cancel));
    }

    #[test]
    fn a_job_without_a_process_is_resumed_by_its_command() {
        let records = OnRecord::new();
        let job = records.put("a1", |file| file.command = words("dmover copy -- s d"));
        let Resumed::Again(again) = job.resume().unwrap() else { panic!("it does not run") };
        let command = again.command(Path::new("/bin/dmover"), true);
        assert_eq!(shown(&command), "copy --detach -- s d");
        assert_eq!(command.get_current_dir(), Some(Path::new("/")));
        let state = command.get_envs().find(|(name, _)| *name == "DMOVER_STATE_DIR");
        assert_eq!(state.and_then(|(_, path)| path), Some(records.state().path().as_os_str()));
        let job = records.put("b2", |file| file.command = words("dmover snapshot create s d"));
        let Resumed::Again(again) = job.resume().unwrap() else { panic!("it does not run") };
        let command = again.command(Path::new("/bin/dmover"), true);
        assert_eq!(shown(&command), "snapshot create --detach s d");
    }

    #[test]
    fn only_a_sync_that_has_ended_can_be_retried() {
        let records = OnRecord::new();
        let copy = records.put("a1", |_| {});
        assert_eq!(copy.retry().unwrap_err().reason, Reason::Unsuitable);
        let sync = records.put("b2", |file| {
            file.verb = "sync".into();
            file.command = words("dmover sync s d");
        });
        let command = sync.retry().unwrap().command(Path::new("dmover"), false);
        assert_eq!(shown(&command), "sync --only-failed s d");
        let _lock = records.runs("b2");
        assert_eq!(sync.retry().unwrap_err().reason, Reason::Running);
    }

    #[test]
    fn a_job_without_a_recorded_command_cannot_be_run_again() {
        let records = OnRecord::new();
        let job = records.put("a1", |file| file.command = Vec::new());
        assert_eq!(job.resume().unwrap_err().reason, Reason::NoRecord);
    }
}
