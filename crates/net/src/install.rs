//! Puts this program on another host, at `~/.local/bin/dmover`.
use dmover_model::Fatal;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::time::Duration;

use crate::endpoint::RemoteHost;
use crate::failure::{Ended, text};
use crate::remote_command::command;
use crate::ssh::{Ssh, SshOptions};

/// What each line of the scripts begins with; other lines are from login scripts.
const MARK: &str = "dmover-install: ";

/// Says what the host is, and which dmover is there.
const PROBE: &str = "echo \"dmover-install: machine $(uname -s) $(uname -m)\"; d=$HOME/.local/bin/dmover; \
    if [ -e \"$d\" ]; then \
    s=$( { sha256sum \"$d\" || shasum -a 256 \"$d\"; } 2>/dev/null ) || s=; \
    echo \"dmover-install: sha256 ${s%% *}\"; \
    v=$(\"$d\" --version 2>/dev/null </dev/null) || v=; \
    echo \"dmover-install: version $v\"; fi; \
    echo \"dmover-install: end\"";

/// Reads the program from standard input: `$1` its size, `$2` its SHA-256, `$3` a random word. Nothing has its name before
/// it is whole and has run once.
const PUT: &str = "set -e; umask 022; b=$HOME/.local/bin; mkdir -p \"$b\"; t=$b/.dmover-install-$3; \
    clean() { rm -f \"$t\"; }; trap clean EXIT; trap \"exit 1\" HUP INT PIPE TERM; \
    cat > \"$t\"; n=$(wc -c < \"$t\"); \
    if [ \"$n\" -ne \"$1\" ]; then echo \"dmover-install: size $n\"; exit 1; fi; \
    s=$( { sha256sum \"$t\" || shasum -a 256 \"$t\"; } 2>/dev/null ) || s=; s=${s%% *}; \
    if [ -z \"$s\" ]; then s=none; elif [ \"$s\" = \"$2\" ]; then :; else echo \"dmover-install: sum $s\"; exit 1; fi; \
    chmod 755 \"$t\"; v=$(\"$t\" --version 2>&1 </dev/null) || { echo \"dmover-install: broken $v\"; exit 1; }; \
    mv -f \"$t\" \"$b/dmover\"; echo \"dmover-install: done $s $b/dmover\"";

/// How long ssh may take to end after the last line.
const END_WITHIN: Duration = Duration::from_secs(5);
/// How much of the answer is read.
const ANSWER_MAX: u64 = 64 << 10;

/// What an installation did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Installed {
    /// The program is there.
    Done {
        /// Its path at the host.
        path: String,
        /// The host has compared its SHA-256; otherwise only its size.
        is_verified: bool,
        /// The version that it replaced; empty: that did not run.
        replaced: Option<String>,
    },
    /// The same program was there before.
    Same,
}

/// Copies a program to a host. `machine`: what it runs on, as [`this_machine`] says.
///
/// # Errors
/// The host cannot be reached, is of another kind, or has another dmover there (unless `force`). Nothing was changed.
pub fn install(
    host: &RemoteHost,
    ssh: &SshOptions,
    program: &[u8],
    machine: &str,
    force: bool,
) -> Result<Installed, Fatal> {
    let shown = host.shown();
    let found = probe(host, ssh)?;
    if found.machine != machine {
        let message =
            format!("the host '{shown}' is {}, and this program is for {machine}", found.machine);
        return Err(Fatal::refused(
            message,
            "put a dmover for that system at ~/.local/bin/dmover there",
        ));
    }
    let digest = hex(&Sha256::digest(program));
    if let Some(old) = &found.program {
        if old.sha256 == digest {
            return Ok(Installed::Same);
        }
        if !force {
            let version = if old.version.is_empty() { "another program" } else { &old.version };
            let message =
                format!("the host '{shown}' has another dmover at ~/.local/bin/dmover ({version})");
            return Err(Fatal::refused(
                message,
                "replace it with --force; running jobs keep theirs",
            ));
        }
    }
    let put = put(host, ssh, program, &digest)?;
    let replaced = found.program.map(|old| old.version);
    Ok(Installed::Done { path: put.path, is_verified: put.is_verified, replaced })
}

