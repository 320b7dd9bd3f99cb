//! Which snapshots stay, and the removal of the others.
use dmover_engine::{Job, JobState, run_job};
use dmover_model::{
    Confirmed, CopyPolicy, DeletePolicy, DeleteWhen, ExitCode, Fatal, JobSpec, Limits, PathBytes,
    Selection, SyncPolicy, TargetMode, Verb,
};
use dmover_plan::retention::{Dated, Retention};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{Snapshot, SnapshotDirectory};

/// Whether each of these snapshots, the oldest first, is kept. Days and other periods are those of a time zone.
pub fn kept(
    snapshots: &[Snapshot],
    retention: &Retention,
    zone: &TimeZone,
    now_ms: i64,
) -> Vec<bool> {
    let dates: Vec<Dated> = snapshots.iter().map(|snapshot| dated(snapshot, zone)).collect();
    retention.keeps(&dates, now_ms)
}

/// The start of a snapshot, in a time zone.
fn dated(snapshot: &Snapshot, zone: &TimeZone) -> Dated {
    let begun = Timestamp::from_millisecond(snapshot.begun_ms).unwrap_or_default();
    let begun = begun.to_zoned(zone.clone());
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

impl SnapshotDirectory {
    /// Removes a tree that was taken out of the directory. `empty`: the empty directory that it is compared with. `job`
    /// makes the job that deletes its content.
    ///
    /// Returns the exit code of the job, and why the tree itself could not be removed.
    ///
    /// # Errors
    /// The job cannot start or continue.
    pub fn remove(
        &self,
        (tree, empty): (&Path, &Path),
        limits: Limits,
        job: &dyn Fn(JobSpec) -> Job,
    ) -> Result<(ExitCode, Option<Fatal>), Fatal> {
        let report = run_job(&job(removal((tree, empty), limits)))?;
        let code = report.exit_code();
        if report.state == JobState::Finished
            && code == ExitCode::Done
            && let Err(error) = self.forget(tree)
        {
            return Ok((ExitCode::Partial, Some(error)));
        }
        Ok((code, None))
    }
}

/// The pass that deletes the content of a tree.
fn removal((tree, empty): (&Path, &Path), limits: Limits) -> JobSpec {
    // A link to a directory means the directory.
    let contents_of = |path: &Path| PathBytes([path.as_os_str().as_bytes(), b"/"].concat());
    let delete = Some(DeletePolicy {
        when: DeleteWhen::Delay,
        limit: None,
        trash: None,
        confirmed: Confirmed::All,
    });
    let sync =
        SyncPolicy { delete, allow_empty_source: true, clears_all: true, ..SyncPolicy::default() };
    JobSpec {
        schema: JobSpec::SCHEMA,
        verb: Verb::Sync,
        sources: vec![contents_of(empty)],
        sources_are_remote: false,
        host: None,
        destination: contents_of(tree),
        target_mode: TargetMode::As,
        selection: Selection::default(),
        policy: CopyPolicy { sync: Some(sync), ..CopyPolicy::default() },
        limits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshots::SnapshotCounts;

    #[test]
    fn the_newest_snapshot_of_each_local_day_is_kept() {
        let counts = SnapshotCounts { errors: 0, changed: 0, losses: 0, found: None };
        let at = |hours: i64| Snapshot {
            name: hours.to_string(),
            begun_ms: hours * 3_600_000,
            ended_ms: 0,
            counts,
            job: String::new(),
        };
        // 22:00 and 23:00 of a day in UTC, which are two days one hour further east.
        let snapshots = [at(22), at(23), at(30)];
        let retention = Retention { periods: [0, 2, 0, 0, 0], ..Retention::default() };
        let kept = |zone| kept(&snapshots, &retention, &zone, 0);
        assert_eq!(kept(TimeZone::UTC), [false, true, true]);
        let east = TimeZone::fixed(jiff::tz::offset(1));
        assert_eq!(kept(east), [true, false, true]);
    }
}
