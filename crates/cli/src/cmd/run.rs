//! What verbs that run a job have in common.
use dmover_engine::{Control, JobReport, JobState, StopReason};
use dmover_journal::{JobFile, StateDirectory};
use dmover_model::{ExitCode as Code, Fatal, JobSpec, PathBytes};
use dmover_observe::{LogFormat, start_log};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{delegated, detach};
use crate::args::{LogFormatArg, OutputArgs, StateArgs};
use crate::config::{environment, words_as_typed};
use crate::print::errors::ErrorsTo;
use crate::print::progress::Progress;
use crate::print::{failure, line, say};
use crate::signals;
use crate::spec::Unusable;
use crate::state::state_directory;
use dmover_job::quote::quoted;

pub(super) fn exit(code: Code) -> ExitCode {
    ExitCode::from(code.code())
}

/// How the process ends after a job that ran: a signal that stopped it ends the process as well.
pub(super) fn end(report: &JobReport, code: Code) -> ExitCode {
    match report.state {
        JobState::Stopped(StopReason::Signal(signal)) if delegated::is_this() => {
            ExitCode::from(signals::code_of(signal))
        }
        JobState::Stopped(StopReason::Signal(signal)) => signals::raise_again(signal),
        _ => exit(code),
    }
}

/// Ends with a job that cannot run.
pub(super) fn failed(error: &Fatal) -> ExitCode {
    failure(&error.to_string(), &error.hint());
    exit(error.exit_code())
}

/// The command of a job, as recorded in the state directory.
pub(super) fn describe(label: Option<String>, output: Option<&OutputArgs>) -> JobFile {
    let bytes = |word: OsString| PathBytes::from(word.as_os_str());
    let log_file = output.and_then(|output| output.log_file.clone());
    let log_file = log_file.and_then(|path| std::path::absolute(path).ok());
    let directory = std::env::current_dir().unwrap_or_default();
    // The command of a job for a user at another host works only there.
    let command = if delegated::is_this() { Vec::new() } else { words_as_typed() };
    JobFile {
        label,
        // 'resume' runs the whole job in the foreground, however its last run was started.
        command: command
            .into_iter()
            .map(bytes)
            .filter(|word| !matches!(&word.0[..], b"--detach" | b"--only-failed"))
            .collect(),
        directory: PathBytes::from(directory.as_os_str()),
        output: detach::output().or(log_file).map(|path| bytes(path.into())),
        ..JobFile::default()
    }
}

/// Prints why the arguments are not a valid job.
pub(super) fn refuse(unusable: &Unusable) -> ExitCode {
    failure(&unusable.message, &unusable.hint);
    exit(Code::Usage)
}

/// Prints the job if that was asked for, and opens the log. Returns the exit code of a process that ends here.
pub(super) fn before_the_job(spec: &JobSpec, output: &OutputArgs) -> Option<ExitCode> {
    if output.print_job {
        return Some(print_job(spec));
    }
    let log =
        Log { file: output.log_file.as_ref(), format: output.log_format, verbose: output.verbose };
    // One -v makes the summary longer; two start the log.
    let wanted = output.log_file.is_some() || output.verbose > 1;
    if let Err(message) = open_log(&log, wanted) {
        failure(&message, "choose another --log-file, or correct $DMOVER_LOG");
        return Some(exit(Code::Usage));
    }
    log_start(spec);
    None
}

/// The first lines of a log: the command, where it runs, and its paths.
fn log_start(spec: &JobSpec) {
    let words: Vec<String> =
        words_as_typed().iter().map(|word| quoted(word.as_encoded_bytes())).collect();
    let host = dmover_host::name();
    let directory = std::env::current_dir().unwrap_or_default();
    tracing::info!(command = %words.join(" "), "begins");
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %host,
        directory = %directory.display(), "begins");
    for source in &spec.sources {
        tracing::info!(source = %quoted(&source.0), "begins");
    }
    if !spec.destination.0.is_empty() {
        tracing::info!(destination = %quoted(&spec.destination.0), "begins");
    }
}

/// The last lines of a log file. A log on standard error has them already.
pub(super) fn log_end(output: &OutputArgs, lines: impl FnOnce() -> Vec<String>) {
    if output.log_file.is_some() {
        for line in lines() {
            tracing::info!("{}", line.trim());
        }
    }
}

/// `--errors-to`, before the umask is cleared. `Err`: the job cannot begin.
pub(super) fn errors_to(output: &OutputArgs) -> Result<ErrorsTo, ExitCode> {
    ErrorsTo::create(output).map_err(|message| {
        failure(&message, "choose another file, or check permissions; nothing was changed");
        exit(Code::Usage)
    })
}

/// `--print-job`.
fn print_job(spec: &JobSpec) -> ExitCode {
    match serde_json::to_string_pretty(spec) {
        Ok(text) => {
            line(&text);
            exit(Code::Done)
        }
        Err(error) => {
            failure(&error.to_string(), "this is a bug in dmover: report it");
            exit(Code::Fatal)
        }
    }
}

