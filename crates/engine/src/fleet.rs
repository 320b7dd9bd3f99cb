//! Remote movers of a job: the offer to them, and how they join.
use dmover_local::destination_lock::DestinationLock;
use dmover_local::layout::DefaultLayout;
use dmover_local::mounts::{MountTable, names_of};
use dmover_local::root::{Resolved, Resolver, Root};
use dmover_local::trash::Trash;
use dmover_local::volume::on_storage;
use dmover_model::{
    Answer, CoordinatorRequest, EntryError, ErrorClass, Fatal, FileSystemName, Identity, JobId,
    JobSpec, Limit, Name, Notice, Operation, PathBytes, Placement, RootMarks, Side, SideMark, Verb,
};
use dmover_observe::{Counters, Monitor, MoverView, Snapshot};
use dmover_plan::stragglers::Done;
use dmover_plan::temporary::TemporaryNames;
use dmover_tree::RemoteTrees;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::bounds::Bounds;
use crate::concurrency_driver::Allowance;
use crate::context::{Engine, Forbidden, Places, Receivers, RootTable};
use crate::control::Control;
use crate::coordinator_client::{CoordinatorClient, CoordinatorLink, CoordinatorNumbers};
use crate::delete_guard::Guard;
use crate::engine_builder::{Capacity, Parts};
use crate::lasting_source::WhileSourceLasts;
use crate::mover_pool::MoverPool;
use crate::queue::{Dispatch, Gate, Queue};
use crate::recheck::Doubtful;
use crate::recorder::Recorder;
use crate::root_marks::{AGAIN, check_side, insist_on};
use crate::run_facts::RunFacts;
use crate::submounts::{Below, LOOK_EVERY};

/// The coordinator's interface to remote movers.
pub trait Fleet: Dispatch {
    /// Makes movers learn this fact before they perform tasks that are published later.
    fn know(&self, fact: Notice);

    /// Sets whether movers take no new tasks for now.
    fn hold(&self, held: bool);

    /// Makes movers end their tasks early; `at_once`: drop them.
    fn stop(&self, at_once: bool);

    /// Tasks that all movers together can have in progress.
    fn places(&self) -> usize;

    /// Whether no mover has a task in progress.
    fn is_settled(&self) -> bool;

    /// The limit of the movers' speed.
    fn limit(&self) -> Option<Limit>;

    /// The movers of the job and their state.
    fn movers(&self) -> Vec<MoverView>;

    /// Why the job cannot continue with them.
    fn failure(&self) -> Option<Fatal>;
}

/// A source of remote movers.
pub trait Fleets: Send + Sync {
    /// How long a mover may continue without contact.
    fn lease(&self) -> Duration;

    /// Offers a job to movers.
    ///
    /// # Errors
    /// Why it cannot be offered; no mover has received the offer then.
    fn open(&self, offer: JobOffer, engine: Arc<Engine>) -> Result<Arc<dyn Fleet>, Fatal>;
}

/// Everything that a mover must know to work for a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobOffer {
    /// The job.
    pub job: JobId,
    /// The name of the offer: no two coordinators offer the same name at a time.
    pub key: String,
    /// The number of the run, which names of temporary files contain.
    pub run: u64,
    /// The request.
    pub spec: JobSpec,
    /// The base of relative paths.
    pub directory: PathBytes,
    /// The user who owns the job: movers of other users do not work for it.
    pub uid: u32,
    pub(crate) kind: RootsKind,
    pub(crate) placement: Placement,
    /// Capabilities of the coordinator that affect copied attributes: movers must have them as well.
    pub capabilities: Vec<String>,
    /// The directories that it writes to.
    pub places: Vec<Place>,
    /// The boot id of the coordinator's kernel.
    pub(crate) boot: String,
    pub(crate) facts: RunFacts,
    /// Temporary files of earlier runs that this run resumes.
    pub(crate) spared: Vec<Name>,
    /// The state directory, which may lie inside the destination.
    pub(crate) state: Option<(PathBytes, Identity)>,
    /// The directory of this run in the trash.
    pub(crate) trash: Option<String>,
    /// A manifest is written; `true`: only of entries that this run writes.
    pub(crate) records: Option<bool>,
    pub(crate) wants_items: bool,
    /// Leases of an earlier run have expired since this run began.
    #[serde(skip)]
    pub has_waited: bool,
}

