//! What a job needs to run in this process.
use dmover_journal::{Failures, JobFile, JobLock, StateDirectory};
use dmover_local::destination_lock::DestinationLock;
use dmover_local::layout::{DefaultLayout, LayoutHook};
use dmover_local::root::{OverlappingRoots, Root};
use dmover_model::{JobId, JobSpec};
use dmover_observe::{Board, Counters, JobView, Monitor, NoMonitor};
use dmover_tree::RemoteTrees;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Then;
use crate::bounds::Bounds;
use crate::chunk_movers::ChunkMovers;
use crate::context::{Forbidden, Places, Receivers, RootTable};
use crate::control::Control;
use crate::coordinator_client::CoordinatorLink;
use crate::fleet::Fleets;
use crate::job_list::JobList;
use crate::recorder::Recorder;

/// Everything that a job needs to run in this process.
pub struct Job {
    /// The request.
    pub spec: JobSpec,
    /// Paths or pairs of `spec.selection.list`, read and checked.
    pub list: JobList,
    /// Where the job is recorded.
    pub files: JobFiles,
    /// Locks of the written directories, held while this exists.
    pub destination: DestinationLock,
    /// What follows after this pass.
    pub then: Then,
    /// How long earlier runs of the same command took.
    pub before: Duration,
    /// Who receives reports while the job runs.
    pub observers: Observers,
    /// The switch to stop the job.
    pub control: Arc<Control>,
    /// Writes a manifest of the copied entries.
    pub manifest: Option<Arc<Recorder>>,
    /// Chooses layouts.
    pub layout: Arc<dyn LayoutHook>,
    /// What the process may use.
    pub process: ProcessFacts,
    /// Opens sources on other hosts; `None`: there are none.
    pub remote: Option<Arc<dyn RemoteTrees>>,
    /// The source of remote movers; `None`: movers run in this process.
    pub fleets: Option<Arc<dyn Fleets>>,
    /// Movers at other hosts that copy chunks of large files; `None`: there are none.
    pub chunk_movers: Option<Arc<dyn ChunkMovers>>,
}

/// Where a job is recorded.
#[derive(Debug, Default)]
pub struct JobFiles {
    /// The state directory of the job; `None`: nothing is recorded or locked.
    pub state: Option<StateDirectory>,
    /// The directory in which a job without state is visible while it runs.
    pub shown_in: Option<StateDirectory>,
    /// The lock, if the caller runs more than one pass; otherwise each pass takes it.
    pub lock: Option<Arc<JobLock>>,
    /// The job that this run is a part of; its control files are used.
    pub part_of: Option<(StateDirectory, JobId)>,
    /// The description of the job for other processes.
    pub description: JobFile,
}

/// Who receives reports while a job runs.
pub struct Observers {
    /// Receives the events.
    pub monitor: Arc<dyn Monitor>,
    /// The counters to use.
    pub counters: Arc<Counters>,
    /// Where the state of the job is published for displays.
    pub board: Option<Arc<Board<Option<JobView>>>>,
    /// How often a line of progress is logged; zero: never.
    pub log_every: Duration,
}

impl Default for Observers {
    fn default() -> Self {
        let (counters, monitor) = (Arc::default(), Arc::new(NoMonitor));
        Self { monitor, counters, board: None, log_every: Duration::ZERO }
    }
}

/// What a process may use.
#[derive(Debug, Clone)]
pub struct ProcessFacts {
    /// The umask of the user.
    pub umask: u32,
    /// The most files that the process may have open.
    pub open_files_max: u64,
    /// The directory for data that does not fit into memory.
    pub spill_directory: PathBuf,
    /// The trees and verbs that it accepts.
    pub bounds: Bounds,
}

impl ProcessFacts {
    /// Data that does not fit into memory goes to the directory for temporary files. `umask` and `open_files_max`: see
    /// the fields.
    pub fn new(umask: u32, open_files_max: u64) -> Self {
        Self {
            umask,
            open_files_max,
            spill_directory: std::env::temp_dir(),
            bounds: Bounds::default(),
        }
    }
}

impl Job {
    /// A job that runs in this process, keeps no state and is observed by nobody.
    pub fn new(spec: JobSpec, process: ProcessFacts) -> Self {
        Self {
            spec,
            list: JobList::None,
            files: JobFiles::default(),
            destination: DestinationLock::default(),
            then: Then::Nothing,
            before: Duration::ZERO,
            observers: Observers::default(),
            control: Arc::default(),
            manifest: None,
            layout: Arc::new(DefaultLayout),
            process,
            remote: None,
            fleets: None,
            chunk_movers: None,
        }
    }
}

/// The directories of a job whose movers run here.
pub(super) fn places(job: &Job, roots: Vec<Root>, meetings: OverlappingRoots) -> Places {
    Places {
        roots: RootTable::new(roots),
        meetings,
        lock: job.destination.clone(),
        base: PathBuf::new(),
        bounds: job.process.bounds.clone(),
        state_path: job.files.state.as_ref().and_then(StateDirectory::real_path),
        forbidden: Forbidden::default(),
    }
}

/// Who receives the reports of movers here. `failures`: where errors are recorded, if not in a journal.
pub(super) fn receivers(job: &Job, failures: Option<Failures>) -> Receivers {
    Receivers {
        monitor: Arc::clone(&job.observers.monitor),
        counters: Arc::clone(&job.observers.counters),
        coordinator: CoordinatorLink::default(),
        control: Arc::clone(&job.control),
        failures,
    }
}
