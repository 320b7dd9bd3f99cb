//! `dmover snapshot`.
use clap::ArgMatches;
use dmover_engine::{Control, Job, JobList, JobReport, JobState, StopReason, job_id, run_job};
use dmover_job::{
    FoundCounts, Published, Snapshot, SnapshotCounts, SnapshotDirectory, check_snapshot_paths,
};
use dmover_journal::OWN_SNAPSHOTS as OWN;
use dmover_model::{ExitCode as Code, Fatal, PathBytes, Share, SnapshotPolicy, Verb};
use dmover_observe::{Counter, Counters, Monitor};
use dmover_plan::retention::{Dated, Retention};
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
    // A dry run and --print-job create nothing.
    let only_told = args.writing.dry_run || args.output.print_job;
    if let Err(error) = check_snapshot_paths(&source.to_path(), &at) {
        return told(&error, args.output.json);
    }
    let known = SnapshotDirectory::open(&at);
    let fresh = matches!(known, Ok(None));
    let opened = if only_told || !fresh { known } else { SnapshotDirectory::make(&at).map(Some) };
    let snapshots = match opened {
        Ok(snapshots) => snapshots,
        Err(error) => return told(&error, args.output.json),
    };
    let job = |snapshots: Option<&SnapshotDirectory>| {
        let base = snapshots.map(SnapshotDirectory::newest).transpose().map_err(Trouble::Fatal)?;
        let unfinished = snapshots.map_or_else(|| at.join(OWN), SnapshotDirectory::unfinished);
        let policy = SnapshotPolicy {
            directory: directory.clone(),
            base: base.flatten().map(|base| base.name),
            share: match args.how.share {
                ShareArg::Link => Share::Link,
                ShareArg::Reflink => Share::Reflink,
            },
        };
        let paths = (source.clone(), PathBytes::from(unfinished.as_os_str()));
        spec::snapshot_spec(args, paths, policy, matches).map_err(Trouble::Unusable)
    };
    if let Err(error) = snapshots.as_ref().map_or(Ok((Vec::new(), Code::Done)), snapshots_in) {
        return told(&error, args.output.json);
    }
    let spec = match job(snapshots.as_ref()) {
        Ok(spec) => spec,
        Err(trouble) => return trouble.tell(args.output.json),
    };
    if let Some(code) = detach::go_on(&args.job, &args.state, &spec, args.output.quiet > 0) {
        return code;
    }
    // The foreground process of --detach must not hold the lock. The newest snapshot is read again under the lock.
    let begun = snapshots.filter(|_| !only_told).map(|snapshots| {
        let snapshots = snapshots.lock()?;
        let state = usable_state(&args.state, false).ok().flatten();
        let id = job_id(&spec, &JobList::None, state.as_ref())?;
        let of = (source.to_path(), args.how.other_source);
        let begun = snapshots.begin(&of.0, (&id, &spec), of.1, now_ms())?;
        if begun.set_aside {
            say("dmover: note: the unfinished snapshot of another job, or of this job with other \
                 rules, is not resumed; 'dmover snapshot prune' removes it");
        }
        Ok((snapshots, begun.at_ms))
    });
    let begun = match begun.transpose() {
        Ok(begun) => begun,
        Err(error) => return told(&error, args.output.json),
    };
    let spec = match begun.as_ref().map_or(Ok(spec), |(snapshots, _)| job(Some(snapshots))) {
        Ok(spec) => spec,
        Err(trouble) => return trouble.tell(args.output.json),
    };
    let begun = RefCell::new(begun);
    let publish = |report: &JobReport, code: Code| match &*begun.borrow() {
        Some((snapshots, begun_ms)) => publish(args, (snapshots, *begun_ms, &at), report, code),
        None => Ok(Step::Other(Published::Done)),
    };
    let CreateArgs { proof, items, output, job, state, .. } = args;
    let publish = Some(&publish as &transfer::Publish<'_>);
    let transfer =
        Transfer { spec, publish, failed: None, proof, items, output, job, state, fleet: None };
    // The command of --notify may make the next snapshot: its lock is released first.
    transfer::run(&transfer, |failed| {
        if let (Some((snapshots, _)), true, true) = (begun.borrow_mut().take(), fresh, failed) {
            snapshots.leave();
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
    (snapshots, begun_ms, at): (&SnapshotDirectory, i64, &Path),
    report: &JobReport,
    code: Code,
) -> Result<Step, Fatal> {
    if report.state != JobState::Finished {
        return Ok(Step::Other(Published::Done));
    }
    if report.resumed && (args.proof.manifest.is_some() || args.proof.verify != ReadBackArg::None) {
        // Only a full pass finds what failed in the interrupted run.
        say("dmover: the interrupted run is complete; run the same command again to check all \
             entries and to name the snapshot");
        snapshots.refuse()?;
        return Ok(Step::Other(Published::Refused));
    }
    let get = |counter| report.counters.get(counter);
    let earlier = report.earlier_failures;
    let changed = get(Counter::SourceErrors) + earlier.moved_on;
    let errors = get(Counter::Errors).saturating_sub(get(Counter::SourceErrors))
        + get(Counter::NotAttempted)
        + earlier.unseen
        + earlier.there;
    let integrity = code == Code::Integrity;
    let accepted = args.how.accept_errors && !integrity;
    if (errors > 0 || integrity || report.withheld.is_some()) && !accepted {
        let why = if integrity {
            "content on storage differs from what was written".to_owned()
        } else if let (0, Some(withheld)) = (errors, &report.withheld) {
            format!("deletes were withheld: {}", withheld.reason.words())
        } else {
            format!("{} failed", counted(errors, "entry", "entries"))
        };
        say(&format!(
            "dmover: {why}: the snapshot is not complete; run the same command again{}",
            if integrity { "" } else { ", or add --accept-errors to name the snapshot as it is" }
        ));
        snapshots.refuse()?;
        return Ok(Step::Other(Published::Refused));
    }
    // Files shared with the previous snapshot lack the attributes that it lacks.
    let base = snapshots.newest()?.filter(|_| get(Counter::FilesUnchanged) > 0);
    let losses = report.losses.values().sum::<u64>() + base.map_or(0, |base| base.counts.losses);
    let found = (!report.resumed).then(|| FoundCounts {
        entries: get(Counter::EntriesFound),
        bytes: get(Counter::BytesFound),
        new_bytes: get(Counter::BytesCopied) + get(Counter::BytesShared),
    });
    let counts = SnapshotCounts { errors, changed, losses, found };
    let name = name_of(begun_ms);
    snapshots.publish(&name, &report.job, counts, now_ms())?;
    Ok(Step::Named(at.join(name)))
}

/// The name of a snapshot: a time with milliseconds, so that names sort by time.
fn name_of(begun_ms: i64) -> String {
    time(begun_ms).strftime("%Y-%m-%dT%H-%M-%S.%3fZ").to_string()
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
    for error in unreadable {
        failure(&error.to_string(), &error.hint());
    }
    Ok((all, code))
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

/// The start of a snapshot, in the local time zone.
fn dated(snapshot: &Snapshot) -> Dated {
    let begun = time(snapshot.begun_ms).to_zoned(TimeZone::system());
    let (date, week) = (begun.date(), begun.date().iso_week_date());
    let number = |parts: [i64; 4]| parts.iter().fold(0, |all, part| all * 400 + part);
    let (year, month, day) = (date.year().into(), date.month().into(), date.day().into());
    // Local hours: an offset from UTC may have minutes, and the hour that repeats at the end of summer time counts as two.
    let offset = i64::from(begun.offset().seconds());
    let hour = (snapshot.begun_ms + offset * 1000).div_euclid(3_600_000) * 200_000 + offset;
    let day = number([year, month, day, 0]);
    let week = number([week.year().into(), week.week().into(), 0, 0]);
    let period = [hour, day, week, number([year, month, 0, 0]), year];
    Dated { begun_ms: snapshot.begun_ms, period, whole: snapshot.is_whole() }
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
    let dates: Vec<Dated> = all.iter().map(dated).collect();
    let keeps = retention.keeps(&dates, now_ms());
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
    umask: u32,
    open_files_max: u64,
}

impl<'a> Remover<'a> {
    fn new(args: &'a PruneArgs) -> Result<Self, Fatal> {
        let hint = "choose another file, or check permissions";
        let errors = ErrorsTo::create(&args.output).map_err(|why| Fatal::refused(why, hint))?;
        let umask = dmover_host::process::clear_umask();
        let open_files_max = dmover_host::process::raise_open_files();
        let (control, counters) = (Arc::new(Control::default()), Arc::new(Counters::default()));
        let sizes = Sizes::new(args.output.bytes, args.output.si);
        let progress = Progress::start(&args.output, Verb::Sync, sizes, Arc::clone(&counters));
        listen(&control, &progress, args.output.quiet > 0).map_err(Fatal::Thread)?;
        let (shown, own) = (Arc::clone(&progress), Arc::clone(&control));
        let printer = Arc::new(TextPrinter::new(None, &args.output, sizes, shown, own));
        let monitor = errors.monitor(printer);
        Ok(Self { args, control, counters, progress, monitor, umask, open_files_max })
    }

    fn remove(&self, at: &SnapshotDirectory, tree: &Path, empty: &Path) -> Result<Code, Fatal> {
        let bytes = |path: &Path| PathBytes::from(path.as_os_str());
        let spec = spec::removal_spec(&bytes(empty), &bytes(tree), &self.args.limits);
        let job = Job {
            monitor: Arc::clone(&self.monitor),
            counters: Arc::clone(&self.counters),
            control: Arc::clone(&self.control),
            description: describe(None, None),
            ..Job::new(spec, self.umask, self.open_files_max)
        };
        let report = run_job(&job)?;
        if report.state == JobState::Finished
            && report.exit_code() == Code::Done
            && let Err(error) = at.forget(tree)
        {
            failure(&error.to_string(), &error.hint());
            return Ok(Code::Partial);
        }
        Ok(report.exit_code())
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
