//! Runs a job of `copy`, `sync` or `snapshot create`, and prints its result.
use dmover_digest::lines::Style;
use dmover_engine::{
    ChunkMovers, Control, Job, JobFiles, JobList, JobReport, Observers, ProcessFacts, RemoteTrees,
    StopReason, Withheld, WithheldReason,
};
use dmover_job::{Client, ManifestFile, Published, ReadBack, Request, take_label};
use dmover_journal::FailedList;
use dmover_model::{ExitCode as Code, Fatal, JobSpec, PathBytes};
use dmover_observe::{Counter, Counters, Monitor};
use std::cell::Cell;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::confined;
use super::fleet;
use super::fleet::Around;
use super::jobs::refuse_label;
use super::notify::{notify, notify_of_failure};
use super::remote::movers_streams;
use super::run::{
    before_the_job, describe, end, errors_to, exit, listen, log_end, spill_directory, state_of_job,
};
use crate::args::{
    FleetArgs, ItemArgs, JobArgs, OutputArgs, ProofArgs, ReadBackArg, RemoteArgs, StateArgs,
};
use crate::list;
use crate::print::json::JsonPrinter;
use crate::print::progress::Progress;
use crate::print::sums::{Shown, SumPrinter};
use crate::print::text::{TextPrinter, differences_line, summary_lines};
use crate::print::{Sizes, ask, counted, failure, grouped, is_conversation};
use crate::signals;
use dmover_job::quote::quoted;

/// A job to run, and the options that say how it runs and what is printed.
pub(super) struct Transfer<'a> {
    pub spec: JobSpec,
    /// Runs after the job, with its report and its exit code so far.
    pub publish: Option<&'a Publish<'a>>,
    /// `retry`: attempt only these paths, which failed in the last pass.
    pub failed: Option<Arc<FailedList>>,
    pub proof: &'a ProofArgs,
    pub items: &'a ItemArgs,
    pub output: &'a OutputArgs,
    pub job: &'a JobArgs,
    pub state: &'a StateArgs,
    /// `None`: the movers are threads of this process.
    pub fleet: Option<(&'a FleetArgs, &'a RemoteArgs)>,
    /// `None`: the sources are of this host.
    pub remote: Option<Arc<dyn RemoteTrees>>,
    /// Other hosts that share DEST; `None`: there are none.
    pub chunk_movers: Option<Arc<dyn ChunkMovers>>,
}

/// A last step after a job, which returns what it did with the result.
pub(super) type Publish<'a> = dyn Fn(&JobReport, Code) -> Result<Step, Fatal> + 'a;

/// What the last step did.
pub(super) enum Step {
    /// The snapshot has this path.
    Named(PathBuf),
    Other(Published),
}

/// A job that is ready to start.
pub(super) struct Prepared {
    pub job: Job,
    pub printer: Printer,
    manifest: Option<ManifestFile>,
}

