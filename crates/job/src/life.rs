//! A job from its first pass to its proof: the lock, further passes where one is not enough, confirmed deletes, the
//! read-back, and the record of its end.
use dmover_engine::{Job, JobReport, JobState, Then, job_id, run_job};
use dmover_journal::{JournalReader, StateDirectory};
use dmover_model::{Confirmed, ExitCode as Code, Fatal, JobId, JobSpec, Verb};
use dmover_observe::Counters;
use std::sync::Arc;

use crate::comparison::code_of_comparison;
use crate::manifest::ManifestFile;
use crate::read_back;

/// How much of what a job wrote is read back from storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadBack {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// A sample of this many millionths of the files.
    Sample(u32),
}

/// Whoever asked for a job, while it runs.
pub trait Client {
    /// Shows a note.
    fn say(&self, words: &str);

    /// Whether deletes that were refused (`Err`) or withheld are confirmed. Nobody can be asked: `false`.
    fn confirms(&self, result: &Result<JobReport, Fatal>) -> bool;

    /// Another pass begins, with these counters.
    fn begins_again(&self, counters: &Arc<Counters>);

    /// The read-back begins, with these counters.
    fn reads_back(&self, counters: &Arc<Counters>);

    /// The last step of a job, with its report and its exit code so far.
    ///
    /// # Errors
    /// The step failed, and so has the job.
    fn publish(&self, report: &JobReport, code: Code) -> Result<Published, Fatal>;
}

/// What the last step did with the result of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// The result has its place, or there was no last step.
    Done,
    /// The result is incomplete and gets no name. The reason is already shown.
    Refused,
    /// The destination differs from the source, and that was the question.
    Different,
}

/// A job to run.
pub struct Request {
    /// The job, without a lock.
    pub job: Job,
    /// The manifest that it writes.
    pub manifest: Option<ManifestFile>,
    /// How it is proven; needs a manifest.
    pub read_back: ReadBack,
}

/// How a job ended. It holds the lock of the job.
pub struct Outcome {
    job: Job,
    /// The report of the job, or why it could not start or continue.
    pub result: Result<JobReport, Fatal>,
    /// The result of the read-back.
    pub checked: Option<(Code, JobReport)>,
    /// The exit code of the step after the job.
    pub refused: Code,
    went_on: bool,
}

/// The exit code for a job that failed.
#[derive(Debug)]
pub struct Failed {
    /// The exit code.
    pub code: Code,
    /// The job, if whoever waits for it is to be notified.
    pub notifies: Option<JobId>,
}

/// A relative time such as "newer than seven days" moves with every run. An interrupted pass therefore resumes with the
/// times of its first run. Returns whether that changed the times of the job.
fn keep_times(job: &mut Job) -> bool {
    let spec = &job.spec;
    if spec.verb != Verb::Sync || spec.selection.ages_ms == [None; 2] || job.manifest.is_some() {
        return false;
    }
    let Some(state) = &job.files.state else { return false };
    let Ok(id) = job_id(spec, &job.list, Some(state)) else { return false };
    let journal = JournalReader::open(&state.directory(&id.0));
    let then = journal.ok().flatten().and_then(|journal| journal.times_then(spec).ok().flatten());
    let Some(then) = then.filter(|then| *then != spec.selection) else { return false };
    job.spec.selection = then;
    true
}

/// Runs a job to its end.
pub fn run(request: Request, client: &dyn Client) -> Outcome {
    let Request { mut job, manifest, read_back } = request;
    let (went_on, mut result) = run_passes(&mut job, manifest.is_some(), client);
    if let Some(Err(message)) = manifest.as_ref().map(|manifest| manifest.end(&result)) {
        // Without its manifest the job has not succeeded.
        result = Err(Fatal::Manifest(message));
    }
    let mut checked = None;
    if let Some(manifest) = manifest.filter(|_| read_back != ReadBack::None)
        && result.as_ref().is_ok_and(|report| report.state == JobState::Finished)
    {
        let counters = Arc::new(Counters::default());
        client.reads_back(&counters);
        match prove(&job, counters, &manifest, read_back) {
            Ok(report) => checked = Some((code_of_comparison(&report, true), report)),
            Err(error) => result = Err(error),
        }
    }
    if let (Ok(whole), Some((_, read))) = (&mut result, &checked)
        && read.state != JobState::Finished
    {
        // Content that was not read back is not proven, and a signal must end the process.
        whole.state = read.state;
    }
    let mut refused = Code::Done;
    if let Ok(report) = &result
        && let (JobState::Finished, Some(why)) = (report.state, &report.needs_all)
        && (report.withheld.is_none() && !report.dry_run)
    {
        client.say(&format!("{why}: run the same command again"));
        refused = Code::Partial;
    }
    if let Ok(report) = &result {
        let code = checked.as_ref().map_or(Code::Done, |(code, _)| *code);
        match client.publish(report, report.exit_code().merge(code)) {
            Ok(Published::Refused) => refused = Code::Partial,
            Ok(Published::Done) => {}
            Ok(Published::Different) => refused = Code::Different,
            Err(error) => result = Err(error),
        }
    }
    Outcome { job, result, checked, refused, went_on }
}

