//! `dmover pause`, `resume`, `cancel`, `retry` and `cleanup`: what is asked of jobs.
use dmover_engine::{Ask, Fatal, JobFile};
use dmover_model::{ExitCode as Code, JobId};
use dmover_queue::placement::{remove_broker, unused_brokers};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use super::choose::{Choice, named_or_last};
use super::jobs::{Known, Refused, all, directory, find, refuse};
use super::run::exit;
use crate::args::{CleanupArgs, PauseArgs, ResumeArgs};
use crate::print::{failure, line, say};
use crate::quote::quoted;

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

/// Forgets jobs, with what they have left at their destination.
pub(crate) fn cleanup(args: &CleanupArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known: Result<Vec<Known>, Refused> = if args.all {
        directory(place).and_then(|state| {
            let files = all(&state)?;
            Ok(files.into_iter().map(|file| Known { state: state.clone(), file }).collect())
        })
    } else {
        args.jobs.iter().map(|named| find(named, place)).collect()
    };
    let known = match known {
        Ok(known) => known,
        Err(refused) => return refuse(refused),
    };
    let mut code = Code::Done;
    for known in &known {
        code = code.merge(clean_one(known, args));
    }
    if args.all
        && let Ok(state) = directory(place)
    {
        code = code.merge(clean_brokers(state.path(), args.dry_run));
    }
    exit(code)
}

/// Removes what brokers that do not run have left: logs, data, and the secret that lets others in.
fn clean_brokers(state: &std::path::Path, dry_run: bool) -> Code {
    let mut code = Code::Done;
    for path in unused_brokers(state) {
        let shown = path.display();
        if dry_run {
            say(&format!("dmover: would remove the data and the secret of a broker: '{shown}'"));
            continue;
        }
        match remove_broker(&path) {
            Ok(()) => {
                say(&format!("dmover: removed the data and the secret of a broker: '{shown}'"));
            }
            Err(error) => {
                failure(&format!("cannot remove '{shown}': {error}"), "check permissions");
                code = Code::Partial;
            }
        }
    }
    code
}

fn clean_one(Known { state, file }: &Known, args: &CleanupArgs) -> Code {
    let shown = format!("{} ({} -> {})", file.job, file.verb, quoted(&file.destination.0));
    // It must not begin while its leftovers are looked for. A dry run of what cannot be written to only looks.
    let locked = state.lock(&JobId(file.job.clone()));
    if matches!(locked, Err(Fatal::Locked { .. })) {
        say(&format!("dmover: note: {shown} is at work and stays"));
        return if args.all { Code::Done } else { Code::Temporary };
    }
    let lock = match locked {
        Ok(lock) => Some(lock),
        Err(_) if args.dry_run => None,
        Err(error) => {
            failure(&format!("cannot forget {shown}: {error}"), &error.hint());
            return Code::Partial;
        }
    };
    let at = file.directory.to_path().join(file.destination.to_path());
    let leftovers = dmover_engine::remove_leftovers(&file.job, &at, args.dry_run);
    let mut code = Code::Done;
    for left in leftovers {
        match left {
            Ok(path) => line(&quoted(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()))),
            Err(message) => {
                failure(&message, "remove it by hand, or mend what is in the way");
                code = Code::Partial;
            }
        }
    }
    if code != Code::Done {
        return code;
    }
    if args.dry_run {
        say(&format!("dmover: would forget {shown}"));
        return code;
    }
    match lock.map_or(Ok(()), |lock| state.forget(&file.job, &lock)) {
        Ok(()) => say(&format!("dmover: forgot {shown}")),
        Err(error) => {
            failure(&format!("cannot forget {shown}: {error}"), "check permissions");
            code = Code::Partial;
        }
    }
    code
}
