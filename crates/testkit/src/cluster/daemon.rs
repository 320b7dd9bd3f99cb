//! A server as a child process with a log, and waiting for it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, WaitId, WaitIdOptions};

/// How long a server may take until it answers; only a broken one needs as much on a busy machine.
pub(super) const STARTING: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
const SHOWN_LINES: usize = 20;

/// A server in the foreground; dropping it kills it.
#[derive(Debug)]
pub(super) struct Daemon {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Daemon {
    /// Starts a server that writes to `log` from the log's present end on.
    pub(super) fn start(name: &str, log: &Path, command: &mut Command) -> Result<Self> {
        let file = File::options().create(true).append(true).open(log);
        let file = file.with_context(|| format!("open {log:?}"))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("start {command:?}"))?;
        Ok(Self { child, name: name.to_owned(), log: log.to_owned() })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the server, which cannot defend itself, and waits until it is gone.
    pub(super) fn kill(&mut self) {
        // Both fail only if it was killed before.
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Fails if the server has ended; it can still be waited for.
    pub(super) fn check(&self) -> Result<()> {
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match rustix::process::waitid(WaitId::Pid(Pid::from_child(&self.child)), ended)? {
            None => Ok(()),
            Some(status) => match status.exit_status() {
                Some(code) => bail!("{} ended with exit code {code}", self.name),
                None => bail!("{} was ended by a signal", self.name),
            },
        }
    }

    /// Waits for something that the server does; an end of the server ends the wait.
    pub(super) fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        mut done: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let what = format!("{} to be {what}", self.name);
        wait_until(
            &what,
            limit,
            || tails(std::slice::from_ref(&self.log)),
            || {
                self.check()?;
                done()
            },
        )
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Asks until it is so; the error tells what was waited for and what
/// `told` tells, which is how logs end. An error of `done` ends the wait at once.
pub(super) fn wait_until(
    what: &str,
    limit: Duration,
    told: impl Fn() -> String,
    mut done: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        match done() {
            Ok(true) => return Ok(()),
            Ok(false) if Instant::now() < deadline => {}
            Ok(false) => bail!("waited {limit:?} for {what}{}", told()),
            Err(error) => {
                return Err(error.context(format!("waited for {what}{}", told())));
            }
        }
        // A poll: none of these servers tells when it is ready.
        std::thread::sleep(PAUSE);
    }
}

/// The last lines of logs, for messages.
pub(super) fn tails(logs: &[PathBuf]) -> String {
    logs.iter().map(|log| tail(log)).collect()
}

fn tail(log: &Path) -> String {
    let Ok(text) = std::fs::read(log) else { return format!("\n{log:?} is not there") };
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    let from = lines.len().saturating_sub(SHOWN_LINES);
    format!("\nend of {log:?}:\n  {}", lines[from..].join("\n  "))
}