/// Prepares a job. `Err`: the process ends here with this code, because the job cannot start or was only to be printed.
pub(super) fn prepare(args: &Transfer<'_>) -> Result<Prepared, ExitCode> {
    let spec = args.spec.clone();
    if let Some(code) = before_the_job(&spec, args.output) {
        return Err(code);
    }
    let failed = args.failed.clone().map(|paths| Ok(JobList::Failed(paths)));
    let list = match failed.unwrap_or_else(|| list::read(&spec)) {
        Ok(list) => list,
        Err(message) => {
            failure(&message, "correct the list; nothing was copied");
            return Err(exit(Code::Usage));
        }
    };
    let state = state_of_job(args.state, args.job.label.as_deref(), spec.policy.dry_run);
    if let (Some(state), Some(label)) = (&state, &args.job.label) {
        let here = PathBytes::from(std::env::current_dir().unwrap_or_default().as_os_str());
        let taken = take_label(state, label, (&spec, &list), &here, spec.policy.dry_run);
        // The label is held until this process ends: its job may fail before it has a description.
        std::mem::forget(taken.map_err(|refused| refuse_label(state, refused))?);
    }
    let errors = errors_to(args.output)?;
    // Umask and limits are of the whole process: set them once, before the first thread starts.
    let umask = dmover_host::process::clear_umask();
    let open_files_max = dmover_host::process::raise_open_files();
    let spill_directory = spill_directory(args.state, state.as_ref());
    let bounds = confined::bounds();
    let process = ProcessFacts { umask, open_files_max, spill_directory, bounds };
    let Around { fleets, board } = match args.fleet {
        Some((fleet, remote)) => fleet::around(fleet, movers_streams(&spec, remote))?,
        None => Around::default(),
    };
    let control = Arc::new(Control::default());
    let counters = Arc::new(Counters::default());
    let printer = Printer::new(args, Arc::clone(&counters), Arc::clone(&control));
    if let Err(error) = listen(&control, &printer.progress, printer.quiet) {
        failure(&format!("cannot install signal handlers: {error}"), "check the process limits");
        return Err(exit(Code::Fatal));
    }
    let manifest = match (&args.proof.manifest, args.proof.verify) {
        (Some(path), _) => ManifestFile::create(path, umask).map(Some),
        (None, ReadBackArg::None) => Ok(None),
        (None, _) => ManifestFile::scratch(&process.spill_directory).map(Some),
    };
    let manifest = match manifest {
        Ok(manifest) => manifest,
        Err(message) => {
            failure(&message, "choose another file, or check permissions; nothing was copied");
            return Err(exit(Code::Usage));
        }
    };
    let job = Job {
        remote: args.remote.clone(),
        chunk_movers: args.chunk_movers.clone(),
        fleets,
        list,
        files: JobFiles {
            state,
            description: describe(args.job.label.clone(), Some(args.output)),
            ..JobFiles::default()
        },
        destination: dmover_engine::DestinationLock::new(args.state.no_lock),
        observers: Observers {
            monitor: errors.monitor_with_read_back(printer.monitor()),
            counters,
            board,
            log_every: Duration::from_millis(args.output.stats),
        },
        control,
        manifest: manifest.as_ref().map(ManifestFile::recorder),
        ..Job::new(spec, process)
    };
    Ok(Prepared { job, printer, manifest })
}

/// Whoever typed the command.
struct User<'a> {
    args: &'a Transfer<'a>,
    printer: &'a Printer,
    control: Arc<Control>,
    /// A signal came instead of an answer.
    is_interrupted: Cell<bool>,
}

impl Client for User<'_> {
    fn say(&self, words: &str) {
        self.printer.say(&format!("dmover: {words}"));
    }

    fn confirms(&self, result: &Result<JobReport, Fatal>) -> bool {
        let Some(question) = question_about(result).filter(|_| asks(self.args)) else {
            return false;
        };
        let is_stopping = || self.control.is_stopping();
        // Nothing is drawn over the question.
        let answer = self.printer.progress.asking(|| ask(&question, is_stopping));
        self.is_interrupted.set(answer.is_none());
        answer == Some(true)
    }

    fn begins_again(&self, counters: &Arc<Counters>) {
        self.printer.progress.again(Arc::clone(counters));
    }

    fn reads_back(&self, counters: &Arc<Counters>) {
        self.printer.progress.reading_back(Arc::clone(counters));
    }

    fn publish(&self, report: &JobReport, code: Code) -> Result<Published, Fatal> {
        let Some(publish) = self.args.publish else { return Ok(Published::Done) };
        Ok(match publish(report, code)? {
            Step::Named(place) => {
                self.printer.published(&place);
                Published::Done
            }
            Step::Other(published) => published,
        })
    }
}

