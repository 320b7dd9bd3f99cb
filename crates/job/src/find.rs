//! Finds jobs in a state directory: all, by name, or the last one that a request can work on.
use dmover_journal::{JobFile, JobPhase, JobStatus, JournalReader, StateDirectory};

use crate::description::{self, described};
use crate::known::{KnownJob, can_retry};
use crate::refusal::{Reason, Refusal};

/// The jobs that a request can work on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// All; one that runs comes first.
    Any,
    /// Those with a journal.
    Journal,
    /// Those with failed entries that can be retried separately.
    Retry,
    /// Those that are paused, were stopped or have died.
    Interrupted,
    /// Those that run and are not paused.
    Active,
    /// The only one that runs: a request that cannot be undone must not choose among several.
    OnlyOne,
}

/// Which jobs are listed. An empty filter admits all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those in one of these phases; empty: in any.
    pub phases: Vec<JobPhase>,
    /// Those with this label.
    pub label: Option<String>,
    /// Those of this verb; a snapshot is one of `sync` as well.
    pub verb: Option<String>,
    /// Those that have a process, or whose status is at most as old as this time in milliseconds since 1970.
    pub since_ms: Option<i64>,
}

impl Filter {
    fn admits(&self, file: &JobFile, status: Option<&JobStatus>) -> bool {
        let status = status.cloned().unwrap_or_default();
        let is_recent = |since| status.phase.has_process() || status.updated_ms >= since;
        let is_verb = |name: &String| [description::verb(file), &file.verb].contains(&&name[..]);
        (self.phases.is_empty() || self.phases.contains(&status.phase))
            && self.label.as_ref().is_none_or(|label| file.label.as_ref() == Some(label))
            && self.verb.as_ref().is_none_or(is_verb)
            && self.since_ms.is_none_or(is_recent)
    }
}

/// All jobs of a state directory, the latest start first.
///
/// # Errors
/// The state directory cannot be read.
pub(crate) fn all(state: &StateDirectory) -> Result<Vec<JobFile>, Refusal> {
    let jobs = state.jobs().map_err(|error| {
        let message = format!("cannot read '{}': {error}", state.path().display());
        let hint = "choose another --state-dir, or check permissions";
        Refusal::new(Reason::NoState, message, hint)
    })?;
    let mut files: Vec<JobFile> = jobs.iter().filter_map(|job| state.job_file(job)).collect();
    let begun = |file: &JobFile| state.status(&file.job).map_or(file.created_ms, |s| s.begun_ms);
    files.sort_by_cached_key(|file| std::cmp::Reverse(begun(file)));
    Ok(files)
}

/// The jobs that a filter admits, with their status, the latest start first.
///
/// # Errors
/// The state directory cannot be read.
pub fn list(
    state: &StateDirectory,
    filter: &Filter,
) -> Result<Vec<(JobFile, Option<JobStatus>)>, Refusal> {
    let known = all(state)?.into_iter().map(|file| {
        let status = state.status(&file.job);
        (file, status)
    });
    Ok(known.filter(|(file, status)| filter.admits(file, status.as_ref())).collect())
}

