//! Whole jobs by the library alone, without a command line.
#![allow(clippy::unwrap_used)]
use dmover_engine::{Job, JobFiles, JobReport, JobState, ProcessFacts, Recorder, job_id};
use dmover_job::{Client, ManifestFile, Outcome, Published, ReadBack, Request};
use dmover_journal::{JobPhase, StateDirectory};
use dmover_model::{
    Confirmed, CopyPolicy, DeletePolicy, DeleteWhen, ExitCode, Fatal, JobSpec, Limits, PathBytes,
    Selection, SyncPolicy, TargetMode, Verb,
};
use dmover_observe::Counters;
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

/// Answers in place of a user.
#[derive(Default)]
struct Answers {
    confirms: bool,
    publishes: Option<Published>,
    asked: Cell<u32>,
    read_back: Cell<bool>,
}

impl Client for Answers {
    fn say(&self, _words: &str) {}

    fn confirms(&self, _result: &Result<JobReport, Fatal>) -> bool {
        self.asked.set(self.asked.get() + 1);
        self.confirms
    }

    fn begins_again(&self, _counters: &Arc<Counters>) {}

    fn reads_back(&self, _counters: &Arc<Counters>) {
        self.read_back.set(true);
    }

    fn publish(&self, _report: &JobReport, _code: ExitCode) -> Result<Published, Fatal> {
        Ok(self.publishes.unwrap_or(Published::Done))
    }
}

/// A source with two files, an empty place for the destination, and a state directory.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(place.path("s")).unwrap();
        std::fs::write(place.path("s/one"), b"first").unwrap();
        std::fs::write(place.path("s/two"), b"second").unwrap();
        place
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn job(&self, verb: Verb, sync: Option<SyncPolicy>) -> Job {
        let bytes = |path: &Path| PathBytes::from(path.as_os_str());
        let spec = JobSpec {
            schema: JobSpec::SCHEMA,
            verb,
            sources: vec![bytes(&self.path("s"))],
            sources_are_remote: false,
            host: None,
            destination: bytes(&self.path("d")),
            target_mode: TargetMode::As,
            selection: Selection::default(),
            policy: CopyPolicy { sync, ..CopyPolicy::default() },
            limits: Limits::default(),
        };
        let state = StateDirectory::new(self.path("state"));
        let files = JobFiles { state: Some(state), ..JobFiles::default() };
        Job { files, ..Job::new(spec, ProcessFacts::new(0o022, 1024)) }
    }

    /// The names in the destination.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("d")).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn run(job: Job, client: &Answers) -> Outcome {
    dmover_job::run(Request { job, manifest: None, read_back: ReadBack::None }, client)
}

/// The recorded phase and exit code.
fn on_record(place: &Place, id: &str) -> (JobPhase, Option<u8>) {
    let status = StateDirectory::new(place.path("state")).status(id).unwrap();
    (status.phase, status.exit_code)
}

#[test]
fn a_copy_is_proven_and_its_end_is_on_record_when_its_lock_is_free() {
    let place = Place::new();
    let manifest = ManifestFile::scratch(&place.path("state")).unwrap();
    let recorder: Arc<Recorder> = manifest.recorder();
    let job = Job { manifest: Some(recorder), ..place.job(Verb::Copy, None) };
    let state = job.files.state.clone().unwrap();
    let id = job_id(&job.spec, &job.list, Some(&state)).unwrap();
    let answers = Answers::default();
    let request = Request { job, manifest: Some(manifest), read_back: ReadBack::All };
    let outcome = dmover_job::run(request, &answers);
    assert!(answers.read_back.get());
    assert!(outcome.checked.as_ref().is_some_and(|(code, _)| *code == ExitCode::Done));
    assert!(state.lock(&id).is_err(), "the job is not over for others before its end is recorded");
    let (report, code) = outcome.end().unwrap();
    assert_eq!((report.state, code), (JobState::Finished, ExitCode::Done));
    assert_eq!(std::fs::read(place.path("d/two")).unwrap(), b"second");
    assert_eq!(on_record(&place, &id.0), (JobPhase::Finished, Some(0)));
    drop(state.lock(&id).unwrap());
}

#[test]
fn deletes_that_may_be_a_mistake_wait_for_a_confirmation() {
    for confirms in [false, true] {
        let place = Place::new();
        std::fs::create_dir(place.path("d")).unwrap();
        for number in 0..200 {
            std::fs::write(place.path(&format!("d/other-{number}")), b"").unwrap();
        }
        let delete = DeletePolicy {
            when: DeleteWhen::After,
            limit: None,
            trash: None,
            confirmed: Confirmed::None,
        };
        let sync = SyncPolicy { delete: Some(delete), ..SyncPolicy::default() };
        let answers = Answers { confirms, ..Answers::default() };
        let outcome = run(place.job(Verb::Sync, Some(sync)), &answers);
        assert_eq!(answers.asked.get(), 1);
        if confirms {
            assert_eq!(outcome.end().unwrap().1, ExitCode::Done);
            assert_eq!(place.names(), ["one", "two"]);
        } else {
            let failed = outcome.end().unwrap_err();
            assert_eq!(failed.code, ExitCode::Usage);
            assert!(failed.notifies.is_none(), "it has not started");
            assert_eq!(place.names().len(), 200);
        }
    }
}

#[test]
fn the_last_step_decides_on_the_exit_code() {
    let place = Place::new();
    let answers = Answers { publishes: Some(Published::Different), ..Answers::default() };
    let (report, code) = run(place.job(Verb::Copy, None), &answers).end().unwrap();
    assert_eq!(code, ExitCode::Different);
    assert_eq!(on_record(&place, &report.job.0).1, Some(ExitCode::Different.code()));
}

#[test]
fn a_failure_after_the_job_is_on_record() {
    let place = Place::new();
    let outcome = run(place.job(Verb::Copy, None), &Answers::default());
    let id = outcome.result.as_ref().unwrap().job.0.clone();
    let failed = outcome.fail("the printer is on fire", ExitCode::Fatal);
    assert_eq!(failed.notifies.unwrap().0, id);
    assert_eq!(on_record(&place, &id).1, Some(ExitCode::Fatal.code()));
}
