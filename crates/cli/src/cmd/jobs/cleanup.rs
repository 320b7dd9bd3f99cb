//! `dmover cleanup`.
use dmover_journal::{JobPhase, StateDirectory};
use dmover_model::{ExitCode as Code, Fatal, JobId, Verb};
use dmover_observe::Counter;
use dmover_queue::placement::{remove_broker, unused_brokers};
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::SystemTime;

use super::shown::{self, places};
use super::{Known, Refused, all, directory, find, refuse};
use crate::args::CleanupArgs;
use crate::cmd::run::exit;
use crate::print::{counted, failure, line, say};
use dmover_job::quote::quoted;

/// Removes the records of jobs, and their leftovers at the destination.
pub(crate) fn cleanup(args: &CleanupArgs) -> ExitCode {
    let place = args.place.state_dir.as_ref();
    let known: Result<Vec<Known>, Refused> = match args.older_than {
        Some(ms) => old(place, ms),
        None if args.all => every(place),
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

fn every(place: Option<&OsString>) -> Result<Vec<Known>, Refused> {
    let state = directory(place)?;
    let files = all(&state)?;
    Ok(files.into_iter().map(|file| Known { state: state.clone(), file }).collect())
}

/// The jobs that ended longer ago than this and that no later run needs.
fn old(place: Option<&OsString>, ms: u64) -> Result<Vec<Known>, Refused> {
    let known = every(place)?;
    let ended = known.into_iter().filter(|known| has_aged(known, ms));
    let (needed, unneeded): (Vec<_>, Vec<_>) = ended.partition(is_needed);
    match (needed.len(), unneeded.len()) {
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

/// Whether a job finished or was cancelled longer ago than this.
fn has_aged(Known { state, file }: &Known, ms: u64) -> bool {
    let Some(status) = state.status(&file.job) else { return false };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let age = now.as_millis() as i64 - status.updated_ms;
    let has_ended = matches!(status.phase, JobPhase::Finished | JobPhase::Cancelled);
    has_ended && u64::try_from(age).is_ok_and(|age| age > ms)
}

/// Whether a later run needs the record of a job that has ended. The journal of a `sync` says which directory SOURCE was, so that
/// `--delete` does not delete what another one lacks; `retry` needs what failed.
fn is_needed(Known { state, file }: &Known) -> bool {
    let Some(status) = state.status(&file.job) else { return true };
    let count = |counter: Counter| status.counters.get(counter.name()).copied().unwrap_or(0);
    let troubles = [Counter::Errors, Counter::Losses, Counter::DeletesWithheld];
    let is_clean = status.exit_code == Some(0) && troubles.into_iter().all(|one| count(one) == 0);
    file.verb == Verb::Sync.word() || (status.phase == JobPhase::Finished && !is_clean)
}

/// Removes what `cleanup --older-than` has kept of jobs, and the directories of jobs that never started.
fn clean_retired(state: &StateDirectory, dry_run: bool) -> Code {
    let retired = match state.retired() {
        Ok(retired) => retired,
        Err(error) => {
            let message = format!("cannot read '{}': {error}", state.path().display());
            failure(&message, "check permissions");
            return Code::Partial;
        }
    };
    let mut code = Code::Done;
    for job in retired {
        if dry_run {
            say(&format!(
                "dmover: would remove the last files of job {job}, which was removed before"
            ));
            continue;
        }
        // One that is locked is starting now.
        let Ok(lock) = state.lock(&JobId(job.clone())) else { continue };
        if state.job_file(&job).is_some() {
            continue;
        }
        match state.forget(&job, &lock) {
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

fn clean_one(known: &Known, args: &CleanupArgs) -> Code {
    let Known { state, file } = known;
    let shown = format!("{} ({} {})", file.job, shown::verb(file), places(file));
    // The lock keeps the job from starting meanwhile. A dry run also works without it, in a read-only state directory.
    let locked = state.lock(&JobId(file.job.clone()));
    if matches!(locked, Err(Fatal::Locked { .. })) {
        say(&format!("dmover: note: job {shown} is running and is not removed"));
        return if args.jobs.is_empty() { Code::Done } else { Code::Temporary };
    }
    // The job may have run again since its status was read.
    if args.older_than.is_some_and(|ms| !has_aged(known, ms) || is_needed(known)) {
        return Code::Done;
    }
    let lock = match locked {
        Ok(lock) => Some(lock),
        Err(_) if args.dry_run => None,
        Err(error) => {
            failure(&format!("cannot remove the record of job {shown}: {error}"), &error.hint());
            return Code::Partial;
        }
    };
    let at = file.directory.to_path().join(file.destination.to_path());
    let leftovers = dmover_engine::remove_leftovers(&file.job, &at, args.dry_run);
    let mut code = Code::Done;
    for left in leftovers {
        match left {
            Ok(path) => line(&quoted(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()))),
            Err(message) => {
                failure(
                    &message,
                    "fix the cause and run the same command again, or remove it by hand",
                );
                code = Code::Partial;
            }
        }
    }
    if code != Code::Done {
        return code;
    }
    if args.dry_run {
        say(&format!("dmover: would remove the record of job {shown}"));
        return code;
    }
    let remove = |lock| match args.older_than {
        Some(_) => state.retire(&file.job, &lock),
        None => state.forget(&file.job, &lock),
    };
    match lock.map_or(Ok(()), remove) {
        Ok(()) => say(&format!("dmover: removed the record of job {shown}")),
        Err(error) => {
            failure(
                &format!("cannot remove the record of job {shown}: {error}"),
                "check permissions",
            );
            code = Code::Partial;
        }
    }
    code
}