/// A directory that a job writes to, independent of the path to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The names of its file system.
    names: Vec<FileSystemName>,
    /// The path on that file system.
    path: PathBytes,
}

impl Place {
    pub(crate) fn of(target: &Path) -> Option<Self> {
        let found = on_storage(target)?;
        let path = PathBytes::from(found.path.as_os_str());
        Some(Self { names: names_of(found.device), path })
    }

    /// Whether one directory is the other one, or is inside or above it.
    fn meets(&self, other: &Self) -> bool {
        let (own, theirs) = (self.path.to_path(), other.path.to_path());
        let is_one = self.names.iter().any(|name| other.names.contains(name));
        is_one && (own.starts_with(&theirs) || theirs.starts_with(&own))
    }
}

/// The kinds of roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RootsKind {
    /// Each source with its destination.
    Pairs,
    /// Only sources.
    Sources,
    /// A tree with its manifest.
    Checked,
}

/// What a remote mover process provides for a job.
pub struct MoverPlace {
    /// The most movers; 0 chooses automatically.
    pub threads: usize,
    /// Memory for buffers, in bytes.
    pub memory_bytes: u64,
    /// The most bytes per second.
    pub bytes_per_s: Option<u64>,
    /// The most files that the process may have open.
    pub open_files_max: u64,
    /// The directory for data that does not fit into memory.
    pub spill_directory: PathBuf,
    /// The connection to the coordinator.
    pub coordinator: Arc<dyn CoordinatorClient>,
    /// The counters of this process for this job.
    pub counters: Arc<Counters>,
    /// The switch to stop.
    pub control: Arc<Control>,
    /// The trees and verbs that this mover accepts.
    pub bounds: Bounds,
    /// Opens sources on other hosts; `None`: there are none.
    pub remote: Option<Arc<dyn RemoteTrees>>,
}

/// The part of a mover process in a job.
pub struct Joined {
    engine: Arc<Engine>,
    crew: MoverPool,
    below: Below,
}

/// A monitor that shows nothing, but says whether the coordinator wants each entry.
struct Elsewhere {
    wants_items: bool,
}

impl Monitor for Elsewhere {
    fn event(&self, _event: &dmover_model::Event) {}

    fn wants_items(&self) -> bool {
        self.wants_items
    }
}

impl RootsKind {
    pub fn resolve(self, resolver: &Resolver<'_>) -> Result<Resolved, Fatal> {
        match self {
            Self::Pairs => resolver.resolve(),
            Self::Sources => resolver.resolve_sources(),
            Self::Checked => resolver.resolve_checked(),
        }
    }
}

impl Joined {
    /// Checks the activity of the movers. `held`: they take no tasks for now.
    ///
    /// # Errors
    /// No thread can be created, mounts here differ now from those of the coordinator, or a source on another host was lost.
    pub fn turn(&mut self, held: bool) -> Result<(), Fatal> {
        self.below.look_again(&self.engine)?;
        if self.engine.is_source_lost() {
            let hint = "check the network between this host and that of SOURCE";
            return Err(Fatal::unavailable("it has lost the connection to SOURCE", hint));
        }
        self.crew.turn(held)
    }

    /// Sets how many processes share the rate limits of the job.
    pub fn share(&self, processes: u32) {
        self.engine.resources.limits.share(processes);
    }

    /// The work that the movers here have done so far.
    pub fn done(&self) -> Done {
        self.crew.done()
    }

    /// The counters of this process so far.
    pub fn counters(&self) -> Snapshot {
        self.engine.reports.counters.snapshot()
    }

    /// The limit of the movers here.
    pub fn limit(&self) -> Option<&Limit> {
        self.crew.limit()
    }

    /// Waits until all movers have ended; the queue is closed. Returns whether they have: after a hard stop, one that hangs is not
    /// waited for.
    pub fn end(mut self) -> bool {
        self.crew.end();
        !self.crew.has_left_any()
    }
}

/// The part of a mover process in a job, before its movers start.
pub struct Joining {
    engine: Arc<Engine>,
    allowance: Allowance,
    below: Below,
}

