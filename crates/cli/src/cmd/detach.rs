//! Jobs in the background (`--detach`).
use dmover_engine::{JobList, job_id};
use dmover_journal::StateDirectory;
use dmover_model::{ExitCode as Code, JobId, JobSpec};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use super::run::{exit, usable_state};
use crate::args::{JobArgs, StateArgs};
use crate::config::environment;
use crate::print::{failure, line, say};
use crate::state::on_job;
use dmover_job::quote::quoted;

/// Set in the environment of a background process: the path of the file for its messages.
pub(super) const IN_BACKGROUND: &str = "DMOVER_IN_BACKGROUND";
/// The longest wait for the start of the job; a job that takes longer still runs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two checks whether the job has started.
const LOOK_EVERY: Duration = Duration::from_millis(20);

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
    if spec.selection.list.is_some() {
        let hint = "omit --detach, and use '&' in the shell to run the job in the background";
        return refuse("--detach cannot be used with --files-from or --read-stdin", hint);
    }
    let id = match job_id(spec, &JobList::None, Some(&state)) {
        Ok(id) => id,
        Err(error) => return refuse(&error.to_string(), &error.hint()),
    };
    if state.is_running(&id.0) {
        failure(&format!("job {id} is already running"), "'dmover wait' waits for its end");
        return Some(exit(Code::Temporary));
    }
    Some(match start(&state, &id) {
        Ok((child, output)) => {
            let code = attend(child, &state, &id, &output);
            code.unwrap_or_else(|| {
                if !quiet {
                    tell_where(&state, &id, &output);
                }
                line(&id.0);
                exit(Code::Done)
            })
        }
        Err(error) => {
            let place = quoted(state.path().as_os_str().as_encoded_bytes());
            let message = format!("cannot start the job in the background, in {place}: {error}");
            failure(&message, "choose another --state-dir, or omit --detach");
            exit(Code::Fatal)
        }
    })
}

fn start(state: &StateDirectory, id: &JobId) -> std::io::Result<(Child, PathBuf)> {
    let directory = std::path::absolute(state.directory(&id.0))?;
    std::fs::create_dir_all(&directory)?;
    let output = directory.join("output");
    let file = std::fs::File::create(&output)?;
    let words: Vec<OsString> =
        std::env::args_os().skip(1).filter(|word| word != "--detach").collect();
    let child = Command::new(std::env::current_exe()?)
        .args(words)
        .env(IN_BACKGROUND, &output)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()?;
    Ok((child, output))
}

/// Waits until the job has started. Returns the exit code of a job that ended before that.
fn attend(mut child: Child, state: &StateDirectory, id: &JobId, output: &Path) -> Option<ExitCode> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let begun = state.status(&id.0).is_some_and(|status| status.pid == child.id());
        match child.try_wait() {
            _ if begun => break,
            Ok(Some(status)) => {
                say(std::fs::read_to_string(output).unwrap_or_default().trim_end());
                let code = status.code().and_then(|code| u8::try_from(code).ok());
                return Some(ExitCode::from(code.unwrap_or_else(|| Code::Fatal.code())));
            }
            _ => std::thread::sleep(LOOK_EVERY),
        }
    }
    None
}

/// Prints where the messages of a job go, and the commands to follow it and to wait for it.
fn tell_where(state: &StateDirectory, id: &JobId, output: &Path) {
    let output = quoted(output.as_os_str().as_encoded_bytes());
    let on_job = |verb| on_job(verb, &id.0, state.path());
    say(&format!("dmover: job {id} runs in the background; its output goes to {output}"));
    say(&format!("  follow it:    {} -f", on_job("logs")));
    say(&format!("  wait for it:  {}", on_job("wait")));
}