/// Runs the job, and ends the process as the job ended. `leave`: releases what the caller holds, before the end of the
/// job is recorded. Its argument says whether the job failed.
pub(super) fn run(args: &Transfer<'_>, leave: impl FnOnce(bool)) -> ExitCode {
    let Prepared { job, printer, manifest } = match prepare(args) {
        Ok(prepared) => prepared,
        Err(code) => {
            leave(true);
            return code;
        }
    };
    let read_back = match args.proof.verify {
        ReadBackArg::None => ReadBack::None,
        ReadBackArg::All => ReadBack::All,
        ReadBackArg::Sample(millionths) => ReadBack::Sample(millionths),
    };
    let control = Arc::clone(&job.control);
    let user = User { args, printer: &printer, control, is_interrupted: Cell::new(false) };
    let outcome = dmover_job::run(Request { job, manifest, read_back }, &user);
    printer.end(args.output, &outcome.result, outcome.checked.as_ref(), outcome.refused);
    let has_lost_lines = outcome.result.is_ok() && printer.has_lost_lines();
    // Whoever waits for the job may start the next one: its end is recorded last.
    leave(outcome.result.is_err() || has_lost_lines);
    let ended = if has_lost_lines {
        let words = "cannot write to standard output";
        failure(words, "the output is incomplete; check for free space");
        Err(outcome.fail(words, Code::Fatal))
    } else {
        outcome.end()
    };
    let command = args.job.notify.as_deref();
    match ended {
        Ok((report, code)) => {
            if let Some(command) = command {
                notify(command, &report, code);
            }
            end(&report, code)
        }
        Err(failed) => {
            if let (Some(command), Some(id)) = (command, &failed.notifies) {
                notify_of_failure(command, id, failed.code);
            }
            if let Some(StopReason::Signal(signal)) = user.control.reason()
                && user.is_interrupted.get()
            {
                return signals::raise_again(signal);
            }
            exit(failed.code)
        }
    }
}

/// Whether a user at a terminal can answer a question.
fn asks(args: &Transfer<'_>) -> bool {
    is_conversation() && !args.output.json && args.output.quiet == 0
}

/// The question about deletes that were refused or withheld.
fn question_about(result: &Result<JobReport, Fatal>) -> Option<String> {
    match result {
        Err(Fatal::Unmeant { message, .. }) => Some(format!("{message}. Delete these entries?")),
        Ok(JobReport { withheld: Some(Withheld { reason, entries }), .. }) => {
            let is_unmeant = matches!(reason, WithheldReason::Unmeant(..));
            let what = counted(*entries, "entry", "entries");
            is_unmeant.then(|| format!("{}. Delete {what}?", reason.words()))
        }
        _ => None,
    }
}

/// Prints text or JSON, and progress.
pub(super) struct Printer {
    progress: Arc<Progress>,
    kind: Kind,
    quiet: bool,
    sizes: Sizes,
}

enum Kind {
    Text(Arc<TextPrinter>, Option<Arc<SumPrinter>>),
    Json(Arc<JsonPrinter>),
}

impl Printer {
    fn new(copy: &Transfer<'_>, counters: Arc<Counters>, control: Arc<Control>) -> Self {
        let args = copy.output;
        let sizes = Sizes::new(args.bytes, args.si);
        let progress = Progress::start(args, copy.spec.verb, sizes, counters);
        let kind = if args.json {
            Kind::Json(Arc::new(JsonPrinter::new(control, Arc::clone(&progress))))
        } else {
            let progress = Arc::clone(&progress);
            let own = Arc::clone(&control);
            let words = TextPrinter::new(Some(copy.items), args, sizes, progress, own);
            let words = Arc::new(words);
            let digests = copy.proof.print_hash.then(|| {
                let words = Arc::clone(&words);
                let style = Style { mutil: copy.proof.mutil.is_some(), ..Style::default() };
                Arc::new(SumPrinter::new(words, control, style, Shown::Nothing, false))
            });
            Kind::Text(words, digests)
        };
        Self { progress, kind, quiet: args.quiet > 0, sizes }
    }

    fn monitor(&self) -> Arc<dyn Monitor> {
        match &self.kind {
            Kind::Text(_, Some(digests)) => Arc::clone(digests) as Arc<dyn Monitor>,
            Kind::Text(printer, None) => Arc::clone(printer) as Arc<dyn Monitor>,
            Kind::Json(printer) => Arc::clone(printer) as Arc<dyn Monitor>,
        }
    }

    /// Whether data could not be written. A script must not take missing output for success.
    fn has_lost_lines(&self) -> bool {
        match &self.kind {
            Kind::Json(printer) => printer.has_lost_lines(),
            Kind::Text(_, digests) => digests.as_ref().is_some_and(|digests| digests.has_lost()),
        }
    }

