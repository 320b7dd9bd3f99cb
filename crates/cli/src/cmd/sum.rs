//! `dmover sum`.
use clap::ArgMatches;
use dmover_digest::lines::Style;
use dmover_engine::{
    Control, Job, JobFiles, JobList, JobReport, JobState, Observers, ProcessFacts, StopReason,
    run_job,
};
use dmover_job::quote::quoted;
use dmover_job::{Checked, ListedLines, checked, code_of_digests};
use dmover_journal::StateDirectory;
use dmover_model::{ByteRange, ExitCode as Code, JobSpec, PathBytes, Verb};
use dmover_observe::{Counters, Monitor};
use std::ffi::OsString;
use std::fs::File;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::fleet::{self, Around};
use super::remote;
use super::run::{before_the_job, describe, end, errors_to, exit, log_end, refuse};
use crate::args::SumArgs;
use crate::config::environment;
use crate::print::json::JsonPrinter;
use crate::print::progress::Progress;
use crate::print::sums::{Shown, SumPrinter};
use crate::print::text::TextPrinter;
use crate::print::{Sizes, counted, failure};
use crate::signals;
use crate::spec::{self, Unusable};
use crate::state::state_directory;
use crate::sums::{List, Supply, Tally};

pub(crate) fn run(args: &SumArgs, matches: Option<&ArgMatches>) -> ExitCode {
    let Some(matches) = matches else { return exit(Code::Usage) };
    let shows_all = args.output.verbose > 0;
    let tally = Arc::new(Tally { shows_all, ..Tally::default() });
    let (spec, supply) = match prepare(args, matches, &tally) {
        Ok(prepared) => prepared,
        Err(unusable) => return refuse(&unusable),
    };
    if let Some(code) = before_the_job(&spec, &args.output) {
        return code;
    }
    let errors = match errors_to(&args.output) {
        Ok(errors) => errors,
        Err(code) => return code,
    };
    let control = Arc::new(Control::default());
    let counters = Arc::new(Counters::default());
    let sizes = Sizes::new(args.output.bytes, args.output.si);
    let progress = Progress::start(&args.output, Verb::Sum, sizes, Arc::clone(&counters));
    let status = Arc::clone(&progress);
    if let Err(error) = signals::listen_for_status(move || status.status_line()) {
        failure(&format!("cannot install signal handlers: {error}"), "check the process limits");
        return exit(Code::Fatal);
    }
    let Around { fleets, board } =
        match fleet::around(&args.fleet, remote::movers_streams(&spec, &args.remote)) {
            Ok(around) => around,
            Err(code) => return code,
        };
    let printer = Printer::new(args, &progress, &control, sizes);
    let remote = match remote::sources(&spec, &args.remote, &args.fleet) {
        Ok(remote) => remote,
        Err(error) => {
            progress.end();
            failure(&error.to_string(), &error.hint());
            return exit(error.exit_code());
        }
    };
    let job = Job {
        remote,
        fleets,
        list: JobList::Sums(supply),
        files: JobFiles {
            shown_in: args.fleet.broker.as_ref().and_then(|_| {
                let named = environment("DMOVER_STATE_DIR");
                state_directory(named.as_ref()).map(StateDirectory::new)
            }),
            description: describe(None, Some(&args.output)),
            ..JobFiles::default()
        },
        observers: Observers {
            monitor: errors.monitor(printer.monitor()),
            counters,
            board,
            log_every: Duration::from_millis(args.output.stats),
        },
        control,
        ..Job::new(spec, ProcessFacts::new(0o077, dmover_host::process::raise_open_files()))
    };
    let result = run_job(&job);
    let printed = printer.end();
    progress.end();
    match result {
        // The reader of standard output is gone: no error.
        Ok(report) if matches!(report.state, JobState::Stopped(StopReason::Signal(_))) => {
            end(&report, Code::Fatal)
        }
        Ok(_) if !printed => {
            let hint = "the output is incomplete; check for free space";
            failure("cannot write to standard output", hint);
            exit(Code::Fatal)
        }
        Ok(report) => {
            let code = if args.check.check {
                check_code(args, &report, &tally)
            } else {
                code_of_digests(&report, lines(&tally))
            };
            printer.summary(args, &report, code, sizes);
            end(&report, code)
        }
        Err(error) => {
            printer.fatal(&error);
            failure(&error.to_string(), &error.hint());
            exit(error.exit_code())
        }
    }
}