/// The job with this id, this label, or an id that begins so.
///
/// # Errors
/// No job has this name, several have it, or the state directory cannot be read.
pub fn find(state: &StateDirectory, named: &str) -> Result<KnownJob, Refusal> {
    if named.is_empty() {
        let message = "the name of the job is empty";
        return Err(Refusal::new(Reason::Unknown, message, "'dmover jobs' lists jobs"));
    }
    let files = all(state)?;
    let is_id = |file: &&JobFile| file.job == named;
    let is_label = |file: &&JobFile| file.label.as_deref() == Some(named);
    let begins_so = |file: &&JobFile| file.job.starts_with(named);
    let mut matching: Vec<&JobFile> = files.iter().filter(is_id).collect();
    if matching.is_empty() {
        matching = files.iter().filter(is_label).collect();
    }
    if matching.is_empty() {
        matching = files.iter().filter(begins_so).collect();
    }
    let mut ids: Vec<&str> = matching.iter().map(|file| file.job.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    match (matching.first(), ids.len()) {
        (Some(file), 1) => Ok(KnownJob { file: (*file).clone(), state: state.clone() }),
        (Some(_), _) => {
            let message = format!("'{named}' matches several jobs: {}", ids.join(", "));
            let ids = ids.into_iter().map(str::to_owned).collect();
            let hint = "give more characters of the id";
            Err(Refusal::new(Reason::Ambiguous(ids), message, hint))
        }
        (None, _) => {
            let message = format!("no job '{named}' in {}", state.path().display());
            Err(Refusal::new(Reason::Unknown, message, "'dmover jobs' lists all jobs"))
        }
    }
}

/// The last job that a request can work on.
///
/// # Errors
/// There is none, or [`Choice::OnlyOne`] finds several, or the state directory cannot be read.
pub fn choose(state: &StateDirectory, choice: Choice) -> Result<KnownJob, Refusal> {
    let files = all(state)?;
    if files.is_empty() {
        let message = format!("no job in {}", state.path().display());
        let hint = "choose another directory with --state-dir";
        return Err(Refusal::new(Reason::NoneFits, message, hint));
    }
    let file = choose_of(state, files, choice)?;
    Ok(KnownJob { state: state.clone(), file })
}

fn choose_of(
    state: &StateDirectory,
    files: Vec<JobFile>,
    choice: Choice,
) -> Result<JobFile, Refusal> {
    let last = files.first().cloned().filter(|_| choice == Choice::Any);
    let mut fitting = files.into_iter().filter(|file| fits(state, file, choice));
    let (message, hint) = match (fitting.next(), choice) {
        (Some(first), Choice::OnlyOne) => match fitting.next() {
            None => return Ok(first),
            Some(second) => {
                let ids = [&first, &second].map(|file| file.job.clone());
                let ids: Vec<String> =
                    ids.into_iter().chain(fitting.map(|file| file.job)).collect();
                let (first, second) = (described(&first), described(&second));
                let more = ids.len();
                let message = format!("{more} jobs are running, such as {first} and {second}");
                let hint = "name one of them; 'dmover jobs' lists them";
                return Err(Refusal::new(Reason::Ambiguous(ids), message, hint));
            }
        },
        (Some(first), _) => return Ok(first),
        (None, Choice::Any) => ("no job found", "choose another directory with --state-dir"),
        (None, Choice::Journal) => {
            ("no job has a journal: only 'sync' keeps one", "'dmover jobs' lists all jobs")
        }
        (None, Choice::Retry) => {
            ("no 'sync' job has failed entries to retry", "'dmover jobs' lists all jobs")
        }
        (None, Choice::Interrupted) => (
            "no job is paused or interrupted",
            "'dmover resume JOB' reruns the command of a job that has ended",
        ),
        (None, Choice::Active | Choice::OnlyOne) => {
            ("no job is running", "'dmover jobs' lists all jobs")
        }
    };
    last.ok_or_else(|| Refusal::new(Reason::NoneFits, message, hint))
}

fn fits(state: &StateDirectory, file: &JobFile, choice: Choice) -> bool {
    let phase = || state.status(&file.job).unwrap_or_default().phase;
    match choice {
        Choice::Any | Choice::OnlyOne => phase().has_process(),
        // A journal that cannot be read is reported when it is opened.
        Choice::Journal => !matches!(JournalReader::open(&state.directory(&file.job)), Ok(None)),
        Choice::Retry => can_retry(file) && has_failed_entries(state, file),
        Choice::Interrupted => match phase() {
            JobPhase::Paused | JobPhase::Stopped => true,
            // Unless a standby resumes it.
            JobPhase::Died => !state.is_stood_by(&file.job),
            _ => false,
        },
        Choice::Active => matches!(phase(), JobPhase::Running | JobPhase::Watching),
    }
}

/// Whether a journal lists an entry that a retry would attempt. One that cannot be read is reported when it is opened.
fn has_failed_entries(state: &StateDirectory, file: &JobFile) -> bool {
    let mut found = false;
    let read = state.errors(&file.job, &mut |error| {
        found = error.operation != "unlink";
        !found
    });
    found || read.is_err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::on_record::OnRecord;
    use dmover_model::{ExitCode, PathBytes};

    fn reason<T: std::fmt::Debug>(found: Result<T, Refusal>) -> Reason {
        found.unwrap_err().reason
    }

    #[test]
    fn an_id_comes_before_a_label_and_a_label_before_the_beginning_of_an_id() {
        let records = OnRecord::new();
        records.put("abc1", |file| file.label = Some("nightly".into()));
        records.put("abd2", |file| file.label = Some("abc".into()));
        let found = |named| find(records.state(), named).map(|known| known.file.job);
        assert_eq!(found("abc1").unwrap(), "abc1");
        assert_eq!(found("nightly").unwrap(), "abc1");
        assert_eq!(found("abc").unwrap(), "abd2", "the label, not the beginning");
        assert_eq!(found("abd").unwrap(), "abd2");
        let several = found("ab").unwrap_err();
        assert_eq!(several.message, "'ab' matches several jobs: abc1, abd2");
        assert_eq!(several.reason, Reason::Ambiguous(vec!["abc1".into(), "abd2".into()]));
        assert_eq!(several.exit_code(), ExitCode::Usage);
        assert_eq!(reason(found("x")), Reason::Unknown);
        assert_eq!(reason(found("")), Reason::Unknown);
    }

    #[test]
    fn a_label_that_two_jobs_share_is_ambiguous() {
        let records = OnRecord::new();
        records.put("a1", |file| file.label = Some("nightly".into()));
        records.put("b2", |file| file.label = Some("nightly".into()));
        let both = vec!["a1".to_owned(), "b2".to_owned()];
        assert_eq!(reason(find(records.state(), "nightly")), Reason::Ambiguous(both));
    }

    #[test]
    fn a_request_finds_the_last_job_that_it_suits() {
        let records = OnRecord::new();
        assert_eq!(reason(choose(records.state(), Choice::Any)), Reason::NoneFits);
        records.put("ended", |_| {});
        records.status("ended", JobPhase::Finished, 3);
        records.put("stopped", |_| {});
        records.status("stopped", JobPhase::Stopped, 1);
        records.put("died", |_| {});
        records.status("died", JobPhase::Running, 2);
        let chosen = |choice| choose(records.state(), choice).map(|known| known.file.job);
        assert_eq!(chosen(Choice::Any).unwrap(), "ended", "none runs: the latest start");
        assert_eq!(chosen(Choice::Interrupted).unwrap(), "died");
        assert_eq!(reason(chosen(Choice::Active)), Reason::NoneFits);
        assert_eq!(reason(chosen(Choice::Journal)), Reason::NoneFits);
        let _one = records.runs("stopped");
        records.status("stopped", JobPhase::Running, 1);
        assert_eq!(chosen(Choice::Any).unwrap(), "stopped");
        assert_eq!(chosen(Choice::OnlyOne).unwrap(), "stopped");
        let _other = records.runs("died");
        records.status("died", JobPhase::Running, 2);
        let several = vec!["died".to_owned(), "stopped".to_owned()];
        assert_eq!(reason(chosen(Choice::OnlyOne)), Reason::Ambiguous(several));
        assert_eq!(chosen(Choice::Active).unwrap(), "died");
    }

    #[test]
    fn a_filter_admits_jobs_by_phase_label_verb_and_age() {
        let records = OnRecord::new();
        records.put("old", |file| file.label = Some("nightly".into()));
        records.status("old", JobPhase::Finished, 1);
        records.put("new", |file| {
            file.verb = "sync".into();
            file.command =
                ["dmover", "snapshot", "create"].map(|w| PathBytes(w.as_bytes().to_vec())).to_vec();
        });
        records.status("new", JobPhase::Stopped, 2);
        let ids = |filter: Filter| -> Vec<String> {
            let found = list(records.state(), &filter).unwrap();
            found.into_iter().map(|(file, _)| file.job).collect()
        };
        assert_eq!(ids(Filter::default()), ["new", "old"]);
        let phases = vec![JobPhase::Finished];
        assert_eq!(ids(Filter { phases, ..Filter::default() }), ["old"]);
        let label = Some("nightly".into());
        assert_eq!(ids(Filter { label, ..Filter::default() }), ["old"]);
        for verb in ["sync", "snapshot"] {
            let verb = Some(verb.to_owned());
            assert_eq!(ids(Filter { verb, ..Filter::default() }), ["new"]);
        }
        assert_eq!(ids(Filter { since_ms: Some(2), ..Filter::default() }), ["new"]);
    }
}
