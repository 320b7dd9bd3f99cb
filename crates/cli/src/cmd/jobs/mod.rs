//! The verbs that look after jobs, one file each, and how a job is found.
use dmover_engine::{JobFile, JobList, StateDirectory, job_id};
use dmover_model::{ExitCode as Code, JobSpec, PathBytes};
use std::path::PathBuf;
use std::process::ExitCode;

use super::run::{NO_STATE_DIRECTORY, exit, on_job, state_directory};
use crate::print::failure;
use crate::quote::quoted;

pub(crate) mod cleanup;
pub(crate) mod errors;
pub(crate) mod history;
pub(crate) mod list;
pub(crate) mod logs;
pub(super) mod shown;
pub(crate) mod status;
pub(crate) mod wait;

/// What to do about a journal that cannot be read.
const UNREADABLE: &str = "if it is damaged, move the journal away: the next run begins a new one, and needs --checksum after an interrupted pass";

/// A job that was found.
pub(super) struct Known {
    pub state: StateDirectory,
    pub file: JobFile,
}

/// Words for what cannot be done, with the code to end with.
pub(super) type Refused = (String, &'static str, Code);

pub(super) fn refuse((message, hint, code): Refused) -> ExitCode {
    failure(&message, hint);
    exit(code)
}

pub(super) fn directory(named: Option<&std::ffi::OsString>) -> Result<StateDirectory, Refused> {
    let found = state_directory(named).map(StateDirectory::new);
    found.ok_or_else(|| (NO_STATE_DIRECTORY.into(), "name a directory by --state-dir", Code::Usage))
}

/// All jobs of a directory, the one that began last first.
pub(super) fn all(state: &StateDirectory) -> Result<Vec<JobFile>, Refused> {
    let jobs = state.jobs().map_err(|error| {
        let message = format!("cannot read {}: {error}", state.path().display());
        (message, "name another --state-dir, or check permissions", Code::Usage)
    })?;
    let mut files: Vec<JobFile> = jobs.iter().filter_map(|job| state.job_file(job)).collect();
    let begun = |file: &JobFile| state.status(&file.job).map_or(file.created_ms, |s| s.begun_ms);
    files.sort_by_cached_key(|file| std::cmp::Reverse(begun(file)));
    Ok(files)
}

/// The job of this id, label or beginning of an id.
pub(super) fn find(named: &str, place: Option<&std::ffi::OsString>) -> Result<Known, Refused> {
    if named.is_empty() {
        return Err(("the name of a job is empty".into(), "'dmover jobs' lists them", Code::Usage));
    }
    let state = directory(place)?;
    let files = all(&state)?;
    let labelled = files.iter().filter(|file| file.label.as_deref() == Some(named));
    let matching: Vec<&JobFile> =
        labelled.chain(files.iter().filter(|file| file.job.starts_with(named))).collect();
    let mut ids: Vec<&str> = matching.iter().map(|file| file.job.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    match (matching.first(), ids.len()) {
        (Some(file), 1) => Ok(Known { file: (*file).clone(), state }),
        (Some(_), _) => {
            let message = format!("'{named}' can mean several jobs: {}", ids.join(", "));
            Err((message, "give more of the id", Code::Usage))
        }
        (None, _) => {
            let place = state.path().display();
            let message = format!("there is no job '{named}' in {place}");
            Err((message, "'dmover jobs' lists those that there are", Code::Usage))
        }
    }
}

/// Refuses a label by which another job is known. The same command may be another job where file systems take turns at its
/// destination, or lists do: then the label means them all.
pub(super) fn label_is_free(
    state: &StateDirectory,
    label: &str,
    spec: &JobSpec,
    list: &JobList,
) -> Result<(), ExitCode> {
    // The job itself reports a list that cannot be read.
    let (Ok(id), Ok(files)) = (job_id(spec, list, Some(state)), all(state)) else { return Ok(()) };
    let here = PathBytes::from(std::env::current_dir().unwrap_or_default().as_os_str());
    let own = places_of(spec.verb.word(), &here, &spec.sources, &spec.destination);
    let is_another = |file: &&JobFile| {
        let places = places_of(&file.verb, &file.directory, &file.sources, &file.destination);
        file.label.as_deref() == Some(label) && file.job != id.0 && places != own
    };
    let Some(other) = files.iter().find(is_another) else { return Ok(()) };
    let job = &other.job;
    let shown = format!("{} {}", shown::verb(other), shown::places(other));
    failure(
        &format!("job {job} has the label {} ({shown})", quoted(label.as_bytes())),
        &format!("choose another label, or free it: '{}'", on_job("cleanup", job, state.path())),
    );
    Err(exit(Code::Usage))
}

/// What a job does and where, wherever its command was typed.
fn places_of(
    verb: &str,
    directory: &PathBytes,
    sources: &[PathBytes],
    destination: &PathBytes,
) -> (String, Vec<PathBuf>) {
    let paths = sources.iter().chain([destination]);
    (verb.to_owned(), paths.map(|path| shown::absolute(directory, path)).collect())
}
