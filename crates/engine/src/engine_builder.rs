//! Builds the state that all movers of one job in one process share.
use dmover_journal::{Failures, KnownPaths, OpenFiles};
use dmover_local::capability::CapabilityCache;
use dmover_local::destination_lock::DestinationLock;
use dmover_local::end::LocalEnd;
use dmover_local::flush::Flusher;
use dmover_local::layout::LayoutHook;
use dmover_local::mounts::MountTable;
use dmover_local::privilege::Privilege;
use dmover_local::root::{OverlappingRoots, Root};
use dmover_local::unflushed::Unflushed;
use dmover_model::{Fatal, JobSpec};
use dmover_observe::{Counters, Monitor};
use dmover_plan::filter::Filter;
use dmover_plan::temporary::TemporaryNames;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::bounds::Bounds;
use crate::concurrency_driver::Allowance;
use crate::context::{
    Doubts, Engine, Forbidden, Pass, Places, Proof, Receivers, Reports, Resources, RootTable,
    Visibility, memory_bytes,
};
use crate::control::Control;
use crate::coordinator_client::{CoordinatorClient, Desk};
use crate::delete_guard::Guard;
use crate::limits::RateLimits;
use crate::recheck::Doubtful;
use crate::recorder::Recorder;
use crate::run_facts::RunFacts;
use crate::settable::Settable;
use crate::sharing::Sharing;
use crate::written_parts::WrittenParts;

/// What one process provides for a job.
pub(crate) struct Parts<'a> {
    pub spec: &'a JobSpec,
    pub facts: RunFacts,
    pub roots: Vec<Root>,
    pub meetings: OverlappingRoots,
    pub mounts: MountTable,
    pub temporaries: TemporaryNames,
    pub guard: Guard,
    pub sharing: Option<Sharing>,
    pub doubtful: Doubtful,
    pub open_files: Option<OpenFiles>,
    pub failures: Option<Failures>,
    pub recorder: Option<Arc<Recorder>>,
    pub monitor: Arc<dyn Monitor>,
    pub counters: Arc<Counters>,
    pub control: Arc<Control>,
    pub layout: Arc<dyn LayoutHook>,
    pub state_path: Option<PathBuf>,
    pub spill_directory: &'a Path,
    pub allowance: Allowance,
    /// The most files that may be open besides the roots.
    pub open_files_max: u64,
    pub desk: Option<Arc<dyn CoordinatorClient>>,
    /// Locks of the written directories, in the process of the coordinator.
    pub destination: DestinationLock,
    /// The rate limit of this process for any job.
    pub own_bytes_per_s: Option<u64>,
    /// The base of relative paths; empty: the working directory.
    pub base: PathBuf,
    /// The users and paths that this mover may work for.
    pub bounds: Bounds,
}

impl Engine {
    pub(crate) fn assemble(parts: Parts<'_>) -> Result<Self, Fatal> {
        let Parts { facts, allowance, open_files_max, .. } = parts;
        let spec = Arc::new(parts.spec.clone());
        let filter = Filter::new(&spec.selection)
            .map_err(|e| Fatal::refused(e.to_string(), "see 'dmover help copy' for patterns"))?;
        let privilege = Privilege::of_process(dmover_host::user::is_privileged(), facts.umask);
        let desk = Desk::new(parts.desk);
        let reports = Reports::new(
            Arc::clone(&spec),
            Receivers {
                monitor: parts.monitor,
                counters: parts.counters,
                desk: desk.clone(),
                control: Arc::clone(&parts.control),
                failures: parts.failures,
                keeps_journal: facts.keeps_journal,
            },
        );
        let known = KnownPaths::new(memory_bytes(&spec) / 4, parts.spill_directory);
        let job = (spec.verb, facts.keeps_journal);
        Ok(Self {
            filter,
            settable: Settable::new(Arc::clone(&spec), privilege),
            end: LocalEnd {
                mounts: parts.mounts,
                capabilities: CapabilityCache::default(),
                privilege,
                flusher: facts.is_durable.then(Flusher::default),
                unflushed: Unflushed::default(),
                layout: parts.layout,
            },
            places: Places {
                roots: RootTable::new(parts.roots),
                meetings: parts.meetings,
                lock: parts.destination,
                base: parts.base,
                bounds: parts.bounds,
                state_path: parts.state_path,
                forbidden: Forbidden::default(),
            },
            temporaries: parts.temporaries,
            written_parts: WrittenParts::default(),
            resources: Resources::new(
                &spec,
                RateLimits::new(&spec.limits, parts.own_bytes_per_s),
                allowance.most,
                open_files_max,
            ),
            doubts: Doubts::new(parts.doubtful, parts.open_files, job, desk.clone()),
            proof: Proof::new(parts.recorder, known, desk.clone(), Arc::clone(&parts.control)),
            pass: Pass::new(parts.guard, parts.sharing, facts.follows, desk),
            visibility: Visibility::default(),
            control: parts.control,
            reports,
            facts,
            spec,
        })
    }
}
