//! The label that a job gets when it starts.
use dmover_engine::{JobList, job_id};
use dmover_journal::{JobFile, LabelHeld, StateDirectory};
use dmover_model::{JobSpec, PathBytes};
use std::path::PathBuf;

use crate::description;
use crate::find::all;
use crate::quote::quoted;
use crate::refusal::{Reason, Refusal};

/// Takes a label for a job that starts in this working directory, or refuses one that another job has. Jobs of the same
/// command may share a label: they differ only by the file system that is mounted at a path, or by their list.
/// `is_only_read`: a dry run takes nothing.
///
/// Keep what is returned until the job has ended: it may fail before it has a description, and holds its label until then.
///
/// # Errors
/// Another job has the label, or it is the id of a job.
pub fn take_label(
    state: &StateDirectory,
    label: &str,
    (spec, list): (&JobSpec, &JobList),
    directory: &PathBytes,
    is_only_read: bool,
) -> Result<Option<LabelHeld>, Refusal> {
    // The job itself reports a list that cannot be read.
    let Ok(id) = job_id(spec, list, Some(state)) else { return Ok(None) };
    // Two jobs that start in the same instant must see each other. The job itself reports a directory that it cannot use.
    let turn = if is_only_read { None } else { state.labels().turn().ok() };
    // Before the descriptions are read: a job may get its description and end in between, and then holds its label no more.
    let starting = state.labels().held();
    let Ok(files) = all(state) else { return Ok(None) };
    if files.iter().any(|file| file.job == label) {
        let message = format!("the label {} is the id of a job", quoted(label.as_bytes()));
        return Err(Refusal::new(Reason::LabelIsId, message, "choose another label"));
    }
    let described = JobFile {
        job: id.0.clone(),
        verb: spec.verb.word().into(),
        label: Some(label.to_owned()),
        directory: directory.clone(),
        sources: spec.sources.clone(),
        sources_are_remote: spec.sources_are_remote,
        destination: spec.destination.clone(),
        ..JobFile::default()
    };
    let own = places_of(&described);
    let is_another = |file: &&JobFile| {
        file.label.as_deref() == Some(label) && file.job != id.0 && places_of(file) != own
    };
    if let Some(other) = files.iter().chain(&starting).find(is_another) {
        let job = &other.job;
        let shown = format!("{} {}", description::verb(other), description::places(other));
        let message =
            format!("the label {} belongs to job {job} ({shown})", quoted(label.as_bytes()));
        let reason = Reason::LabelTaken(job.clone());
        return Err(Refusal::new(reason, message, "choose another label"));
    }
    let held = turn.map(|turn| state.labels().hold(&turn, &id, &described));
    Ok(held.and_then(|held| held.ok().flatten()))
}

/// The verb of a job and its absolute paths.
fn places_of(file: &JobFile) -> (String, Vec<PathBuf>) {
    let sources = file.sources.iter().map(|source| description::source_place(file, source));
    let destination = description::absolute(&file.directory, &file.destination);
    (file.verb.clone(), sources.chain([destination]).collect())
}
