//! What verbs that run a job have in common.
use dmover_engine::{Control, JobFile, JobReport, JobState, StateDirectory, StopReason};
use dmover_model::{ExitCode as Code, JobSpec, PathBytes};
use dmover_observe::{LogFormat, start_log};
use dmover_sys::process::signal_name;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use crate::args::{LogFormatArg, OutputArgs, StateArgs};
use crate::config::{environment, words_as_typed};
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

/// The job as it was typed.
pub(super) fn describe(label: Option<String>) -> JobFile {
    let bytes = |word: OsString| PathBytes::from(word.as_os_str());
    let directory = std::env::current_dir().unwrap_or_default();
    JobFile {
        label,
        // 'resume' means the job, whatever way it was run last.
        command: words_as_typed()
            .into_iter()
            .map(bytes)
            .filter(|word| !matches!(&word.0[..], b"--detach" | b"--only-failed"))
            .collect(),
        directory: PathBytes::from(directory.as_os_str()),
        ..JobFile::default()
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
    let log =
        Log { file: output.log_file.as_ref(), format: output.log_format, verbose: output.verbose };
    // What a person wants to see twice as much of is not the log yet.
    let wanted = output.log_file.is_some() || output.verbose > 1;
    let message = open_log(&log, wanted).err()?;
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

/// Where the log goes, and how much it says.
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
                failure(&message, "lines of the log are missing; the job goes on");
            }
        })
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// Starts the log if one is wanted.
pub(super) fn open_log(args: &Log<'_>, wanted: bool) -> Result<(), String> {
    let filter = environment("DMOVER_LOG").map(|f| f.to_string_lossy().into_owned());
    if filter.is_none() && !wanted {
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
                let name = signal_name(signal);
                parked.say(&format!(
                    "dmover: {name}: finishing the tasks in progress; repeat it to stop at once"
                ));
            }
        },
    )
}

/// Without a place for its state a job still runs; it is just not remembered.
fn no_state(error: &std::io::Error) {
    crate::print::say(&format!(
        "dmover: note: the job is not remembered: {error}\n  hint: name a directory by --state-dir"
    ));
}

/// Says what a job does without that keeps no state, unless that was asked for.
pub(super) fn tell_without_state(args: &StateArgs, labelled: bool) {
    let is_unknown = !args.no_state && state_directory(args.state_dir.as_ref()).is_none();
    let words = match (is_unknown, labelled) {
        (true, true) => "there is no journal, and --label has no effect",
        (true, false) => "there is no journal",
        (false, true) => "--label has no effect on a job that keeps no state",
        (false, false) => return,
    };
    let why = "neither HOME nor XDG_STATE_HOME is set, so the job is not remembered: ";
    let why = if is_unknown { why } else { "" };
    let what = if is_unknown { "; name a directory by --state-dir" } else { "" };
    crate::print::say(&format!("dmover: note: {why}{words}{what}"));
}

/// Where state is kept, if it can be kept there.
pub(super) fn usable_state(args: &StateArgs, dry_run: bool) -> Option<StateDirectory> {
    if args.no_state {
        return None;
    }
    let state = state_directory(args.state_dir.as_ref()).map(StateDirectory::new);
    let named = args.state_dir.is_some() || dry_run;
    state.filter(|state| named || state.is_usable().map_err(|e| no_state(&e)).is_ok())
}

/// `--state-dir` and its variable, `/var/lib/dmover` for root, else the XDG state directory.
pub(super) fn state_directory(named: Option<&OsString>) -> Option<PathBuf> {
    if let Some(directory) = named {
        return Some(PathBuf::from(directory));
    }
    if dmover_sys::process::effective_uid() == 0 {
        return Some(PathBuf::from("/var/lib/dmover"));
    }
    let xdg = environment("XDG_STATE_HOME").map(PathBuf::from);
    let home = |home: OsString| PathBuf::from(home).join(".local/state");
    Some(xdg.or_else(|| environment("HOME").map(home))?.join("dmover"))
}

pub(super) fn spill_directory(args: &StateArgs, state: Option<&StateDirectory>) -> PathBuf {
    match (&args.spill_dir, state) {
        (Some(directory), _) => PathBuf::from(directory),
        (None, Some(state)) => state.path().to_owned(),
        (None, None) => std::env::temp_dir(),
    }
}
