//! Running the program under test and reading what it says.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::lines::{Line, parse_lines};
use crate::faultfs::lock;
use crate::image::base_directory;

/// Longer than any run of a test; a program that takes longer hangs.
const PATIENCE: Duration = Duration::from_mins(2);
/// How long output may still come after the program has ended.
const LINGER: Duration = Duration::from_secs(5);

/// The program under test, with a state directory and a home of its own.
#[derive(Debug)]
pub struct Dmover {
    program: PathBuf,
    home: TempDir,
    state: Option<PathBuf>,
    directory: Option<PathBuf>,
    wrapper: Vec<OsString>,
    denied: Option<(Vec<&'static str>, i32)>,
    patience: Duration,
}

impl Dmover {
    /// Uses the program at `program`.
    pub fn new(program: impl Into<PathBuf>) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("state-").tempdir_in(base_directory()?)?;
        Ok(Self {
            program: program.into(),
            home,
            state: None,
            directory: None,
            wrapper: Vec::new(),
            denied: None,
            patience: PATIENCE,
        })
    }

    /// Runs in this directory.
    #[must_use]
    pub fn in_directory(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    /// Uses the state directory of another one, with the keys in it.
    #[must_use]
    pub fn with_state(mut self, directory: PathBuf) -> Self {
        self.state = Some(directory);
        self
    }

    /// Gives a run at most so long before it counts as hanging.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Refuses system calls to the program, see [`crate::seccomp`].
    #[must_use]
    pub fn denied(mut self, calls: &[&'static str], errno: i32) -> Self {
        self.denied = Some((calls.to_vec(), errno));
        self
    }

    /// Runs as a user without privilege, from a copy of the program that this user can reach.
    pub fn unprivileged(mut self, user: u32) -> Result<Self> {
        let everybody = |path: &Path| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))
                .with_context(|| path.display().to_string())
        };
        everybody(self.home.path())?;
        let program = self.home.path().join("dmover");
        // By another process: one that this process starts meanwhile would have the copy open for writing, and nobody could
        // run it (ETXTBSY).
        let copied = Command::new("cp").arg(&self.program).arg(&program).status();
        let copied = copied.with_context(|| format!("copy {}", self.program.display()))?;
        ensure!(copied.success(), "cannot copy {}", self.program.display());
        everybody(&program)?;
        self.program = program;
        let id = user.to_string();
        self.wrapper = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--"]
            .map(OsString::from)
            .to_vec();
        Ok(self)
    }

    /// Puts a command such as `/usr/bin/time` in front of the program.
    #[must_use]
    pub fn wrapped<S: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.wrapper = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        self
    }

    /// Words in front of the program for which the host was booted just now.
    pub fn booted_words(&self) -> Vec<OsString> {
        const SCRIPT: &str = "cat /proc/sys/kernel/random/uuid > \"$0\" &&
            mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
        let id = self.home.path().join("boot");
        let front = ["unshare", "--mount", "sh", "-c", SCRIPT].map(OsString::from);
        front.into_iter().chain([id.into_os_string()]).collect()
    }

    /// Has the host be booted before each run.
    #[must_use]
    pub fn booted(mut self) -> Self {
        self.wrapper = self.booted_words();
        self
    }

    /// The program itself.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The state directory of the runs.
    pub fn state_directory(&self) -> PathBuf {
        self.state.clone().unwrap_or_else(|| self.home.path().join("state"))
    }

    /// The program with nothing of the caller's own configuration.
    pub fn command(&self) -> Command {
        self.command_behind(&[])
    }

    fn command_behind(&self, front: &[OsString]) -> Command {
        let mut words = front.iter().chain(&self.wrapper);
        let mut command = match words.next() {
            None => Command::new(&self.program),
            Some(first) => {
                let mut command = Command::new(first);
                command.args(words).arg(&self.program);
                command
            }
        };
        for (name, _) in std::env::vars_os() {
            let name_bytes = name.as_encoded_bytes();
            if name_bytes.starts_with(b"DMOVER_") || name_bytes.starts_with(b"XDG_") {
                command.env_remove(&name);
            }
        }
        command.env("DMOVER_STATE_DIR", self.state_directory());
        command.env("HOME", self.home.path()).env("LC_ALL", "C.UTF-8");
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command
    }

    /// Starts the program with these arguments.
    pub fn start<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Running> {
        self.start_with(arguments, Vec::new())
    }

    /// Starts the program behind other words, such as those of [`Host::words`].
    ///
    /// [`Host::words`]: crate::cluster::Host::words
    pub fn start_behind<S: AsRef<OsStr>>(
        &self,
        words: &[OsString],
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Running> {
        let mut command = self.command_behind(words);
        command.args(arguments);
        self.launch(command, Vec::new())
    }

    /// Starts the program with these arguments and this standard input.
    pub fn start_with<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
        input: Vec<u8>,
    ) -> Result<Running> {
        let mut command = self.command();
        command.args(arguments);
        self.launch(command, input)
    }

    fn launch(&self, mut command: Command, input: Vec<u8>) -> Result<Running> {
        command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let shown = format!("{command:?}");
        let mut spawn = || command.spawn().with_context(|| format!("start {shown}"));
        let mut child = match &self.denied {
            None => spawn()?,
            Some((calls, errno)) => crate::seccomp::with_denied(calls, *errno, spawn)??,
        };
        if let Some(mut stdin) = child.stdin.take() {
            std::thread::spawn(move || {
                // A program that refuses its arguments does not read.
                let _ = std::io::Write::write_all(&mut stdin, &input);
            });
        }
        let stdout = Stream::follow(child.stdout.take().context("no standard output")?)?;
        let stderr = Stream::follow(child.stderr.take().context("no standard error")?)?;
        let started = Instant::now();
        Ok(Running { child, stdout, stderr, started, shown, patience: self.patience, ended: false })
    }

    /// Runs the program to its end.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<Run> {
        self.start(arguments)?.finish()
    }

    /// Runs `dmover copy --json` with further arguments to its end.
    pub fn copy<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<Run> {
        self.start_copy(arguments)?.finish()
    }

    /// Starts `dmover copy --json` with further arguments.
    pub fn start_copy<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<Running> {
        let fixed = ["copy", "--json", "--progress=never"].map(OsString::from);
        let further = arguments.into_iter().map(|word| word.as_ref().to_owned());
        self.start(fixed.into_iter().chain(further))
    }
}

