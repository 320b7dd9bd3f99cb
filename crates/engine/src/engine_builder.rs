//! Builds the state that all movers of one job in one process share.
use dmover_journal::{KnownPaths, OpenFiles};
use dmover_local::capability::CapabilityCache;
use dmover_local::end::LocalEnd;
use dmover_local::flush::Flusher;
use dmover_local::layout::LayoutHook;
use dmover_local::mounts::MountTable;
use dmover_local::privilege::Privilege;
use dmover_local::unflushed::Unflushed;
use dmover_model::{Fatal, JobSpec};
use dmover_plan::filter::Filter;
use dmover_plan::idmap::OwnersByName;
use dmover_plan::temporary::TemporaryNames;
use std::path::Path;
use std::sync::Arc;

use crate::concurrency_driver::Allowance;
use crate::context::{
    Doubts, Engine, Pass, Places, Proof, Receivers, Reports, Resources, Visibility, memory_bytes,
};
use crate::delete_guard::Guard;
use crate::limits::RateLimits;
use crate::named_owners::NamedOwners;
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
    pub places: Places,
    pub mounts: MountTable,
    pub layout: Arc<dyn LayoutHook>,
    pub temporaries: TemporaryNames,
    pub receivers: Receivers,
    pub guard: Guard,
    pub sharing: Option<Sharing>,
    pub doubtful: Doubtful,
    pub open_files: Option<OpenFiles>,
    pub recorder: Option<Arc<Recorder>>,
    pub capacity: Capacity<'a>,
}

/// What the movers of a process may use.
pub(crate) struct Capacity<'a> {
    pub allowance: Allowance,
    /// The most files that may be open besides the roots.
    pub open_files_max: u64,
    /// The rate limit of this process for any job.
    pub own_bytes_per_s: Option<u64>,
    pub spill_directory: &'a Path,
}

impl Engine {
    pub(crate) fn assemble(parts: Parts<'_>) -> Result<Self, Fatal> {
        let Parts { facts, capacity, receivers, .. } = parts;
        let spec = Arc::new(parts.spec.clone());
        let filter = Filter::new(&spec.selection)
            .map_err(|e| Fatal::refused(e.to_string(), "see 'dmover help copy' for patterns"))?;
        let privilege = Privilege::of_process(dmover_host::user::is_privileged(), facts.umask);
        let (coordinator, control) =
            (receivers.coordinator.clone(), Arc::clone(&receivers.control));
        let roots = parts.places.roots.open();
        let sources = roots.iter().map(|root| &root.source);
        let names = NamedOwners::of(&spec.policy, sources, &receivers)?;
        let names = names.map(|names| Arc::new(names) as Arc<dyn OwnersByName>);
        let known = KnownPaths::new(memory_bytes(&spec) / 4, capacity.spill_directory);
        let job = (spec.verb, facts.keeps_journal);
        Ok(Self {
            filter,
            settable: Settable::new(Arc::clone(&spec), privilege, names),
            end: LocalEnd {
                mounts: parts.mounts,
                capabilities: CapabilityCache::default(),
                privilege,
                flusher: facts.is_durable.then(Flusher::default),
                unflushed: Unflushed::default(),
                layout: parts.layout,
            },
            places: parts.places,
            temporaries: parts.temporaries,
            written_parts: WrittenParts::default(),
            resources: Resources::new(
                &spec,
                RateLimits::new(&spec.limits, capacity.own_bytes_per_s),
                capacity.allowance.most,
                capacity.open_files_max,
            ),
            doubts: Doubts::new(parts.doubtful, parts.open_files, job, coordinator.clone()),
            proof: Proof::new(parts.recorder, known, coordinator.clone(), Arc::clone(&control)),
            pass: Pass::new(parts.guard, parts.sharing, facts.follows, coordinator),
            visibility: Visibility::default(),
            reports: Reports::new(Arc::clone(&spec), receivers, facts.keeps_journal),
            control,
            facts,
            spec,
        })
    }
}
