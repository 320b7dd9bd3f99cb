//! `copy --verify`: reads back from storage what the job wrote, and compares it.
use dmover_engine::{Control, Job, JobList, JobReport, RecordSupply, layout, run_job};
use dmover_journal::StateDirectory;
use dmover_model::{
    AttributeSet, CopyPolicy, Event, Fatal, JobId, JobSpec, Selection, TargetMode, Verb,
    VerifyLevel, VerifyPolicy,
};
use dmover_observe::{Counters, Monitor};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::manifest::Recorded;

/// What the copy and its read-back share.
pub(super) struct Place<'a> {
    /// The copy.
    pub spec: &'a JobSpec,
    pub part_of: Option<(StateDirectory, JobId)>,
    pub spill_directory: &'a Path,
    pub monitor: Arc<dyn Monitor>,
    /// Counters of the read-back.
    pub counters: Arc<Counters>,
    pub control: Arc<Control>,
    pub umask: u32,
    pub open_files_max: u64,
    pub log_every: Duration,
}

/// Compares the content on storage with the digests of what was read from the source during the copy.
pub(super) fn run(
    place: &Place<'_>,
    recorded: Recorded,
    millionths: Option<u32>,
) -> Result<JobReport, Fatal> {
    let verify = VerifyPolicy {
        level: VerifyLevel::Digest,
        repair: false,
        extra: false,
        sample_millionths: millionths,
        seed: dmover_sys::process::random_u64(),
        since: None,
        stored: true,
        marks_unproven: true,
    };
    let spec = JobSpec {
        schema: JobSpec::SCHEMA,
        verb: Verb::Verify,
        sources: Vec::new(),
        destination: recorded.base(),
        target_mode: TargetMode::As,
        selection: Selection::default(),
        policy: CopyPolicy {
            // The copy has reported attributes that it could not set.
            preserve: AttributeSet::NONE,
            dry_run: true,
            split_bytes: place.spec.policy.split_bytes,
            buffer_bytes: place.spec.policy.buffer_bytes,
            verify: Some(verify),
            ..CopyPolicy::default()
        },
        limits: place.spec.limits.clone(),
    };
    let recorded = Arc::new(recorded);
    let report = run_job(&Job {
        fleets: None,
        board: None,
        spec,
        list: JobList::Records(Arc::clone(&recorded) as Arc<dyn RecordSupply>),
        state: None,
        shown_in: None,
        lock: None,
        destination: dmover_engine::DestinationLock::default(),
        then: dmover_engine::Then::Nothing,
        before: Duration::ZERO,
        log_every: place.log_every,
        part_of: place.part_of.clone(),
        spill_directory: place.spill_directory.to_owned(),
        monitor: Arc::new(Findings(Arc::clone(&place.monitor))),
        counters: Arc::clone(&place.counters),
        control: Arc::clone(&place.control),
        manifest: None,
        layout: Arc::new(layout::DefaultLayout),
        description: dmover_journal::JobFile::default(),
        umask: place.umask,
        open_files_max: place.open_files_max,
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
