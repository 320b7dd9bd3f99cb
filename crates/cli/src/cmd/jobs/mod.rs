//! The verbs that manage jobs, one file each, and how they find a job.
use dmover_engine::{JobList, job_id};
use dmover_journal::{JobFile, StateDirectory};
use dmover_model::{ExitCode as Code, JobSpec, PathBytes};
use std::path::PathBuf;
use std::process::ExitCode;

use super::run::exit;
use crate::print::failure;
use crate::state::{NO_STATE_DIRECTORY, on_job, state_directory};
use dmover_job::quote::quoted;

pub(crate) mod cleanup;
pub(crate) mod errors;
pub(crate) mod history;
pub(crate) mod list;
pub(crate) mod logs;
pub(super) mod shown;
pub(crate) mod status;
pub(crate) mod wait;

/// The hint for a journal that cannot be read.
const UNREADABLE: &str = "if the journal is damaged, move it away: the next run starts a new one. \
     After an interrupted pass, run that command with --checksum";

/// A job and its state directory.
pub(super) struct Known {
    pub state: StateDirectory,
    pub file: JobFile,
}

/// The message and the hint of a refusal, and the exit code.
pub(super) type Refused = (String, &'static str, Code);

pub(super) fn refuse((message, hint, code): Refused) -> ExitCode {
    failure(&message, hint);
    exit(code)
}

pub(super) fn directory(named: Option<&std::ffi::OsString>) -> Result<StateDirectory, Refused> {
    let found = state_directory(named).map(StateDirectory::new);
    found.ok_or_else(|| {
        (NO_STATE_DIRECTORY.into(), "choose a directory with --state-dir", Code::Usage)
    })
}

/// All jobs of a state directory, the latest start first.
pub(super) fn all(state: &StateDirectory) -> Result<Vec<JobFile>, Refused> {
    let jobs = state.jobs().map_err(|error| {
        let message = format!("cannot read '{}': {error}", state.path().display());
        (message, "choose another --state-dir, or check permissions", Code::Usage)
    })?;
    let mut files: Vec<JobFile> = jobs.iter().filter_map(|job| state.job_file(job)).collect();
    let begun = |file: &JobFile| state.status(&file.job).map_or(file.created_ms, |s| s.begun_ms);
    files.sort_by_cached_key(|file| std::cmp::Reverse(begun(file)));
    Ok(files)
}

/// The job with this id, this label, or an id that begins so.
pub(super) fn find(named: &str, place: Option<&std::ffi::OsString>) -> Result<Known, Refused> {
    if named.is_empty() {
        return Err((
            "the name of the job is empty".into(),
            "'dmover jobs' lists jobs",
            Code::Usage,
        ));
    }
    let state = directory(place)?;
    let files = all(&state)?;
    let is_id = |file: &&JobFile| file.job == named;
    let is_label = |file: &&JobFile| file.label.as_deref() == Some(named);
    let begins_so = |file: &&JobFile| file.job.starts_with(named);
    let mut matching: Vec<&JobFile> = files.iter().filter(is_id).collect();
    if matching.is_empty() {
        matching = files.iter().filter(is_label).collect();
    }
    if matching.is_empty() {
        matching = files.iter().filter(begins_so).collect();
    }
    let mut ids: Vec<&str> = matching.iter().map(|file| file.job.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    match (matching.first(), ids.len()) {
        (Some(file), 1) => Ok(Known { file: (*file).clone(), state }),
        (Some(_), _) => {
            let message = format!("'{named}' matches several jobs: {}", ids.join(", "));
            Err((message, "give more characters of the id", Code::Usage))
        }
        (None, _) => {
            let place = state.path().display();
            let message = format!("no job '{named}' in {place}");
            Err((message, "'dmover jobs' lists all jobs", Code::Usage))
        }
    }
}

/// Takes a label for a job, or refuses one that another job has. Jobs of the same command may share a label: they differ
/// only by the file system that is mounted at a path, or by their list. `is_only_read`: a dry run takes nothing.
pub(super) fn take_label(
    state: &StateDirectory,
    label: &str,
    (spec, list): (&JobSpec, &JobList),
    is_only_read: bool,
) -> Result<(), ExitCode> {
    // The job itself reports a list that cannot be read.
    let Ok(id) = job_id(spec, list, Some(state)) else { return Ok(()) };
    // Two jobs that start in the same instant must see each other. The job itself reports a directory that it cannot use.
    let turn = if is_only_read { None } else { state.label_turn().ok() };
    // Before the descriptions are read: a job may get its description and end in between, and then holds its label no more.
    let starting = state.labelled();
    let Ok(files) = all(state) else { return Ok(()) };
    if files.iter().any(|file| file.job == label) {
        let message = format!("the label {} is the id of a job", quoted(label.as_bytes()));
        failure(&message, "choose another label");
        return Err(exit(Code::Usage));
    }
    let here = PathBytes::from(std::env::current_dir().unwrap_or_default().as_os_str());
    let own = places_of(spec.verb.word(), &here, &spec.sources, &spec.destination);
    let is_another = |file: &&JobFile| {
        let places = places_of(&file.verb, &file.directory, &file.sources, &file.destination);
        file.label.as_deref() == Some(label) && file.job != id.0 && places != own
    };
    if let Some(other) = files.iter().chain(&starting).find(is_another) {
        let job = &other.job;
        let shown = format!("{} {}", shown::verb(other), shown::places(other));
        failure(
            &format!("the label {} belongs to job {job} ({shown})", quoted(label.as_bytes())),
            &format!("choose another label, or run '{}'", on_job("cleanup", job, state.path())),
        );
        return Err(exit(Code::Usage));
    }
    let described = JobFile {
        job: id.0.clone(),
        verb: spec.verb.word().into(),
        label: Some(label.to_owned()),
        directory: here,
        sources: spec.sources.clone(),
        destination: spec.destination.clone(),
        ..JobFile::default()
    };
    let held = turn.map(|turn| state.hold_label(&turn, &id, &described));
    // The label is held until this process ends: its job may fail before it has a description.
    if let Some(Ok(Some(held))) = held {
        std::mem::forget(held);
    }
    Ok(())
}

/// The verb of a job and its absolute paths.
fn places_of(
    verb: &str,
    directory: &PathBytes,
    sources: &[PathBytes],
    destination: &PathBytes,
) -> (String, Vec<PathBuf>) {
    let paths = sources.iter().chain([destination]);
    (verb.to_owned(), paths.map(|path| shown::absolute(directory, path)).collect())
}
