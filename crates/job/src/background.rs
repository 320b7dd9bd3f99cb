//! Starts a job in a process of its own.
use dmover_engine::{JobList, job_id};
use dmover_journal::StateDirectory;
use dmover_model::{ExitCode, JobId, JobSpec};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::quote::quoted;
use crate::refusal::{Reason, Refusal};

/// The longest wait for the start of the job; a job that takes longer still runs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two checks whether the job has started.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The command that runs a job.
#[derive(Debug, Clone)]
pub struct Background<'a> {
    /// The dmover program.
    pub program: &'a Path,
    /// Its arguments.
    pub words: Vec<OsString>,
    /// The variable that gives the process the path of the file for its messages.
    pub variable: &'a str,
}

/// A job that was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Started {
    /// It runs.
    Runs {
        /// The id of the job.
        id: JobId,
        /// The file with its messages.
        output: PathBuf,
    },
    /// It has ended already.
    Ended {
        /// Its exit code.
        code: u8,
        /// Its messages.
        said: String,
    },
}

/// The id of a job that is about to start in the background.
///
/// # Errors
/// The job is running, cannot have an id, or reads a list that its process would not get.
pub fn may_start(spec: &JobSpec, state: &StateDirectory) -> Result<JobId, Refusal> {
    if spec.selection.list.is_some() {
        let message = "--detach cannot be used with --files-from or --read-stdin";
        let hint = "omit --detach, and use '&' in the shell to run the job in the background";
        return Err(Refusal::new(Reason::Unsuitable, message, hint));
    }
    let id = job_id(spec, &JobList::None, Some(state))
        .map_err(|error| Refusal::new(Reason::Unsuitable, error.to_string(), error.hint()))?;
    if state.is_running(&id.0) {
        let message = format!("job {id} is already running");
        return Err(Refusal::new(Reason::Running, message, "'dmover wait' waits for its end"));
    }
    Ok(id)
}

/// Why a job cannot start in the background.
pub fn not_started(state: &StateDirectory, error: &std::io::Error) -> Refusal {
    let place = quoted(state.path().as_os_str().as_encoded_bytes());
    let message = format!("cannot start the job in the background, in {place}: {error}");
    Refusal::new(Reason::Failed, message, "choose another --state-dir, or omit --detach")
}

/// Starts a job, and waits until it has begun or ended.
///
/// # Errors
/// The state directory cannot be written, or the program cannot be started.
pub fn start(
    state: &StateDirectory,
    id: JobId,
    background: Background<'_>,
) -> Result<Started, Refusal> {
    let (child, output) =
        spawn(state, &id, background).map_err(|error| not_started(state, &error))?;
    let (pid, mut child) = (child.id(), child);
    Ok(attend(state, (id, output), pid, || match child.try_wait() {
        Ok(Some(status)) => {
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            Some(code.unwrap_or_else(|| ExitCode::Fatal.code()))
        }
        _ => None,
    }))
}

/// Creates the file for the messages of a job in the background.
///
/// # Errors
/// The state directory cannot be written.
pub fn output_of(state: &StateDirectory, id: &JobId) -> std::io::Result<(File, PathBuf)> {
    let directory = std::path::absolute(state.directory(&id.0))?;
    std::fs::create_dir_all(&directory)?;
    let output = directory.join("output");
    Ok((File::create(&output)?, output))
}

fn spawn(
    state: &StateDirectory,
    id: &JobId,
    background: Background<'_>,
) -> std::io::Result<(Child, PathBuf)> {
    let (file, output) = output_of(state, id)?;
    let child = Command::new(background.program)
        .args(background.words)
        .env(background.variable, &output)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()?;
    Ok((child, output))
}

/// Waits until a job has started in a process, or has ended. `ended`: its exit code as soon as it has one.
pub fn attend(
    state: &StateDirectory,
    (id, output): (JobId, PathBuf),
    pid: u32,
    mut ended: impl FnMut() -> Option<u8>,
) -> Started {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let begun = state.status(&id.0).is_some_and(|status| status.pid == pid);
        match ended() {
            _ if begun => break,
            Some(code) => {
                let said = std::fs::read_to_string(output).unwrap_or_default();
                return Started::Ended { code, said };
            }
            None => thread::sleep(LOOK_EVERY),
        }
    }
    Started::Runs { id, output }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_ends_at_once_is_reported_with_its_messages() {
        let place = tempfile::tempdir().unwrap();
        let state = StateDirectory::new(place.path().join("state"));
        let script = "echo $WHERE; exit 4";
        let background = Background {
            program: Path::new("/bin/sh"),
            words: ["-c", script].map(OsString::from).to_vec(),
            variable: "WHERE",
        };
        let id = JobId("a1".into());
        let output = state.directory("a1").join("output");
        let started = start(&state, id.clone(), background.clone()).unwrap();
        let said = format!("{}\n", output.display());
        assert_eq!(started, Started::Ended { code: 4, said });
        let background = Background { program: Path::new("/nowhere/dmover"), ..background };
        assert_eq!(start(&state, id, background).unwrap_err().reason, Reason::Failed);
    }
}