/// The job, and the files to hash or to check.
fn prepare(
    args: &SumArgs,
    matches: &ArgMatches,
    tally: &Arc<Tally>,
) -> Result<(JobSpec, Arc<Supply>), Unusable> {
    if args.check.check {
        let lists = open_lists(&args.paths)?;
        let supply = {
            let digest = &args.digest;
            let piece = digest.mutil.filter(|bytes| *bytes > 0);
            let form = (digest.zero, digest.hash_leaf_size, piece);
            Supply::of_lists(lists, args.digest.hash_type, form, Arc::clone(tally))
        };
        let supply = supply.map_err(|error| no_reader(&error))?;
        return Ok((spec::sum_spec(args, Vec::new(), matches)?, supply));
    }
    if args.digest.read_stdin {
        let supply = Supply::of_batch(std::io::stdin(), Arc::clone(tally));
        let supply = supply.map_err(|error| no_reader(&error))?;
        return Ok((spec::sum_spec(args, Vec::new(), matches)?, supply));
    }
    let (directories, files): (Vec<_>, Vec<_>) =
        args.paths.iter().cloned().partition(|path| path != "-" && is_directory(path));
    let range = range(args);
    if range.is_some() && !directories.is_empty() {
        let shown = quoted(std::os::unix::ffi::OsStrExt::as_bytes(directories[0].as_os_str()));
        let hint = "--offset and --length work only on files";
        return Err(Unusable { message: format!("{shown} is a directory"), hint: hint.into() });
    }
    let files = if args.paths.is_empty() { vec![OsString::from("-")] } else { files };
    let directories = directories.iter().map(as_written).collect();
    let spec = spec::sum_spec(args, directories, matches)?;
    Ok((spec, Supply::of_arguments(&files, range)))
}

fn no_reader(error: &std::io::Error) -> Unusable {
    let message = format!("cannot start the thread that reads the list: {error}");
    Unusable { message, hint: "check the process limits".into() }
}

/// Whether a path is a tree of its own: a directory, or whatever is on another host. The job reports paths that cannot be
/// read.
fn is_directory(path: &OsString) -> bool {
    match std::fs::metadata(path) {
        Ok(found) => found.is_dir(),
        Err(_) => !is_here(path),
    }
}

/// Whether a path is of this host. What exists here is, also with a colon in its name: a shell expands '*' to all names.
fn is_here(path: &OsString) -> bool {
    let is_remote = || spec::is_remote(&PathBytes::from(path.as_os_str())).unwrap_or(true);
    std::fs::symlink_metadata(path).is_ok() || !is_remote()
}

/// A directory as it is written where a colon names another host.
fn as_written(path: &OsString) -> PathBytes {
    let bytes = PathBytes::from(path.as_os_str());
    let is_odd = is_here(path) && spec::is_remote(&bytes).unwrap_or(true);
    if is_odd { PathBytes([b"./", &bytes.0[..]].concat()) } else { bytes }
}

fn range(args: &SumArgs) -> Option<ByteRange> {
    let (offset, length) = (args.digest.offset, args.digest.length);
    if offset.is_none() && length.is_none() {
        return None;
    }
    let start = offset.unwrap_or(0);
    let end = length.map_or(u64::MAX, |length| start.saturating_add(length));
    Some(ByteRange { start, end })
}

/// Opens all lists before the first is read, so that a wrong name stops the command at once.
fn open_lists(paths: &[OsString]) -> Result<Vec<List>, Unusable> {
    let stdin = [OsString::from("-")];
    let paths = if paths.is_empty() { &stdin[..] } else { paths };
    let open = |path: &OsString| {
        if path == "-" {
            return Ok(List { name: "-".into(), input: Box::new(std::io::stdin()) });
        }
        let name = quoted(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()));
        let file = File::open(path).and_then(|file| {
            let directory = file.metadata()?.is_dir();
            let error = || std::io::Error::from(std::io::ErrorKind::IsADirectory);
            if directory { Err(error()) } else { Ok(file) }
        });
        match file {
            Ok(file) => Ok(List { name, input: Box::new(file) }),
            Err(error) => Err(Unusable {
                message: format!("cannot read the list {name}: {error}"),
                hint: "name a file written by 'dmover sum', 'sha256sum' or a similar program"
                    .into(),
            }),
        }
    };
    paths.iter().map(open).collect()
}

/// The lines that were read so far.
fn lines(tally: &Tally) -> ListedLines {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    ListedLines { good: load(&tally.good), bad: load(&tally.bad), empty: load(&tally.empty) }
}