/// What a program has written to one of its streams so far.
#[derive(Debug)]
struct Stream {
    text: Mutex<(Vec<u8>, bool)>,
    grown: Condvar,
}

impl Stream {
    /// Reads a stream in a thread of its own, so that the program never waits for its reader.
    fn follow(mut from: impl std::io::Read + Send + 'static) -> Result<Arc<Self>> {
        let stream = Arc::new(Self { text: Mutex::default(), grown: Condvar::new() });
        std::thread::Builder::new().spawn({
            let stream = Arc::clone(&stream);
            move || {
                let mut buffer = vec![0; 64 << 10];
                loop {
                    let read = from.read(&mut buffer).unwrap_or(0);
                    let mut text = lock(&stream.text);
                    text.0.extend_from_slice(&buffer[..read]);
                    text.1 = read == 0;
                    stream.grown.notify_all();
                    if read == 0 {
                        return;
                    }
                }
            }
        })?;
        Ok(stream)
    }

    /// Waits until a text has come `times` times; false at the end of the stream or of patience.
    fn wait_for(&self, needle: &[u8], times: usize, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let (mut seen, mut from) = (0, 0);
        let mut text = lock(&self.text);
        loop {
            while let Some(at) = find(&text.0[from..], needle) {
                seen += 1;
                from += at + needle.len();
            }
            from = from.max(text.0.len().saturating_sub(needle.len() - 1));
            let left = deadline.saturating_duration_since(Instant::now());
            if seen >= times || text.1 || left.is_zero() {
                return seen >= times;
            }
            let waited = self.grown.wait_timeout(text, left);
            text = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// Everything, once the stream has ended.
    fn rest(&self) -> Vec<u8> {
        // A grandchild may keep the stream open; what came until now has to do then.
        let ended = |text: &mut (Vec<u8>, bool)| !text.1;
        let waited = self.grown.wait_timeout_while(lock(&self.text), LINGER, ended);
        let mut text = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        std::mem::take(&mut text.0)
    }
}

fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).position(|window| window == needle)
}

