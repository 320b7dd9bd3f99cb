//! Turns arguments of `sync` and `snapshot` into jobs.
use clap::ArgMatches;
use clap::parser::ValueSource;
use dmover_model::{
    Confirmed, CopyPolicy, DeleteLimit, DeletePolicy, DeleteWhen, JobSpec, Limits, PathBytes,
    Selection, SnapshotPolicy, SyncPolicy, TargetMode, Verb,
};

use super::{
    Unusable, check_links, check_read_back, filter, is_remote, limits, path_arguments, policy,
    refuse_remote, unusable,
};
use crate::args::{CreateArgs, DeleteArg, SyncArgs};

/// The job of these arguments of `sync`.
pub(crate) fn sync_spec(args: &SyncArgs, matches: &ArgMatches) -> Result<JobSpec, Unusable> {
    let hint = "usage: dmover sync [OPTIONS] SOURCE DEST (see 'dmover sync -h')";
    let paths = path_arguments(&args.paths)?;
    let [source, destination] = &paths[..] else {
        let message = match paths.len() {
            0 => "no SOURCE and no DEST given".to_owned(),
            1 => format!("no DEST given after '{}'", paths[0].to_path().display()),
            _ => {
                "more than one SOURCE given; 'dmover copy' takes several, sync makes DEST match one"
                    .to_owned()
            }
        };
        return Err(unusable(message, hint));
    };
    // As they were typed: 'host:' with a slash behind it would be the top of that host.
    is_remote(destination)?;
    let is_remote = is_remote(source)?;
    if !is_remote && std::fs::metadata(source.to_path()).is_ok_and(|found| !found.is_dir()) {
        let message = format!("'{}' is not a directory", source.to_path().display());
        return Err(unusable(message, "sync needs a directory; use 'dmover copy' for files"));
    }
    let policy = policy(&args.fidelity, &args.writing, &args.proof)?;
    let spec = pass(
        (contents_of(source), contents_of(destination)),
        filter(&args.filter, matches)?,
        CopyPolicy {
            dry_run: policy.dry_run || args.comparison.check,
            sync: Some(sync_policy(args, matches)?),
            ..policy
        },
        limits(&args.limits),
    );
    let spec = JobSpec { sources_are_remote: is_remote, ..spec };
    check_links(&args.fidelity, &args.filter)?;
    check_read_back(&args.proof, &spec)?;
    Ok(spec)
}

fn pass(
    (source, destination): (PathBytes, PathBytes),
    selection: Selection,
    policy: CopyPolicy,
    limits: Limits,
) -> JobSpec {
    JobSpec {
        schema: JobSpec::SCHEMA,
        verb: Verb::Sync,
        sources: vec![source],
        sources_are_remote: false,
        host: None,
        destination,
        target_mode: TargetMode::As,
        selection,
        policy,
        limits,
    }
}

/// SOURCE of a snapshot and the directory of its snapshots.
pub(crate) fn snapshot_paths(args: &CreateArgs) -> Result<(PathBytes, PathBytes), Unusable> {
    let hint = "usage: dmover snapshot create [OPTIONS] SOURCE DIR";
    let paths = path_arguments(&args.paths)?;
    let [source, directory] = &paths[..] else {
        return Err(unusable("SOURCE and DIR, the directory of its snapshots, are required", hint));
    };
    let why = "run 'dmover snapshot' on the host of its directory, with SOURCE there";
    [source, directory].into_iter().try_for_each(|path| refuse_remote(path, why))?;
    Ok((contents_of(source), directory.clone()))
}

/// The pass that makes the tree of a snapshot in `unfinished`.
pub(crate) fn snapshot_spec(
    args: &CreateArgs,
    (source, unfinished): (PathBytes, PathBytes),
    snapshot: SnapshotPolicy,
    matches: &ArgMatches,
) -> Result<JobSpec, Unusable> {
    let policy = policy(&args.fidelity, &args.writing, &args.proof)?;
    let sync = SyncPolicy {
        // Removes what an interrupted run copied and the source no longer has.
        delete: Some(DeletePolicy {
            when: DeleteWhen::Delay,
            limit: None,
            trash: None,
            confirmed: Confirmed::All,
        }),
        allow_empty_source: args.how.allow_empty_source,
        checksum: args.how.checksum,
        ctime: args.how.ctime,
        renames: false,
        clears_all: false,
        snapshot: Some(snapshot),
    };
    let spec = pass(
        (source, contents_of(&unfinished)),
        filter(&args.filter, matches)?,
        CopyPolicy { sync: Some(sync), ..policy },
        limits(&args.limits),
    );
    check_links(&args.fidelity, &args.filter)?;
    check_read_back(&args.proof, &spec)?;
    Ok(spec)
}

/// A path with exactly one slash at its end, so that a link to a directory means the directory.
fn contents_of(path: &PathBytes) -> PathBytes {
    let end = path.0.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    PathBytes([&path.0[..end], b"/"].concat())
}

/// Whether an option is on the command line. For deletes nothing else counts: files and variables apply to every command.
fn is_typed(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// Which deletes the command line confirms.
pub(crate) fn confirmed(args: &SyncArgs, matches: &ArgMatches) -> Confirmed {
    if args.delete.yes && is_typed(matches, "yes") {
        Confirmed::All
    } else if is_typed(matches, "max_delete") {
        Confirmed::Limit
    } else {
        Confirmed::None
    }
}

fn sync_policy(args: &SyncArgs, matches: &ArgMatches) -> Result<SyncPolicy, Unusable> {
    // --check deletes nothing, so it needs no confirmation.
    let only_checks = args.comparison.check && !args.writing.dry_run;
    let confirmed = if only_checks { Confirmed::All } else { confirmed(args, matches) };
    let delete = args.delete.delete.map(|when| DeletePolicy {
        when: match when {
            DeleteArg::During => DeleteWhen::During,
            DeleteArg::Delay => DeleteWhen::Delay,
            DeleteArg::After => DeleteWhen::After,
        },
        limit: args.delete.max_delete,
        trash: args.delete.trash.as_ref().map(|trash| PathBytes::from(trash.as_os_str())),
        confirmed,
    });
    let share = matches!(args.delete.max_delete, Some(DeleteLimit::Millionths(_)));
    if share && args.delete.delete == Some(DeleteArg::During) {
        let hint = "use --delete=delay or --delete=after, or give a number of entries";
        let message = "--max-delete=P% needs a full scan before the first delete, which \
                       --delete=during does not do";
        return Err(unusable(message, hint));
    }
    Ok(SyncPolicy {
        delete,
        allow_empty_source: args.delete.allow_empty_source,
        checksum: args.comparison.checksum,
        ctime: args.comparison.ctime,
        renames: !args.comparison.no_renames,
        clears_all: false,
        snapshot: None,
    })
}
