//! The process that serves one client of an agent that listens: its user, and what it may do.
use clap::parser::ValueSource;
use clap::{ArgMatches, Id};
use dmover_engine::Bounds;
use dmover_host::confinement::{Allowed, confine};
use dmover_model::{Fatal, JobSpec};
use dmover_schedule::sync::OnceLock;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

use crate::config::user_directory;
use crate::state::choose_state_directory;

/// What the program itself needs: libraries, what finds names of hosts and users, the time zone, and what the kernel tells. Not the whole
/// of /etc, where agents and others keep keys.
const SYSTEM: [&str; 20] = [
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/timezone",
    "/lib",
    "/lib64",
    "/proc",
    "/sys",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/share/zoneinfo",
];
/// Devices without content.
const DEVICES: [&str; 3] = ["/dev/null", "/dev/urandom", "/dev/zero"];

/// The word for jobs that stay without their user.
pub(super) const DETACH: &str = "detach";

/// What the process may do.
static BOUNDS: OnceLock<Bounds> = OnceLock::new();

/// The trees and verbs that jobs in this process may use: everything, unless it serves a client of an agent.
pub(super) fn bounds() -> Bounds {
    BOUNDS.get().cloned().unwrap_or_default()
}

/// Options of a job that name files, programs or services of the host where it runs. The host of the command reads what others
/// name (`--exclude-from`), or they are of the trees of the job (`--trash`).
const NOT_FOR_CLIENTS: [&str; 15] = [
    "files_from",
    "read_stdin",
    "from",
    "manifest",
    "errors_to",
    "log_file",
    "metrics",
    "notify",
    "broker",
    "credentials",
    "trust",
    "state_dir",
    "spill_dir",
    "watch",
    "print_job",
];

/// Refuses a job that a client of an agent may not have this process run.
pub(super) fn check_job(spec: &JobSpec) -> Result<(), Fatal> {
    let Some(bounds) = BOUNDS.get() else { return Ok(()) };
    bounds.check_spec(spec)?;
    bounds.check_places(spec)
}

/// Refuses verbs about jobs to a client that can have none here without its connection.
pub(super) fn check_about_jobs() -> Result<(), Fatal> {
    BOUNDS.get().map_or(Ok(()), |bounds| bounds.check_verb(DETACH))
}

/// Refuses options that a client of an agent may not use. `options`: what the command line has.
pub(super) fn check_options(options: &ArgMatches) -> Result<(), Fatal> {
    if BOUNDS.get().is_none() {
        return Ok(());
    }
    let is_left = |id: &str| options.try_get_one::<bool>(id).ok().flatten() == Some(&true);
    if is_left(DETACH) {
        bounds().check_verb(DETACH)?;
    }
    let mut given = options.ids().map(Id::as_str).filter(|id| {
        options.value_source(id) == Some(ValueSource::CommandLine) && NOT_FOR_CLIENTS.contains(id)
    });
    given.next().map_or(Ok(()), |option| Err(not_accepted(option)))
}

fn not_accepted(option: &str) -> Fatal {
    let message = format!("the agent does not accept --{}", option.replace('_', "-"));
    Fatal::refused(message, "omit it")
}

/// What one client may do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Confinement {
    /// The user, the group and all groups to work as; `None`: those of the process.
    pub user: Option<(u32, u32, Vec<u32>)>,
    /// Its state directory.
    pub state: PathBuf,
    pub read: Vec<PathBuf>,
    pub write: Vec<PathBuf>,
    /// Verbs by their words.
    pub verbs: Vec<String>,
    /// The ports at which it may listen for data streams.
    pub data_ports: (u16, u16),
}

/// Where a directory of the process itself really is, which must not be where the client could replace it.
fn not_writable(directory: &Path, writable: &[PathBuf]) -> Result<PathBuf, Fatal> {
    let shown = directory.display();
    let real = std::fs::canonicalize(directory)
        .map_err(|error| failed("cannot find a directory", &format!("'{shown}': {error}")))?;
    let is_in = |tree: &PathBuf| real.starts_with(tree) || directory.starts_with(tree);
    match writable.iter().find(|tree| is_in(tree)) {
        None => Ok(real),
        Some(tree) => Err(failed(
            "a directory of the agent is where the client may write",
            &format!("'{shown}' is in '{}'; name another one ('state')", tree.display()),
        )),
    }
}

