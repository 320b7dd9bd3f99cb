//! `dmover verify`.
use clap::ArgMatches;
use dmover_engine::{
    Control, Job, JobFiles, JobList, JobReport, JobState, Observers, ProcessFacts, StopReason,
};
use dmover_job::{Compared, Recorded, compare};
use dmover_model::{ExitCode as Code, Fatal, JobSpec, Verb};
use dmover_observe::{Counters, Monitor};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::confined;
use super::delegate::{self, Limits};
use super::delegated::Received;
use super::fleet::{self, Around};
use super::remote::{self, movers_streams};
use super::run::{
    before_the_job, describe, end, errors_to, exit, failed, listen, log_end, refuse,
    spill_directory, state_of_job, usable_state,
};
use crate::args::VerifyArgs;
use crate::print::json::JsonPrinter;
use crate::print::progress::Progress;
use crate::print::text::TextPrinter;
use crate::print::verify::{VerifyPrinter, summary};
use crate::print::{Sizes, failure, say};
use crate::spec;

pub(crate) fn run(args: &VerifyArgs, matches: Option<&ArgMatches>) -> ExitCode {
    let Some(matches) = matches else { return exit(Code::Usage) };
    let recorded = match args.manifest.as_deref().map(Recorded::open).transpose() {
        Ok(recorded) => recorded.map(Arc::new),
        Err(message) => {
            failure(&message, "name a manifest written by 'dmover copy --manifest'");
            return exit(Code::Usage);
        }
    };
    let base = recorded.as_ref().map(|recorded| (recorded.base(), recorded.begun()));
    let spec = match spec::verify_spec(args, base, matches) {
        Ok(spec) => spec,
        Err(unusable) => return refuse(&unusable),
    };
    let VerifyArgs { output, fleet, .. } = args;
    let others = [("--manifest", recorded.is_some())];
    let limits = Limits { output, job: None, fleet, others: &others };
    if let Some(code) = delegate::run(&spec, &args.remote, &limits) {
        return code;
    }
    match remote::sources(&spec, &args.remote, fleet) {
        Ok(remote) => run_comparison(args, Received::alone(spec, remote), recorded.as_ref()),
        Err(error) => failed(&error),
    }
}

/// Runs a comparison with these options.
pub(super) fn run_received(args: &VerifyArgs, received: Received) -> ExitCode {
    run_comparison(args, received, None)
}

fn run_comparison(
    args: &VerifyArgs,
    Received { spec, remote, .. }: Received,
    recorded: Option<&Arc<Recorded>>,
) -> ExitCode {
    if let Some(code) = before_the_job(&spec, &args.output) {
        return code;
    }
    let errors = match errors_to(&args.output) {
        Ok(errors) => errors,
        Err(code) => return code,
    };
    let control = Arc::new(Control::default());
    let counters = Arc::new(Counters::default());
    let printer = Printer::new(args, Arc::clone(&counters), &control);
    let heard = listen(&control, &printer.progress, args.output.quiet > 0);
    if let Err(error) = heard {
        failure(&format!("cannot install signal handlers: {error}"), "check the process limits");
        return exit(Code::Fatal);
    }
    let Around { fleets, board } =
        match fleet::around(&args.fleet, movers_streams(&spec, &args.remote)) {
            Ok(around) => around,
            Err(code) => return code,
        };
    let observers = Observers {
        monitor: errors.monitor(printer.monitor()),
        counters,
        board,
        log_every: Duration::from_millis(args.output.stats),
    };
    let job = job(args, spec, recorded, (observers, control));
    let job = Job { fleets, remote, ..job };
    let result = compare(&job, recorded.map(|recorded| &**recorded));
    printer.progress.end();
    let Compared { report, code, trouble, is_covered } = match result {
        Ok(compared) => compared,
        Err(error) => {
            printer.fatal(&error);
            return exit(error.exit_code());
        }
    };
    if let Some(trouble) = trouble {
        failure(&trouble, "later entries were not compared; use an undamaged copy of the manifest");
    }
    printer.summary(&report, code, args);
    match report.state {
        JobState::Stopped(StopReason::Signal(_)) => end(&report, code),
        _ if printer.has_lost_lines() => {
            let hint = "the output is incomplete; check for free space";
            failure("cannot write to standard output", hint);
            exit(Code::Fatal)
        }
        _ => {
            if !is_covered
                && args.manifest.is_some()
                && !args.ignore_extra
                && args.output.quiet == 0
            {
                say(
                    "dmover: note: the manifest does not cover the whole tree, so entries that only \
                     DEST has are not reported",
                );
            }
            exit(code)
        }
    }
}

