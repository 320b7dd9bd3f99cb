//! The verbs that manage jobs, one file each, and how they name a job.
use dmover_job::description::described;
use dmover_job::{Choice, KnownJob, Reason, Refusal};
use dmover_journal::StateDirectory;
use std::ffi::OsString;
use std::process::ExitCode;

use super::run::exit;
use crate::print::{failure, say};
use crate::state::{NO_STATE_DIRECTORY, on_job, state_directory};

pub(crate) mod cleanup;
pub(crate) mod errors;
pub(crate) mod history;
pub(crate) mod list;
pub(crate) mod logs;
mod shown;
pub(crate) mod status;
pub(crate) mod wait;

pub(super) fn refuse(refused: Refusal) -> ExitCode {
    let code = refused.exit_code();
    let Refusal { message, hint, .. } = refused;
    failure(&message, &hint);
    exit(code)
}

/// The same for a label, with the command that frees it.
pub(super) fn refuse_label(state: &StateDirectory, refused: Refusal) -> ExitCode {
    let hint = match &refused.reason {
        Reason::LabelTaken(job) => {
            let frees = on_job("cleanup", job, state.path());
            format!("{}, or run '{frees}'", refused.hint)
        }
        _ => refused.hint,
    };
    refuse(Refusal { hint, ..refused })
}

pub(super) fn directory(named: Option<&OsString>) -> Result<StateDirectory, Refusal> {
    let found = state_directory(named).map(StateDirectory::new);
    let hint = "choose a directory with --state-dir";
    found.ok_or_else(|| Refusal::new(Reason::NoState, NO_STATE_DIRECTORY, hint))
}

/// The job with this id, this label, or an id that begins so.
pub(super) fn find(named: &str, place: Option<&OsString>) -> Result<KnownJob, Refusal> {
    dmover_job::find(&directory(place)?, named)
}

/// The job of this name, or the last one that the verb can work on. Standard error names a job that was chosen.
pub(super) fn named_or_last(
    named: Option<&str>,
    place: Option<&OsString>,
    choice: Choice,
) -> Result<KnownJob, Refusal> {
    if let Some(named) = named {
        return find(named, place);
    }
    let known = dmover_job::choose(&directory(place)?, choice)?;
    say(&format!("dmover: job {}", described(&known.file)));
    Ok(known)
}
