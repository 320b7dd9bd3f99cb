//! The job that a verb works on: the one that was named, or the last one that the verb can work on.
use dmover_journal::{JobFile, JobPhase, JournalReader, StateDirectory};
use dmover_model::ExitCode as Code;
use std::ffi::OsString;

use super::ask::can_retry;
use super::jobs::{Known, Refused, all, directory, find, shown::places};
use crate::print::say;

/// Which jobs a verb can work on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// All; one that runs comes first.
    Any,
    /// Those with a journal.
    Journal,
    /// Those with failed entries that can be retried separately.
    Retry,
    /// Those that are paused, were stopped or have died.
    Interrupted,
    /// Those that run and are not paused.
    Active,
    /// The only one that runs: a verb that cannot be undone must not choose among several.
    OnlyOne,
}

/// The job of this name, or the last one that the verb can work on. Standard error names a job that was chosen.
pub(super) fn named_or_last(
    named: Option<&str>,
    place: Option<&OsString>,
    choice: Choice,
) -> Result<Known, Refused> {
    if let Some(named) = named {
        return find(named, place);
    }
    let state = directory(place)?;
    let files = all(&state)?;
    if files.is_empty() {
        let message = format!("no job in {}", state.path().display());
        return Err((message, "choose another directory with --state-dir", Code::Usage));
    }
    let file = choose(&state, files, choice)?;
    say(&format!("dmover: job {}", described(&file)));
    Ok(Known { state, file })
}

fn choose(state: &StateDirectory, files: Vec<JobFile>, choice: Choice) -> Result<JobFile, Refused> {
    let last = files.first().cloned().filter(|_| choice == Choice::Any);
    let mut fitting = files.into_iter().filter(|file| fits(state, file, choice));
    let (message, hint) = match (fitting.next(), choice) {
        (Some(first), Choice::OnlyOne) => match fitting.next() {
            None => return Ok(first),
            Some(second) => {
                let more = 2 + fitting.count();
                let (first, second) = (described(&first), described(&second));
                let message = format!("{more} jobs are running, such as {first} and {second}");
                return Err((message, "name one of them; 'dmover jobs' lists them", Code::Usage));
            }
        },
        (Some(first), _) => return Ok(first),
        (None, Choice::Any) => ("no job found", "choose another directory with --state-dir"),
        (None, Choice::Journal) => {
            ("no job has a journal: only 'sync' keeps one", "'dmover jobs' lists all jobs")
        }
        (None, Choice::Retry) => {
            ("no 'sync' job has failed entries to retry", "'dmover jobs' lists all jobs")
        }
        (None, Choice::Interrupted) => (
            "no job is paused or interrupted",
            "'dmover resume JOB' reruns the command of a job that has ended",
        ),
        (None, Choice::Active | Choice::OnlyOne) => {
            ("no job is running", "'dmover jobs' lists all jobs")
        }
    };
    last.ok_or_else(|| (message.into(), hint, Code::Usage))
}

fn fits(state: &StateDirectory, file: &JobFile, choice: Choice) -> bool {
    let phase = || state.status(&file.job).unwrap_or_default().phase;
    match choice {
        Choice::Any | Choice::OnlyOne => phase().has_process(),
        // A journal that cannot be read is reported when the verb opens it.
        Choice::Journal => !matches!(JournalReader::open(&state.directory(&file.job)), Ok(None)),
        Choice::Retry => can_retry(file) && has_failed_entries(state, file),
        Choice::Interrupted => match phase() {
            JobPhase::Paused | JobPhase::Stopped => true,
            // Unless a standby resumes it.
            JobPhase::Died => !state.is_stood_by(&file.job),
            _ => false,
        },
        Choice::Active => matches!(phase(), JobPhase::Running | JobPhase::Watching),
    }
}

/// Whether a journal lists an entry that `retry` would attempt. One that cannot be read is reported when the verb opens it.
fn has_failed_entries(state: &StateDirectory, file: &JobFile) -> bool {
    let mut found = false;
    let read = state.errors(&file.job, &mut |error| {
        found = error.operation != "unlink";
        !found
    });
    found || read.is_err()
}

/// The id, the label, the verb and the places of a job.
pub(super) fn described(file: &JobFile) -> String {
    let label = file.label.as_deref().map_or(String::new(), |label| format!(" [{label}]"));
    format!("{}{label}: {} {}", file.job, file.verb, places(file))
}