fn job(
    args: &VerifyArgs,
    spec: JobSpec,
    recorded: Option<&Arc<Recorded>>,
    (observers, control): (Observers, Arc<Control>),
) -> Job {
    let umask = dmover_host::process::clear_umask();
    // Only a repair keeps state: a comparison changes nothing.
    let state = args.repair.then(|| state_of_job(&args.state, None, false)).flatten();
    let shown_in = args.fleet.broker.as_ref();
    let shown_in = shown_in.and_then(|_| usable_state(&args.state, true).ok().flatten());
    let process = ProcessFacts {
        spill_directory: spill_directory(&args.state, state.as_ref()),
        bounds: confined::bounds(),
        ..ProcessFacts::new(umask, dmover_host::process::raise_open_files())
    };
    let description = describe(None, Some(&args.output));
    Job {
        files: JobFiles { state, shown_in, description, ..JobFiles::default() },
        destination: dmover_engine::DestinationLock::new(args.state.no_lock),
        observers,
        list: recorded.map_or(JobList::None, |recorded| {
            JobList::Records(Arc::clone(recorded) as Arc<dyn dmover_engine::RecordSupply>)
        }),
        control,
        ..Job::new(spec, process)
    }
}

struct Printer {
    progress: Arc<Progress>,
    kind: Kind,
    sizes: Sizes,
}

enum Kind {
    Text(Arc<VerifyPrinter>),
    Json(Arc<JsonPrinter>),
}

impl Printer {
    fn new(args: &VerifyArgs, counters: Arc<Counters>, control: &Arc<Control>) -> Self {
        let output = &args.output;
        let sizes = Sizes::new(output.bytes, output.si);
        let progress = Progress::start(output, Verb::Verify, sizes, counters);
        let (own, other) = (Arc::clone(control), Arc::clone(control));
        let kind = if output.json {
            Kind::Json(Arc::new(
                JsonPrinter::new(own, Arc::clone(&progress)).without_equal_entries(),
            ))
        } else {
            let words = TextPrinter::new(None, output, sizes, Arc::clone(&progress), own);
            Kind::Text(Arc::new(VerifyPrinter::new(words, other, output)))
        };
        Self { progress, kind, sizes }
    }

    fn monitor(&self) -> Arc<dyn Monitor> {
        match &self.kind {
            Kind::Text(printer) => Arc::clone(printer) as Arc<dyn Monitor>,
            Kind::Json(printer) => Arc::clone(printer) as Arc<dyn Monitor>,
        }
    }

    fn has_lost_lines(&self) -> bool {
        match &self.kind {
            Kind::Text(printer) => printer.has_lost_lines(),
            Kind::Json(printer) => printer.has_lost_lines(),
        }
    }

    fn summary(&self, report: &JobReport, code: Code, args: &VerifyArgs) {
        let lines = || summary(report, self.sizes, code == Code::Done);
        log_end(&args.output, lines);
        match &self.kind {
            Kind::Json(printer) => printer.summary(report, code),
            Kind::Text(_) if args.output.quiet > 0 => {}
            Kind::Text(printer) => {
                for line in lines() {
                    say(&line);
                }
                let by_name = |word: &String| word == "owner" || word == "all";
                let hint = printer.owner_hint(args.keep.preserve.iter().any(by_name));
                hint.into_iter().for_each(say);
            }
        }
    }

    fn fatal(&self, error: &Fatal) {
        tracing::error!(%error, "the job cannot continue");
        if let Kind::Json(printer) = &self.kind {
            printer.fatal(error);
        }
        failure(&error.to_string(), &error.hint());
    }
}
