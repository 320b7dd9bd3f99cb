//! Why another host cannot be used, in words for users: what failed, at which end, and what to do.
use dmover_model::{ExitCode, Fatal, PathBytes};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use crate::hello::{Hello, Protocols};
use crate::remote_command::MARK;

/// The exit code of ssh for its own errors.
const OF_SSH: i32 = 255;
/// The exit codes of a shell for a program that is not there, or that it cannot run.
const NOT_FOUND: i32 = 127;
const NOT_RUN: i32 = 126;
/// The exit codes of a shell for a program that a signal has ended: 128 and the number of the signal.
const SIGNALLED: i32 = 128;
const SIGNALLED_MAX: i32 = 128 + 64;

/// How to find out what a shell prints.
const QUIET_SHELL: &str = "have its login scripts (~/.bashrc, ~/.profile, ~/.cshrc) print only on a terminal; \
    'ssh HOST true' must print nothing";

/// What is known of a command that ended on another host.
#[derive(Debug)]
pub(crate) struct Ended<'a> {
    /// The host, as it was named.
    pub host: &'a str,
    /// How ssh has ended; `None`: it is not known.
    pub status: Option<ExitStatus>,
    /// What was on standard error.
    pub errors: &'a [String],
    /// The path of the agent, if the user named one.
    pub agent: Option<&'a PathBytes>,
}

/// Patterns of the errors of ssh, in the order in which they are tried: a part of a line, the message (with the host for
/// `HOST`), the hint, and the exit code.
const ERRORS: [(&str, &str, &str, ExitCode); 16] = [
    (
        "Could not resolve hostname",
        "cannot find the address of the host 'HOST'",
        "check the name; it may be a name of DNS, an address, or a Host of ~/.ssh/config. For a local path with a colon, \
         write ./ before it",
        ExitCode::Temporary,
    ),
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "the key of the host 'HOST' has changed",
        "if it was installed again, remove the old key by 'ssh-keygen -R HOST', and log in once with ssh; \
         otherwise another host answers in its place",
        ExitCode::Usage,
    ),
    (
        "Host key verification failed",
        "ssh does not know the key of the host 'HOST'",
        "log in once by 'ssh HOST', check the key and accept it; then run the same command again",
        ExitCode::Usage,
    ),
    (
        "Too many authentication failures",
        "the host 'HOST' refuses the login: too many keys were tried",
        "name the right key in ~/.ssh/config (IdentityFile, IdentitiesOnly yes); 'ssh HOST' must work",
        ExitCode::Usage,
    ),
    (
        "Permission denied",
        "the host 'HOST' refuses the login",
        "check the user and the key; 'ssh HOST' must work. To log in as another user, write USER@ before the name of the host",
        ExitCode::Usage,
    ),
    (
        "Cannot execute command-line and remote command",
        "ssh has a RemoteCommand for the host 'HOST', so that dmover cannot run there",
        "add '-o RemoteCommand=none' by --ssh-command, or use a Host of ~/.ssh/config without it",
        ExitCode::Usage,
    ),
    (
        "Bad configuration option",
        "ssh cannot read its configuration",
        "correct the file that the message names",
        ExitCode::Usage,
    ),
    (
        "Can't open user config file",
        "ssh cannot read its configuration",
        "correct the path after -F in --ssh-command",
        ExitCode::Usage,
    ),
    (
        "Bad owner or permissions on",
        "ssh does not accept its configuration",
        "correct the owner or the mode of the file that the message names",
        ExitCode::Usage,
    ),
    (
        "Connection refused",
        "the host 'HOST' refuses connections",
        "check that sshd runs there, and its port (Port in ~/.ssh/config)",
        ExitCode::Temporary,
    ),
    (
        "timed out",
        "the host 'HOST' does not answer",
        "check that it is up, and that no firewall is in between; then run the same command again",
        ExitCode::Temporary,
    ),
    (
        "No route to host",
        "there is no route to the host 'HOST'",
        "check that it is up, and the network; then run the same command again",
        ExitCode::Temporary,
    ),
    (
        "Network is unreachable",
        "there is no route to the host 'HOST'",
        "check the network; then run the same command again",
        ExitCode::Temporary,
    ),
    (
        "no matching",
        "ssh and the host 'HOST' have no algorithm in common",
        "update the older one of the two; 'ssh HOST' must work",
        ExitCode::Usage,
    ),
    (
        "kex_exchange_identification",
        "the host 'HOST' ends connections before the login",
        "check the log of sshd there (MaxStartups, firewalls); then run the same command again",
        ExitCode::Temporary,
    ),
    (
        "",
        "cannot connect to the host 'HOST'",
        "'ssh HOST' must work; then run the same command again",
        ExitCode::Temporary,
    ),
];

