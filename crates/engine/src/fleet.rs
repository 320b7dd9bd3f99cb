//! A job with movers elsewhere: what it offers them, and how they join.
use dmover_model::{
    EntryError, ErrorClass, Identity, JobId, JobSpec, Limit, Name, Operation, PathBytes, Side, Verb,
};
use dmover_observe::{Counters, Monitor, MoverView, Snapshot};
use dmover_plan::stragglers::Done;
use dmover_plan::temporary::TemporaryNames;
use dmover_sys::{Errno, directory, path, stat};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::assemble::{Parts, RunFacts};
use crate::below::{Below, LOOK_EVERY};
use crate::bounds::Bounds;
use crate::context::{Engine, entry_error};
use crate::control::Control;
use crate::crew::Crew;
use crate::desk::{Answer, Desk, Fact, FileSystemName, Question, named};
use crate::error::Fatal;
use crate::layout::DefaultLayout;
use crate::made::Recorder;
use crate::mounts::{MountTable, UNSEEN, names_of};
use crate::pace::Allowance;
use crate::queue::{Dispatch, Gate, Queue};
use crate::root::{Placement, Resolved, Resolver, Root, RootSide};
use crate::state::{DestinationLock, on_storage};
use crate::sync::{Doubtful, Guard, Trash};

/// Both sides look at a root one after the other, and somebody may make it in between: they look so often, so far apart.
const LOOKS: u32 = 4;
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Does what has to be the same on two hosts again if it is not.
fn insist_on<T>(mut look: impl FnMut() -> Result<T, Fatal>) -> Result<T, Fatal> {
    for _ in 1..LOOKS {
        match look() {
            Err(Fatal::Refused { .. }) => std::thread::sleep(LOOK_AGAIN),
            result => return result,
        }
    }
    look()
}

/// What helps when a coordinator cannot say what a mover has to know.
const AGAIN: &str = "the mover tries again";

/// The coordinator's side of movers elsewhere.
pub trait Fleet: Dispatch {
    /// From now on movers know this before they do what is published.
    fn know(&self, fact: Fact);

    /// Whether movers take no new tasks for now.
    fn hold(&self, held: bool);

    /// Movers are to end what they have in hand; `at_once`: to drop it.
    fn stop(&self, at_once: bool);

    /// Tasks that all movers together can have in hand.
    fn places(&self) -> usize;

    /// Whether nobody has anything in hand.
    fn is_settled(&self) -> bool;

    /// What keeps the movers from being faster.
    fn limit(&self) -> Option<Limit>;

    /// Who works for the job, and how they do.
    fn movers(&self) -> Vec<MoverView>;

    /// Why the job cannot go on with them.
    fn failure(&self) -> Option<Fatal>;
}

/// Where movers elsewhere can be had.
pub trait Fleets: Send + Sync {
    /// How long a mover may go on that nobody hears of.
    fn lease(&self) -> Duration;

    /// Offers a job to them.
    ///
    /// # Errors
    /// Why it cannot be offered: nobody was told of it then.
    fn open(&self, offer: JobOffer, engine: Arc<Engine>) -> Result<Arc<dyn Fleet>, Fatal>;
}

/// Everything that a mover has to know to work for a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobOffer {
    /// The job.
    pub job: JobId,
    /// The name under which it is offered: no two coordinators offer one name at a time.
    pub key: String,
    /// Which run of it: names of temporaries carry it.
    pub run: u64,
    /// What to do.
    pub spec: JobSpec,
    /// Where relative paths begin.
    pub directory: PathBytes,
    /// Whose job it is: movers of others do not work for it.
    pub uid: u32,
    pub(crate) kind: RootsKind,
    pub(crate) placement: Placement,
    /// What the coordinator may do that changes how entries come out: movers have to be able to do the same.
    pub capabilities: Vec<String>,
    /// Where it writes.
    pub places: Vec<Place>,
    /// The kernel under which the coordinator runs.
    pub(crate) boot: String,
    pub(crate) facts: RunFacts,
    /// Temporaries of earlier runs that this one goes on with.
    pub(crate) spared: Vec<Name>,
    /// The state directory, which may lie inside the destination.
    pub(crate) state: Option<(PathBytes, Identity)>,
    /// The directory of this run in the trash.
    pub(crate) trash: Option<String>,
    /// A manifest is kept; `true`: of what is written alone.
    pub(crate) records: Option<bool>,
    pub(crate) wants_items: bool,
    /// Leases of an earlier run have run out since this one began.
    #[serde(skip)]
    pub has_waited: bool,
}

