//! Runs a job of `copy`, `sync` or `snapshot create`, and prints its result.
use dmover_digest::lines::Style;
use dmover_engine::{
    Control, Job, JobList, JobReport, JobState, Then, Withheld, WithheldReason, job_id, layout,
    run_job,
};
use dmover_journal::{FailedList, JournalReader, StateDirectory};
use dmover_model::{ExitCode as Code, Fatal, JobId, JobSpec, Verb};
use dmover_observe::{Counter, Counters, Monitor};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::fleet::Around;
use super::jobs::take_label;
use super::run::{
    before_the_job, describe, end, errors_to, exit, listen, log_end, spill_directory, state_of_job,
};
use super::{detach, fleet, read_back, verify};
use crate::args::{FleetArgs, ItemArgs, JobArgs, OutputArgs, ProofArgs, ReadBackArg, StateArgs};
use crate::list;
use crate::manifest::ManifestFile;
use crate::print::json::JsonPrinter;
use crate::print::progress::Progress;
use crate::print::sums::{Shown, SumPrinter};
use crate::print::text::{TextPrinter, differences_line, summary_lines};
use crate::print::{Sizes, ask, counted, failure, grouped, is_conversation};
use crate::quote::quoted;

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
    pub fleet: Option<&'a FleetArgs>,
}

/// A last step after a job, which returns what it did with the result.
pub(super) type Publish<'a> = dyn Fn(&JobReport, Code) -> Result<Published, Fatal> + 'a;

/// What the last step did with the result of a job.
pub(super) enum Published {
    /// The snapshot has this path.
    Named(PathBuf),
    /// The snapshot is incomplete and gets no name. The reason is already printed.
    Refused,
    /// There was no last step.
    Nothing,
    /// `--check`: the destination differs from the source.
    Different,
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
        take_label(state, label, (&spec, &list), spec.policy.dry_run)?;
    }
    let errors = errors_to(args.output)?;
    // Umask and limits are of the whole process: set them once, before the first thread starts.
    let umask = dmover_sys::process::clear_umask();
    let open_files_max = dmover_sys::process::raise_open_files();
    let Around { fleets, board } = args.fleet.map_or(Ok(Around::default()), fleet::around)?;
    let control = Arc::new(Control::default());
    let counters = Arc::new(Counters::default());
    let printer = Printer::new(args, Arc::clone(&counters), Arc::clone(&control));
    if let Err(error) = listen(&control, &printer.progress, printer.quiet) {
        failure(&format!("cannot install signal handlers: {error}"), "check the process limits");
        return Err(exit(Code::Fatal));
    }
    let spill_directory = spill_directory(args.state, state.as_ref());
    let manifest = match (&args.proof.manifest, args.proof.verify) {
        (Some(path), _) => ManifestFile::create(path, umask).map(Some),
        (None, ReadBackArg::None) => Ok(None),
        (None, _) => ManifestFile::scratch(&spill_directory).map(Some),
    };
    let manifest = match manifest {
        Ok(manifest) => manifest,
        Err(message) => {
            failure(&message, "choose another file, or check permissions; nothing was copied");
            return Err(exit(Code::Usage));
        }
    };
    let job = Job {
        fleets,
        board,
        spec,
        list,
        state,
        shown_in: None,
        lock: None,
        destination: dmover_engine::DestinationLock::new(args.state.no_lock),
        then: Then::Nothing,
        before: Duration::ZERO,
        log_every: Duration::from_millis(args.output.stats),
        part_of: None,
        spill_directory,
        monitor: errors.monitor_with_read_back(printer.monitor()),
        counters,
        control,
        manifest: manifest.as_ref().map(ManifestFile::recorder),
        layout: Arc::new(layout::DefaultLayout),
        description: describe(args.job.label.clone(), Some(args.output)),
        umask,
        open_files_max,
    };
    Ok(Prepared { job, printer, manifest })
}

/// A relative time such as `--newer 7d` moves with every run. An interrupted pass therefore resumes with the times of its first
/// run. Returns whether that changed the times of the job.
fn keep_times(job: &mut Job) -> bool {
    let spec = &job.spec;
    if spec.verb != Verb::Sync || spec.selection.ages_ms == [None; 2] || job.manifest.is_some() {
        return false;
    }
    let Some(state) = &job.state else { return false };
    let Ok(id) = job_id(spec, &job.list, Some(state)) else { return false };
    let journal = JournalReader::open(&state.directory(&id.0));
    let then = journal.ok().flatten().and_then(|journal| journal.times_then(spec).ok().flatten());
    let Some(then) = then.filter(|then| *then != spec.selection) else { return false };
    job.spec.selection = then;
    true
}

