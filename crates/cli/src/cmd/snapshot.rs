//! `dmover snapshot`.
use clap::ArgMatches;
use dmover_engine::{Control, Job, JobFiles, JobReport, Observers, ProcessFacts, StopReason};
use dmover_job::{
    Concluded, FoundCounts, Naming, NotNamed, Published, Snapshot, SnapshotDirectory,
    SnapshotInProgress, SnapshotPlan, SnapshotStart, kept,
};
use dmover_model::{ExitCode as Code, Fatal, PathBytes, Share, SnapshotPolicy, Verb};
use dmover_observe::{Counter, Counters, Monitor};
use dmover_plan::retention::Retention;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use super::detach;
use super::run::{describe, exit, listen, refuse, usable_state};
use super::transfer::{self, Step, Transfer};
use crate::args::{
    CreateArgs, KeptArgs, ListArgs, PruneArgs, ReadBackArg, ShareArg, SnapshotAction, SnapshotArgs,
};
use crate::print::errors::ErrorsTo;
use crate::print::json::{self, SCHEMA};
use crate::print::progress::Progress;
use crate::print::text::TextPrinter;
use crate::print::{Sizes, counted, failure, grouped, line, say};
use crate::spec;

pub(crate) fn run(args: &SnapshotArgs, matches: Option<&ArgMatches>) -> ExitCode {
    let matches = matches.and_then(ArgMatches::subcommand).map(|(_, matches)| matches);
    let Some(matches) = matches else { return exit(Code::Usage) };
    match &args.action {
        SnapshotAction::Create(args) => create(args, matches),
        SnapshotAction::List(args) => list(args).unwrap_or_else(|error| told(&error, args.json)),
        SnapshotAction::Prune(args) => {
            prune(args).unwrap_or_else(|error| told(&error, args.output.json))
        }
    }
}

fn told(error: &Fatal, as_json: bool) -> ExitCode {
    if as_json {
        line(&json::fatal(error));
    }
    failure(&error.to_string(), &error.hint());
    exit(error.exit_code())
}

