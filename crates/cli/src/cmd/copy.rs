//! `dmover copy`.
use clap::ArgMatches;
use dmover_engine::{Control, Fatal, Job, JobReport, StateDirectory, layout, run_job};
use dmover_model::{ExitCode as Code, Verb};
use dmover_observe::{Counters, Monitor};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use super::run::{end, exit, listen, open_log, print_job};
use crate::args::{CopyArgs, ItemArgs, OutputArgs, StateArgs};
use crate::config::environment;
use crate::print::json::JsonPrinter;
use crate::print::progress::Progress;
use crate::print::text::TextPrinter;
use crate::print::{Sizes, failure};
use crate::{list, spec};

pub(crate) fn run(args: &CopyArgs, matches: Option<&ArgMatches>) -> ExitCode {
    let Some(matches) = matches else { return exit(Code::Usage) };
    let spec = match spec::job_spec(args, matches) {
        Ok(spec) => spec,
        Err(unusable) => {
            failure(&unusable.message, unusable.hint);
            return exit(Code::Usage);
        }
    };
    if args.output.print_job {
        return print_job(&spec);
    }
    if let Err(message) = open_log(&args.output) {
        failure(&message, "name another --log-file, or correct $DMOVER_LOG");
        return exit(Code::Usage);
    }
    let list = match list::read(&spec) {
        Ok(list) => list,
        Err(message) => {
            failure(&message, "correct the list; nothing was copied");
            return exit(Code::Usage);
        }
    };
    // Umask and limits belong to the process, so they are set once, before any thread.
    let umask = dmover_sys::process::clear_umask();
    let open_files_max = dmover_sys::process::raise_open_files();
    let control = Arc::new(Control::default());
    let counters = Arc::new(Counters::default());
    let printer =
        Printer::new(&args.items, &args.output, Arc::clone(&counters), Arc::clone(&control));
    if let Err(error) = listen(&control, &printer.progress, printer.quiet) {
        failure(&format!("cannot listen to signals: {error}"), "check the process limits");
        return exit(Code::Fatal);
    }
    let state = state_directory(&args.state).map(StateDirectory::new);
    let named = args.state.state_dir.is_some() || spec.policy.dry_run;
    let state = state.filter(|state| named || state.is_usable().map_err(|e| no_state(&e)).is_ok());
    let spill_directory = spill_directory(&args.state, state.as_ref());
    let job = Job {
        spec,
        list,
        state,
        spill_directory,
        monitor: printer.monitor(),
        counters,
        control,
        layout: Arc::new(layout::DefaultLayout),
        umask,
        open_files_max,
    };
    let result = run_job(&job);
    printer.end(&result);
    match &result {
        Ok(_) if printer.has_lost_lines() => {
            failure("standard output could not be written", "JSON lines are missing");
            exit(Code::Fatal)
        }
        Ok(report) => end(report, report.exit_code()),
        Err(error) => exit(error.exit_code()),
    }
}

/// `--state-dir` and its variable, `/var/lib/dmover` for root, else the XDG state directory.
/// Without a place for it a job still runs; it is just not remembered.
fn no_state(error: &std::io::Error) {
    crate::print::say(&format!(
        "dmover: note: the job is not remembered, nor locked against a second run: {error}\n  \
         hint: name a directory by --state-dir"
    ));
}

fn state_directory(args: &StateArgs) -> Option<PathBuf> {
    if let Some(directory) = &args.state_dir {
        return Some(PathBuf::from(directory));
    }
    if dmover_sys::process::effective_uid() == 0 {
        return Some(PathBuf::from("/var/lib/dmover"));
    }
    let xdg = environment("XDG_STATE_HOME").map(PathBuf::from);
    let home = |home: OsString| PathBuf::from(home).join(".local/state");
    Some(xdg.or_else(|| environment("HOME").map(home))?.join("dmover"))
}

fn spill_directory(args: &StateArgs, state: Option<&StateDirectory>) -> PathBuf {
    match (&args.spill_dir, state) {
        (Some(directory), _) => PathBuf::from(directory),
        (None, Some(state)) => state.path().to_owned(),
        (None, None) => std::env::temp_dir(),
    }
}

/// Text or JSON, with progress beside it.
struct Printer {
    progress: Arc<Progress>,
    kind: Kind,
    quiet: bool,
}

enum Kind {
    Text(Arc<TextPrinter>),
    Json(Arc<JsonPrinter>),
}

impl Printer {
    fn new(
        items: &ItemArgs,
        args: &OutputArgs,
        counters: Arc<Counters>,
        control: Arc<Control>,
    ) -> Self {
        let sizes = Sizes::new(args.bytes, args.si);
        let progress = Progress::start(args, Verb::Copy, sizes, counters);
        let kind = if args.json {
            Kind::Json(Arc::new(JsonPrinter::new(control, Arc::clone(&progress))))
        } else {
            let progress = Arc::clone(&progress);
            Kind::Text(Arc::new(TextPrinter::new(Some(items), args, sizes, progress, control)))
        };
        Self { progress, kind, quiet: args.quiet > 0 }
    }

    fn monitor(&self) -> Arc<dyn Monitor> {
        match &self.kind {
            Kind::Text(printer) => Arc::clone(printer) as Arc<dyn Monitor>,
            Kind::Json(printer) => Arc::clone(printer) as Arc<dyn Monitor>,
        }
    }

    /// JSON that could not be written: a script must not take the silence for success.
    fn has_lost_lines(&self) -> bool {
        matches!(&self.kind, Kind::Json(printer) if printer.has_lost_lines())
    }

    fn end(&self, result: &Result<JobReport, Fatal>) {
        self.progress.end();
        match (&self.kind, result) {
            (Kind::Text(printer), Ok(report)) => printer.summary(report),
            (Kind::Json(printer), Ok(report)) => printer.summary(report),
            (Kind::Json(printer), Err(error)) => {
                printer.fatal(error);
                failure(&error.to_string(), &error.hint());
            }
            (Kind::Text(_), Err(error)) => failure(&error.to_string(), &error.hint()),
        }
    }
}
