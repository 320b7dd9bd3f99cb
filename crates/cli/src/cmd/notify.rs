//! The command of `--notify`.
use dmover_engine::JobReport;
use dmover_job::Notification;
use dmover_model::{ExitCode as Code, JobId};

use super::detach::IN_BACKGROUND;
use crate::config::SUBMITTED_AS;
use crate::print::say;

/// For a job that failed.
pub(super) fn notify_of_failure(command: &str, job: &JobId, code: Code) {
    tell(notification(command).of_failure(job, code));
}

/// For a job that has ended.
pub(super) fn notify(command: &str, report: &JobReport, code: Code) {
    tell(notification(command).of_end(report, code));
}

fn notification(command: &str) -> Notification<'_> {
    Notification { command, hidden: &[IN_BACKGROUND, SUBMITTED_AS] }
}

fn tell(run: Result<(), String>) {
    if let Err(why) = run {
        say(&format!("dmover: note: {why}"));
    }
}
