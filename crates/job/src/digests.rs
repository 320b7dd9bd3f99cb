//! The result of a job that makes digests, or checks files against them.
use dmover_engine::{JobReport, JobState};
use dmover_model::ExitCode;
use dmover_observe::Counter;

/// Lines of the lists that a job has read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListedLines {
    /// Lines with a digest and a name.
    pub good: u64,
    /// Lines without a digest and a name, or that cannot be read.
    pub bad: u64,
    /// Lists in which no line has a digest and a name.
    pub empty: u64,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checked {
    /// The exit code.
    pub code: ExitCode,
    /// Files with the expected digest.
    pub equal: u64,
    /// Files with another digest.
    pub differ: u64,
    /// Listed files that could not be read.
    pub failed: u64,
}

/// The exit code of a job that made digests.
pub fn code_of_digests(report: &JobReport, lines: ListedLines) -> ExitCode {
    let code = report.exit_code();
    if lines.bad > 0 { code.merge(ExitCode::Partial) } else { code }
}

/// The result of a check. A file that is not proven equal counts as a difference. `None`: the job was stopped.
pub fn checked(report: &JobReport, lines: ListedLines) -> Option<Checked> {
    if let JobState::Stopped(_) = report.state {
        return None;
    }
    let get = |counter| report.counters.get(counter);
    let (equal, differ) = (get(Counter::DigestsEqual), get(Counter::DigestsDiffer));
    let failed = lines.good.saturating_sub(equal + differ + get(Counter::FilesMissing));
    let nothing = equal + differ == 0;
    let told = get(Counter::Errors) + get(Counter::NotAttempted) + lines.empty;
    let is_different = lines.bad > 0 || failed > 0 || differ > 0 || told > 0 || nothing;
    let code = if is_different { ExitCode::Different } else { ExitCode::Done };
    Some(Checked { code, equal, differ, failed })
}