impl Joining {
    /// Opens the trees of a job, and checks that they are those of the coordinator.
    ///
    /// # Errors
    /// Why this process cannot work for the job.
    pub fn new(offer: &JobOffer, place: MoverPlace) -> Result<Self, Fatal> {
        let mut spec = offer.spec.clone();
        spec.limits.threads = place.threads;
        spec.limits.memory_bytes = place.memory_bytes;
        let own = dmover_host::user::effective_uid();
        if own != offer.uid {
            let message =
                format!("the job belongs to user {}, but this mover runs as user {own}", offer.uid);
            return Err(Fatal::refused(message, "start the mover as that user"));
        }
        let may = dmover_host::user::capabilities_that_matter();
        let missing: Vec<&str> =
            offer.capabilities.iter().filter(|c| !may.contains(c)).map(String::as_str).collect();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            let message =
                format!("this mover lacks privileges that the coordinator has: {missing}");
            return Err(Fatal::refused(message, "start the mover with the same privileges"));
        }
        let base = offer.directory.to_path();
        let numbers = Arc::new(CoordinatorNumbers(Arc::clone(&place.coordinator)));
        let mounts = MountTable::of_coordinator(numbers, &offer.boot);
        let resolver = Resolver {
            spec: &spec,
            mounts: &mounts,
            remembered: Some(offer.placement),
            privileged: place.bounds.permits_clones(),
            base: &base,
            bounds: &place.bounds.trees,
            remote: place.remote.as_deref(),
        };
        place.bounds.check_spec(&spec)?;
        let resolved = insist_on(|| {
            let resolved = offer.kind.resolve(&resolver)?;
            let Some(Answer::Roots(known)) = place.coordinator.ask(CoordinatorRequest::Roots)
            else {
                return Err(Fatal::unavailable("the coordinator does not answer", AGAIN));
            };
            let known = known.map_err(|why| Fatal::unavailable(why, AGAIN))?;
            offer.check_roots(&mounts, &resolved.roots, &known)?;
            Ok(resolved)
        })?;
        let temporaries = TemporaryNames::new(&offer.job, offer.run).sparing(offer.spared.clone());
        let delete = spec.policy.sync.as_ref().and_then(|sync| sync.delete.as_ref());
        let target = resolved.roots.first().and_then(|root| root.destination.as_ref());
        let named = delete.and_then(|delete| delete.trash.as_ref());
        let trash = match (named, target, &offer.trash) {
            (Some(named), Some(target), Some(run)) => {
                place.bounds.trees.check_place(&base.join(named.to_path()))?;
                Some(Trash::open(&base.join(named.to_path()), target, run.clone())?)
            }
            _ => None,
        };
        let state = offer.state.as_ref().map(|(_, identity)| *identity);
        let guard = Guard::new(delete, None, trash, state, 0);
        let allowance = Allowance::new(place.threads).reading(&resolved.roots);
        let recorder = offer.records.map(|only_written| {
            let output = Box::new(std::io::sink());
            let recorder =
                if only_written { Recorder::of_written(output) } else { Recorder::new(output) };
            Arc::new(recorder)
        });
        let engine = Engine::assemble(Parts {
            spec: &spec,
            facts: offer.facts.clone(),
            capacity: Capacity {
                allowance,
                open_files_max: place.open_files_max.saturating_sub(resolved.descriptors()),
                own_bytes_per_s: place.bytes_per_s,
                spill_directory: &place.spill_directory,
            },
            places: Places {
                roots: RootTable::new(resolved.roots),
                meetings: resolved.meetings,
                lock: DestinationLock::default(),
                base: base.clone(),
                bounds: place.bounds,
                state_path: offer.state.as_ref().map(|(path, _)| path.to_path()),
                forbidden: Forbidden::default(),
            },
            mounts,
            temporaries,
            guard,
            sharing: None,
            doubtful: Doubtful::default(),
            open_files: None,
            recorder,
            receivers: Receivers {
                monitor: Arc::new(Elsewhere { wants_items: offer.wants_items }),
                counters: place.counters,
                coordinator: CoordinatorLink::new(Some(place.coordinator)),
                control: place.control,
                failures: None,
            },
            layout: Arc::new(DefaultLayout),
        })?;
        let below = Below::new(&engine)?;
        Ok(Self { engine: Arc::new(engine), allowance, below })
    }

    /// The receiver of facts from the coordinator.
    pub fn learner(&self) -> Arc<dyn Fn(Notice) + Send + Sync> {
        let engine = Arc::clone(&self.engine);
        Arc::new(move |fact| engine.learn(fact))
    }

    /// The most tasks of each class that may be in progress here.
    pub fn places(&self) -> usize {
        self.allowance.most
    }

    /// Starts the movers.
    ///
    /// # Errors
    /// No thread can be created.
    pub fn begin(self, queue: Arc<dyn Queue>, gate: Arc<dyn Gate>) -> Result<Joined, Fatal> {
        let engine = &self.engine;
        let queue = if engine.spec.sources_are_remote {
            Arc::new(WhileSourceLasts { queue, engine: Arc::clone(engine) })
        } else {
            queue
        };
        let mut crew = MoverPool::new(Arc::clone(engine), queue, gate, self.allowance);
        crew.begin()?;
        Ok(Joined { engine: self.engine, crew, below: self.below })
    }
}

