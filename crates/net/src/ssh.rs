//! Runs ssh(1), which has the configuration, keys, agents and jump hosts of the user.
use dmover_model::{Fatal, PathBytes};
use dmover_observe::lock;
use dmover_schedule::sync::{Condvar, Mutex};
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::endpoint::RemoteHost;

/// Options of ssh for a channel that carries bytes, and no conversation: no terminal, nothing of this host forwarded, no
/// command here. Everything else is left to ssh_config(5).
const OPTIONS: [&str; 6] =
    ["-T", "-x", "-a", "-oClearAllForwardings=yes", "-oPermitLocalCommand=no", "-oEscapeChar=none"];
/// The same for a further connection with a host: it asks nothing, and does not share the connection of another ssh.
const FURTHER: [&str; 3] = ["-oBatchMode=yes", "-oControlMaster=no", "-oControlPath=none"];
/// How many lines of standard error are kept.
const LINES_MAX: usize = 40;
/// The longest line that is kept as one.
const LINE_MAX: u64 = 2000;
/// How long a process may take after SIGTERM.
const TERM_WITHIN: Duration = Duration::from_millis(500);
/// How often a process is checked for its end.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long the last lines may take to come after the end. A master connection that ssh leaves behind keeps the stream open.
const LINES_WITHIN: Duration = Duration::from_millis(500);

/// How other hosts are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshOptions {
    /// The program and its options; dmover appends options of ssh, the host and the command.
    pub program: Vec<OsString>,
    /// The path of dmover at the far side; `None`: it is searched in `~/.local/bin`, then in PATH.
    pub agent: Option<PathBytes>,
}

impl Default for SshOptions {
    fn default() -> Self {
        Self { program: vec!["ssh".into()], agent: None }
    }
}

/// A running ssh. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Ssh {
    child: Mutex<Child>,
    errors: Arc<Errors>,
}

/// The last lines of standard error.
#[derive(Debug, Default)]
struct Errors {
    lines: Mutex<(VecDeque<String>, bool)>,
    ended: Condvar,
}

