//! Jobs in the background (`--detach`).
use dmover_job::background::{
    Background, Started, attend, may_start, not_started, output_of, start,
};
use dmover_job::quote::quoted;
use dmover_job::{Reason, Refusal};
use dmover_journal::StateDirectory;
use dmover_model::{ExitCode as Code, Fatal, JobId, JobSpec};
use dmover_schedule::sync::OnceLock;
use dmover_schedule::thread;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use super::jobs;
use super::run::{exit, failed, usable_state};
use crate::args::{JobArgs, StateArgs};
use crate::config::{environment, host_as_typed};
use crate::print::{line, say};
use crate::state::on_job;

/// Set in the environment of a background process: the path of the file for its messages.
pub(super) const IN_BACKGROUND: &str = "DMOVER_IN_BACKGROUND";

/// The file for the messages of this process, if a user at another host has sent its job into the background.
static OUTPUT: OnceLock<PathBuf> = OnceLock::new();

/// The file for the messages of this process, if it runs in the background.
pub(super) fn output() -> Option<PathBuf> {
    OUTPUT.get().cloned().or_else(|| environment(IN_BACKGROUND).map(PathBuf::from))
}

/// Starts the job in the background if `--detach` is set. Returns the exit code of this process, if it ends here.
pub(super) fn go_on(
    job: &JobArgs,
    state: &StateArgs,
    spec: &JobSpec,
    quiet: bool,
) -> Option<ExitCode> {
    if output().is_some() {
        // A session of its own: the end of a terminal does not end it.
        dmover_host::process::begin_session();
        return None;
    }
    if !job.detach {
        return None;
    }
    let state = match state_of(state) {
        Ok(state) => state,
        Err(error) => return Some(failed(&error)),
    };
    Some(match in_background(spec, &state) {
        Ok(Started::Ended { code, said }) => {
            say(said.trim_end());
            ExitCode::from(code)
        }
        Ok(Started::Runs { id, output }) => {
            if !quiet {
                say(where_it_is(&state, &id, &output).trim_end());
            }
            line(&id.0);
            exit(Code::Done)
        }
        Err(refused) => jobs::refuse(refused),
    })
}

fn state_of(args: &StateArgs) -> Result<StateDirectory, Fatal> {
    match usable_state(args, false) {
        Ok(Some(state)) => Ok(state),
        Ok(None) => Err(Fatal::refused("--detach needs a state directory", "omit --no-state")),
        Err(why) => {
            let message = format!("--detach needs a state directory: {why}");
            Err(Fatal::refused(message, "choose a directory with --state-dir"))
        }
    }
}

/// A job that continues when its user at another host has gone.
pub(super) struct Left {
    /// The exit code of the command: 0 if the job has started.
    pub code: ExitCode,
    /// Ends with the job; `None`: it has ended.
    pub job: Option<thread::JoinHandle<()>>,
}

/// Runs a job of a user at another host in this process, whose messages go to the file of the job from now on. Returns when the
/// job has started, and the user was told so.
///
/// # Errors
/// The job cannot start.
pub(super) fn leave(
    (state, quiet): (&StateArgs, bool),
    spec: &JobSpec,
    run: impl FnOnce() -> u8 + Send + 'static,
) -> Result<Left, Fatal> {
    let state = state_of(state)?;
    let refused = |refused: &Refusal| {
        let (message, hint) = (refused.message.clone(), refused.hint.clone());
        match refused.reason {
            Reason::Running => Fatal::unavailable(message, hint),
            _ => Fatal::refused(message, hint),
        }
    };
    let id = may_start(spec, &state).map_err(|why| refused(&why))?;
    let (file, output) =
        output_of(&state, &id).map_err(|error| refused(&not_started(&state, &error)))?;
    let _ = OUTPUT.set(output.clone());
    // Neither the end of the connection nor that of the agent ends it.
    dmover_host::process::begin_session();
    dmover_host::process::outlive_parent();
    let [mut to_user, mut errors] =
        dmover_host::process::redirect_output(&file).map_err(Fatal::Thread)?;
    let ended = Arc::new(OnceLock::new());
    let code = Arc::clone(&ended);
    let named = thread::Builder::new().name("left-job".into());
    let work = move || {
        let _ = code.set(run());
    };
    let job = match named.spawn(work) {
        Ok(job) => job,
        Err(error) => {
            let _ = errors.write_all(format!("dmover: error: {error}\n").as_bytes());
            return Ok(Left { code: exit(Code::Fatal), job: None });
        }
    };
    let started = attend(&state, (id, output), std::process::id(), || ended.get().copied());
    // Who has gone already is not told.
    Ok(match started {
        Started::Ended { code, said } => {
            let _ = errors.write_all(said.as_bytes());
            let _ = job.join();
            Left { code: ExitCode::from(code), job: None }
        }
        Started::Runs { id, output } => {
            if !quiet {
                let _ = errors.write_all(where_it_is(&state, &id, &output).as_bytes());
            }
            let _ = to_user.write_all(format!("{id}\n").as_bytes());
            Left { code: exit(Code::Done), job: Some(job) }
        }
    })
}

/// Runs the arguments of this process in another one.
fn in_background(spec: &JobSpec, state: &StateDirectory) -> Result<Started, Refusal> {
    let id = may_start(spec, state)?;
    let program = std::env::current_exe().map_err(|error| not_started(state, &error))?;
    let words = std::env::args_os().skip(1).filter(|word| word != "--detach").collect();
    start(state, id, Background { program: &program, words, variable: IN_BACKGROUND })
}

/// Where the messages of a job go, and the commands to follow it and to wait for it.
fn where_it_is(state: &StateDirectory, id: &JobId, output: &Path) -> String {
    let output = quoted(output.as_os_str().as_encoded_bytes());
    let (place, [logs, wait]) = match host_as_typed() {
        Some(host) => {
            let host = quoted(host.as_bytes());
            let there = |verb| format!("dmover {verb} {id} --at {host}");
            (format!("at {host}"), ["logs", "wait"].map(there))
        }
        None => {
            let here = |verb| on_job(verb, &id.0, state.path());
            ("in the background".to_owned(), ["logs", "wait"].map(here))
        }
    };
    format!(
        "dmover: job {id} runs {place}; its output goes to {output}\n  follow it:    {logs} -f\n  \
         wait for it:  {wait}\n"
    )
}
