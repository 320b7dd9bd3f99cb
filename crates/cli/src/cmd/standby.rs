//! `dmover standby`: goes on with a job whose process is gone.
use dmover_engine::{JobPhase, JobStatus};
use dmover_model::ExitCode as Code;
use dmover_sys::process::signal_name;
use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use super::ask::command_of;
use super::jobs::{Known, Refused, find, refuse};
use crate::args::StandbyArgs;
use crate::print::say;

/// How often a job is looked at, and its process.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LOOK_AT_CHILD: Duration = Duration::from_millis(100);

/// A process that says for so long nothing of how a job stands is told of; it does so every two seconds.
const SILENT: Duration = Duration::from_mins(1);

/// A run that ended sooner than this has not got far: it is not tried for ever.
const SHORT: Duration = Duration::from_mins(1);
const SHORT_MAX: u32 = 20;
/// Between two runs.
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

/// What is watched, and whether it is this process's turn to go on.
struct Watch<'a> {
    args: &'a StandbyArgs,
    signals: Signals,
    turn: Option<OwnedFd>,
    told: Option<&'static str>,
    heard: Heard,
    /// The signal that was handed on to a run.
    asked: Option<i32>,
}

/// When the process of a job last said how it stands: not by its clock, which may be another host's.
struct Heard {
    updated_ms: i64,
    looked: Instant,
    silent: Duration,
    told: bool,
}

impl Heard {
    /// How long it has been silent, as far as it was listened to: both may have been suspended together.
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

    /// Tells of a process that is silent, and kills it where that was asked for.
    fn listen(&mut self, known: &Known, status: &JobStatus, is_here: bool) {
        let job = &known.file.job;
        let silence = self.heard.silence(status);
        let (pid, host) = (status.pid, &status.host);
        let after = self.args.kill_after.map(Duration::from_millis);
        let is_due = after.is_some_and(|after| silence >= after);
        let lock = known.state.directory(job).join("lock");
        let is_it = || is_here && dmover_sys::process::has_open(pid, &lock);
        if is_due && self.turn.is_some() && is_it() {
            let seconds = silence.as_secs();
            say(&format!(
                "dmover: process {pid} has said nothing of job {job} for {seconds} s: killing it"
            ));
            dmover_sys::process::signal(pid, SIGKILL);
            self.heard.silent = Duration::ZERO;
        } else if silence >= SILENT && !self.heard.told {
            let seconds = silence.as_secs();
            say(&format!(
                "dmover: process {pid} on {host} has said nothing of job {job} for {seconds} s; it is stopped or hangs, or \
                 its disk does. If it has to go ('kill -9 {pid}' there), this goes on"
            ));
            self.heard.told = true;
        }
    }

    /// Watches a job, and goes on with it whenever that is to be done. Answers its exit code.
    fn run(&mut self) -> Result<u8, Refused> {
        let mut short = 0;
        loop {
            let known = find(&self.args.job, self.args.place.state_dir.as_ref())?;
            if let Some(code) = self.look(&known)? {
                return Ok(code);
            }
            let begun = Instant::now();
            say(&format!("dmover: the process of job {} is gone; going on", known.file.job));
            let status = self.go_on(&known)?;
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            match (code, self.asked) {
                (Some(code), _) if code != Code::Temporary.code() => return Ok(code),
                // As a shell tells of a signal.
                (code, Some(signal)) => return Ok(code.unwrap_or(128 + signal as u8)),
                _ => {}
            }
            short = if begun.elapsed() < SHORT { short + 1 } else { 0 };
            if short >= SHORT_MAX {
                let message =
                    format!("job {} has ended {short} times soon after it began", known.file.job);
                return Err((message, "its own messages say why", Code::Temporary));
            }
            self.told = None;
            self.wait(PAUSE)?;
        }
    }

    /// Waits until a job has ended, and answers its exit code; `None`: it has to be gone on with, which is this process's turn.
    fn look(&mut self, known: &Known) -> Result<Option<u8>, Refused> {
        let (state, job) = (&known.state, &known.file.job);
        let own = String::from_utf8_lossy(&dmover_sys::process::host_name()).into_owned();
        let host = state.status(job).map(|status| status.host).unwrap_or_default();
        if host != own && !state.is_shared() {
            let message = format!("job {job} runs on {host}, and would be another job here");
            let hint = "jobs go on on another host in a state directory with an empty file 'shared', which has to be \
                        there before the first of them";
            return Err((message, hint, Code::Usage));
        }
        loop {
            // It may have been forgotten meanwhile.
            find(job, self.args.place.state_dir.as_ref())?;
            if self.turn.is_none() {
                self.turn = state.stand_by(job).map_err(|error| {
                    let message =
                        format!("cannot stand by in {}: {error}", state.directory(job).display());
                    (message, "is it somebody else's job?", Code::Usage)
                })?;
            }
            // Looked at after that: whoever had the turn before has perhaps come to the end.
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
                Some(_) => "standing by",
                None => "somebody else stands by or has gone on; waiting behind him",
            };
            if self.told != Some(words) {
                let (pid, host, phase) = (status.pid, &status.host, status.phase.word());
                say(&format!("dmover: job {job} is {phase} (process {pid} on {host}): {words}"));
                self.told = Some(words);
            }
            self.wait(LOOK_EVERY)?;
        }
    }

    /// Lets time pass, unless a signal ends the waiting.
    fn wait(&mut self, time: Duration) -> Result<(), Refused> {
        std::thread::sleep(time);
        match self.signals.pending().next() {
            None => Ok(()),
            Some(signal) => Err((
                format!("{}: not standing by any more", signal_name(signal)),
                "the job is as it was",
                Code::Temporary,
            )),
        }
    }

    /// Runs the command of the job, with the turn in hand: whoever else stands by waits for that.
    fn go_on(&mut self, known: &Known) -> Result<ExitStatus, Refused> {
        let fail = |error: std::io::Error| {
            let message = format!("cannot run the command of job {}: {error}", known.file.job);
            (message, "type it again", Code::Fatal)
        };
        let mut command = command_of(known, false, &[])?;
        // Signals of a terminal come here alone, and are handed on once.
        let mut child = command.process_group(0).spawn().map_err(fail)?;
        loop {
            if let Some(status) = child.try_wait().map_err(fail)? {
                return Ok(status);
            }
            for signal in self.signals.pending() {
                dmover_sys::process::signal(child.id(), signal);
                self.asked = Some(signal);
            }
            std::thread::sleep(LOOK_AT_CHILD);
        }
    }
}

/// The exit code of a job that nobody has to go on with.
fn ended(status: &JobStatus) -> Option<u8> {
    let code = status.exit_code.unwrap_or_else(|| Code::Partial.code());
    match status.phase {
        JobPhase::Running | JobPhase::Watching | JobPhase::Paused | JobPhase::Died => None,
        // What kept that host from going on need not keep this one from it.
        JobPhase::Stopped if code == Code::Temporary.code() => None,
        JobPhase::Stopped | JobPhase::Finished | JobPhase::Cancelled => Some(code),
    }
}
