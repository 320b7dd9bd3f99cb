//! What this user shows to agents that listen, and the agents that it knows.
use dmover_job::quote::quoted;
use dmover_model::Fatal;
use dmover_net::listening::{Fingerprint, Identity, KnownAgents, KnownAs, seen_at};
use dmover_net::{Credentials, RemoteHost};
use dmover_queue::secret::{self, Guard};
use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::config::user_directory;
use crate::print::{ask, is_conversation, line, say};

/// The files in the directory of the user's configuration.
const IDENTITY: &str = "identity.pem";
const KNOWN: &str = "known_agents";

/// What this user shows to agents, read when it is needed.
pub(super) fn credentials() -> Credentials {
    Credentials(Arc::new(known_as))
}

fn known_as() -> Result<KnownAs, Fatal> {
    let own_file = own_file(None)?;
    let own = read(&own_file)?;
    let own_file = shown(&own_file);
    Ok(KnownAs { own, own_file, agents: known_agents()?.1 })
}

fn directory() -> Result<PathBuf, Fatal> {
    user_directory().ok_or_else(|| {
        let message = "no directory for the identity: neither $XDG_CONFIG_HOME nor $HOME is set";
        Fatal::refused(message, "set one of the two")
    })
}

/// The file that was named, or the usual one.
fn own_file(named: Option<&Path>) -> Result<PathBuf, Fatal> {
    named.map_or_else(|| Ok(directory()?.join(IDENTITY)), |named| Ok(named.to_owned()))
}

fn shown(path: &Path) -> String {
    quoted(path.as_os_str().as_encoded_bytes())
}

/// Reads an identity.
pub(super) fn read(path: &Path) -> Result<Identity, Fatal> {
    let hint = "make one by 'dmover agent --make-identity'";
    let text = secret::read(path, Guard::Secret, "the identity", hint)?;
    Identity::parse(&text, &format!("the identity {}", shown(path)))
}

/// `--make-identity`.
pub(super) fn make(named: Option<&Path>, valid_for: Duration) -> Result<(), Fatal> {
    let path = own_file(named)?;
    let failed = |why: &std::io::Error| {
        if why.kind() == ErrorKind::AlreadyExists {
            let message = format!("{} exists, and other hosts may know it", shown(&path));
            let hint = "show it by --show-identity; to change it, move the old one away first";
            return Fatal::refused(message, hint);
        }
        let message = format!("cannot write the identity {}: {why}", shown(&path));
        Fatal::refused(message, "check the directory, and --valid-for")
    };
    let text = Identity::make(valid_for).map_err(|error| failed(&error))?;
    if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        use std::os::unix::fs::DirBuilderExt;
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| failed(&error))?;
    }
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&path);
    let written = file.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|error| failed(&error))?;
    show(Some(&path))
}

/// `--show-identity`.
pub(super) fn show(named: Option<&Path>) -> Result<(), Fatal> {
    let path = own_file(named)?;
    let own = read(&path)?;
    line(&own.fingerprint().to_string());
    match own.why_invalid() {
        None => Ok(()),
        Some(why) => Err(Fatal::refused(
            format!("the certificate in {} cannot be used: {why}", shown(&path)),
            "move the file away, make a new identity, and have agents accept its fingerprint",
        )),
    }
}

/// The file of the known agents, and what is in it.
fn known_agents() -> Result<(PathBuf, KnownAgents), Fatal> {
    let path = directory()?.join(KNOWN);
    let what = "the known agents in";
    let text = match std::fs::symlink_metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        _ => secret::read(&path, Guard::Trust, what, "check the file")?,
    };
    let agents = KnownAgents::parse(&text, &format!("{what} {}", shown(&path)))?;
    Ok((path, agents))
}

/// `--trust`.
pub(super) fn trust(host: &OsStr, expected: Option<Fingerprint>) -> Result<(), Fatal> {
    let host = RemoteHost::parse(host)?;
    let Some(port) = host.port else {
        let message = format!("'{}' names a host for ssh, which knows its keys", host.shown());
        return Err(Fatal::refused(message, "name the agent as dmover://HOST"));
    };
    let as_whom = known_as()?;
    let seen = seen_at(&host, port, &as_whom)?;
    let agent = host.shown();
    match expected {
        Some(expected) if expected != seen => {
            let message = format!("the agent at '{agent}' shows another certificate: {seen}");
            let hint =
                "ask its administrator for the fingerprint; another host may answer in its place";
            return Err(Fatal::refused(message, hint));
        }
        None if !is_conversation() => {
            let message = format!("it is not confirmed that the agent at '{agent}' has {seen}");
            let hint = "ask its administrator for the fingerprint (the agent prints it when it starts), then \
                name it with --fingerprint";
            return Err(Fatal::refused(message, hint));
        }
        None => {
            let question = format!(
                "the agent at '{agent}' shows {seen}; is that what its administrator has told you (the \
                 agent prints it when it starts)?"
            );
            if ask(&question, || false) != Some(true) {
                return Err(Fatal::refused("the agent is not trusted", "nothing was changed"));
            }
        }
        Some(_) => {}
    }
    let (path, known) = known_agents()?;
    let text = known.with(&host.name, port, seen);
    secret::write(&path, &text, 0o644).map_err(|error| {
        let message = format!("cannot write the known agents in {}: {error}", shown(&path));
        Fatal::refused(message, "check the directory")
    })?;
    say(&format!("dmover: the agent at '{agent}' is known by {seen}"));
    Ok(())
}