/// The destination, the format and the level of the log.
#[derive(Clone, Copy)]
pub(super) struct Log<'a> {
    pub file: Option<&'a OsString>,
    pub format: LogFormatArg,
    pub verbose: u8,
}

/// A log file that reports its first failed write on standard error: a reader takes the log for complete.
struct Watched {
    file: std::fs::File,
    shown: String,
    has_failed: bool,
}

impl Write for Watched {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.file.write(bytes).inspect_err(|error| {
            if !std::mem::replace(&mut self.has_failed, true) {
                let message = format!("cannot write the log file '{}': {error}", self.shown);
                failure(&message, "the log is incomplete; the job continues");
            }
        })
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// The log of a process is started once.
static IS_STARTED: AtomicBool = AtomicBool::new(false);

/// Starts the log if one is wanted.
pub(super) fn open_log(args: &Log<'_>, wanted: bool) -> Result<(), String> {
    let filter = environment("DMOVER_LOG").map(|f| f.to_string_lossy().into_owned());
    // The agent, as which this process was started, may have one.
    let is_of_agent = delegated::is_this() && IS_STARTED.load(Ordering::Relaxed);
    if is_of_agent || (filter.is_none() && !wanted) {
        return Ok(());
    }
    let file: Option<Box<dyn Write + Send>> = match args.file {
        None => None,
        Some(path) => {
            let mut options = std::fs::OpenOptions::new();
            let opened = options.create(true).append(true).open(path);
            let shown = path.to_string_lossy();
            let file = opened.map_err(|e| format!("cannot open the log file '{shown}': {e}"))?;
            Some(Box::new(Watched { file, shown: shown.into_owned(), has_failed: false }))
        }
    };
    let format = match args.format {
        LogFormatArg::Text => LogFormat::Text,
        LogFormatArg::Json => LogFormat::Json,
    };
    let level = match args.verbose {
        // async-nats logs several lines for each attempt to connect; dmover reports what they mean.
        0 | 1 => "info,async_nats=off",
        2 => "debug",
        _ => "trace",
    };
    start_log(file, format, filter.as_deref().unwrap_or(level))?;
    IS_STARTED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Starts the log of a process that serves a client of an agent: it goes to the agent, also when standard error goes to the client.
pub(super) fn log_to_agent() -> Result<(), String> {
    let errors = dmover_host::process::another_stderr().map_err(|error| error.to_string())?;
    let filter = environment("DMOVER_LOG").unwrap_or_else(|| "warn".into());
    start_log(Some(Box::new(errors)), LogFormat::Text, &filter.to_string_lossy())?;
    IS_STARTED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Installs signal handlers that stop the job.
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
            if !quiet && !parked.is_asking() {
                let name = dmover_host::signals::name(signal);
                parked.say(&format!(
                    "dmover: {name}: finishing the tasks in progress; repeat it to stop at once"
                ));
            }
        },
    )
}

/// The state directory of a job. If the job cannot keep state, prints a note about what it then lacks.
pub(super) fn state_of_job(
    args: &StateArgs,
    label: Option<&str>,
    dry_run: bool,
) -> Option<StateDirectory> {
    let why = match usable_state(args, dry_run) {
        Ok(state) if state.is_some() || dry_run => return state,
        Ok(_) => {
            if label.is_some() {
                say("dmover: note: --label has no effect on a job that keeps no state");
            }
            return None;
        }
        Err(_) if dry_run => return None,
        Err(why) => why,
    };
    let label = if label.is_some() { ", so --label has no effect" } else { "" };
    say(&format!(
        "dmover: note: the job keeps no state and no journal{label}: {why}; choose a directory \
         with --state-dir"
    ));
    None
}

/// The state directory. `None`: `--no-state` is set. `Err`: why no state can be kept.
pub(super) fn usable_state(
    args: &StateArgs,
    dry_run: bool,
) -> Result<Option<StateDirectory>, String> {
    if args.no_state {
        return Ok(None);
    }
    let Some(path) = state_directory(args.state_dir.as_ref()) else {
        return Err("neither $XDG_STATE_HOME nor $HOME is set".into());
    };
    let state = StateDirectory::new(path);
    let is_named = args.state_dir.is_some() || dry_run;
    if !is_named && let Err(error) = state.is_usable() {
        return Err(format!("cannot use '{}': {error}", state.path().display()));
    }
    Ok(Some(state))
}

pub(super) fn spill_directory(args: &StateArgs, state: Option<&StateDirectory>) -> PathBuf {
    match (&args.spill_dir, state) {
        (Some(directory), _) => PathBuf::from(directory),
        (None, Some(state)) => state.path().to_owned(),
        (None, None) => std::env::temp_dir(),
    }
}
