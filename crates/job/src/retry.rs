//! A job over the entries that failed in its last pass.
use dmover_engine::{JobList, job_id};
use dmover_journal::{FailedList, FailedPaths, JournalReader, StateDirectory};
use dmover_model::JobSpec;
use std::path::Path;
use std::sync::Arc;

use crate::refusal::{Reason, Refusal};

const SCANS_ALL: &str = "run the original sync command: it scans the whole tree";

/// Restricts a job to the paths that failed in its last pass. The paths go to a file in the directory `spill`. `say` shows
/// a note.
///
/// # Errors
/// The job has no complete pass, nothing failed in it that is still at the source, or its journal cannot be read.
pub fn only_failed(
    spec: JobSpec,
    state: &StateDirectory,
    spill: &Path,
    say: &mut dyn FnMut(&str),
) -> Result<(JobSpec, Arc<FailedList>), Refusal> {
    let refused = |message: &str, hint| Err(Refusal::new(Reason::Unsuitable, message, hint));
    let id = job_id(&spec, &JobList::None, Some(state))
        .map_err(|error| Refusal::new(Reason::Unsuitable, error.to_string(), "check the paths"))?;
    let fatal = |message: String| Refusal::new(Reason::Failed, message, SCANS_ALL);
    let journal = JournalReader::open(&state.directory(&id.0)).map_err(fatal)?;
    if journal.as_ref().map_or(Ok(false), JournalReader::is_unfinished).map_err(fatal)? {
        let hint = "run 'dmover resume' first, then 'dmover retry'";
        return refused("the last pass of this job did not finish", hint);
    }
    let Some(journal) = journal else {
        return refused(&format!("job {id} has no journal"), SCANS_ALL);
    };
    // There may be millions: they go to a file.
    let paths = FailedPaths::create(spill).map_err(|error| fatal(error.to_string()))?;
    let (mut undone, mut had, mut left, mut trouble) = (false, false, false, None);
    journal
        .each_error(&mut |error| {
            if error.operation == "unlink" {
                undone = true;
                return true;
            }
            // The destination may be inside the source, or the source inside the destination.
            let root = if error.side == "source" { &spec.sources[0] } else { &spec.destination };
            let Some(path) = error.path.below(root) else { return true };
            had = true;
            // A path that is no longer at the source cannot be copied.
            let looked = std::fs::symlink_metadata(spec.sources[0].join(&path).to_path());
            if looked.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
                return true;
            }
            left = true;
            trouble = paths.add(&path).err();
            trouble.is_none()
        })
        .map_err(fatal)?;
    if let Some(error) = trouble {
        let hint = "check for free space, or use --spill-dir";
        return Err(Refusal::new(Reason::Failed, error.to_string(), hint));
    }
    if undone {
        say("retry does not repeat failed deletes; run the original sync command");
    }
    if !left {
        let message = match (had, undone) {
            (true, _) => "the entries that failed in the last pass are no longer at the source",
            (false, false) => "nothing failed in the last pass of this job",
            (false, true) => "nothing but deletes failed in the last pass of this job",
        };
        return refused(message, SCANS_ALL);
    }
    // A job with a list does not scan other entries, so it cannot find extra ones to delete.
    let mut spec = spec;
    if let Some(sync) = &mut spec.policy.sync {
        sync.delete = None;
    }
    Ok((spec, Arc::new(paths.into())))
}
