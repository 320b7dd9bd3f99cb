//! The directory that holds the state of jobs, and commands for a job there.
use dmover_schedule::sync::OnceLock;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::config::environment;
use dmover_job::quote::quoted;

/// The message if there is no state directory.
pub(crate) const NO_STATE_DIRECTORY: &str =
    "no state directory: neither $XDG_STATE_HOME nor $HOME is set";

/// The state directory of a process whose caller has chosen it for all jobs there.
static CHOSEN: OnceLock<PathBuf> = OnceLock::new();

/// Has this process use another usual directory.
pub(crate) fn choose_state_directory(directory: PathBuf) {
    let _ = CHOSEN.set(directory);
}

/// `--state-dir` and its variable, `/var/lib/dmover` for root, else the XDG state directory.
pub(crate) fn state_directory(named: Option<&OsString>) -> Option<PathBuf> {
    if let Some(directory) = named {
        return Some(PathBuf::from(directory));
    }
    if let Some(directory) = CHOSEN.get() {
        return Some(directory.clone());
    }
    if dmover_host::user::effective_uid() == 0 {
        return Some(PathBuf::from("/var/lib/dmover"));
    }
    let xdg = environment("XDG_STATE_HOME").map(PathBuf::from);
    let home = |home: OsString| PathBuf::from(home).join(".local/state");
    Some(xdg.or_else(|| environment("HOME").map(home))?.join("dmover"))
}

/// The command that does something with a job of a state directory.
pub(crate) fn on_job(verb: &str, job: &str, state: &Path) -> String {
    let usual = state_directory(environment("DMOVER_STATE_DIR").as_ref());
    if usual.as_deref() == Some(state) {
        return format!("dmover {verb} {job}");
    }
    let state = std::path::absolute(state).unwrap_or_else(|_| state.to_owned());
    format!("dmover {verb} {job} --state-dir {}", quoted(state.as_os_str().as_encoded_bytes()))
}
