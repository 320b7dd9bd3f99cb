//! The command that runs when a job ends.
use dmover_engine::{JobReport, JobState, StopReason};
use dmover_model::{ExitCode, JobId};
use std::process::{Command, Stdio};

/// A command for the shell.
#[derive(Debug, Clone, Copy)]
pub struct Notification<'a> {
    /// The command.
    pub command: &'a str,
    /// Variables of this process that the command must not inherit.
    pub hidden: &'a [&'a str],
}

impl Notification<'_> {
    /// Runs the command for a job that failed.
    ///
    /// # Errors
    /// A message: the command did not run, or failed.
    pub fn of_failure(self, job: &JobId, code: ExitCode) -> Result<(), String> {
        self.run(&job.0, "failed", code.code())
    }

    /// Runs the command for a job that has ended.
    ///
    /// # Errors
    /// A message: the command did not run, or failed.
    pub fn of_end(self, report: &JobReport, code: ExitCode) -> Result<(), String> {
        let state = match report.state {
            JobState::Finished => "finished",
            JobState::Stopped(StopReason::Cancelled) => "cancelled",
            JobState::Stopped(_) => "stopped",
        };
        self.run(&report.job.0, state, report.process_code(code))
    }

    fn run(self, job: &str, state: &str, code: u8) -> Result<(), String> {
        let mut command = Command::new("/bin/sh");
        for variable in self.hidden {
            command.env_remove(variable);
        }
        let run = command
            .args(["-c", self.command])
            .env("DMOVER_JOB", job)
            .env("DMOVER_JOB_STATE", state)
            .env("DMOVER_JOB_EXIT", code.to_string())
            .stdin(Stdio::null())
            .status();
        match run {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("the --notify command failed: {status}")),
            Err(error) => Err(format!("cannot run the --notify command: {error}")),
        }
    }
}