impl Ssh {
    /// Runs a command on a host. The kernel kills ssh with the thread that calls this, so that has to be one that lives
    /// as long as the connection.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(
        host: &RemoteHost,
        options: &SshOptions,
        command: &str,
    ) -> Result<(Self, ChildStdin, ChildStdout), Fatal> {
        let words = words(host, (&options.program, &[]), command);
        let mut child = spawn(&words, [Stdio::piped(), Stdio::piped()])?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("pipes were asked for")
        };
        dmover_host::process::enlarge_pipe(&input);
        dmover_host::process::enlarge_pipe(&output);
        Ok((Self::of(child, host)?, input, output))
    }

    /// Runs a command with a further connection to a host, which asks nothing. `line`: the standard input and output of ssh.
    /// What is said of the calling thread above is true here, too.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start_further(
        host: &RemoteHost,
        options: &SshOptions,
        command: &str,
        line: [OwnedFd; 2],
    ) -> Result<Self, Fatal> {
        let words = words(host, (&options.program, &FURTHER), command);
        Self::of(spawn(&words, line.map(Stdio::from))?, host)
    }

    fn of(mut child: Child, host: &RemoteHost) -> Result<Self, Fatal> {
        let errors: Arc<Errors> = Arc::default();
        let lines = child.stderr.take();
        let ssh = Self { child: Mutex::new(child), errors: Arc::clone(&errors) };
        let Some(lines) = lines else { unreachable!("a pipe was asked for") };
        let shown = host.shown();
        let reader = thread::Builder::new().name("net-errors".into());
        let started = reader.spawn(move || errors.read_all(lines, &shown));
        started.map_err(Fatal::Thread)?;
        Ok(ssh)
    }

    /// How it has ended, after at most this time; then it is asked to end (SIGTERM), and killed if it does not. A killed
    /// ssh leaves the terminal without echo if it asked for a password, and leaves its `ProxyCommand` running.
    pub fn end(&self, patience: Duration) -> Option<ExitStatus> {
        let mut child = lock(&self.child);
        match ended_within(&mut child, patience) {
            Ok(None) => dmover_host::other_processes::terminate(child.id()),
            Ok(status) => return status,
            Err(_) => return None,
        }
        if let Ok(None) = ended_within(&mut child, TERM_WITHIN) {
            let _ = child.kill();
        }
        child.wait().ok()
    }

    /// What it said on standard error, the last lines.
    pub fn errors(&self) -> Vec<String> {
        let lines = lock(&self.errors.lines);
        let waited = self.errors.ended.wait_timeout_while(lines, LINES_WITHIN, |lines| !lines.1);
        waited.unwrap_or_else(PoisonError::into_inner).0.0.iter().cloned().collect()
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// How a process has ended; `None`: it has not within this time.
fn ended_within(child: &mut Child, patience: Duration) -> std::io::Result<Option<ExitStatus>> {
    let until = Instant::now() + patience;
    loop {
        match child.try_wait()? {
            None if Instant::now() < until => thread::sleep(LOOK_EVERY),
            status => return Ok(status),
        }
    }
}

impl Errors {
    fn read_all(&self, stream: ChildStderr, host: &str) {
        let mut stream = BufReader::new(stream);
        loop {
            let mut line = Vec::new();
            match stream.by_ref().take(LINE_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            let line = String::from_utf8_lossy(line.trim_ascii()).into_owned();
            if line.is_empty() {
                continue;
            }
            tracing::info!(host, "{line}");
            let mut lines = lock(&self.lines);
            if lines.0.len() == LINES_MAX {
                lines.0.pop_front();
            }
            lines.0.push_back(line);
        }
        lock(&self.lines).1 = true;
        self.ended.notify_all();
    }
}

fn spawn(words: &[OsString], [input, output]: [Stdio; 2]) -> Result<Child, Fatal> {
    let mut ssh = Command::new(&words[0]);
    ssh.args(&words[1..]).stdin(input).stdout(output).stderr(Stdio::piped());
    dmover_host::process::kill_with_parent(&mut ssh);
    // A job completes what is in progress when the user interrupts it, and needs the connection for that.
    dmover_host::process::ignore_interrupts(&mut ssh);
    ssh.spawn().map_err(|error| cannot_start(&words[0], &error))
}

fn words(
    host: &RemoteHost,
    (program, more): (&[OsString], &[&str]),
    command: &str,
) -> Vec<OsString> {
    let program = if program.is_empty() { &["ssh".into()] } else { program };
    let (first, rest) = program.split_at(1);
    let mut words = first.to_vec();
    // Of options that are given twice ssh takes the first one. Another program may start ssh, and does not know them.
    let is_ssh = Path::new(&first[0]).file_name() == Some(OsStr::new("ssh"));
    let (before, after) = if is_ssh { (more, &[][..]) } else { (&[][..], more) };
    words.extend(before.iter().map(OsString::from));
    words.extend_from_slice(rest);
    words.extend(OPTIONS.iter().chain(after).map(OsString::from));
    if let Some(user) = &host.user {
        words.extend(["-l".into(), user.into()]);
    }
    words.extend(["--".into(), OsString::from(&host.name), command.into()]);
    words
}

fn cannot_start(program: &OsStr, error: &std::io::Error) -> Fatal {
    let hint = match error.kind() {
        ErrorKind::NotFound => {
            "install the client of OpenSSH, or name another program with --ssh-command"
        }
        _ => "check the program that --ssh-command names",
    };
    Fatal::refused(format!("cannot run '{}': {error}", program.to_string_lossy()), hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn the_host_is_never_an_option() {
        let host = RemoteHost { user: Some("a@b".into()), name: "::1".into(), port: None };
        let program = ["ssh", "-F", "x y"].map(OsString::from);
        let words = words(&host, (&program, &FURTHER), "exec true");
        let tail = ["-l", "a@b", "--", "::1", "exec true"].map(OsString::from);
        let begin: Vec<OsString> = ["ssh"]
            .iter()
            .chain(&FURTHER)
            .chain(&["-F", "x y", "-T"])
            .map(OsString::from)
            .collect();
        assert!(words.starts_with(&begin), "{words:?}");
        assert!(words.ends_with(&tail), "{words:?}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let options = SshOptions { program: vec!["/no/such".into()], agent: None };
        let host = RemoteHost { user: None, name: "h".into(), port: None };
        let error = Ssh::start(&host, &options, "true").unwrap_err();
        assert!(error.to_string().starts_with("cannot run '/no/such': No such file"), "{error}");
        assert_eq!(error.exit_code().code(), 2);
    }

    fn start(script: &str) -> (Ssh, ChildStdin, ChildStdout) {
        let options = SshOptions {
            program: ["/bin/sh", "-c", script].map(OsString::from).into(),
            agent: None,
        };
        let host = RemoteHost { user: None, name: "h".into(), port: None };
        Ssh::start(&host, &options, "true").unwrap()
    }

    #[test]
    fn it_is_asked_to_end_before_it_is_killed() {
        let loops = "echo; while :; do sleep 0.01; done";
        for (script, wanted) in [
            (format!("trap 'exit 7' TERM; {loops}"), (Some(7), None)),
            (format!("trap '' TERM; {loops}"), (None, Some(9))),
        ] {
            let (ssh, _input, mut output) = start(&script);
            output.read_exact(&mut [0]).unwrap();
            let status = ssh.end(Duration::ZERO).unwrap();
            assert_eq!((status.code(), status.signal()), wanted, "{script}");
        }
    }

    #[test]
    fn lines_are_kept_and_the_process_ends_with_it() {
        let (ssh, input, mut output) = start("echo one >&2; echo; echo two >&2; exec sleep 1000");
        // The pipe ends when the process does.
        let mut said = [0; 1];
        output.read_exact(&mut said).unwrap();
        drop(input);
        let status = ssh.end(Duration::ZERO).unwrap();
        assert!(!status.success());
        assert_eq!(ssh.end(Duration::ZERO), Some(status));
        let errors = ssh.errors();
        assert_eq!(errors[0], "one");
    }
}