/// A place that a job fills, whatever paths lead there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// What its file system is called.
    names: Vec<FileSystemName>,
    /// Where it is in there.
    path: PathBytes,
}

impl Place {
    pub(crate) fn of(target: &Path) -> Option<Self> {
        let found = on_storage(target)?;
        let path = PathBytes::from(found.path.as_os_str());
        Some(Self { names: names_of(found.device), path })
    }

    /// Whether one lies at, in or around another.
    fn meets(&self, other: &Self) -> bool {
        let (own, theirs) = (self.path.to_path(), other.path.to_path());
        let is_one = self.names.iter().any(|name| other.names.contains(name));
        is_one && (own.starts_with(&theirs) || theirs.starts_with(&own))
    }
}

/// By what one end of a root is known on every host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideMark {
    /// The directory that holds the root entry.
    above: Identity,
    /// The root entry itself, if it is there.
    entry: Option<Identity>,
}

/// How roots are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RootsKind {
    /// Each source beside its destination.
    Pairs,
    /// Sources alone.
    Sources,
    /// A tree beside its manifest.
    Checked,
}

/// What a process that works for a job elsewhere brings along.
pub struct MoverPlace {
    /// Movers at most; 0 chooses.
    pub threads: usize,
    /// Memory for buffers, in bytes.
    pub memory_bytes: u64,
    /// Bytes that it may move in a second.
    pub bytes_per_s: Option<u64>,
    /// Files that the process may have open.
    pub open_files_max: u64,
    /// For what does not fit into memory.
    pub spill_directory: PathBuf,
    /// The way to the coordinator.
    pub desk: Arc<dyn Desk>,
    /// The counters of this process for this job.
    pub counters: Arc<Counters>,
    /// The switch to stop.
    pub control: Arc<Control>,
    /// What it does for others, and where.
    pub bounds: Bounds,
}

/// A mover's part in a job.
pub struct Joined {
    engine: Arc<Engine>,
    crew: Crew,
    below: Below,
}

/// Watches nothing, but says whether somebody else wants to know of each entry.
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

/// What one end of a root is at present.
fn mark_of(mounts: &MountTable, side: &RootSide, follow: bool) -> Result<SideMark, EntryError> {
    let fail = |e| entry_error(Side::Destination, Operation::Stat, side.display.clone(), e);
    let look = |name: &[u8]| match stat::stat_at(&side.parent, name, follow) {
        Ok(found) => Ok(Some(mounts.identity(&found))),
        Err(error) if stat::is_absent(error) => Ok(None),
        Err(error) => Err(fail(error)),
    };
    let (above, entry) = match &side.name {
        Some(name) => (look(b".")?, look(name.as_bytes())?),
        None => (look(b"..")?, look(b".")?),
    };
    Ok(SideMark { above: above.ok_or_else(|| fail(Errno::NOENT))?, entry })
}

impl Engine {
    /// Refuses to go on where a root is not what it is where the coordinator runs, because something was mounted there.
    pub(crate) fn check_roots_again(&self) -> Result<(), Fatal> {
        insist_on(|| {
            let Some(Answer::Roots(Ok(known))) = self.ask(|| Question::Roots) else {
                return Err(Fatal::unavailable("the coordinator does not answer", AGAIN));
            };
            for (id, known) in self.roots.ids().zip(&known) {
                let Ok(root) = self.root(id) else { continue };
                check_side(&self.mounts, &root.source, (&known.0, false))?;
                if let (Some(side), Some(known)) = (root.destination.as_ref(), known.1.as_ref()) {
                    check_side(&self.mounts, side, (known, true))?;
                }
            }
            Ok(())
        })
    }

    /// Both ends of all roots as they are at present.
    pub(crate) fn marks(&self) -> Result<RootMarks, EntryError> {
        let mark = |id| {
            let root = self.root(id)?;
            let there = root.destination.as_ref().map(|side| mark_of(&self.mounts, side, true));
            Ok((mark_of(&self.mounts, &root.source, false)?, there.transpose()?))
        };
        self.roots.ids().map(mark).collect()
    }
}