/// What programs for this host run on, in the words of uname(1): the system and the machine.
pub fn this_machine() -> String {
    let machine = match std::env::consts::ARCH {
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "powerpc64" => "ppc64",
        other => other,
    };
    let system = if cfg!(target_os = "linux") { "Linux" } else { std::env::consts::OS };
    format!("{system} {machine}")
}

struct Found {
    machine: String,
    program: Option<Program>,
}

struct Program {
    sha256: String,
    version: String,
}

fn probe(host: &RemoteHost, ssh: &SshOptions) -> Result<Found, Fatal> {
    let answer = run(host, ssh, &command(PROBE, &[]), &[])?;
    let field = |name: &str| answer.lines.iter().find_map(|line| line.strip_prefix(name));
    let (Some(machine), Some(_)) = (field("machine "), field("end")) else {
        return Err(answer.failed(host));
    };
    let program = field("sha256").map(|digest| Program {
        sha256: digest.trim().to_owned(),
        version: field("version").unwrap_or_default().trim().to_owned(),
    });
    // 64 bits under two names.
    let machine = machine.trim().replace(" arm64", " aarch64").replace(" amd64", " x86_64");
    Ok(Found { machine, program })
}

struct Put {
    path: String,
    is_verified: bool,
}

fn put(host: &RemoteHost, ssh: &SshOptions, program: &[u8], digest: &str) -> Result<Put, Fatal> {
    let shown = host.shown();
    let size = program.len().to_string();
    let word = format!("{:016x}", dmover_host::random_u64());
    let command = command(PUT, &[size.as_bytes(), digest.as_bytes(), word.as_bytes()]);
    let answer = run(host, ssh, &command, program)?;
    for line in &answer.lines {
        let (name, value) = line.split_once(' ').unwrap_or((line, ""));
        let nothing = "nothing was replaced; run the same command again";
        match name {
            "done" => {
                let (sum, path) = value.split_once(' ').unwrap_or_default();
                return Ok(Put { path: path.to_owned(), is_verified: sum == digest });
            }
            "size" => {
                let message = format!("the host '{shown}' received {value} of {size} bytes");
                return Err(Fatal::unavailable(message, nothing));
            }
            "sum" => {
                let message = format!("the host '{shown}' received other bytes than were sent");
                return Err(Fatal::unavailable(message, nothing));
            }
            "broken" => {
                let message = format!("this program does not run at the host '{shown}': {value}");
                let hint = "install the static program of a release there; nothing was replaced";
                return Err(Fatal::refused(message, hint));
            }
            _ => {}
        }
    }
    Err(answer.failed(host))
}

/// What a script said.
struct Answer {
    lines: Vec<String>,
    other: Vec<u8>,
    status: Option<std::process::ExitStatus>,
    errors: Vec<String>,
}

impl Answer {
    /// The error for a script that did not come to its end.
    fn failed(&self, host: &RemoteHost) -> Fatal {
        let shown = host.shown();
        let ended = Ended { host: &shown, status: self.status, errors: &self.errors, agent: None };
        if self.status.and_then(|status| status.code()) == Some(255) {
            return ended.of_ssh();
        }
        match (ended.last_line(), &self.other[..]) {
            (Some(line), _) => {
                let message = format!("cannot install dmover at the host '{shown}': {line}");
                Fatal::refused(message, "check the home directory there: space, owner and mode")
            }
            (None, other) if !other.trim_ascii().is_empty() => text(&shown, other),
            (None, _) => ended.without_hello(),
        }
    }
}

