//! Jobs in the background (`--detach`).
use dmover_job::Refusal;
use dmover_job::background::{Background, Started, may_start, not_started, start};
use dmover_job::quote::quoted;
use dmover_journal::StateDirectory;
use dmover_model::{ExitCode as Code, JobId, JobSpec};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::jobs;
use super::run::{exit, usable_state};
use crate::args::{JobArgs, StateArgs};
use crate::config::environment;
use crate::print::{failure, line, say};
use crate::state::on_job;

/// Set in the environment of a background process: the path of the file for its messages.
pub(super) const IN_BACKGROUND: &str = "DMOVER_IN_BACKGROUND";

/// The file for the messages of this process, if it runs in the background.
pub(super) fn output() -> Option<PathBuf> {
    environment(IN_BACKGROUND).map(PathBuf::from)
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
    let refuse = |message: &str, hint: &str| {
        failure(message, hint);
        Some(exit(Code::Usage))
    };
    let state = match usable_state(state, false) {
        Ok(Some(state)) => state,
        Ok(None) => return refuse("--detach needs a state directory", "omit --no-state"),
        Err(why) => {
            let message = format!("--detach needs a state directory: {why}");
            return refuse(&message, "choose a directory with --state-dir");
        }
    };
    Some(match in_background(spec, &state) {
        Ok(Started::Ended { code, said }) => {
            say(said.trim_end());
            ExitCode::from(code)
        }
        Ok(Started::Runs { id, output }) => {
            if !quiet {
                tell_where(&state, &id, &output);
            }
            line(&id.0);
            exit(Code::Done)
        }
        Err(refused) => jobs::refuse(refused),
    })
}

/// Runs the arguments of this process in another one.
fn in_background(spec: &JobSpec, state: &StateDirectory) -> Result<Started, Refusal> {
    let id = may_start(spec, state)?;
    let program = std::env::current_exe().map_err(|error| not_started(state, &error))?;
    let words = std::env::args_os().skip(1).filter(|word| word != "--detach").collect();
    start(state, id, Background { program: &program, words, variable: IN_BACKGROUND })
}

/// Prints where the messages of a job go, and the commands to follow it and to wait for it.
fn tell_where(state: &StateDirectory, id: &JobId, output: &Path) {
    let output = quoted(output.as_os_str().as_encoded_bytes());
    let on_job = |verb| on_job(verb, &id.0, state.path());
    say(&format!("dmover: job {id} runs in the background; its output goes to {output}"));
    say(&format!("  follow it:    {} -f", on_job("logs")));
    say(&format!("  wait for it:  {}", on_job("wait")));
}
