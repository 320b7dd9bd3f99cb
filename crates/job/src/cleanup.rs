//! Removes the records of jobs, and their leftovers at the destination.
use dmover_journal::{JobPhase, StateDirectory, now_ms};
use dmover_model::{Fatal, JobId, Verb};
use dmover_observe::Counter;
use std::path::PathBuf;

use crate::find::all;
use crate::known::KnownJob;
use crate::refusal::Refusal;

/// How jobs are removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cleanup {
    /// Only jobs that ended longer ago than this, in milliseconds, and that no later run needs. What the next run of the
    /// same command needs is kept.
    pub older_than_ms: Option<u64>,
    /// Only show what would be removed.
    pub dry_run: bool,
}

/// What became of one job.
#[derive(Debug)]
pub struct Cleaned {
    /// The leftovers at the destination that were removed, or why one was not.
    pub leftovers: Vec<Result<PathBuf, String>>,
    /// What became of its record.
    pub record: Record,
}

/// What became of the record of a job.
#[derive(Debug)]
pub enum Record {
    /// The job is running, and nothing was removed.
    Running,
    /// The job has run again meanwhile, and nothing was removed.
    Needed,
    /// It stays, because leftovers stay.
    Stays,
    /// A dry run would remove it.
    WouldGo,
    /// It is removed.
    Removed,
    /// The lock of the job cannot be taken.
    NotLocked(Fatal),
    /// It cannot be removed.
    NotRemoved(std::io::Error),
}

/// All jobs of a state directory, the latest start first.
///
/// # Errors
/// The state directory cannot be read.
pub fn every(state: &StateDirectory) -> Result<Vec<KnownJob>, Refusal> {
    let files = all(state)?;
    Ok(files.into_iter().map(|file| KnownJob { state: state.clone(), file }).collect())
}

/// The jobs that ended longer ago than this time in milliseconds: those that no later run needs, and the number of the
/// others.
///
/// # Errors
/// The state directory cannot be read.
pub fn old(state: &StateDirectory, ms: u64) -> Result<(Vec<KnownJob>, usize), Refusal> {
    let ended = every(state)?.into_iter().filter(|known| has_aged(known, ms));
    let (needed, unneeded): (Vec<_>, Vec<_>) = ended.partition(is_needed);
    Ok((unneeded, needed.len()))
}

/// Whether a job finished or was cancelled longer ago than this.
fn has_aged(KnownJob { state, file }: &KnownJob, ms: u64) -> bool {
    let Some(status) = state.status(&file.job) else { return false };
    let age = now_ms() - status.updated_ms;
    let has_ended = matches!(status.phase, JobPhase::Finished | JobPhase::Cancelled);
    has_ended && u64::try_from(age).is_ok_and(|age| age > ms)
}

/// Whether a later run needs the record of a job that has ended. The journal of a `sync` says which directory SOURCE was, so that
/// `--delete` does not delete what another one lacks; `retry` needs what failed.
fn is_needed(KnownJob { state, file }: &KnownJob) -> bool {
    let Some(status) = state.status(&file.job) else { return true };
    let count = |counter: Counter| status.counters.get(counter.name()).copied().unwrap_or(0);
    let troubles = [Counter::Errors, Counter::Losses, Counter::DeletesWithheld];
    let is_clean = status.exit_code == Some(0) && troubles.into_iter().all(|one| count(one) == 0);
    file.verb == Verb::Sync.word() || (status.phase == JobPhase::Finished && !is_clean)
}

/// Removes the record of a job and its leftovers at the destination.
pub fn clean(known: &KnownJob, how: Cleanup) -> Cleaned {
    let nothing = |record| Cleaned { leftovers: Vec::new(), record };
    let KnownJob { state, file } = known;
    // The lock keeps the job from starting meanwhile. A dry run also works without it, in a read-only state directory.
    let locked = state.lock(&JobId(file.job.clone()));
    if matches!(locked, Err(Fatal::Locked { .. })) {
        return nothing(Record::Running);
    }
    // The job may have run again since its status was read.
    if how.older_than_ms.is_some_and(|ms| !has_aged(known, ms) || is_needed(known)) {
        return nothing(Record::Needed);
    }
    let lock = match locked {
        Ok(lock) => Some(lock),
        Err(_) if how.dry_run => None,
        Err(error) => return nothing(Record::NotLocked(error)),
    };
    let at = file.directory.to_path().join(file.destination.to_path());
    // A comparison or a sum behind a broker is on record under the id of its run: no temporary file has that.
    let leftovers = if file.job.contains('-') {
        Vec::new()
    } else {
        dmover_engine::remove_leftovers(&file.job, &at, how.dry_run)
    };
    let stay = leftovers.iter().any(Result::is_err);
    let remove = |lock| match how.older_than_ms {
        Some(_) => state.retire(&file.job, &lock),
        None => state.forget(&file.job, &lock),
    };
    let record = match lock {
        _ if stay => Record::Stays,
        _ if how.dry_run => Record::WouldGo,
        lock => lock.map_or(Ok(()), remove).map_or_else(Record::NotRemoved, |()| Record::Removed),
    };
    Cleaned { leftovers, record }
}