/// A program that runs; dropping it kills it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Arc<Stream>,
    stderr: Arc<Stream>,
    started: Instant,
    shown: String,
    patience: Duration,
    ended: bool,
}

impl Running {
    /// The process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal; a process that has ended already is no error.
    pub fn signal(&self, signal: Signal) {
        if !self.ended {
            rustix::process::kill_process(self.pid(), signal).ok();
        }
    }

    /// Waits until `needle` was written to standard output so many times; false if it never was.
    pub fn wait_for_stdout(&self, needle: &str, times: usize) -> bool {
        self.stdout.wait_for(needle.as_bytes(), times, self.patience)
    }

    /// Waits until `needle` was written to standard error so many times; false if it never was.
    pub fn wait_for_stderr(&self, needle: &str, times: usize) -> bool {
        self.stderr.wait_for(needle.as_bytes(), times, self.patience)
    }

    /// What was written to standard error so far.
    pub fn stderr_so_far(&self) -> String {
        String::from_utf8_lossy(&lock(&self.stderr.text).0).into_owned()
    }

    /// Whether the program has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Sleeps for an exact time and then kills; the time may well be longer than the run.
    pub fn kill_after(self, delay: Duration) -> Result<Run> {
        let deadline = self.started + delay;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            std::thread::sleep(left);
        }
        self.kill()
    }

    /// Kills the program, which cannot defend itself.
    pub fn kill(self) -> Result<Run> {
        self.signal(Signal::KILL);
        self.finish()
    }

    /// Waits for the end; a program that takes too long is killed, and that is an error.
    pub fn finish(mut self) -> Result<Run> {
        let Some(status) = self.wait()? else {
            self.signal(Signal::KILL);
            self.child.wait()?;
            bail!("{} hangs; it said: {}", self.shown, self.stderr_so_far());
        };
        self.ended = true;
        let elapsed = self.started.elapsed();
        let (stdout, stderr) = (self.stdout.rest(), self.stderr.rest());
        Ok(Run {
            shown: self.shown.clone(),
            status,
            stdout,
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            elapsed,
        })
    }

    fn wait(&mut self) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + self.patience;
        let mut pause = Duration::from_micros(200);
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// A run that has ended.
#[derive(Debug, Clone)]
pub struct Run {
    shown: String,
    status: ExitStatus,
    /// Standard output, as bytes.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: String,
    /// From the start to the end.
    pub elapsed: Duration,
}

impl Run {
    /// The exit code; none if a signal ended the program.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The signal that ended the program.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// The lines of JSON; a line that was cut off by a kill is left out.
    ///
    /// # Errors
    /// A complete line that is not an object with a `type`.
    pub fn lines(&self) -> Result<Vec<Line>> {
        parse_lines(&self.stdout).with_context(|| self.tell())
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Everything about the run but what went well, for messages.
    pub fn tell(&self) -> String {
        const MOST: usize = 6000;
        let out: String = self
            .text()
            .lines()
            .filter(|line| !line.contains("\"type\":\"item\""))
            .flat_map(|line| line.chars().chain(std::iter::once('\n')))
            .take(MOST)
            .collect();
        format!("{} ended with {}\n{out}{}", self.shown, self.status, self.stderr)
    }

    /// Panics with everything about the run unless it ended with this code.
    #[track_caller]
    #[allow(clippy::return_self_not_must_use)] // asserting is its whole use
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code(), Some(code), "{}", self.tell());
        self
    }
}
