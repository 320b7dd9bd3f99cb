//! Waits for the end of a job, and resumes it whenever its process is gone.
use dmover_host::{other_processes, signals};
use dmover_journal::{JobPhase, JobStatus, StandbyTurn, StateDirectory};
use dmover_model::ExitCode;
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::find::find;
use crate::known::KnownJob;
use crate::refusal::{Reason, Refusal};

/// Time between two checks of a job, and of its process.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LOOK_AT_CHILD: Duration = Duration::from_millis(100);

/// A process that has not updated the status of its job for this long is reported; it normally does so every two seconds.
const SILENT: Duration = Duration::from_mins(1);

/// A run shorter than this made little progress. After too many of them in a row, the standby ends.
const SHORT: Duration = Duration::from_mins(1);
const SHORT_MAX: u32 = 20;
/// Time between two runs.
const PAUSE: Duration = Duration::from_secs(5);

/// A job to take over when its process is gone.
#[derive(Debug, Clone)]
pub struct Standby {
    /// The directory with its records.
    pub state: StateDirectory,
    /// Its name.
    pub job: String,
    /// A process that sends no status for this long is killed.
    pub kill_after: Option<Duration>,
}

/// What a standby finds.
#[derive(Debug)]
pub enum Met<'a> {
    /// The job has this status, and a process.
    Waits {
        /// The job.
        job: &'a str,
        /// Its status.
        status: &'a JobStatus,
        /// This standby takes over when the process is gone; otherwise, another one does.
        is_first: bool,
    },
    /// The process of the job has not updated its status for this long.
    Silent {
        /// The job.
        job: &'a str,
        /// Its status.
        status: &'a JobStatus,
        /// The time without an update.
        silence: Duration,
        /// The process is now killed.
        is_killed: bool,
    },
    /// The process is gone, and the job is resumed.
    Resumes(&'a str),
    /// The job has ended with this exit code.
    Ended(&'a str, u8),
}

/// The process that waits.
pub trait Host {
    /// The next signal that this process got, if there is one.
    fn signal(&mut self) -> Option<i32>;

    /// Shows what the standby finds.
    fn tell(&mut self, met: &Met<'_>);

    /// The dmover program, before each run.
    ///
    /// # Errors
    /// It cannot be found.
    fn program(&mut self) -> Result<PathBuf, Refusal>;
}

/// Waits until the job has ended, resumes it meanwhile, and returns its exit code.
///
/// # Errors
/// The job is unknown or cannot be resumed here, ends soon after each start, or a signal ends the wait.
pub fn stand_by(standby: &Standby, host: &mut dyn Host) -> Result<u8, Refusal> {
    let (looked, silent) = (Instant::now(), Duration::ZERO);
    let heard = Heard { updated_ms: 0, looked, silent, told: false };
    Watch { standby, host, turn: None, told: None, heard, asked: None }.run()
}

/// The watched job, and whether this process has the turn to resume it.
struct Watch<'a> {
    standby: &'a Standby,
    host: &'a mut dyn Host,
    turn: Option<StandbyTurn>,
    /// Whether this process was reported as the first in line.
    told: Option<bool>,
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

impl Watch<'_> {
    /// Reports a process that does not update its status, and kills it after `kill_after`.
    fn listen(&mut self, known: &KnownJob, status: &JobStatus, is_here: bool) {
        let job = known.id();
        let silence = self.heard.silence(status);
        let is_due = self.standby.kill_after.is_some_and(|after| silence >= after);
        let lock = known.state.directory(job).join("lock");
        let is_it = || is_here && other_processes::has_open(status.pid, &lock);
        if is_due && self.turn.is_some() && is_it() {
            self.host.tell(&Met::Silent { job, status, silence, is_killed: true });
            other_processes::kill(status.pid);
            self.heard.silent = Duration::ZERO;
        } else if silence >= SILENT && !self.heard.told {
            self.host.tell(&Met::Silent { job, status, silence, is_killed: false });
            self.heard.told = true;
        }
    }

    /// Watches a job, and resumes it whenever its process is gone. Returns the exit code of the job.
    fn run(&mut self) -> Result<u8, Refusal> {
        let mut short = 0;
        loop {
            let known = find(&self.standby.state, &self.standby.job)?;
            if let Some(code) = self.look(&known)? {
                return Ok(code);
            }
            let begun = Instant::now();
            self.host.tell(&Met::Resumes(known.id()));
            let status = self.run_again(&known)?;
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            match (code, self.asked) {
                (Some(code), _) if code != ExitCode::Temporary.code() => return Ok(code),
                // The exit code that a shell gives for a signal.
                (code, Some(signal)) => return Ok(code.unwrap_or(128 + signal as u8)),
                _ => {}
            }
            short = if begun.elapsed() < SHORT { short + 1 } else { 0 };
            if short >= SHORT_MAX {
                let message =
                    format!("job {} ended {short} times soon after its start", known.id());
                let hint = "see the messages of the job";
                return Err(Refusal::new(Reason::Unavailable, message, hint));
            }
            self.told = None;
            self.wait(PAUSE)?;
        }
    }

    /// Waits until a job has ended, and returns its exit code. `None`: this process must resume the job.
    fn look(&mut self, known: &KnownJob) -> Result<Option<u8>, Refusal> {
        let (state, job) = (&known.state, known.id());
        let own = dmover_host::name();
        let host = state.status(job).map(|status| status.host).unwrap_or_default();
        if host != own && !state.is_shared() {
            let message = format!("cannot resume job {job} of host {host} on this host");
            let hint = "run standby on that host. For jobs that may change hosts, create an empty \
                        file 'shared' in the state directory before the first job";
            return Err(Refusal::new(Reason::Unsuitable, message, hint));
        }
        loop {
            // 'cleanup' may have removed the job meanwhile.
            find(state, job)?;
            if self.turn.is_none() {
                self.turn = state.stand_by(job).map_err(|error| {
                    let directory = state.directory(job);
                    let message = format!("cannot lock '{}/standby': {error}", directory.display());
                    let hint = "run standby as the user who runs the job";
                    Refusal::new(Reason::NotSent, message, hint)
                })?;
            }
            // Read the status after that: the standby that had the turn before may have finished the job.
            let status = known.status();
            if let Some(code) = ended(&status) {
                self.host.tell(&Met::Ended(job, code));
                return Ok(Some(code));
            }
            if !status.phase.has_process() && self.turn.is_some() {
                return Ok(None);
            }
            self.listen(known, &status, status.host == own);
            let is_first = self.turn.is_some();
            if self.told != Some(is_first) {
                self.host.tell(&Met::Waits { job, status: &status, is_first });
                self.told = Some(is_first);
            }
            self.wait(LOOK_EVERY)?;
        }
    }

    /// Sleeps. `Err`: a signal ends the wait.
    fn wait(&mut self, time: Duration) -> Result<(), Refusal> {
        thread::sleep(time);
        self.host.signal().map_or(Ok(()), |signal| {
            let message = format!("standby stopped by {}", signals::name(signal));
            Err(Refusal::new(Reason::Interrupted, message, "the job is not affected"))
        })
    }

    /// Runs the command of the job. This process keeps the turn, so that other standby processes wait.
    fn run_again(&mut self, known: &KnownJob) -> Result<ExitStatus, Refusal> {
        let fail = |error: std::io::Error| {
            let message = format!("cannot run the command of job {}: {error}", known.id());
            Refusal::new(Reason::Failed, message, "run the command by hand")
        };
        let program = self.host.program()?;
        let mut command = known.rerun(&[])?.command(&program, false);
        // In a process group of its own, a run gets the signals of a terminal once, from this process.
        let mut child = command.process_group(0).spawn().map_err(fail)?;
        loop {
            if let Some(status) = child.try_wait().map_err(fail)? {
                return Ok(status);
            }
            while let Some(signal) = self.host.signal() {
                other_processes::signal(child.id(), signal);
                self.asked = Some(signal);
            }
            thread::sleep(LOOK_AT_CHILD);
        }
    }
}

/// The exit code of a job that needs no resume.
fn ended(status: &JobStatus) -> Option<u8> {
    let code = status.exit_code.unwrap_or_else(|| ExitCode::Partial.code());
    match status.phase {
        JobPhase::Running | JobPhase::Watching | JobPhase::Paused | JobPhase::Died => None,
        // A temporary obstacle on that host may not exist on this one.
        JobPhase::Stopped if code == ExitCode::Temporary.code() => None,
        JobPhase::Stopped | JobPhase::Finished | JobPhase::Cancelled => Some(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::on_record::OnRecord;
    use dmover_model::{JobId, PathBytes};

    /// Runs `/bin/sh` in place of dmover, and records what the standby finds.
    #[derive(Default)]
    struct Shell {
        met: Vec<String>,
        signal: Option<i32>,
    }

    impl Host for Shell {
        fn signal(&mut self) -> Option<i32> {
            self.signal.take()
        }

        fn tell(&mut self, met: &Met<'_>) {
            self.met.push(match met {
                Met::Waits { is_first, .. } => format!("waits {is_first}"),
                Met::Silent { .. } => "silent".into(),
                Met::Resumes(job) => format!("resumes {job}"),
                Met::Ended(job, code) => format!("{job} ended {code}"),
            });
        }

        fn program(&mut self) -> Result<PathBuf, Refusal> {
            Ok("/bin/sh".into())
        }
    }

    fn on(records: &OnRecord, host: String, phase: JobPhase, code: Option<u8>) -> Standby {
        let words = ["dmover", "-c", "exit 5"].map(|word| PathBytes(word.as_bytes().to_vec()));
        records.put("a1", |file| file.command = words.to_vec());
        let status = JobStatus { phase, host, exit_code: code, ..JobStatus::default() };
        records.state().put_status(&JobId("a1".into()), &status).unwrap();
        Standby { state: records.state().clone(), job: "a".into(), kill_after: None }
    }

    #[test]
    fn a_job_that_has_ended_is_not_resumed() {
        let records = OnRecord::new();
        let standby = on(&records, dmover_host::name(), JobPhase::Stopped, Some(5));
        let mut shell = Shell::default();
        assert_eq!(stand_by(&standby, &mut shell).unwrap(), 5);
        assert_eq!(shell.met, ["a1 ended 5"]);
    }

    #[test]
    fn a_job_whose_process_is_gone_runs_again() {
        let records = OnRecord::new();
        let standby = on(&records, dmover_host::name(), JobPhase::Running, None);
        let mut shell = Shell::default();
        assert_eq!(stand_by(&standby, &mut shell).unwrap(), 5);
        assert_eq!(shell.met, ["resumes a1"]);
    }

    #[test]
    fn a_signal_ends_the_wait_for_a_running_job() {
        let records = OnRecord::new();
        let standby = on(&records, dmover_host::name(), JobPhase::Running, None);
        let _lock = records.runs("a1");
        let mut shell = Shell { signal: Some(15), ..Shell::default() };
        let refused = stand_by(&standby, &mut shell).unwrap_err();
        assert_eq!(refused.reason, Reason::Interrupted);
        assert_eq!(shell.met, ["waits true"]);
    }

    #[test]
    fn a_job_of_another_host_is_refused() {
        let records = OnRecord::new();
        let standby = on(&records, "elsewhere".into(), JobPhase::Running, None);
        let refused = stand_by(&standby, &mut Shell::default()).unwrap_err();
        assert_eq!(refused.reason, Reason::Unsuitable);
    }
}