fn create(args: &CreateArgs, matches: &ArgMatches) -> ExitCode {
    let (source, directory) = match spec::snapshot_paths(args) {
        Ok(paths) => paths,
        Err(unusable) => return refuse(&unusable),
    };
    let at = directory.to_path();
    let plan = SnapshotPlan {
        source,
        directory,
        share: match args.how.share {
            ShareArg::Link => Share::Link,
            ShareArg::Reflink => Share::Reflink,
        },
        other_source: args.how.other_source,
    };
    // A dry run and --print-job create nothing.
    let only_told = args.writing.dry_run || args.output.print_job;
    let opened = SnapshotStart::open(plan, only_told);
    let opened = opened.and_then(|start| Ok((start.unreadable()?, start)));
    let (unreadable, start) = match opened {
        Ok(opened) => opened,
        Err(error) => return told(&error, args.output.json),
    };
    all_failures(&unreadable);
    let spec_of = |policy: Result<((PathBytes, PathBytes), SnapshotPolicy), Fatal>| {
        let (paths, policy) = policy.map_err(Trouble::Fatal)?;
        spec::snapshot_spec(args, paths, policy, matches).map_err(Trouble::Unusable)
    };
    let spec = match spec_of(start.policy()) {
        Ok(spec) => spec,
        Err(trouble) => return trouble.tell(args.output.json),
    };
    if let Some(code) = detach::go_on(&args.job, &args.state, &spec, args.output.quiet > 0) {
        return code;
    }
    // The foreground process of --detach must not hold the lock. The newest snapshot is read again under the lock.
    let state = || usable_state(&args.state, false).ok().flatten();
    let begun = if only_told { Ok(None) } else { start.begin(&spec, state) };
    let begun = match begun {
        Ok(begun) => begun,
        Err(error) => return told(&error, args.output.json),
    };
    if begun.as_ref().is_some_and(SnapshotInProgress::has_set_aside) {
        say("dmover: note: the unfinished snapshot of another job, or of this job with other \
             rules, is not resumed; 'dmover snapshot prune' removes it");
    }
    let spec = match begun.as_ref().map_or(Ok(spec), |begun| spec_of(begun.policy())) {
        Ok(spec) => spec,
        Err(trouble) => return trouble.tell(args.output.json),
    };
    let begun = RefCell::new(begun);
    let publish = |report: &JobReport, code: Code| match &*begun.borrow() {
        Some(begun) => publish(args, (begun, &at), report, code),
        None => Ok(Step::Other(Published::Done)),
    };
    let CreateArgs { proof, items, output, job, state, .. } = args;
    let publish = Some(&publish as &transfer::Publish<'_>);
    let transfer = Transfer {
        spec,
        publish,
        failed: None,
        proof,
        items,
        output,
        job,
        state,
        fleet: None,
        remote: None,
        chunk_movers: None,
    };
    // The command of --notify may make the next snapshot: its lock is released first.
    transfer::run(&transfer, |failed| {
        if let Some(begun) = begun.borrow_mut().take() {
            begun.end(failed);
        }
    })
}

/// Why there is no job.
enum Trouble {
    Fatal(Fatal),
    Unusable(spec::Unusable),
}

impl Trouble {
    fn tell(&self, as_json: bool) -> ExitCode {
        match self {
            Self::Fatal(error) => told(error, as_json),
            Self::Unusable(unusable) => refuse(unusable),
        }
    }
}

/// Names the tree as a snapshot, unless entries are missing.
fn publish(
    args: &CreateArgs,
    (begun, at): (&SnapshotInProgress, &Path),
    report: &JobReport,
    code: Code,
) -> Result<Step, Fatal> {
    let naming = Naming {
        needs_one_run: args.proof.manifest.is_some() || args.proof.verify != ReadBackArg::None,
        accepts_errors: args.how.accept_errors,
    };
    let mut tell = |why: &NotNamed<'_>| say(&why_not_named(why));
    Ok(match begun.conclude(report, code, naming, &mut tell)? {
        Concluded::Named(name) => Step::Named(at.join(name)),
        Concluded::Refused => Step::Other(Published::Refused),
        Concluded::Unfinished => Step::Other(Published::Done),
    })
}

fn why_not_named(why: &NotNamed<'_>) -> String {
    let why_text = match why {
        NotNamed::Resumed => {
            return "dmover: the interrupted run is complete; run the same command again to check all \
             entries and to name the snapshot"
                .into();
        }
        NotNamed::Corrupt => "content on storage differs from what was written".to_owned(),
        NotNamed::Withheld(reason) => format!("deletes were withheld: {}", reason.words()),
        NotNamed::Failed(errors) => format!("{} failed", counted(*errors, "entry", "entries")),
    };
    format!(
        "dmover: {why_text}: the snapshot is not complete; run the same command again{}",
        if *why == NotNamed::Corrupt {
            ""
        } else {
            ", or add --accept-errors to name the snapshot as it is"
        }
    )
}

fn time(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap_or_default()
}

fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

/// Opens a directory that already has snapshots.
fn existing(directory: &OsStr) -> Result<SnapshotDirectory, Fatal> {
    let at = Path::new(directory);
    SnapshotDirectory::open(at)?.ok_or_else(|| {
        let message = format!("'{}' contains no snapshots of dmover", at.display());
        Fatal::refused(message, "name the DIR that 'dmover snapshot create' wrote to")
    })
}

/// The snapshots in a directory. An unreadable snapshot is reported and not changed.
fn snapshots_in(directory: &SnapshotDirectory) -> Result<(Vec<Snapshot>, Code), Fatal> {
    let (all, unreadable) = directory.list()?;
    let code = if unreadable.is_empty() { Code::Done } else { Code::Partial };
    all_failures(&unreadable);
    Ok((all, code))
}

fn all_failures(errors: &[Fatal]) {
    for error in errors {
        failure(&error.to_string(), &error.hint());
    }
}

fn as_json(snapshot: &Snapshot, action: &str) -> String {
    let Snapshot { counts, .. } = snapshot;
    let found = |number: fn(&FoundCounts) -> u64| counts.found.as_ref().map(number);
    json!({
        "type": "snapshot", "schema": SCHEMA, "name": snapshot.name, "action": action,
        "begun": time(snapshot.begun_ms).to_string(), "ended": time(snapshot.ended_ms).to_string(),
        "entries": found(|found| found.entries), "bytes": found(|found| found.bytes),
        "bytes_new": found(|found| found.new_bytes), "errors": counts.errors,
        "changed": counts.changed, "losses": counts.losses, "job": snapshot.job,
    })
    .to_string()
}

fn as_text(snapshot: &Snapshot) -> String {
    let sizes = Sizes::new(false, false);
    let found = match &snapshot.counts.found {
        Some(FoundCounts { entries, bytes, new_bytes }) => {
            let (bytes, new) = (sizes.show(*bytes), sizes.show(*new_bytes));
            format!("{:>12} entries  {bytes:>10}, {new} new", grouped(*entries))
        }
        None => "made by several runs, not counted".into(),
    };
    let missing = match snapshot.counts.errors {
        0 => String::new(),
        errors => format!("  INCOMPLETE: {} failed", grouped(errors)),
    };
    let lost = match snapshot.counts.losses {
        0 => String::new(),
        losses => format!("  {} lost", counted(losses, "attribute", "attributes")),
    };
    format!("{}  {found}{missing}{lost}", snapshot.name)
}

fn list(args: &ListArgs) -> Result<ExitCode, Fatal> {
    let (all, code) = snapshots_in(&existing(&args.directory)?)?;
    for snapshot in all {
        line(&if args.json { as_json(&snapshot, "keep") } else { as_text(&snapshot) });
    }
    Ok(exit(code))
}

fn retention(kept: &KeptArgs) -> Retention {
    let KeptArgs { last, hourly, daily, weekly, monthly, yearly, within } = kept;
    Retention {
        last: last.unwrap_or(0),
        periods: [hourly, daily, weekly, monthly, yearly].map(|number| number.unwrap_or(0)),
        within_ms: *within,
    }
}

fn prune(args: &PruneArgs) -> Result<ExitCode, Fatal> {
    let retention = retention(&args.keep);
    if retention.is_empty() {
        let hint = "say what to keep, such as --keep-last 3 --keep-daily 7 --keep-monthly 12";
        return Err(Fatal::refused("no --keep option is given, or all are 0", hint));
    }
    let snapshots = existing(&args.directory)?;
    let snapshots = if args.dry_run { snapshots } else { snapshots.lock()? };
    let (all, mut code) = snapshots_in(&snapshots)?;
    let keeps = kept(&all, &retention, &TimeZone::system(), now_ms());
    for (snapshot, keeps) in all.iter().zip(&keeps) {
        let action = if *keeps { "keep" } else { "remove" };
        if args.output.json {
            line(&as_json(snapshot, action));
        } else if args.output.quiet == 0 {
            line(&format!("{action:<6}  {}", as_text(snapshot)));
        }
    }
    if args.dry_run {
        return Ok(exit(code));
    }
    let mut left = Vec::new();
    for (snapshot, _) in all.iter().zip(&keeps).filter(|(_, keeps)| !**keeps) {
        match snapshots.retire(&snapshot.name) {
            Ok(tree) => left.extend(tree),
            Err(error) => {
                failure(&error.to_string(), &error.hint());
                code = Code::Partial;
            }
        }
    }
    let (trees, empty) = snapshots.removed()?;
    let remover = Remover::new(args)?;
    for tree in left.into_iter().chain(trees) {
        code = code.merge(remover.remove(&snapshots, &tree, &empty)?);
    }
    Ok(remover.end(code))
}

/// Removes trees one by one.
struct Remover<'a> {
    args: &'a PruneArgs,
    control: Arc<Control>,
    counters: Arc<Counters>,
    progress: Arc<Progress>,
    monitor: Arc<dyn Monitor>,
    process: ProcessFacts,
}