impl JobOffer {
    /// Whether it must not run at the same time as another job: one of them makes a tree match its source, and the
    /// other one writes there.
    pub fn is_in_the_way_of(&self, other: &Self) -> bool {
        let syncs = [self, other].iter().any(|offer| offer.spec.verb == Verb::Sync);
        syncs && self.places.iter().any(|own| other.places.iter().any(|theirs| own.meets(theirs)))
    }

    /// Refuses roots that are other directories or file systems than the coordinator's, or are read-only here.
    fn check_roots(
        &self,
        mounts: &MountTable,
        roots: &[Root],
        known: &RootMarks,
    ) -> Result<(), Fatal> {
        let writes = self.spec.verb.fills() && !self.spec.policy.dry_run;
        for (root, known) in roots.iter().zip(known) {
            match root.source.here() {
                Some(source) => check_side(mounts, source, (&known.0, false))?,
                None => check_far_source(mounts, root, &known.0)?,
            }
            let Some((side, known)) = root.destination.as_ref().zip(known.1.as_ref()) else {
                continue;
            };
            check_side(mounts, side, (known, true))?;
            if writes && side.is_read_only(known.entry.is_some()) {
                let shown = side.display().to_path();
                let message = format!("'{}' is read-only on this host", shown.display());
                return Err(Fatal::refused(message, "mount it read-write on this host"));
            }
        }
        Ok(())
    }
}

/// Refuses a source on another host that is not what the coordinator has found there.
fn check_far_source(mounts: &MountTable, root: &Root, known: &SideMark) -> Result<(), Fatal> {
    let found = root.source.mark(mounts, false);
    if found.is_ok_and(|found| found == *known) {
        return Ok(());
    }
    let shown = root.source.display().to_path();
    let message = format!("'{}' is not what the coordinator has found there", shown.display());
    let hint = "the hosts of movers must reach the host of SOURCE by the name that the job has for it: name it \
                as HOST:PATH; if it was exchanged meanwhile, run the same command again";
    Err(Fatal::refused(message, hint))
}

impl Engine {
    /// Whether the job must end.
    pub fn is_stopping(&self) -> bool {
        self.control.is_stopping()
    }

    /// How long a stopped job may still take.
    pub fn time_to_end(&self) -> Option<Duration> {
        self.control.time_to_end()
    }

    /// Reports a message about remote movers to the user.
    pub fn tell_of_movers(&self, words: String) {
        self.reports.show(dmover_model::Event::Movers { words });
    }

    /// Records that a mover had other mounts for a while: its reports in that time may be about another file system.
    pub fn doubt_mover(&self, mover: &str, why: &str) {
        let words = format!(
            "{mover} worked for up to {} s while {why}: data written in that time may be on \
            another file system",
            LOOK_EVERY.as_secs()
        );
        let (side, class) = (Side::Destination, ErrorClass::Other);
        let path = self.spec.destination.clone();
        self.error(EntryError::plain(side, Operation::Check, class, path, words));
    }

    fn learn(&self, fact: Notice) {
        match fact {
            Notice::RecheckSet(doubts) => self.doubts.earlier.add(doubts),
            Notice::Forbidden(identity) => self.places.forbidden.add(identity),
        }
    }
}