/// Runs the job. `Err`: the job could not start or failed, or was only to be printed.
pub(super) fn run(args: &Transfer<'_>) -> Result<Ended, Unended> {
    let Prepared { mut job, printer, manifest } = prepare(args)?;
    let kept = !args.spec.policy.dry_run && keep_times(&mut job);
    let mut result = hold(&mut job).and_then(|()| run_job(&job));
    let meant = asks(args) && !args.spec.policy.dry_run && is_said_to_be_meant(&result);
    if meant {
        mean(&mut job.spec);
        result = run_job(&job);
    }
    let went_on = result.is_ok();
    if let Ok(first) = &result
        && (first.resumed || kept || (first.needs_all.is_some() && first.withheld.is_none()))
        && (first.state == JobState::Finished && manifest.is_none() && !first.dry_run)
    {
        // Only a full pass finds what failed in the interrupted run and what has changed since.
        let why = match &first.needs_all {
            Some(why) => why,
            None if first.resumed => "the interrupted run is complete",
            None => "the previous pass did not finish",
        };
        printer.say(&format!("dmover: {why}; checking everything once more"));
        job.spec = args.spec.clone();
        if meant {
            mean(&mut job.spec);
        }
        let first = first.clone();
        job.counters = Arc::new(first.counters.of_what_was_done());
        printer.progress.again(Arc::clone(&job.counters));
        job.before = first.elapsed;
        result = run_job(&job).map(|report| JobReport { resumed: first.resumed, ..report });
    }
    if let Some(Err(message)) = manifest.as_ref().map(|manifest| manifest.end(&result)) {
        // Without its manifest the job has not succeeded.
        result = Err(Fatal::Manifest(message));
    }
    let mut checked = None;
    if let Some(manifest) = manifest.filter(|_| args.proof.verify != ReadBackArg::None)
        && result.as_ref().is_ok_and(|report| report.state == JobState::Finished)
    {
        let counters = Arc::new(Counters::default());
        printer.progress.reading_back(Arc::clone(&counters));
        match read_back(args, &job, counters, &manifest) {
            Ok(report) => checked = Some((verify::code_of(&report, true), report)),
            Err(error) => result = Err(error),
        }
    }
    if let (Ok(whole), Some((_, read))) = (&mut result, &checked)
        && read.state != JobState::Finished
    {
        // Content that was not read back is not proven, and a signal must end the process.
        whole.state = read.state;
    }
    let mut refused = Code::Done;
    if let Ok(report) = &result
        && let (JobState::Finished, Some(why)) = (report.state, &report.needs_all)
        && (report.withheld.is_none() && !report.dry_run)
    {
        printer.say(&format!("dmover: {why}: run the same command again"));
        refused = Code::Partial;
    }
    if let (Ok(report), Some(publish)) = (&result, args.publish) {
        let code = checked.as_ref().map_or(Code::Done, |(code, _)| *code);
        match publish(report, report.exit_code().merge(code)) {
            Ok(Published::Named(place)) => printer.published(&place),
            Ok(Published::Refused) => refused = Code::Partial,
            Ok(Published::Nothing) => {}
            Ok(Published::Different) => refused = Code::Different,
            Err(error) => result = Err(error),
        }
    }
    printer.end(args.output, &result, checked.as_ref(), refused);
    let code = checked.map_or(Code::Done, |(code, _)| code).merge(refused);
    match result {
        Ok(_) if printer.has_lost_lines() => {
            let words = "cannot write to standard output";
            failure(words, "the output is incomplete; check for free space");
            Err(fail(&job, went_on, (words.to_owned(), Code::Fatal)))
        }
        Ok(report) => Ok(Ended { code: report.exit_code().merge(code), report, job }),
        Err(error) => {
            let why = (error.to_string(), error.exit_code());
            Err(fail(&job, went_on, why))
        }
    }
}