impl<'a> Remover<'a> {
    fn new(args: &'a PruneArgs) -> Result<Self, Fatal> {
        let hint = "choose another file, or check permissions";
        let errors = ErrorsTo::create(&args.output).map_err(|why| Fatal::refused(why, hint))?;
        let umask = dmover_host::process::clear_umask();
        let process = ProcessFacts::new(umask, dmover_host::process::raise_open_files());
        let (control, counters) = (Arc::new(Control::default()), Arc::new(Counters::default()));
        let sizes = Sizes::new(args.output.bytes, args.output.si);
        let progress = Progress::start(&args.output, Verb::Sync, sizes, Arc::clone(&counters));
        listen(&control, &progress, args.output.quiet > 0).map_err(Fatal::Thread)?;
        let (shown, own) = (Arc::clone(&progress), Arc::clone(&control));
        let printer = Arc::new(TextPrinter::new(None, &args.output, sizes, shown, own));
        let monitor = errors.monitor(printer);
        Ok(Self { args, control, counters, progress, monitor, process })
    }

    fn remove(&self, at: &SnapshotDirectory, tree: &Path, empty: &Path) -> Result<Code, Fatal> {
        let job = |spec| Job {
            files: JobFiles { description: describe(None, None), ..JobFiles::default() },
            observers: Observers {
                monitor: Arc::clone(&self.monitor),
                counters: Arc::clone(&self.counters),
                ..Observers::default()
            },
            control: Arc::clone(&self.control),
            ..Job::new(spec, self.process.clone())
        };
        let limits = spec::limits(&self.args.limits);
        let (code, stays) = at.remove((tree, empty), limits, &job)?;
        if let Some(error) = stays {
            failure(&error.to_string(), &error.hint());
        }
        Ok(code)
    }

    fn end(&self, code: Code) -> ExitCode {
        self.progress.end();
        let removed = self.counters.get(Counter::EntriesDeleted);
        if self.args.output.quiet == 0 && !self.args.output.json && removed > 0 {
            say(&format!("dmover: removed {}", counted(removed, "entry", "entries")));
        }
        match self.control.reason() {
            Some(StopReason::Signal(signal)) => crate::signals::raise_again(signal),
            _ => exit(code),
        }
    }
}
