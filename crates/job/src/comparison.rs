//! A job that compares two trees, or a tree with a manifest.
use dmover_engine::{Job, JobReport, run_job};
use dmover_model::{ExitCode, Fatal};
use dmover_observe::Counter;

use crate::manifest::Recorded;

/// The result of a comparison.
#[derive(Debug)]
pub struct Compared {
    /// The report of the job.
    pub report: JobReport,
    /// Its exit code.
    pub code: ExitCode,
    /// Why the manifest could not be read to its end. Later entries were not compared.
    pub trouble: Option<String>,
    /// Entries that only the destination has were found: the manifest lists the whole tree.
    pub is_covered: bool,
}

/// Runs a comparison. `recorded`: the manifest that it reads, if it reads one.
///
/// # Errors
/// The job cannot start or continue.
pub fn compare(job: &Job, recorded: Option<&Recorded>) -> Result<Compared, Fatal> {
    let report = run_job(job)?;
    let trouble = recorded.and_then(Recorded::trouble);
    let code = code_of_comparison(&report, recorded.is_some());
    let unread = if trouble.is_some() { ExitCode::Integrity } else { ExitCode::Done };
    let is_covered = recorded.is_some_and(Recorded::is_complete);
    Ok(Compared { report, code: code.merge(unread), trouble, is_covered })
}

/// The exit code of a comparison. Only a manifest says which content is right, so only then a difference is corruption.
pub(crate) fn code_of_comparison(report: &JobReport, by_manifest: bool) -> ExitCode {
    let get = |counter| report.counters.get(counter);
    let left = get(Counter::EntriesDiffering) - get(Counter::EntriesRepaired);
    let found = match (left, get(Counter::EntriesCorrupt), by_manifest) {
        (0, ..) => ExitCode::Done,
        (_, 1.., true) => ExitCode::Integrity,
        _ => ExitCode::Different,
    };
    // Files without a digest in the manifest are not proven.
    let unproven = get(Counter::FilesWithoutDigest) > 0;
    let unproven = if unproven { ExitCode::Partial } else { ExitCode::Done };
    report.exit_code().merge(found).merge(unproven)
}

/// The number of entries that a pass changed, or would change in a dry run.
pub fn entries_changed(report: &JobReport) -> u64 {
    let counters = [
        Counter::FilesCopied,
        Counter::DirectoriesCreated,
        Counter::SymlinksCopied,
        Counter::SpecialsCopied,
        Counter::HardLinksCreated,
        Counter::EntriesRenamed,
        Counter::MetadataUpdated,
        Counter::DirectoriesUpdated,
        Counter::EntriesDeleted,
    ];
    counters.into_iter().map(|counter| report.counters.get(counter)).sum()
}
