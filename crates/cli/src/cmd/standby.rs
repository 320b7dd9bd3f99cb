//! `dmover standby`: resumes a job whose process is gone.
use dmover_job::standby::{Host, Met, Standby, stand_by};
use dmover_job::{Reason, Refusal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::ask::program;
use super::jobs::{directory, refuse};
use crate::args::StandbyArgs;
use crate::print::say;

pub(crate) fn standby(args: &StandbyArgs) -> ExitCode {
    let ended = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2])
        .map_err(|error| {
            let message = format!("cannot listen to signals: {error}");
            Refusal::new(Reason::Failed, message, "check the process limits")
        })
        .and_then(|signals| {
            let standby = Standby {
                state: directory(args.place.state_dir.as_ref())?,
                job: args.job.clone(),
                kill_after: args.kill_after.map(Duration::from_millis),
            };
            stand_by(&standby, &mut This(signals))
        });
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(refused) => refuse(refused),
    }
}

/// This process and its signals.
struct This(Signals);

impl Host for This {
    fn signal(&mut self) -> Option<i32> {
        self.0.pending().next()
    }

    fn tell(&mut self, met: &Met<'_>) {
        say(&in_words(met));
    }

    fn program(&mut self) -> Result<PathBuf, Refusal> {
        program()
    }
}

fn in_words(met: &Met<'_>) -> String {
    match met {
        Met::Waits { job, status, is_first } => {
            let words = if *is_first {
                "waiting to take over"
            } else {
                "another standby is first in line; waiting behind it"
            };
            let (pid, host, phase) = (status.pid, &status.host, status.phase.word());
            format!("dmover: job {job} is {phase} (process {pid} on {host}): {words}")
        }
        Met::Silent { job, status, silence, is_killed: true } => {
            let (pid, seconds) = (status.pid, silence.as_secs());
            format!(
                "dmover: process {pid} has not updated the status of job {job} for {seconds} s: \
                 killing it"
            )
        }
        Met::Silent { job, status, silence, is_killed: false } => {
            let (pid, host, seconds) = (status.pid, &status.host, silence.as_secs());
            format!(
                "dmover: process {pid} on {host} has not updated the status of job {job} for \
                 {seconds} s: the process or its disk hangs. To let standby resume the job, run \
                 'kill -9 {pid}' on {host}"
            )
        }
        Met::Resumes(job) => format!("dmover: the process of job {job} is gone; resuming the job"),
        Met::Ended(job, code) => format!("dmover: job {job} has ended with exit code {code}"),
    }
}