    /// Prints the result of the read-back.
    fn read_back(&self, report: &JobReport, code: Code) {
        let get = |counter| report.counters.get(counter);
        let (entries, bytes) = (get(Counter::EntriesCompared), get(Counter::BytesHashed));
        let differing = get(Counter::EntriesDiffering);
        match &self.kind {
            Kind::Json(printer) => printer.read_back([entries, bytes, differing], code),
            Kind::Text(..) if self.quiet && differing == 0 => {}
            Kind::Text(..) => {
                let all = counted(entries, "entry", "entries");
                if entries == 0 {
                    let words = "dmover: no entry to read back: the job wrote nothing, or the \
                                 sample is too small";
                    return self.progress.say(words);
                }
                let found = if differing == 0 && report.exit_code() != Code::Done {
                    "these match what was read from the source, but NOT ALL entries could be read \
                     back"
                        .to_owned()
                } else if differing == 0 {
                    "all match what was read from the source".to_owned()
                } else {
                    format!("{} did NOT match what was read from the source", grouped(differing))
                };
                self.progress.say(&format!(
                    "dmover: read back {all}, {} from storage: {found}",
                    self.sizes.show(bytes)
                ));
            }
        }
    }

    /// Prints the path of a new snapshot.
    fn published(&self, place: &Path) {
        match &self.kind {
            Kind::Json(printer) => printer.snapshot(place),
            Kind::Text(..) if self.quiet => {}
            Kind::Text(..) => {
                let shown = quoted(place.as_os_str().as_bytes());
                self.progress.say(&format!("dmover: snapshot {shown}"));
            }
        }
    }

    /// Prints what a pass over changed entries did.
    pub fn changes(&self, report: &JobReport, lag_ms: u64) {
        let get = |counter| report.counters.get(counter);
        let done: Vec<String> = [
            (Counter::FilesCopied, "file", "files"),
            (Counter::DirectoriesCreated, "directory", "directories"),
            (Counter::SymlinksCopied, "symbolic link", "symbolic links"),
            (Counter::SpecialsCopied, "special file", "special files"),
            (Counter::EntriesRenamed, "renamed", "renamed"),
            (Counter::MetadataUpdated, "updated", "updated"),
            (Counter::EntriesDeleted, "deleted", "deleted"),
            (Counter::Errors, "FAILED", "FAILED"),
        ]
        .into_iter()
        .filter(|(counter, ..)| get(*counter) > 0)
        .map(|(counter, one, many)| counted(get(counter), one, many))
        .collect();
        match &self.kind {
            Kind::Json(printer) => printer.summary(report, report.exit_code()),
            Kind::Text(..) if self.quiet || done.is_empty() => {}
            Kind::Text(..) => {
                let seconds = lag_ms as f64 / 1000.0;
                self.progress
                    .say(&format!("dmover: {}; {seconds:.1} s behind SOURCE", done.join(", ")));
            }
        }
    }

    /// Prints a note on standard error.
    pub fn say(&self, words: &str) {
        if !self.quiet && matches!(self.kind, Kind::Text(..)) {
            self.progress.say(words);
        }
    }

    /// `checked`: the result of the read-back. `refused`: the exit code of the step after the job.
    pub fn end(
        &self,
        args: &OutputArgs,
        result: &Result<JobReport, Fatal>,
        checked: Option<&(Code, JobReport)>,
        refused: Code,
    ) {
        self.progress.end();
        match result {
            Ok(report) => log_end(args, || summary_lines(report, self.sizes, true)),
            Err(error) => tracing::error!(%error, "the job cannot continue"),
        }
        let code = checked.map_or(Code::Done, |(code, _)| *code);
        if let (Some((code, report)), Kind::Json(_)) = (checked, &self.kind) {
            self.read_back(report, *code);
        }
        match (&self.kind, result) {
            (Kind::Text(printer, digests), Ok(report)) => {
                if let Some(digests) = digests {
                    digests.end();
                }
                printer.summary(report);
                if let Some((code, read)) = checked {
                    self.read_back(read, *code);
                    if let Some(line) = differences_line(read, &report.job.0) {
                        self.progress.say(&line);
                    }
                }
            }
            (Kind::Json(printer), Ok(report)) => {
                printer.summary(report, report.exit_code().merge(code).merge(refused));
            }
            (Kind::Json(printer), Err(error)) => {
                printer.fatal(error);
                failure(&error.to_string(), &error.hint());
            }
            (Kind::Text(..), Err(error)) => failure(&error.to_string(), &error.hint()),
        }
    }
}