/// Runs the first pass, and a further one where that is not enough. Also returns whether the first one ran to an end.
fn run_passes(
    job: &mut Job,
    has_manifest: bool,
    client: &dyn Client,
) -> (bool, Result<JobReport, Fatal>) {
    let asked = job.spec.clone();
    let kept = !asked.policy.dry_run && keep_times(job);
    let mut result = hold(job).and_then(|()| run_job(job));
    let is_asked = !asked.policy.dry_run && is_unmeant(&result);
    let meant = is_asked && client.confirms(&result);
    if let (Ok(report), Some(reason)) = (&mut result, job.control.reason())
        && report.state == JobState::Finished
        && is_asked
        && !meant
    {
        // The stop came in place of an answer.
        report.state = JobState::Stopped(reason);
    }
    if meant {
        mean(&mut job.spec);
        if let Ok(first) = &result {
            begin_again(job, first, client);
        }
        result = run_job(job);
    }
    let went_on = result.is_ok();
    if let Ok(first) = &result
        && (first.resumed || kept || (first.needs_all.is_some() && first.withheld.is_none()))
        && (first.state == JobState::Finished && !has_manifest && !first.dry_run)
    {
        // Only a full pass finds what failed in the interrupted run and what has changed since.
        let why = match &first.needs_all {
            Some(why) => why,
            None if first.resumed => "the interrupted run is complete",
            None => "the previous pass did not finish",
        };
        client.say(&format!("{why}; checking everything once more"));
        job.spec = asked;
        if meant {
            mean(&mut job.spec);
        }
        let first = first.clone();
        begin_again(job, &first, client);
        result = run_job(job).map(|report| JobReport { resumed: first.resumed, ..report });
    }
    (went_on, result)
}

/// Prepares another pass of the same command: what was done counts, what was looked at is counted again.
fn begin_again(job: &mut Job, first: &JobReport, client: &dyn Client) {
    job.observers.counters = Arc::new(first.counters.of_what_was_done());
    client.begins_again(&job.observers.counters);
    // It has the time of earlier passes in it.
    job.before = first.elapsed;
}

/// Whether deletes were refused or withheld because they may be unintended.
fn is_unmeant(result: &Result<JobReport, Fatal>) -> bool {
    match result {
        Err(error) => matches!(error, Fatal::Unmeant { .. }),
        Ok(report) if report.state != JobState::Finished => false,
        Ok(report) => report.withheld.as_ref().is_some_and(|withheld| {
            matches!(withheld.reason, dmover_engine::WithheldReason::Unmeant(..))
        }),
    }
}

/// Marks deletes as confirmed.
fn mean(spec: &mut JobSpec) {
    if let Some(delete) = spec.policy.sync.as_mut().and_then(|sync| sync.delete.as_mut()) {
        delete.confirmed = Confirmed::All;
    }
}

/// Takes the lock of the job. It is held until the result is proven and published.
fn hold(job: &mut Job) -> Result<(), Fatal> {
    if let Some(state) = job.files.state.as_ref().filter(|_| !job.spec.policy.dry_run) {
        let id = job_id(&job.spec, &job.list, Some(state))?;
        job.files.lock = Some(Arc::new(state.lock(&id)?));
        job.then = Then::More;
    }
    Ok(())
}

fn held_state(job: &Job) -> Option<&StateDirectory> {
    job.files.state.as_ref().filter(|_| job.files.lock.is_some())
}

/// Compares the content on storage with what was read from the source.
fn prove(
    job: &Job,
    counters: Arc<Counters>,
    manifest: &ManifestFile,
    read_back: ReadBack,
) -> Result<JobReport, Fatal> {
    let recorded = manifest.read_again().map_err(Fatal::Manifest)?;
    let millionths = match read_back {
        ReadBack::Sample(millionths) => Some(millionths),
        ReadBack::All | ReadBack::None => None,
    };
    read_back::run(job, counters, recorded, millionths)
}

impl Outcome {
    /// Records how the job ended, and releases its lock: the report and the exit code, or the failure.
    ///
    /// # Errors
    /// The job could not start or continue.
    pub fn end(self) -> Result<(JobReport, Code), Failed> {
        let proven = self.checked.as_ref().map_or(Code::Done, |(code, _)| *code);
        match &self.result {
            Err(error) => {
                let (why, code) = (error.to_string(), error.exit_code());
                Err(self.fail(&why, code))
            }
            Ok(report) => {
                let code = report.exit_code().merge(proven).merge(self.refused);
                if let Some(state) = held_state(&self.job) {
                    state.put_end(&report.job, report.ending(), report.process_code(code));
                }
                Ok((report.clone(), code))
            }
        }
    }

    /// Records that the job failed, and releases its lock.
    pub fn fail(self, why: &str, code: Code) -> Failed {
        let job = &self.job;
        let id = job_id(&job.spec, &job.list, job.files.state.as_ref());
        // The recorded status says that the job has more to do, which is no longer true.
        if let (true, Some(state), Ok(id)) = (self.went_on, held_state(job), &id) {
            state.tell_failure(id, why.to_owned(), code.code());
        }
        // A job that could not start sends no notification, unless the error is fatal.
        let ended = self.went_on || code == Code::Fatal;
        Failed { code, notifies: id.ok().filter(|_| ended) }
    }
}
