//! `dmover standby`: resumes a job whose process is gone.
use dmover_host::signals;
use dmover_journal::{JobPhase, JobStatus};
use dmover_model::ExitCode as Code;
use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use super::ask::command_of;
use super::jobs::{Known, Refused, find, refuse};
use crate::args::StandbyArgs;
use crate::print::say;

/// Time between two checks of a job, and of its process.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LOOK_AT_CHILD: Duration = Duration::from_millis(100);

/// A process that has not updated the status of its job for this long is reported; it normally does so every two seconds.
const SILENT: Duration = Duration::from_mins(1);

/// A run shorter than this made little progress. After too many of them in a row, standby ends.
const SHORT: Duration = Duration::from_mins(1);
const SHORT_MAX: u32 = 20;
/// Time between two runs.
const PAUSE: Duration = Duration::from_secs(5);

pub(crate) fn standby(args: &StandbyArgs) -> ExitCode {
    let ended = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2])
        .map_err(|error| {
            let message = format!("cannot listen to signals: {error}");
            (message, "check the process limits", Code::Fatal)
        })
        .and_then(|signals| Watch::new(args, signals).run());
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(refused) => refuse(refused),
    }
}

/// The watched job, and whether this process has the turn to resume it.
struct Watch<'a> {
    args: &'a StandbyArgs,
    signals: Signals,
    turn: Option<File>,
    told: Option<&'static str>,
    heard: Heard,
    /// The signal that was passed on to a run.
    asked: Option<i32>,
}

/// How long ago the process of a job updated its status, by the clock of this host.
struct Heard {
    updated_ms: i64,
    looked: Instant,
    silent: Duration,
    told: bool,
}

impl Heard {
    /// The time without an update while this process was watching. Time in which the host was suspended does not count.
    fn silence(&mut self, status: &JobStatus) -> Duration {
        let passed = self.looked.elapsed().min(2 * LOOK_EVERY);
        self.looked = Instant::now();
        if status.updated_ms != self.updated_ms || status.phase != JobPhase::Running {
            (self.updated_ms, self.silent, self.told) = (status.updated_ms, Duration::ZERO, false);
        } else {
            self.silent += passed;
        }
        self.silent
    }
}

impl<'a> Watch<'a> {
    fn new(args: &'a StandbyArgs, signals: Signals) -> Self {
        let (looked, silent) = (Instant::now(), Duration::ZERO);
        let heard = Heard { updated_ms: 0, looked, silent, told: false };
        Self { args, signals, turn: None, told: None, heard, asked: None }
    }

    /// Reports a process that does not update its status, and kills it after `--kill-after`.
    fn listen(&mut self, known: &Known, status: &JobStatus, is_here: bool) {
        let job = &known.file.job;
        let silence = self.heard.silence(status);
        let (pid, host) = (status.pid, &status.host);
        let after = self.args.kill_after.map(Duration::from_millis);
        let is_due = after.is_some_and(|after| silence >= after);
        let lock = known.state.directory(job).join("lock");
        let is_it = || is_here && dmover_host::other_processes::has_open(pid, &lock);
        if is_due && self.turn.is_some() && is_it() {
            let seconds = silence.as_secs();
            say(&format!(
                "dmover: process {pid} has not updated the status of job {job} for {seconds} s: \
                 killing it"
            ));
            dmover_host::other_processes::signal(pid, SIGKILL);
            self.heard.silent = Duration::ZERO;
        } else if silence >= SILENT && !self.heard.told {
            let seconds = silence.as_secs();
            say(&format!(
                "dmover: process {pid} on {host} has not updated the status of job {job} for \
                 {seconds} s: the process or its disk hangs. To let standby resume the job, run \
                 'kill -9 {pid}' on {host}"
            ));
            self.heard.told = true;
        }
    }

