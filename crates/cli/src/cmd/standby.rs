//! `dmover standby`: goes on with a job whose process is gone.
use dmover_engine::{JobPhase, JobStatus};
use dmover_model::ExitCode as Code;
use std::process::ExitCode;
use std::time::Duration;

use super::ask::run_again;
use super::jobs::{Known, Refused, find, refuse};
use crate::args::StandbyArgs;
use crate::print::say;

/// How often a job is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(crate) fn standby(args: &StandbyArgs) -> ExitCode {
    let watched = find(&args.job, args.place.state_dir.as_ref())
        .and_then(|known| watch(&known).map(|ended| (known, ended)));
    match watched {
        Err(refused) => refuse(refused),
        Ok((known, Some(code))) => {
            say(&format!("dmover: job {} has ended with exit code {code}", known.file.job));
            ExitCode::from(code)
        }
        Ok((known, None)) => {
            say(&format!("dmover: the process of job {} is gone; going on", known.file.job));
            run_again(&known, false, &[])
        }
    }
}

/// Waits until a job has ended, and answers its exit code; `None`: it has to be gone on with, which is this process's turn.
fn watch(known: &Known) -> Result<Option<u8>, Refused> {
    let (state, job) = (&known.state, &known.file.job);
    let own = String::from_utf8_lossy(&dmover_sys::process::host_name()).into_owned();
    let host = state.status(job).map(|status| status.host).unwrap_or_default();
    if host != own && !state.is_shared() {
        let message = format!("job {job} runs on {host}, and would be another job here");
        let hint = "jobs go on on another host in a state directory with an empty file 'shared', which has to be there \
                    before the first of them";
        return Err((message, hint, Code::Usage));
    }
    let turn = || {
        state.stand_by(job).map_err(|error| {
            let place = state.directory(job);
            let message = format!("cannot stand by in {}: {error}", place.display());
            (message, "is it somebody else's job?", Code::Usage)
        })
    };
    let (mut held, mut told) = (None, None);
    loop {
        if held.is_none() {
            held = turn()?;
        }
        // Looked at after that: whoever had the turn before has perhaps come to the end.
        let status = state.status(job).unwrap_or_default();
        if let Some(code) = ended(&status) {
            return Ok(Some(code));
        }
        if !status.phase.has_process()
            && let Some(turn) = held.take()
        {
            // It ends with the process that goes on: whoever else stands by waits for that.
            std::mem::forget(turn);
            return Ok(None);
        }
        let words = match held {
            Some(_) => "standing by",
            None => "somebody else stands by or has gone on; waiting behind him",
        };
        if told != Some(words) {
            let (pid, host, phase) = (status.pid, &status.host, status.phase.word());
            say(&format!("dmover: job {job} is {phase} (process {pid} on {host}): {words}"));
            told = Some(words);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The exit code of a job that nobody has to go on with.
fn ended(status: &JobStatus) -> Option<u8> {
    let code = status.exit_code.unwrap_or_else(|| Code::Partial.code());
    match status.phase {
        JobPhase::Running | JobPhase::Watching | JobPhase::Paused | JobPhase::Died => None,
        // What kept that host from going on need not keep this one from it.
        JobPhase::Stopped if code == Code::Temporary.code() => None,
        JobPhase::Stopped | JobPhase::Finished | JobPhase::Cancelled => Some(code),
    }
}
