//! `dmover pause`, `resume`, `cancel` and `retry`: what is asked of jobs.
use dmover_engine::{Ask, JobFile};
use dmover_model::ExitCode as Code;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use super::choose::{Choice, named_or_last};
use super::jobs::{Known, Refused, refuse};
use super::run::exit;
use crate::args::{PauseArgs, ResumeArgs};
use crate::print::failure;

/// Asks a running job for something.
pub(crate) fn ask(args: &PauseArgs, ask: Ask) -> ExitCode {
    let choice = if ask == Ask::Cancel { Choice::OnlyOne } else { Choice::Active };
    let known = named_or_last(args.job.as_deref(), args.place.state_dir.as_ref(), choice);
    let asked = known.and_then(|known| {
        if !known.state.is_running(&known.file.job) {
            let message = format!("job {} does not run", known.file.job);
            return Err((message, "'dmover status' says how it stands", Code::Usage));
        }
        tell(&known, ask)
    });
    asked.map_or_else(refuse, |()| exit(Code::Done))
}

fn tell(known: &Known, ask: Ask) -> Result<(), Refused> {
    known.state.ask(&known.file.job, ask).map_err(|error| {
        let message = format!("cannot ask job {}: {error}", known.file.job);
        (message, "is it somebody else's? Its owner can", Code::Usage)
    })
}

/// Has a job that holds go on, or runs its command again.
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

/// Attempts again what has failed.
pub(crate) fn retry(args: &ResumeArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known = match named_or_last(args.job.as_deref(), place, Choice::Retry) {
        Ok(known) => known,
        Err(refused) => return refuse(refused),
    };
    if known.file.verb != "sync" {
        let message = format!("job {} keeps no journal: only 'sync' does", known.file.job);
        return refuse((message, "the same command tries everything again", Code::Usage));
    }
    if !can_retry(&known.file) {
        let message = format!("what failed in job {} cannot be tried alone", known.file.job);
        let hint = "a snapshot looks at everything when its command is run again, and a watch tries again by itself: \
                    'dmover resume' runs the command";
        return refuse((message, hint, Code::Usage));
    }
    if known.state.is_running(&known.file.job) {
        let message = format!("job {} is at work", known.file.job);
        return refuse((message, "'dmover wait' waits for it", Code::Temporary));
    }
    run_again(&known, args.detach, &["--only-failed"])
}

/// Whether the entries that failed can be tried alone.
pub(super) fn can_retry(file: &JobFile) -> bool {
    let mut words = file.command.iter().skip(1);
    file.verb == "sync"
        && words.next().is_none_or(|verb| verb.0 != b"snapshot")
        && words.take_while(|word| word.0 != b"--").all(|word| word.0 != b"--watch")
}

/// Becomes the command of a job.
fn run_again(known: &Known, detach: bool, more: &[&str]) -> ExitCode {
    let mut command = match command_of(known, detach, more) {
        Ok(command) => command,
        Err(refused) => return refuse(refused),
    };
    let error = command.exec();
    failure(&format!("cannot run the command of job {}: {error}", known.file.job), "type it again");
    exit(Code::Fatal)
}

/// The command of a job, to be run where it was typed.
pub(super) fn command_of(known: &Known, detach: bool, more: &[&str]) -> Result<Command, Refused> {
    let words: Vec<OsString> =
        known.file.command.iter().map(|word| word.to_path().into_os_string()).collect();
    let program = std::env::current_exe().map_err(|error| {
        let message = format!("cannot find the program itself: {error}");
        (message, "is /proc mounted?", Code::Fatal)
    })?;
    let Some((_, words)) = words.split_first() else {
        let message = format!("it is not known what job {} was", known.file.job);
        return Err((message, "type its command", Code::Usage));
    };
    // The verb comes first; what is added must not come after a '--'.
    let verbs = if words.first().is_some_and(|verb| verb == "snapshot") { 2 } else { 1 };
    let (verb, rest) = words.split_at(verbs.min(words.len()));
    let more = more.iter().filter(|word| !rest.iter().any(|known| known == **word));
    let mut command = Command::new(program);
    command.args(verb).args(more).args(detach.then_some("--detach")).args(rest);
    // This was perhaps not named from there.
    let state = std::path::absolute(known.state.path());
    command.env("DMOVER_STATE_DIR", state.as_deref().unwrap_or(known.state.path()));
    command.current_dir(known.file.directory.to_path());
    Ok(command)
}