fn run(host: &RemoteHost, ssh: &SshOptions, command: &str, feed: &[u8]) -> Result<Answer, Fatal> {
    let (ssh, mut input, output) = Ssh::start(host, ssh, command)?;
    let mut said = Vec::new();
    std::thread::scope(|scope| {
        // The script reads all of it, or ends and says why.
        scope.spawn(move || drop(input.write_all(feed).and_then(|()| input.flush())));
        let _ = output.take(ANSWER_MAX).read_to_end(&mut said);
    });
    let status = ssh.end(END_WITHIN);
    let text = String::from_utf8_lossy(&said);
    let lines =
        text.lines().filter_map(|line| line.strip_prefix(MARK)).map(str::to_owned).collect();
    Ok(Answer { lines, other: said, status, errors: ssh.errors() })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    const PROGRAM: &[u8] = b"#!/bin/sh\necho dmover 9.9\n";

    /// A program in place of ssh, which runs the command here in another home directory.
    fn here(home: &Path) -> SshOptions {
        let script = "home=$1; shift; for last; do :; done; cd \"$home\"; HOME=$home exec /bin/sh -c \"$last\"";
        let mut program: Vec<_> =
            ["/bin/sh", "-c", script, "ssh"].map(std::ffi::OsString::from).into();
        program.push(home.into());
        SshOptions { program, agent: None }
    }

    fn host() -> RemoteHost {
        RemoteHost { user: None, name: "far".into() }
    }

    fn put_here(home: &Path, program: &[u8], force: bool) -> Result<Installed, Fatal> {
        install(&host(), &here(home), program, &this_machine(), force)
    }

    fn names(home: &Path) -> Vec<String> {
        let all = std::fs::read_dir(home.join(".local/bin")).unwrap().flatten();
        all.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_program_is_put_there_once_and_replaced_by_force_only() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(".local/bin/dmover");
        let put = put_here(home.path(), PROGRAM, false).unwrap();
        let shown = path.to_str().unwrap().to_owned();
        assert_eq!(put, Installed::Done { path: shown.clone(), is_verified: true, replaced: None });
        assert_eq!(std::fs::read(&path).unwrap(), PROGRAM);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(put_here(home.path(), PROGRAM, false).unwrap(), Installed::Same);
        let other = [PROGRAM, b"# another\n"].concat();
        let error = put_here(home.path(), &other, false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the host 'far' has another dmover at ~/.local/bin/dmover (dmover 9.9)"
        );
        assert_eq!(std::fs::read(&path).unwrap(), PROGRAM);
        let put = put_here(home.path(), &other, true).unwrap();
        let replaced = Some("dmover 9.9".to_owned());
        assert_eq!(put, Installed::Done { path: shown, is_verified: true, replaced });
        assert_eq!(std::fs::read(&path).unwrap(), other);
        assert_eq!(names(home.path()), ["dmover"]);
    }

    #[test]
    fn what_does_not_run_there_replaces_nothing() {
        let home = tempfile::tempdir().unwrap();
        put_here(home.path(), PROGRAM, false).unwrap();
        let error =
            put_here(home.path(), b"#!/bin/sh\necho too old >&2; exit 1\n", true).unwrap_err();
        assert_eq!(error.to_string(), "this program does not run at the host 'far': too old");
        let error = install(&host(), &here(home.path()), PROGRAM, "Linux pdp11", true).unwrap_err();
        assert!(error.to_string().ends_with("this program is for Linux pdp11"), "{error}");
        assert_eq!(std::fs::read(home.path().join(".local/bin/dmover")).unwrap(), PROGRAM);
        assert_eq!(names(home.path()), ["dmover"]);
    }

    #[test]
    fn bytes_that_were_lost_or_changed_are_noticed() {
        let home = tempfile::tempdir().unwrap();
        let digest = hex(&Sha256::digest(PROGRAM));
        let words = |size: usize, digest: &str| {
            let size = size.to_string();
            command(PUT, &[size.as_bytes(), digest.as_bytes(), b"x"])
        };
        let ssh = here(home.path());
        let answer = run(&host(), &ssh, &words(PROGRAM.len() + 1, &digest), PROGRAM).unwrap();
        assert_eq!(answer.lines, [format!("size {}", PROGRAM.len())]);
        let answer = run(&host(), &ssh, &words(PROGRAM.len(), "0"), PROGRAM).unwrap();
        assert_eq!(answer.lines, [format!("sum {digest}")]);
        assert_eq!(names(home.path()), [""; 0]);
    }

    #[test]
    fn a_home_directory_that_cannot_be_written_to_is_named() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(".local"), "a file").unwrap();
        let error = put_here(home.path(), PROGRAM, false).unwrap_err().to_string();
        assert!(error.starts_with("cannot install dmover at the host 'far': mkdir: "), "{error}");
    }
}