/// Both ends of each root.
pub type RootMarks = Vec<(SideMark, Option<SideMark>)>;

impl Joined {
    /// Looks at what the movers are at. `held`: they take nothing for now.
    ///
    /// # Errors
    /// No thread can be had, or something else is mounted here now than where the coordinator runs.
    pub fn turn(&mut self, held: bool) -> Result<(), Fatal> {
        self.below.look_again(&self.engine)?;
        self.crew.turn(held)
    }

    /// So many processes share what the job may use in a second.
    pub fn share(&self, processes: u32) {
        self.engine.limits.share(processes);
    }

    /// What the movers here have done since they came.
    pub fn done(&self) -> Done {
        self.crew.done()
    }

    /// What was counted here so far.
    pub fn counters(&self) -> Snapshot {
        self.engine.counters.snapshot()
    }

    /// What keeps the movers here from being faster.
    pub fn limit(&self) -> Option<&Limit> {
        self.crew.limit()
    }

    /// Waits until all movers have ended; the queue is closed.
    pub fn end(mut self) {
        self.crew.end();
    }
}

/// A mover's part in a job, before anybody is at work.
pub struct Joining {
    engine: Arc<Engine>,
    allowance: Allowance,
    below: Below,
}

impl Joining {
    /// Opens the trees of a job here, and makes sure that they are the coordinator's.
    ///
    /// # Errors
    /// Why this process cannot work for the job.
    pub fn new(offer: &JobOffer, place: MoverPlace) -> Result<Self, Fatal> {
        let mut spec = offer.spec.clone();
        spec.limits.threads = place.threads;
        spec.limits.memory_bytes = place.memory_bytes;
        let own = dmover_sys::process::effective_uid();
        if own != offer.uid {
            let message =
                format!("the job belongs to user {}, but this mover runs as user {own}", offer.uid);
            return Err(Fatal::refused(message, "start the mover as that user"));
        }
        let may = dmover_sys::process::capabilities_that_matter();
        let missing: Vec<&str> =
            offer.capabilities.iter().filter(|c| !may.contains(c)).map(String::as_str).collect();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            let message =
                format!("this mover lacks privileges that the coordinator has: {missing}");
            return Err(Fatal::refused(message, "start the mover with the same privileges"));
        }
        let base = offer.directory.to_path();
        let mounts = MountTable::of_desk(Arc::clone(&place.desk), &offer.boot);
        let resolver = Resolver {
            spec: &spec,
            mounts: &mounts,
            remembered: Some(offer.placement),
            privileged: dmover_sys::process::is_privileged(),
            base: &base,
            bounds: &place.bounds,
        };
        place.bounds.check_spec(&spec)?;
        let resolved = insist_on(|| {
            let resolved = offer.kind.resolve(&resolver)?;
            let Some(Answer::Roots(known)) = place.desk.ask(Question::Roots) else {
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
                place.bounds.check_place(&base.join(named.to_path()))?;
                Some(Trash::open(&base.join(named.to_path()), target, run.clone())?)
            }
            _ => None,
        };
        let state = offer.state.as_ref().map(|(_, identity)| *identity);
        let guard = Guard::new(delete, None, trash, state, 0);
        let allowance = Allowance::new(place.threads);
        let recorder = offer.records.map(|only_written| {
            let output = Box::new(std::io::sink());
            let recorder =
                if only_written { Recorder::of_written(output) } else { Recorder::new(output) };
            Arc::new(recorder)
        });
        let engine = Engine::assemble(Parts {
            spec: &spec,
            facts: offer.facts.clone(),
            open_files_max: place.open_files_max.saturating_sub(resolved.descriptors()),
            roots: resolved.roots,
            meetings: resolved.meetings,
            mounts,
            temporaries,
            guard,
            sharing: None,
            doubtful: Doubtful::default(),
            open_files: None,
            failures: None,
            recorder,
            monitor: Arc::new(Elsewhere { wants_items: offer.wants_items }),
            counters: place.counters,
            control: place.control,
            layout: Arc::new(DefaultLayout),
            state_path: offer.state.as_ref().map(|(path, _)| path.to_path()),
            spill_directory: &place.spill_directory,
            allowance,
            desk: Some(place.desk),
            destination: DestinationLock::default(),
            own_bytes_per_s: place.bytes_per_s,
            base: base.clone(),
            bounds: place.bounds,
        })?;
        let below = Below::new(&engine)?;
        Ok(Self { engine: Arc::new(engine), allowance, below })
    }

