//! `dmover pause`, `resume`, `cancel` and `retry`.
use dmover_job::{Choice, KnownJob, Reason, Refusal, Rerun, Resumed};
use dmover_model::ExitCode as Code;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;

use super::jobs::{named_or_last, refuse};
use super::run::exit;
use crate::args::{PauseArgs, ResumeArgs};
use crate::print::failure;

pub(crate) fn pause(args: &PauseArgs) -> ExitCode {
    ask(args, Choice::Active, KnownJob::pause)
}

pub(crate) fn cancel(args: &PauseArgs) -> ExitCode {
    ask(args, Choice::OnlyOne, KnownJob::cancel)
}

/// Sends a request to a running job.
fn ask(
    args: &PauseArgs,
    choice: Choice,
    request: impl Fn(&KnownJob) -> Result<(), Refusal>,
) -> ExitCode {
    let known = named_or_last(args.job.as_deref(), args.place.state_dir.as_ref(), choice);
    known.and_then(|known| request(&known)).map_or_else(refuse, |()| exit(Code::Done))
}

/// Resumes a paused job, or runs the command of a job again.
pub(crate) fn resume(args: &ResumeArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known = named_or_last(args.job.as_deref(), place, Choice::Interrupted);
    match known.and_then(|known| Ok((known.resume()?, known))) {
        Ok((Resumed::Continues, _)) => exit(Code::Done),
        Ok((Resumed::Again(rerun), known)) => run_again(&known, &rerun, args.detach),
        Err(refused) => refuse(refused),
    }
}

/// Retries the entries that failed in the last pass.
pub(crate) fn retry(args: &ResumeArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known = named_or_last(args.job.as_deref(), place, Choice::Retry);
    match known.and_then(|known| Ok((known.retry()?, known))) {
        Ok((rerun, known)) => run_again(&known, &rerun, args.detach),
        Err(refused) => refuse(refused),
    }
}

/// Replaces this process by the command of a job.
fn run_again(known: &KnownJob, rerun: &Rerun, detach: bool) -> ExitCode {
    let program = match program() {
        Ok(program) => program,
        Err(refused) => return refuse(refused),
    };
    let error = rerun.command(&program, detach).exec();
    let message = format!("cannot run the command of job {}: {error}", known.id());
    failure(&message, "run the command by hand");
    exit(Code::Fatal)
}

/// The path of this program.
pub(super) fn program() -> Result<PathBuf, Refusal> {
    std::env::current_exe().map_err(|error| {
        let message = format!("cannot find the dmover program: {error}");
        Refusal::new(Reason::Failed, message, "check that /proc is mounted")
    })
}