    /// Watches a job, and resumes it whenever its process is gone. Returns the exit code of the job.
    fn run(&mut self) -> Result<u8, Refused> {
        let mut short = 0;
        loop {
            let known = find(&self.args.job, self.args.place.state_dir.as_ref())?;
            if let Some(code) = self.look(&known)? {
                return Ok(code);
            }
            let begun = Instant::now();
            say(&format!(
                "dmover: the process of job {} is gone; resuming the job",
                known.file.job
            ));
            let status = self.go_on(&known)?;
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            match (code, self.asked) {
                (Some(code), _) if code != Code::Temporary.code() => return Ok(code),
                // The exit code that a shell gives for a signal.
                (code, Some(signal)) => return Ok(code.unwrap_or(128 + signal as u8)),
                _ => {}
            }
            short = if begun.elapsed() < SHORT { short + 1 } else { 0 };
            if short >= SHORT_MAX {
                let message =
                    format!("job {} ended {short} times soon after its start", known.file.job);
                return Err((message, "see the messages of the job", Code::Temporary));
            }
            self.told = None;
            self.wait(PAUSE)?;
        }
    }

    /// Waits until a job has ended, and returns its exit code. `None`: this process must resume the job.
    fn look(&mut self, known: &Known) -> Result<Option<u8>, Refused> {
        let (state, job) = (&known.state, &known.file.job);
        let own = dmover_host::name();
        let host = state.status(job).map(|status| status.host).unwrap_or_default();
        if host != own && !state.is_shared() {
            let message = format!("cannot resume job {job} of host {host} on this host");
            let hint = "run standby on that host. For jobs that may change hosts, create an empty \
                        file 'shared' in the state directory before the first job";
            return Err((message, hint, Code::Usage));
        }
        loop {
            // 'cleanup' may have removed the job meanwhile.
            find(job, self.args.place.state_dir.as_ref())?;
            if self.turn.is_none() {
                self.turn = state.stand_by(job).map_err(|error| {
                    let message = format!(
                        "cannot lock '{}/standby': {error}",
                        state.directory(job).display()
                    );
                    (message, "run standby as the user who runs the job", Code::Usage)
                })?;
            }
            // Read the status after that: the standby that had the turn before may have finished the job.
            let status = state.status(job).unwrap_or_default();
            if let Some(code) = ended(&status) {
                say(&format!("dmover: job {job} has ended with exit code {code}"));
                return Ok(Some(code));
            }
            if !status.phase.has_process() && self.turn.is_some() {
                return Ok(None);
            }
            self.listen(known, &status, status.host == own);
            let words = match self.turn {
                Some(_) => "waiting to take over",
                None => "another standby is first in line; waiting behind it",
            };
            if self.told != Some(words) {
                let (pid, host, phase) = (status.pid, &status.host, status.phase.word());
                say(&format!("dmover: job {job} is {phase} (process {pid} on {host}): {words}"));
                self.told = Some(words);
            }
            self.wait(LOOK_EVERY)?;
        }
    }

    /// Sleeps. `Err`: a signal ends standby.
    fn wait(&mut self, time: Duration) -> Result<(), Refused> {
        std::thread::sleep(time);
        match self.signals.pending().next() {
            None => Ok(()),
            Some(signal) => Err((
                format!("standby stopped by {}", signals::name(signal)),
                "the job is not affected",
                Code::Temporary,
            )),
        }
    }

    /// Runs the command of the job. This process keeps the turn, so that other standby processes wait.
    fn go_on(&mut self, known: &Known) -> Result<ExitStatus, Refused> {
        let fail = |error: std::io::Error| {
            let message = format!("cannot run the command of job {}: {error}", known.file.job);
            (message, "run the command by hand", Code::Fatal)
        };
        let mut command = command_of(known, false, &[])?;
        // In a process group of its own, a run gets the signals of a terminal once, from this process.
        let mut child = command.process_group(0).spawn().map_err(fail)?;
        loop {
            if let Some(status) = child.try_wait().map_err(fail)? {
                return Ok(status);
            }
            for signal in self.signals.pending() {
                dmover_host::other_processes::signal(child.id(), signal);
                self.asked = Some(signal);
            }
            std::thread::sleep(LOOK_AT_CHILD);
        }
    }
}

/// The exit code of a job that needs no resume.
fn ended(status: &JobStatus) -> Option<u8> {
    let code = status.exit_code.unwrap_or_else(|| Code::Partial.code());
    match status.phase {
        JobPhase::Running | JobPhase::Watching | JobPhase::Paused | JobPhase::Died => None,
        // A temporary obstacle on that host may not exist on this one.
        JobPhase::Stopped if code == Code::Temporary.code() => None,
        JobPhase::Stopped | JobPhase::Finished | JobPhase::Cancelled => Some(code),
    }
}