impl Ended<'_> {
    /// The error for an agent that ended without a greeting.
    pub fn without_hello(&self) -> Fatal {
        let host = self.host;
        let named = |otherwise: &str| {
            let agent = self.agent.map(|path| String::from_utf8_lossy(&path.0).into_owned());
            agent.unwrap_or_else(|| otherwise.to_owned())
        };
        let mark = self.errors.iter().rev().find_map(|line| line.strip_prefix(MARK));
        let code = self.status.and_then(|status| status.code());
        let found = mark.filter(|mark| *mark != "none").and_then(|mark| mark.rsplit_once(" on "));
        let refused = |message: String, hint: &str| Fatal::refused(message, for_host(hint, host));
        match (code, found) {
            (Some(OF_SSH), _) => self.of_ssh(),
            // As a shell tells the signal that has ended a program: its host may be shutting down.
            (Some(code @ SIGNALLED..=SIGNALLED_MAX), Some((program, _))) => {
                let signal = dmover_host::signals::name(code - SIGNALLED);
                let message = format!("'{program}' at the host '{host}' was ended by {signal}");
                Fatal::unavailable(message, "run the same command again")
            }
            // Of a program at the host that a signal ends, ssh reports a code: the signal was for ssh.
            (None, _) if self.status.is_some() => self.of_ssh(),
            (Some(NOT_FOUND), None) => {
                let message = match self.agent {
                    Some(_) => format!("there is no '{}' at the host '{host}'", named("")),
                    None => {
                        format!("the host '{host}' has no dmover in PATH or at ~/.local/bin/dmover")
                    }
                };
                refused(message, INSTALL)
            }
            (code, Some((program, system))) if self.is_foreign(code) => {
                let message = format!("'{program}' at the host '{host}' does not run on {system}");
                refused(
                    message,
                    "put a dmover for that system there, and name it with --agent PATH",
                )
            }
            (Some(NOT_RUN), Some((program, _))) => {
                let why = self.last_line().unwrap_or("permission denied");
                let message = format!("cannot run '{program}' at the host '{host}': {why}");
                refused(message, "make it executable (chmod +x), or name another with --agent PATH")
            }
            (_, Some((program, _))) if self.is_without_verb() => {
                let message = format!(
                    "'{program}' at the host '{host}' is a dmover without 'agent', or no dmover"
                );
                refused(message, UPDATE)
            }
            (_, Some((program, _))) => {
                let why = self.last_line().map_or_else(|| shown(self.status), str::to_owned);
                let message =
                    format!("'{program}' at the host '{host}' ended without a greeting: {why}");
                refused(message, "run it there by hand: dmover --version")
            }
            (_, None) => {
                let why = self.last_line().map_or_else(|| shown(self.status), str::to_owned);
                let message =
                    format!("the login shell at the host '{host}' runs no command: {why}");
                refused(message, "'ssh HOST true' must work, and print nothing")
            }
        }
    }

    /// The error of ssh itself.
    pub fn of_ssh(&self) -> Fatal {
        let host = self.host;
        let fits = |pattern: &str| self.errors.iter().find(|line| line.contains(pattern));
        let mut found = ERRORS.iter().map(|row| (row, fits(row.0)));
        let row = found.find(|(row, line)| line.is_some() || row.0.is_empty());
        let ((pattern, message, hint, code), line) = row.expect("the last pattern fits everything");
        // The line that fits says more than the last one, such as which port. Of several lines that end a login, the
        // last one names the reason.
        let line = line.filter(|_| !pattern.is_empty()).map(String::as_str).or(self.last_line());
        let message = for_host(message, host);
        let message = match line {
            Some(line) => format!("{message}: {line}"),
            None => format!("{message}: {}", shown(self.status)),
        };
        let hint = for_host(hint, host);
        match code {
            ExitCode::Usage => Fatal::refused(message, hint),
            _ => Fatal::unavailable(message, hint),
        }
    }

    /// Whether the program is for another machine. A shell may take it for a script.
    fn is_foreign(&self, code: Option<i32>) -> bool {
        let says = |words: &str| self.errors.iter().any(|line| line.contains(words));
        let as_script = says("Syntax error") || says("\u{7f}ELF") || says("ELF: not found");
        says("Exec format error")
            || says("cannot execute binary file")
            || (matches!(code, Some(2 | NOT_FOUND | NOT_RUN)) && as_script)
    }

    fn is_without_verb(&self) -> bool {
        self.errors
            .iter()
            .any(|line| line.contains("no verb 'agent'") || line.contains("unrecognized"))
    }

    /// The last line that says why. A dmover there prints a hint after it, which is for users of that host.
    pub fn last_line(&self) -> Option<&str> {
        let all = self.errors.iter().rev().map(|line| line.trim());
        let own = |line: &&str| !line.starts_with(MARK) && !line.starts_with("hint: ");
        let last = all.filter(own).find(|line| !line.trim_matches('@').is_empty())?;
        Some(last.strip_prefix("dmover: error: ").unwrap_or(last))
    }
}

