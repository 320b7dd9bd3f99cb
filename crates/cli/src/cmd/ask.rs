//! `dmover pause`, `resume`, `cancel` and `retry`.
use dmover_journal::{Ask, JobFile};
use dmover_model::ExitCode as Code;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use super::choose::{Choice, named_or_last};
use super::jobs::{Known, Refused, refuse};
use super::run::exit;
use crate::args::{PauseArgs, ResumeArgs};
use crate::print::failure;

/// Sends a request to a running job.
pub(crate) fn ask(args: &PauseArgs, ask: Ask) -> ExitCode {
    let choice = if ask == Ask::Cancel { Choice::OnlyOne } else { Choice::Active };
    let known = named_or_last(args.job.as_deref(), args.place.state_dir.as_ref(), choice);
    let asked = known.and_then(|known| {
        if !known.state.is_running(&known.file.job) {
            let message = format!("job {} is not running", known.file.job);
            return Err((message, "'dmover status' shows its state", Code::Usage));
        }
        tell(&known, ask)
    });
    asked.map_or_else(refuse, |()| exit(Code::Done))
}

fn tell(known: &Known, ask: Ask) -> Result<(), Refused> {
    let sent = known.state.ask(&known.file.job, ask).map_err(|error| {
        let message = format!("cannot send the request to job {}: {error}", known.file.job);
        (message, "run this command as the user who runs the job", Code::Usage)
    })?;
    if !sent {
        let message = format!("job {} is being cancelled", known.file.job);
        let hint = "'dmover wait' waits for its end; 'dmover resume' then runs its command again";
        return Err((message, hint, Code::Temporary));
    }
    Ok(())
}

/// Resumes a paused job, or runs the command of a job again.
pub(crate) fn resume(args: &ResumeArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known = match named_or_last(args.job.as_deref(), place, Choice::Interrupted) {
        Ok(known) => known,
        Err(refused) => return refuse(refused),
    };
    if known.state.is_running(&known.file.job) {
        return tell(&known, Ask::Resume).map_or_else(refuse, |()| exit(Code::Done));
    }
    run_again(&known, args.detach, &[])
}

/// Retries the entries that failed in the last pass.
pub(crate) fn retry(args: &ResumeArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known = match named_or_last(args.job.as_deref(), place, Choice::Retry) {
        Ok(known) => known,
        Err(refused) => return refuse(refused),
    };
    if known.file.verb != "sync" {
        let message = format!("job {} has no journal: only 'sync' keeps one", known.file.job);
        return refuse((message, "'dmover resume' runs the whole command again", Code::Usage));
    }
    if !can_retry(&known.file) {
        let message = format!("cannot retry only the failed entries of job {}", known.file.job);
        let hint = "'sync --watch' retries them by itself; for a snapshot, 'dmover resume' runs the \
                    whole command again";
        return refuse((message, hint, Code::Usage));
    }
    if known.state.is_running(&known.file.job) {
        let message = format!("job {} is still running", known.file.job);
        return refuse((message, "'dmover wait' waits for its end; then retry", Code::Temporary));
    }
    run_again(&known, args.detach, &["--only-failed"])
}

/// Whether the failed entries of a job can be retried separately.
pub(super) fn can_retry(file: &JobFile) -> bool {
    let mut words = file.command.iter().skip(1);
    file.verb == "sync"
        && words.next().is_none_or(|verb| verb.0 != b"snapshot")
        && words.take_while(|word| word.0 != b"--").all(|word| word.0 != b"--watch")
}

/// Replaces this process by the command of a job.
fn run_again(known: &Known, detach: bool, more: &[&str]) -> ExitCode {
    let mut command = match command_of(known, detach, more) {
        Ok(command) => command,
        Err(refused) => return refuse(refused),
    };
    let error = command.exec();
    let message = format!("cannot run the command of job {}: {error}", known.file.job);
    failure(&message, "run the command by hand");
    exit(Code::Fatal)
}

/// The command of a job, with the working directory of its last run.
pub(super) fn command_of(known: &Known, detach: bool, more: &[&str]) -> Result<Command, Refused> {
    let words: Vec<OsString> =
        known.file.command.iter().map(|word| word.to_path().into_os_string()).collect();
    let program = std::env::current_exe().map_err(|error| {
        let message = format!("cannot find the dmover program: {error}");
        (message, "check that /proc is mounted", Code::Fatal)
    })?;
    let Some((_, words)) = words.split_first() else {
        let message = format!("the command of job {} is not recorded", known.file.job);
        return Err((message, "run the command by hand", Code::Usage));
    };
    // The verb comes first; added options must come before a '--'.
    let verbs = if words.first().is_some_and(|verb| verb == "snapshot") { 2 } else { 1 };
    let (verb, rest) = words.split_at(verbs.min(words.len()));
    let more = more.iter().filter(|word| !rest.iter().any(|known| known == **word));
    let mut command = Command::new(program);
    command.args(verb).args(more).args(detach.then_some("--detach")).args(rest);
    // A relative --state-dir was meant from the directory of this process, not from that of the job.
    let state = std::path::absolute(known.state.path());
    command.env("DMOVER_STATE_DIR", state.as_deref().unwrap_or(known.state.path()));
    command.current_dir(known.file.directory.to_path());
    Ok(command)
}