/// Removes what a cleanup by age has kept of jobs, and the directories of jobs that never started. Returns each job with
/// its result.
///
/// # Errors
/// The state directory cannot be read.
pub fn clean_retired(
    state: &StateDirectory,
    dry_run: bool,
) -> std::io::Result<Vec<(String, std::io::Result<()>)>> {
    let mut done = Vec::new();
    for job in state.retired()? {
        if dry_run {
            done.push((job, Ok(())));
            continue;
        }
        // One that is locked is starting now.
        let Ok(lock) = state.lock(&JobId(job.clone())) else { continue };
        if state.job_file(&job).is_some() {
            continue;
        }
        let forgotten = state.forget(&job, &lock);
        done.push((job, forgotten));
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::on_record::OnRecord;
    use dmover_journal::JobStatus;
    use dmover_model::PathBytes;

    #[test]
    fn a_running_job_stays() {
        let records = OnRecord::new();
        let job = records.put("a1", |_| {});
        let _lock = records.runs("a1");
        let cleaned = clean(&job, Cleanup::default());
        assert!(matches!(cleaned.record, Record::Running));
        assert!(records.state().job_file("a1").is_some());
    }

    #[test]
    fn a_dry_run_removes_nothing() {
        let id = "0123456789ab";
        let records = OnRecord::new();
        let place = tempfile::tempdir().unwrap();
        let at = PathBuf::from(place.path());
        let job = records.put(id, |file| file.destination = at.as_os_str().into());
        let dry_run = Cleanup { dry_run: true, ..Cleanup::default() };
        assert!(matches!(clean(&job, dry_run).record, Record::WouldGo));
        assert!(records.state().job_file(id).is_some());
        assert!(matches!(clean(&job, Cleanup::default()).record, Record::Removed));
        assert!(records.state().job_file(id).is_none());
    }

    #[test]
    fn the_record_of_a_killed_comparison_behind_a_broker_goes() {
        let (records, place) = (OnRecord::new(), tempfile::tempdir().unwrap());
        let id = "0123456789ab-0123456789abcdef";
        // The destination of a sum is empty: what lies in its working directory is not its own.
        let own = place.path().join(".dmover-0123456789ab-0123456789abcdef-0000000000000001");
        std::fs::write(&own, "").unwrap();
        let job = records.put(id, |file| {
            file.verb = "sum".into();
            file.directory = place.path().as_os_str().into();
            file.destination = PathBytes::default();
        });
        let cleaned = clean(&job, Cleanup::default());
        assert!(matches!(cleaned.record, Record::Removed) && cleaned.leftovers.is_empty());
        assert!(std::fs::symlink_metadata(&own).is_ok() && records.state().job_file(id).is_none());
    }

    #[test]
    fn an_old_job_goes_unless_a_later_run_needs_it() {
        let records = OnRecord::new();
        for (job, verb, code) in [("a1", "copy", 0), ("b2", "copy", 3), ("c3", "sync", 0)] {
            records.put(job, |file| file.verb = verb.into());
            let exit_code = Some(code);
            let phase = JobPhase::Finished;
            let status = JobStatus { phase, exit_code, updated_ms: 1, ..JobStatus::default() };
            records.state().put_status(&JobId(job.into()), &status).unwrap();
        }
        let (unneeded, needed) = old(records.state(), 1000).unwrap();
        assert_eq!((unneeded.len(), needed), (1, 2));
        assert_eq!(unneeded[0].id(), "a1");
        let (unneeded, needed) = old(records.state(), u64::MAX).unwrap();
        assert_eq!((unneeded.len(), needed), (0, 0));
    }
}