/// The exit code of a check, whose result is printed.
fn check_code(args: &SumArgs, report: &JobReport, tally: &Tally) -> Code {
    let lines = lines(tally);
    let Some(Checked { code, equal, differ, failed }) = checked(report, lines) else {
        return report.exit_code();
    };
    if !args.check.status {
        let guessed = tally.guessed.load(Ordering::Relaxed);
        check_words(args, [lines.bad, failed, differ, equal], guessed);
    }
    code
}

fn check_words(args: &SumArgs, [bad, failed, differ, equal]: [u64; 4], guessed: u64) {
    let warn = |count: u64, one: &str, many: &str, what: &str| {
        if count > 0 {
            crate::print::say(&format!("dmover: WARNING: {} {what}", counted(count, one, many)));
        }
    };
    warn(bad, "line", "lines", "could not be read as digest and name");
    warn(failed, "listed file", "listed files", "could not be read");
    warn(differ, "computed digest", "computed digests", "did NOT match");
    if equal + differ + failed == 0 && (bad > 0 || args.check.ignore_missing) {
        let what = if bad > 0 || !args.check.ignore_missing {
            "no list has a line with a digest and a name"
        } else {
            "no listed file exists; nothing was compared"
        };
        crate::print::say(&format!("dmover: error: {what}"));
    } else if differ > 0 && equal == 0 && guessed > 0 {
        crate::print::say(
            "  hint: the list does not name its hash type, which dmover guessed from the length of the \
             digests; if it is another one, give it with -a",
        );
    }
}

enum Printer {
    Text(Arc<SumPrinter>),
    Json(Arc<JsonPrinter>),
}

impl Printer {
    fn new(args: &SumArgs, progress: &Arc<Progress>, control: &Arc<Control>, sizes: Sizes) -> Self {
        if args.output.json {
            let printer = JsonPrinter::new(Arc::clone(control), Arc::clone(progress));
            return Self::Json(Arc::new(printer));
        }
        let (own, other) = (Arc::clone(control), Arc::clone(control));
        let words = TextPrinter::new(None, &args.output, sizes, Arc::clone(progress), own);
        let digest = &args.digest;
        let (tag, nul, binary) = (digest.tag, digest.zero, digest.binary);
        let style = Style { tag, nul, binary, mutil: digest.mutil.is_some() };
        let checks = match (args.check.status, args.output.quiet) {
            _ if !args.check.check => Shown::Nothing,
            (true, _) | (_, 2..) => Shown::Nothing,
            (_, 1) => Shown::Failures,
            _ => Shown::All,
        };
        let ignores = args.check.ignore_missing;
        let printer = SumPrinter::new(Arc::new(words), other, style, checks, ignores);
        let names = args.output.verbose > 0 && args.output.quiet == 0 && !args.check.status;
        Self::Text(Arc::new(printer.naming(names)))
    }

    fn monitor(&self) -> Arc<dyn Monitor> {
        match self {
            Self::Text(printer) => Arc::clone(printer) as Arc<dyn Monitor>,
            Self::Json(printer) => Arc::clone(printer) as Arc<dyn Monitor>,
        }
    }

    /// Ends the output. Returns whether all of it was written.
    fn end(&self) -> bool {
        match self {
            Self::Text(printer) => printer.end(),
            Self::Json(printer) => !printer.has_lost_lines(),
        }
    }

    fn summary(&self, args: &SumArgs, report: &JobReport, code: Code, sizes: Sizes) {
        log_end(&args.output, || SumPrinter::summary(report, sizes));
        match self {
            Self::Json(printer) => printer.summary(report, code),
            Self::Text(_) => {
                if let JobState::Stopped(reason) = report.state
                    && !args.check.status
                {
                    // The printed lines look complete: say that some are missing.
                    let words = crate::print::text::stop_words(reason);
                    crate::print::say(&format!("dmover: {words}; some files were not hashed"));
                }
                if let Self::Text(printer) = self {
                    printer.found_functions().iter().for_each(|note| crate::print::say(note));
                }
                let wanted = args.output.verbose > 0;
                let lines = wanted.then(|| SumPrinter::summary(report, sizes));
                lines.iter().flatten().for_each(|line| crate::print::say(line));
            }
        }
    }

    fn fatal(&self, error: &dmover_model::Fatal) {
        tracing::error!(%error, "the job cannot continue");
        if let Self::Json(printer) = self {
            printer.fatal(error);
        }
    }
}
