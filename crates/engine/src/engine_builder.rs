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
use dmover_model::{CopyEngine, Fatal, JobSpec};
use dmover_observe::{Counters, Monitor, Slowest};
use dmover_plan::filter::Filter;
use dmover_plan::history::History;
use dmover_plan::idmap::IdentityMap;
use dmover_plan::temporary::TemporaryNames;
use dmover_schedule::sync::{Mutex, RwLock};
use dmover_schedule::time::Instant;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use crate::bounds::Bounds;
use crate::concurrency_driver::Allowance;
use crate::context::Engine;
use crate::context::RootTable;
use crate::control::Control;
use crate::coordinator_client::CoordinatorClient;
use crate::delete_guard::Guard;
use crate::following::Following;
use crate::hash_guesses::Guesses;
use crate::limits::RateLimits;
use crate::recheck::Doubtful;
use crate::recorder::Recorder;
use crate::settable::unprivileged;
use crate::sharing::Sharing;
use crate::trust::Trust;
use crate::written_parts::WrittenParts;

/// Facts about a run that all its movers must agree on, on any host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunFacts {
    /// The run resumes the work of an earlier run.
    pub is_resumed: bool,
    /// Completed work must be on storage.
    pub is_durable: bool,
    pub keeps_journal: bool,
    /// Completed parts of large files are recorded.
    pub keeps_parts: bool,
    /// Movers run in other processes than the coordinator.
    pub is_elsewhere: bool,
    pub keeps_catalog: bool,
    pub tells_entered: bool,
    /// The run scans only paths that a change feed has reported.
    pub follows: bool,
    /// Exactly one task finishes each destination directory.
    pub directories_apart: bool,
    /// What earlier passes have seen.
    pub history: History,
    /// Which files of the destination are on storage.
    pub trust: Trust,
    /// The umask of the user.
    pub umask: u32,
}

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
        let Parts { spec, facts, allowance, open_files_max, .. } = parts;
        let filter = Filter::new(&spec.selection)
            .map_err(|e| Fatal::refused(e.to_string(), "see 'dmover help copy' for patterns"))?;
        let movers_max = allowance.most;
        let memory = memory_bytes(spec);
        let (buffer_bytes, ring_bytes) = buffers(spec, memory / 2 / movers_max);
        let privileged = dmover_host::user::is_privileged();
        let privilege = Privilege::of_process(privileged, facts.umask);
        Ok(Self {
            directories_apart: facts.directories_apart,
            meetings: parts.meetings,
            spec: spec.clone(),
            roots: RootTable::new(parts.roots),
            monitor: parts.monitor,
            counters: parts.counters,
            slowest: Slowest::default(),
            filter,
            ids: IdentityMap::new(spec.policy.user_map.clone(), spec.policy.group_map.clone()),
            end: LocalEnd {
                mounts: parts.mounts,
                capabilities: CapabilityCache::default(),
                privilege,
                flusher: facts.is_durable.then(Flusher::default),
                unflushed: Unflushed::default(),
                layout: parts.layout,
            },
            temporaries: parts.temporaries,
            control: parts.control,
            limits: RateLimits::new(&spec.limits, parts.own_bytes_per_s),
            unprivileged: unprivileged(privilege),
            kept_times: Mutex::default(),
            guesses: Guesses::default(),
            sealed: Mutex::default(),
            known: Mutex::new(KnownPaths::new(memory / 4, parts.spill_directory)),
            recorder: parts.recorder,
            movers_max,
            movers: AtomicUsize::new(1),
            unseen_until_ms: AtomicU64::new(0),
            buffer_bytes,
            ring_bytes,
            depth_max: depth_max(open_files_max, movers_max),
            held_for_later: AtomicUsize::new(0),
            held_for_later_max: held_for_later_max(open_files_max),
            started: Instant::now(),
            breaker: Mutex::default(),
            troubled: AtomicBool::new(false),
            tally: Mutex::default(),
            is_resumed: facts.is_resumed,
            keeps_journal: facts.keeps_journal,
            keeps_parts: facts.keeps_parts,
            written_parts: WrittenParts::default(),
            doubtful: parts.doubtful,
            open_files: parts.open_files,
            failures: parts.failures,
            history: facts.history,
            trust: facts.trust,
            files_asked: AtomicU64::new(0),
            keeps_catalog: facts.keeps_catalog,
            tells_entered: facts.tells_entered,
            state_path: parts.state_path,
            doubts: Mutex::default(),
            unrecorded: Mutex::default(),
            guard: parts.guard,
            sharing: parts.sharing,
            writers: Mutex::default(),
            held: Mutex::default(),
            looks_again: Mutex::default(),
            following: facts.follows.then(Following::default),
            is_elsewhere: facts.is_elsewhere,
            base: parts.base,
            bounds: parts.bounds,
            desk: parts.desk,
            destination: parts.destination,
            forbidden: RwLock::default(),
            forbidden_in_layers: RwLock::default(),
        })
    }
}

/// The memory for buffers and queues of a job: half for buffers, a quarter for the ledger, the rest for tasks in
/// progress.
pub(crate) fn memory_bytes(spec: &JobSpec) -> usize {
    spec.limits.memory_bytes.max(8 << 20) as usize
}

/// The sizes of a mover's buffer and ring buffers, from its share of the memory.
fn buffers(spec: &JobSpec, share: usize) -> (usize, usize) {
    // A ring has buffers of its own.
    let ringed = spec.policy.engine == CopyEngine::Uring;
    let each = if ringed { share / 2 } else { share };
    let asked = spec.policy.buffer_bytes.map(|b| (b as usize).min(each));
    (asked.unwrap_or(each.min(1 << 20)).max(64 << 10), share - each)
}

/// The depth that a task may descend to: each level holds two directories open, and a quarter of the files is reserved
/// for other uses.
fn depth_max(open_files_max: u64, threads: usize) -> usize {
    let each = open_files_max.saturating_sub(32) * 3 / 4 / (2 * threads as u64);
    (each as usize).clamp(2, 100)
}

/// How many directories may be held for delayed renames: half of the quarter that levels do not use, with two
/// descriptors each.
fn held_for_later_max(open_files: u64) -> usize {
    (open_files / 16).max(1) as usize
}