/// Records why a job failed. `went_on`: the recorded status says that the job has more to do, which is no longer true.
fn fail(job: &Job, went_on: bool, (why, code): (String, Code)) -> Unended {
    let id = job_id(&job.spec, &job.list, job.state.as_ref());
    if let (true, Some(state), Ok(id)) = (went_on, held_state(job), &id) {
        state.tell_failure(id, why, code.code());
    }
    // A job that could not start sends no notification, unless the error is fatal.
    let ended = went_on || code == Code::Fatal;
    Unended { code: exit(code), tell: id.ok().filter(|_| ended).map(|id| (id, code)) }
}

/// A job that could not start, or that failed.
pub(super) struct Unended {
    code: ExitCode,
    /// The job and the exit code for the command of `--notify`.
    tell: Option<(JobId, Code)>,
}

impl From<ExitCode> for Unended {
    fn from(code: ExitCode) -> Self {
        Self { code, tell: None }
    }
}

impl Unended {
    /// Ends the process, after the command of `--notify`.
    pub fn exit(self, job: &JobArgs) -> ExitCode {
        if let (Some(command), Some((id, code))) = (&job.notify, &self.tell) {
            detach::notify_of_failure(command, id, *code);
        }
        self.code
    }
}

/// A job that ran.
pub(super) struct Ended {
    pub report: JobReport,
    pub code: Code,
    /// Holds the lock of the job until its end is recorded.
    job: Job,
}

/// Whether a user at a terminal can answer a question.
fn asks(args: &Transfer<'_>) -> bool {
    is_conversation() && !args.output.json && args.output.quiet == 0
}

/// Asks the user to confirm deletes that were refused or withheld.
fn is_said_to_be_meant(result: &Result<JobReport, Fatal>) -> bool {
    match result {
        Err(Fatal::Unmeant { message, .. }) => ask(&format!("{message}. Delete these entries?")),
        Ok(JobReport { withheld: Some(Withheld { reason, entries }), .. }) => {
            let unmeant = matches!(reason, WithheldReason::Unmeant(..));
            let what = counted(*entries, "entry", "entries");
            unmeant && ask(&format!("{}. Delete {what}?", reason.words()))
        }
        _ => false,
    }
}

/// Marks deletes as confirmed.
fn mean(spec: &mut JobSpec) {
    if let Some(delete) = spec.policy.sync.as_mut().and_then(|sync| sync.delete.as_mut()) {
        delete.meant = true;
    }
}

/// Takes the lock of the job. It is held until the result is proven and published.
fn hold(job: &mut Job) -> Result<(), Fatal> {
    if let Some(state) = job.state.as_ref().filter(|_| !job.spec.policy.dry_run) {
        let id = job_id(&job.spec, &job.list, Some(state))?;
        job.lock = Some(Arc::new(state.lock(&id)?));
        job.then = Then::More;
    }
    Ok(())
}

fn held_state(job: &Job) -> Option<&StateDirectory> {
    job.state.as_ref().filter(|_| job.lock.is_some())
}

impl Ended {
    /// Ends the process, after the command of `--notify`.
    pub fn exit(self, job: &JobArgs) -> ExitCode {
        if let Some(state) = held_state(&self.job) {
            let code = self.report.process_code(self.code);
            state.put_end(&self.report.job, self.report.ending(), code);
        }
        // The command of --notify may run the job again: release its lock first.
        drop(self.job);
        if let Some(command) = &job.notify {
            detach::notify(command, &self.report, self.code);
        }
        end(&self.report, self.code)
    }
}

/// Compares the content on storage with what was read from the source.
fn read_back(
    args: &Transfer<'_>,
    job: &Job,
    counters: Arc<Counters>,
    manifest: &ManifestFile,
) -> Result<JobReport, Fatal> {
    let recorded = manifest.read_again().map_err(Fatal::Manifest)?;
    let millionths = match args.proof.verify {
        ReadBackArg::Sample(millionths) => Some(millionths),
        ReadBackArg::All | ReadBackArg::None => None,
    };
    let id = held_state(job).map(|state| job_id(&job.spec, &job.list, Some(state))).transpose()?;
    let place = read_back::Place {
        spec: &job.spec,
        part_of: job.state.clone().zip(id),
        spill_directory: &job.spill_directory,
        monitor: Arc::clone(&job.monitor),
        counters,
        control: Arc::clone(&job.control),
        umask: job.umask,
        open_files_max: job.open_files_max,
        log_every: job.log_every,
    };
    read_back::run(&place, recorded, millionths)
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
            (Counter::EntriesDressed, "updated", "updated"),
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