const INSTALL: &str =
    "put it there by 'dmover agent --install HOST', or name its path with --agent PATH";
const UPDATE: &str = "put this version there by 'dmover agent --install HOST --force', or name another with --agent PATH";

fn for_host(text: &str, host: &str) -> String {
    text.replace("HOST", host)
}

fn shown(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => format!("exit code {code}"),
        Some((None, Some(signal))) => dmover_host::signals::name(signal),
        _ => "it has ended".into(),
    }
}

/// The error for text in place of a greeting.
pub(crate) fn text(host: &str, text: &[u8]) -> Fatal {
    let first = text.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty());
    let first = String::from_utf8_lossy(first.unwrap_or_default().trim_ascii()).into_owned();
    let first: String = first.chars().take(120).collect();
    let what =
        if first.is_empty() { "an empty line".to_owned() } else { format!("text: '{first}'") };
    let message = format!("the login shell at the host '{host}' prints {what}");
    Fatal::refused(message, for_host(QUIET_SHELL, host))
}

/// The error for a greeting that is damaged.
pub(crate) fn damaged(host: &str) -> Fatal {
    let message =
        format!("the connection to the host '{host}' ended during the greeting, or damages bytes");
    Fatal::unavailable(
        message,
        "run the same command again; if it fails again, use one version on both hosts",
    )
}

/// The error for a host that does not answer.
pub(crate) fn silent(host: &str, seconds: u64) -> Fatal {
    let message = format!("the host '{host}' did not answer within {seconds} s");
    Fatal::unavailable(message, for_host("'ssh HOST true' must end soon, and ask nothing", host))
}

/// The error for a host that began to install, and then does nothing.
pub(crate) fn stuck(host: &str, limit: Duration) -> Fatal {
    let message = format!("the host '{host}' made no progress for {} s", limit.as_secs_f32());
    let hint = "see that '~/.local/bin/dmover --version' ends there; what was installed is not known, so run the \
        same command again";
    Fatal::unavailable(message, hint)
}

