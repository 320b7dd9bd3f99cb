//! What verbs that run a job have in common.
use dmover_engine::{Control, JobReport, JobState, StopReason};
use dmover_model::{ExitCode as Code, JobSpec};
use dmover_observe::{LogFormat, start_log};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use crate::args::{LogFormatArg, OutputArgs};
use crate::config::environment;
use crate::print::progress::Progress;
use crate::print::{failure, line};
use crate::signals;
use crate::spec::Unusable;

pub(super) fn exit(code: Code) -> ExitCode {
    ExitCode::from(code.code())
}

/// How the process ends after a job that ran: a signal that stopped it ends the process as well.
pub(super) fn end(report: &JobReport, code: Code) -> ExitCode {
    match report.state {
        JobState::Stopped(StopReason::Signal(signal)) => signals::raise_again(signal),
        _ => exit(code),
    }
}

/// Says why arguments make no job.
pub(super) fn refuse(unusable: &Unusable) -> ExitCode {
    failure(&unusable.message, unusable.hint);
    exit(Code::Usage)
}

/// What every job does before it begins. Answers the code of a process that ends here.
pub(super) fn before_the_job(spec: &JobSpec, output: &OutputArgs) -> Option<ExitCode> {
    if output.print_job {
        return Some(print_job(spec));
    }
    let message = open_log(output).err()?;
    failure(&message, "name another --log-file, or correct $DMOVER_LOG");
    Some(exit(Code::Usage))
}

/// `--print-job`.
fn print_job(spec: &JobSpec) -> ExitCode {
    match serde_json::to_string_pretty(spec) {
        Ok(text) => {
            line(&text);
            exit(Code::Done)
        }
        Err(error) => {
            failure(&error.to_string(), "report this as a fault of dmover");
            exit(Code::Fatal)
        }
    }
}

/// Starts the log if one is wanted.
fn open_log(args: &OutputArgs) -> Result<(), String> {
    let filter = environment("DMOVER_LOG").map(|f| f.to_string_lossy().into_owned());
    let wanted = filter.is_some() || args.log_file.is_some() || args.verbose > 1;
    if !wanted {
        return Ok(());
    }
    let file: Option<Box<dyn Write + Send>> = match &args.log_file {
        None => None,
        Some(path) => {
            let mut options = std::fs::OpenOptions::new();
            let opened = options.create(true).append(true).open(path);
            let shown = path.to_string_lossy();
            let file = opened.map_err(|e| format!("cannot open the log file '{shown}': {e}"))?;
            Some(Box::new(file))
        }
    };
    let format = match args.log_format {
        LogFormatArg::Text => LogFormat::Text,
        LogFormatArg::Json => LogFormat::Json,
    };
    let level = match args.verbose {
        0 | 1 => "info",
        2 => "debug",
        _ => "trace",
    };
    start_log(file, format, filter.as_deref().unwrap_or(level))
}

/// Has signals park or drop the job.
pub(super) fn listen(
    control: &Arc<Control>,
    progress: &Arc<Progress>,
    quiet: bool,
) -> std::io::Result<()> {
    let (status, parked) = (Arc::clone(progress), Arc::clone(progress));
    signals::listen(
        Arc::clone(control),
        move || status.status_line(),
        move |signal| {
            if !quiet {
                parked.say(&format!(
                    "dmover: signal {signal}: finishing what is in hand; once more to drop it"
                ));
            }
        },
    )
}
