//! The end of a job that makes a snapshot: its tree gets a name, or stays unfinished.
use dmover_engine::{JobReport, JobState, WithheldReason};
use dmover_journal::now_ms;
use dmover_model::{ExitCode, Fatal};
use dmover_observe::Counter;
use jiff::Timestamp;

use super::{FoundCounts, SnapshotCounts, SnapshotDirectory};

/// When a tree gets its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Naming {
    /// Only one run from the start to the end counts: it is proven, or its manifest lists everything.
    pub needs_one_run: bool,
    /// The name is also given if entries are missing.
    pub accepts_errors: bool,
}

/// Why a complete scan of the source makes no snapshot. The next run of the same command tries again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotNamed<'a> {
    /// The run resumed an interrupted one, and one run must do everything.
    Resumed,
    /// Content on storage differs from what was written.
    Corrupt,
    /// Deletes were withheld.
    Withheld(&'a WithheldReason),
    /// This many entries failed.
    Failed(u64),
}

/// What became of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Concluded {
    /// It is the snapshot of this name.
    Named(String),
    /// It gets no name.
    Refused,
    /// The job was stopped; the next run resumes it.
    Unfinished,
}

impl SnapshotDirectory {
    /// Names the tree of a job as a snapshot that was begun at this time in milliseconds since 1970.
    pub(super) fn conclude(
        &self,
        report: &JobReport,
        code: ExitCode,
        (begun_ms, naming): (i64, Naming),
        tell: &mut dyn FnMut(&NotNamed<'_>),
    ) -> Result<Concluded, Fatal> {
        if report.state != JobState::Finished {
            return Ok(Concluded::Unfinished);
        }
        if let Some(why) = why_not(report, code, naming) {
            tell(&why);
            self.refuse()?;
            return Ok(Concluded::Refused);
        }
        let get = |counter| report.counters.get(counter);
        // Files shared with the previous snapshot lack the attributes that it lacks.
        let base = self.newest()?.filter(|_| get(Counter::FilesUnchanged) > 0);
        let losses =
            report.losses.values().sum::<u64>() + base.map_or(0, |base| base.counts.losses);
        let found = (!report.resumed).then(|| FoundCounts {
            entries: get(Counter::EntriesFound),
            bytes: get(Counter::BytesFound),
            new_bytes: get(Counter::BytesCopied) + get(Counter::BytesShared),
        });
        let changed = get(Counter::SourceErrors) + report.earlier_failures.moved_on;
        let counts = SnapshotCounts { errors: errors(report), changed, losses, found };
        let name = name_of(begun_ms);
        self.publish(&name, &report.job, counts, now_ms())?;
        Ok(Concluded::Named(name))
    }
}

/// Entries that are missing in the tree and exist at the source.
fn errors(report: &JobReport) -> u64 {
    let get = |counter| report.counters.get(counter);
    let earlier = report.earlier_failures;
    get(Counter::Errors).saturating_sub(get(Counter::SourceErrors))
        + get(Counter::NotAttempted)
        + earlier.unseen
        + earlier.there
}

fn why_not(report: &JobReport, code: ExitCode, naming: Naming) -> Option<NotNamed<'_>> {
    if report.resumed && naming.needs_one_run {
        // Only a full pass finds what failed in the interrupted run.
        return Some(NotNamed::Resumed);
    }
    if code == ExitCode::Integrity {
        return Some(NotNamed::Corrupt);
    }
    let why = match (errors(report), &report.withheld) {
        (0, None) => return None,
        (0, Some(withheld)) => NotNamed::Withheld(&withheld.reason),
        (errors, _) => NotNamed::Failed(errors),
    };
    Some(why).filter(|_| !naming.accepts_errors)
}

/// The name of a snapshot: a time with milliseconds, so that names sort by time.
fn name_of(begun_ms: i64) -> String {
    let begun = Timestamp::from_millisecond(begun_ms).unwrap_or_default();
    begun.strftime("%Y-%m-%dT%H-%M-%S.%3fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_by_time() {
        assert_eq!(name_of(1_700_000_000_007), "2023-11-14T22-13-20.007Z");
        assert!(name_of(999) < name_of(1000));
    }
}