    /// Who learns what is known from now on.
    pub fn learner(&self) -> Arc<dyn Fn(Fact) + Send + Sync> {
        let engine = Arc::clone(&self.engine);
        Arc::new(move |fact| engine.learn(fact))
    }

    /// Tasks of each class that may be in hand here at most.
    pub fn places(&self) -> usize {
        self.allowance.most
    }

    /// Movers begin to work.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn begin(self, queue: Arc<dyn Queue>, gate: Arc<dyn Gate>) -> Result<Joined, Fatal> {
        let mut crew = Crew::new(Arc::clone(&self.engine), queue, gate, self.allowance);
        crew.begin()?;
        Ok(Joined { engine: self.engine, crew, below: self.below })
    }
}

impl JobOffer {
    /// Whether it must not run at the same time as another job: one of them makes a tree as its source is, where the other one writes.
    pub fn is_in_the_way_of(&self, other: &Self) -> bool {
        let syncs = [self, other].iter().any(|offer| offer.spec.verb == Verb::Sync);
        syncs && self.places.iter().any(|own| other.places.iter().any(|theirs| own.meets(theirs)))
    }

    /// Refuses other directories or file systems under the same paths, and what is read-only here.
    fn check_roots(
        &self,
        mounts: &MountTable,
        roots: &[Root],
        known: &RootMarks,
    ) -> Result<(), Fatal> {
        let writes = self.spec.verb.fills() && !self.spec.policy.dry_run;
        for (root, known) in roots.iter().zip(known) {
            check_side(mounts, &root.source, (&known.0, false))?;
            let Some((side, known)) = root.destination.as_ref().zip(known.1.as_ref()) else {
                continue;
            };
            check_side(mounts, side, (known, true))?;
            let name = side.name.as_ref().filter(|_| known.entry.is_some());
            let entry =
                name.and_then(|name| path::open_directory_at(&side.parent, name.as_bytes()).ok());
            let place = entry.as_ref().unwrap_or(&*side.parent);
            if writes && directory::is_read_only(place) {
                let shown = side.display.to_path();
                let message = format!("'{}' is read-only on this host", shown.display());
                return Err(Fatal::refused(message, "mount it read-write on this host"));
            }
        }
        Ok(())
    }
}

fn check_side(
    mounts: &MountTable,
    side: &RootSide,
    (known, follow): (&SideMark, bool),
) -> Result<(), Fatal> {
    let found = mark_of(mounts, side, follow)
        .map_err(|error| Fatal::refused(named(&error), "check that it is mounted on this host"))?;
    // Above a mount point each host has a directory of its own.
    let (here, there) = match (found.entry, known.entry) {
        (Some(here), Some(there)) => (here, there),
        (None, None) => (found.above, known.above),
        (Some(here), None) => (here, known.above),
        (None, Some(there)) => (found.above, there),
    };
    if here == there && found.entry.is_some() == known.entry.is_some() {
        return Ok(());
    }
    let shown = side.display.to_path();
    let what = if here.mount == UNSEEN || here.mount != there.mount {
        "is on another file system here than on the coordinator's host"
    } else {
        "is another directory here than on the coordinator's host"
    };
    let hint = "mount the same file system at the same path, or do not run movers on this host";
    Err(Fatal::refused(format!("'{}' {what}", shown.display()), hint))
}

impl Engine {
    /// Whether the job is to end.
    pub fn is_stopping(&self) -> bool {
        self.control.is_stopping()
    }

    /// How long a job that is stopped may still take.
    pub fn time_to_end(&self) -> Option<Duration> {
        self.control.time_to_end()
    }

    /// A person is to know something about movers elsewhere.
    pub fn tell_of_movers(&self, words: String) {
        self.monitor.event(&dmover_model::Event::Movers { words });
    }

    /// A mover has found that its mounts were others for a while: what it said meanwhile may be about another file system.
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

    fn learn(&self, fact: Fact) {
        match fact {
            Fact::Doubts(doubts) => self.doubtful.add(doubts),
            Fact::Forbidden(identity) => self.forbid(identity),
        }
    }
}
