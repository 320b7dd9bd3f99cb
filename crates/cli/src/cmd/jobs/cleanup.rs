//! `dmover cleanup`.
use dmover_job::cleanup::{self, Cleanup, Record, clean};
use dmover_job::description::{places, verb};
use dmover_job::quote::quoted;
use dmover_job::{KnownJob, Refusal};
use dmover_journal::StateDirectory;
use dmover_model::ExitCode as Code;
use dmover_queue::placement::{remove_broker, unused_brokers};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use super::{directory, find, refuse};
use crate::args::CleanupArgs;
use crate::cmd::run::exit;
use crate::print::{counted, failure, line, say};

/// Removes the records of jobs, and their leftovers at the destination.
pub(crate) fn cleanup(args: &CleanupArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known: Result<Vec<KnownJob>, Refusal> = match args.older_than {
        Some(ms) => old(place, ms),
        None if args.all => directory(place).and_then(|state| cleanup::every(&state)),
        None => args.jobs.iter().map(|named| find(named, place)).collect(),
    };
    let known = match known {
        Ok(known) => known,
        Err(refused) => return refuse(refused),
    };
    let mut code = Code::Done;
    for known in &known {
        code = code.merge(clean_one(known, args));
    }
    if args.all
        && let Ok(state) = directory(place)
    {
        code = code.merge(clean_retired(&state, args.dry_run));
        code = code.merge(clean_brokers(state.path(), args.dry_run));
    }
    exit(code)
}

/// The jobs that ended longer ago than this and that no later run needs.
fn old(place: Option<&OsString>, ms: u64) -> Result<Vec<KnownJob>, Refusal> {
    let (unneeded, needed) = cleanup::old(&directory(place)?, ms)?;
    match (needed, unneeded.len()) {
        (0, 0) => say("dmover: no finished or cancelled job is older than the given time"),
        (0, _) => {}
        (kept, _) => {
            let jobs = counted(kept as u64, "older job", "older jobs");
            say(&format!(
                "dmover: note: kept {jobs} that later runs need: 'sync' jobs, snapshots, and jobs with failed entries or losses; \
                 'dmover cleanup JOB' removes one"
            ));
        }
    }
    Ok(unneeded)
}

/// Removes what `cleanup --older-than` has kept of jobs, and the directories of jobs that never started.
fn clean_retired(state: &StateDirectory, dry_run: bool) -> Code {
    let retired = match cleanup::clean_retired(state, dry_run) {
        Ok(retired) => retired,
        Err(error) => {
            let message = format!("cannot read '{}': {error}", state.path().display());
            failure(&message, "check permissions");
            return Code::Partial;
        }
    };
    let mut code = Code::Done;
    for (job, removed) in retired {
        match removed {
            Ok(()) if dry_run => say(&format!(
                "dmover: would remove the last files of job {job}, which was removed before"
            )),
            Ok(()) => say(&format!(
                "dmover: removed the last files of job {job}, which was removed before"
            )),
            Err(error) => {
                let message = format!("cannot remove the last files of job {job}: {error}");
                failure(&message, "check permissions");
                code = Code::Partial;
            }
        }
    }
    code
}

/// Removes the logs, the data and the secrets of brokers that do not run.
fn clean_brokers(state: &std::path::Path, dry_run: bool) -> Code {
    let mut code = Code::Done;
    for path in unused_brokers(state) {
        let shown = path.display();
        if dry_run {
            say(&format!("dmover: would remove data and secret of a stopped broker: '{shown}'"));
            continue;
        }
        match remove_broker(&path) {
            Ok(()) => {
                say(&format!("dmover: removed data and secret of a stopped broker: '{shown}'"));
            }
            Err(error) => {
                failure(&format!("cannot remove '{shown}': {error}"), "check permissions");
                code = Code::Partial;
            }
        }
    }
    code
}

fn clean_one(known: &KnownJob, args: &CleanupArgs) -> Code {
    let file = &known.file;
    let shown = format!("{} ({} {})", file.job, verb(file), places(file));
    let cleaned = clean(known, Cleanup { older_than_ms: args.older_than, dry_run: args.dry_run });
    for left in cleaned.leftovers {
        match left {
            Ok(path) => line(&quoted(path.as_os_str().as_bytes())),
            Err(message) => failure(
                &message,
                "fix the cause and run the same command again, or remove it by hand",
            ),
        }
    }
    match cleaned.record {
        Record::Running => {
            say(&format!("dmover: note: job {shown} is running and is not removed"));
            return if args.jobs.is_empty() { Code::Done } else { Code::Temporary };
        }
        Record::Needed => {}
        Record::Stays => return Code::Partial,
        Record::WouldGo => say(&format!("dmover: would remove the record of job {shown}")),
        Record::Removed => say(&format!("dmover: removed the record of job {shown}")),
        Record::NotLocked(error) => {
            failure(&format!("cannot remove the record of job {shown}: {error}"), &error.hint());
            return Code::Partial;
        }
        Record::NotRemoved(error) => {
            let message = format!("cannot remove the record of job {shown}: {error}");
            failure(&message, "check permissions");
            return Code::Partial;
        }
    }
    Code::Done
}
