//! The proof of a copy: reads back from storage what the job wrote, and compares it.
use dmover_engine::{Job, JobFiles, JobList, JobReport, Observers, RecordSupply, job_id, run_job};
use dmover_model::{
    AttributeSet, CopyPolicy, Event, Fatal, JobSpec, Selection, TargetMode, Verb, VerifyLevel,
    VerifyPolicy,
};
use dmover_observe::{Counters, Monitor};
use std::sync::Arc;

use crate::manifest::Recorded;

/// Compares the content on storage with the digests of what was read from the source during the copy.
pub(crate) fn run(
    job: &Job,
    counters: Arc<Counters>,
    recorded: Recorded,
    millionths: Option<u32>,
) -> Result<JobReport, Fatal> {
    let state = job.files.state.as_ref().filter(|_| job.files.lock.is_some());
    let id = state.map(|state| job_id(&job.spec, &job.list, Some(state))).transpose()?;
    let verify = VerifyPolicy {
        level: VerifyLevel::Digest,
        repair: false,
        extra: false,
        sample_millionths: millionths,
        seed: dmover_host::random_u64(),
        since: None,
        stored: true,
        marks_unproven: true,
    };
    let spec = JobSpec {
        schema: JobSpec::SCHEMA,
        verb: Verb::Verify,
        sources: Vec::new(),
        sources_are_remote: false,
        host: None,
        destination: recorded.base(),
        target_mode: TargetMode::As,
        selection: Selection::default(),
        policy: CopyPolicy {
            // The copy has reported attributes that it could not set.
            preserve: AttributeSet::NONE,
            dry_run: true,
            split_bytes: job.spec.policy.split_bytes,
            buffer_bytes: job.spec.policy.buffer_bytes,
            verify: Some(verify),
            ..CopyPolicy::default()
        },
        limits: job.spec.limits.clone(),
    };
    let recorded = Arc::new(recorded);
    let report = run_job(&Job {
        list: JobList::Records(Arc::clone(&recorded) as Arc<dyn RecordSupply>),
        files: JobFiles { part_of: job.files.state.clone().zip(id), ..JobFiles::default() },
        observers: Observers {
            monitor: Arc::new(Findings(Arc::clone(&job.observers.monitor))),
            counters,
            board: None,
            log_every: job.observers.log_every,
        },
        control: Arc::clone(&job.control),
        ..Job::new(spec, job.process.clone())
    })?;
    recorded.trouble().map_or(Ok(report), |trouble| Err(Fatal::Manifest(trouble)))
}

/// Passes on all events but the start: for the user, the read-back is a part of the copy.
struct Findings(Arc<dyn Monitor>);

impl Monitor for Findings {
    fn event(&self, event: &Event) {
        if !matches!(event, Event::Start { .. }) {
            self.0.event(event);
        }
    }

    fn wants_items(&self) -> bool {
        false
    }
}