/// The error for a program of another version.
pub(crate) fn other_version(host: &str, here: &Hello, there: &Hello) -> Fatal {
    let range = |speaks: Protocols| match speaks {
        Protocols { newest, oldest } if newest == oldest => newest.to_string(),
        Protocols { newest, oldest } => format!("{oldest} to {newest}"),
    };
    let message = format!(
        "dmover {} at the host '{host}' does not work with dmover {} here (protocols {} and {})",
        there.version,
        here.version,
        range(there.protocols),
        range(here.protocols)
    );
    Fatal::refused(message, for_host(UPDATE, host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn explained(code: i32, errors: &[&str], agent: Option<&str>) -> (u8, String) {
        explained_by(ExitStatus::from_raw(code << 8), errors, agent)
    }

    #[track_caller]
    fn explained_by(status: ExitStatus, errors: &[&str], agent: Option<&str>) -> (u8, String) {
        let status = Some(status);
        let errors: Vec<String> = errors.iter().map(|line| (*line).to_owned()).collect();
        let agent = agent.map(|path| PathBytes(path.into()));
        let ended = Ended { host: "far", status, errors: &errors, agent: agent.as_ref() };
        let error = ended.without_hello();
        assert!(!error.hint().is_empty() && !error.hint().contains("HOST"), "{}", error.hint());
        (error.exit_code().code(), error.to_string())
    }

    #[test]
    fn errors_of_ssh_are_told_apart() {
        for (lines, code, wanted) in [
            (
                &["ssh: Could not resolve hostname far: Name or service not known"][..],
                6,
                "cannot find the address of the host 'far'",
            ),
            (
                &["ssh: connect to host far port 22: Connection refused"],
                6,
                "the host 'far' refuses connections: ssh: connect to host far port 22",
            ),
            (
                &["ssh: connect to host far port 22: Connection timed out"],
                6,
                "the host 'far' does not answer",
            ),
            (&["ann@far: Permission denied (publickey)."], 2, "the host 'far' refuses the login"),
            (
                &[
                    "@@@@@@@",
                    "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @",
                    "Host key verification failed.",
                ],
                2,
                "the key of the host 'far' has changed",
            ),
            (
                &["No ED25519 host key is known for far", "Host key verification failed."],
                2,
                "ssh does not know the key of the host 'far'",
            ),
            (
                &["kex_exchange_identification: read: Connection reset by peer"],
                6,
                "the host 'far' ends connections before the login",
            ),
            (&["something new"], 6, "cannot connect to the host 'far': something new"),
            (&[], 6, "cannot connect to the host 'far': exit code 255"),
        ] {
            let (found, message) = explained(255, lines, None);
            assert_eq!(found, code, "{message}");
            assert!(message.starts_with(wanted), "{message}");
        }
    }

    #[test]
    fn an_ssh_that_was_killed_says_nothing_about_the_host() {
        for lines in [&[][..], &["dmover-agent: /opt/dmover on Linux x86_64"]] {
            let (code, message) = explained_by(ExitStatus::from_raw(9), lines, None);
            assert_eq!((code, &*message), (6, "cannot connect to the host 'far': SIGKILL"));
        }
    }

    #[test]
    fn a_program_that_cannot_greet_is_explained() {
        let run = "dmover-agent: /opt/dmover on Linux aarch64";
        for (code, lines, agent, wanted) in [
            (127, &["dmover-agent: none"][..], None, "the host 'far' has no dmover in PATH"),
            (127, &["dmover-agent: none"], Some("/a b"), "there is no '/a b' at the host 'far'"),
            (
                126,
                &[run, "dmover: 1: exec: /opt/dmover: Permission denied"],
                None,
                "cannot run '/opt/dmover' at the host 'far': dmover: 1: exec",
            ),
            (
                126,
                &[run, "/opt/dmover: cannot execute binary file: Exec format error"],
                None,
                "'/opt/dmover' at the host 'far' does not run on Linux aarch64",
            ),
            (
                2,
                &[run, "/opt/dmover: 1: Syntax error: \")\" unexpected"],
                None,
                "'/opt/dmover' at the host 'far' does not run on Linux aarch64",
            ),
            (
                2,
                &[run, "dmover: error: dmover has no verb 'agent'", "hint: name the verb first"],
                None,
                "'/opt/dmover' at the host 'far' is a dmover without 'agent'",
            ),
            (
                1,
                &[run, "error while loading shared libraries: libx.so"],
                None,
                "'/opt/dmover' at the host 'far' ended without a greeting: error while",
            ),
            (
                6,
                &[run, "dmover: error: the disk is full", "  hint: delete something"],
                None,
                "'/opt/dmover' at the host 'far' ended without a greeting: the disk is full",
            ),
            (
                0,
                &[run],
                None,
                "'/opt/dmover' at the host 'far' ended without a greeting: exit code 0",
            ),
            (1, &["not available"], None, "the login shell at the host 'far' runs no command: not"),
            (0, &[], None, "the login shell at the host 'far' runs no command: exit code 0"),
        ] {
            let (found, message) = explained(code, lines, agent);
            assert_eq!(found, 2, "{message}");
            assert!(message.starts_with(wanted), "{message}");
        }
    }

    #[test]
    fn a_program_that_a_signal_has_ended_may_be_started_again() {
        let run = "dmover-agent: /opt/dmover on Linux aarch64";
        let wanted = "'/opt/dmover' at the host 'far' was ended by SIGKILL";
        assert_eq!(explained(137, &["Killed", run], None), (6, wanted.to_owned()));
    }

    #[test]
    fn the_first_line_of_a_banner_is_named() {
        let error = text("far", b"\r\n  Welcome to far!\r\nMore\n\x89dmover\n");
        assert_eq!(
            error.to_string(),
            "the login shell at the host 'far' prints text: 'Welcome to far!'"
        );
        let blank = text("far", b"\r\n");
        assert!(blank.to_string().ends_with("prints an empty line"), "{blank}");
        assert!(error.hint().contains("'ssh far true' must print nothing"), "{}", error.hint());
        assert_eq!(error.exit_code(), ExitCode::Usage);
    }
}