impl Confinement {
    fn may_stay(&self) -> bool {
        self.verbs.iter().any(|verb| verb == DETACH)
    }
}

fn failed(what: &str, why: &str) -> Fatal {
    let hint = "ask the administrator of the agent, whose log has the same words";
    Fatal::refused(format!("{what}: {why}"), hint)
}

/// Makes this process one of the user of a client. It must have one thread.
///
/// # Errors
/// It cannot: then it must not speak with the client.
pub(super) fn become_user(text: &str) -> Result<Confinement, Fatal> {
    let confinement: Confinement = serde_json::from_str(text)
        .map_err(|error| failed("cannot read the limits of the client", &error.to_string()))?;
    // If memory is short, the agent and other services stay. Afterwards the file is root's.
    let _ = std::fs::write("/proc/self/oom_score_adj", "500");
    if let Some((uid, gid, groups)) = &confinement.user {
        dmover_host::user::become_user(*uid, *gid, groups)
            .map_err(|error| failed("cannot become the user of the client", &error.to_string()))?;
    }
    // The kernel forgets this when the user changes.
    dmover_host::process::end_with_parent();
    Ok(confinement)
}

/// Confines this process for good. It must have one thread.
///
/// # Errors
/// It cannot: then it must not do anything for the client but say so.
pub(super) fn enter(confinement: Confinement) -> Result<(), Fatal> {
    let state = &confinement.state;
    std::fs::create_dir_all(state).map_err(|error| {
        failed("cannot make the state directory", &format!("'{}': {error}", state.display()))
    })?;
    let state = &not_writable(state, &confinement.write)?;
    // What may be written may be read.
    let read: Vec<_> = confinement.read.iter().chain(&confinement.write).cloned().collect();
    // A job that stays when its client has gone connects with the host of SOURCE by itself.
    let configuration = user_directory().filter(|_| confinement.may_stay());
    let configuration = configuration.filter(|directory| std::fs::metadata(directory).is_ok());
    let configuration =
        configuration.map(|directory| not_writable(&directory, &confinement.write)).transpose()?;
    let allowed = Allowed {
        read: read.clone(),
        write: confinement.write.clone(),
        own: vec![state.clone()],
        system: SYSTEM.map(PathBuf::from).into_iter().chain(configuration).collect(),
        devices: DEVICES.map(PathBuf::from).to_vec(),
    };
    confine(&allowed)
        .map_err(|error| failed("cannot limit the process to its trees", &error.to_string()))?;
    let trees = (&*read, &*confinement.write);
    let bounds = Bounds::of_client(trees, confinement.verbs, confinement.data_ports)?;
    let _ = BOUNDS.set(bounds);
    choose_state_directory(confinement.state);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Options with paths of the host of the command, or of the trees of the job.
    const HARMLESS: [&str; 7] = [
        "agent",
        "ssh_command",
        "include_from",
        "exclude_from",
        "target_directory",
        "trash",
        "config",
    ];

    #[test]
    fn every_option_that_names_something_of_the_host_is_considered() {
        let command = crate::command();
        for verb in ["copy", "sync", "verify"] {
            let verb = command.find_subcommand(verb).unwrap();
            for option in verb.get_arguments().filter(|option| option.get_long().is_some()) {
                let names = option.get_value_names().unwrap_or_default().iter();
                let mut words = names.flat_map(|name| name.split(['|', ':', '[']));
                let of_host = |word| {
                    matches!(word, "FILE" | "DIR" | "PATH" | "COMMAND" | "URL" | "HOST" | "PORT")
                };
                let id = option.get_id().as_str();
                let is_way = matches!(id, "relay" | "data_ports");
                let known = NOT_FOR_CLIENTS.contains(&id) || HARMLESS.contains(&id) || is_way;
                assert!(known || !words.any(of_host), "{id} names something of the host");
            }
        }
    }
}
