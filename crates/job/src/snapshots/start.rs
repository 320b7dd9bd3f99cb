//! A snapshot from the first look at its directory to the end of its job.
use dmover_engine::{JobList, JobReport, job_id};
use dmover_journal::{OWN_SNAPSHOTS as OWN, StateDirectory, now_ms};
use dmover_model::{ExitCode, Fatal, JobSpec, PathBytes, Share, SnapshotPolicy};
use std::path::PathBuf;

use super::conclude::{Concluded, Naming, NotNamed};
use super::paths::check_snapshot_paths;
use super::{Begun, SnapshotDirectory};

/// A snapshot to make.
#[derive(Debug, Clone)]
pub struct SnapshotPlan {
    /// The tree that it shows.
    pub source: PathBytes,
    /// The directory of the snapshots.
    pub directory: PathBytes,
    /// How it shares unchanged files with the previous snapshot.
    pub share: Share,
    /// Another source than that of the last snapshot is accepted.
    pub other_source: bool,
}

/// A snapshot whose directory is open. Nothing is locked.
#[derive(Debug)]
pub struct SnapshotStart {
    plan: SnapshotPlan,
    /// `None`: there is none, and none was made.
    snapshots: Option<SnapshotDirectory>,
    /// There were no snapshots before.
    is_fresh: bool,
}

/// A snapshot in progress. It holds the lock of its directory.
#[derive(Debug)]
pub struct SnapshotInProgress {
    plan: SnapshotPlan,
    snapshots: SnapshotDirectory,
    is_fresh: bool,
    begun: Begun,
}

impl SnapshotStart {
    /// Opens the directory of a snapshot. `only_look`: it is not prepared for its first snapshot.
    ///
    /// # Errors
    /// The source or the directory does not exist, or cannot be used for this.
    pub fn open(plan: SnapshotPlan, only_look: bool) -> Result<Self, Fatal> {
        let at = plan.directory.to_path();
        check_snapshot_paths(&plan.source.to_path(), &at)?;
        let known = SnapshotDirectory::open(&at);
        let is_fresh = matches!(known, Ok(None));
        let opened =
            if only_look || !is_fresh { known } else { SnapshotDirectory::make(&at).map(Some) };
        Ok(Self { plan, snapshots: opened?, is_fresh })
    }

    /// Errors for the snapshots that cannot be read.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn unreadable(&self) -> Result<Vec<Fatal>, Fatal> {
        self.snapshots.as_ref().map_or(Ok(Vec::new()), |snapshots| Ok(snapshots.list()?.1))
    }

    /// The source and the tree in progress, and how the job makes a snapshot of it.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn policy(&self) -> Result<((PathBytes, PathBytes), SnapshotPolicy), Fatal> {
        policy(&self.plan, self.snapshots.as_ref())
    }

    /// Locks the directory and begins the snapshot, or resumes an interrupted one. `state`: where the job keeps its state.
    /// `None`: the directory does not exist.
    ///
    /// The newest snapshot may be another one now: ask for the policy again.
    ///
    /// # Errors
    /// Another process makes a snapshot, the directory has snapshots of another source, or the clock was set back.
    pub fn begin(
        self,
        spec: &JobSpec,
        state: impl FnOnce() -> Option<StateDirectory>,
    ) -> Result<Option<SnapshotInProgress>, Fatal> {
        let Self { plan, snapshots, is_fresh } = self;
        let Some(snapshots) = snapshots else { return Ok(None) };
        let snapshots = snapshots.lock()?;
        let id = job_id(spec, &JobList::None, state().as_ref())?;
        let source = plan.source.to_path();
        let begun = snapshots.begin(&source, (&id, spec), plan.other_source, now_ms())?;
        Ok(Some(SnapshotInProgress { plan, snapshots, is_fresh, begun }))
    }
}

impl SnapshotInProgress {
    /// Whether an unfinished snapshot of another job, or with other rules, was set aside. A prune removes it.
    pub fn has_set_aside(&self) -> bool {
        self.begun.set_aside
    }

    /// The same as [`SnapshotStart::policy`], under the lock.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn policy(&self) -> Result<((PathBytes, PathBytes), SnapshotPolicy), Fatal> {
        policy(&self.plan, Some(&self.snapshots))
    }

    /// Names the tree of the job as a snapshot, unless entries are missing. `code`: the exit code of the job so far. `tell`
    /// gets the reason if it is refused.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn conclude(
        &self,
        report: &JobReport,
        code: ExitCode,
        naming: Naming,
        tell: &mut dyn FnMut(&NotNamed<'_>),
    ) -> Result<Concluded, Fatal> {
        self.snapshots.conclude(report, code, (self.begun.at_ms, naming), tell)
    }

    /// Releases the lock, and removes what was prepared for a first snapshot whose job failed.
    pub fn end(self, has_failed: bool) {
        if self.is_fresh && has_failed {
            self.snapshots.leave();
        }
    }
}

fn policy(
    plan: &SnapshotPlan,
    snapshots: Option<&SnapshotDirectory>,
) -> Result<((PathBytes, PathBytes), SnapshotPolicy), Fatal> {
    let base = snapshots.map(SnapshotDirectory::newest).transpose()?.flatten();
    let none = || -> PathBuf { plan.directory.to_path().join(OWN) };
    let unfinished = snapshots.map_or_else(none, SnapshotDirectory::unfinished);
    let policy = SnapshotPolicy {
        directory: plan.directory.clone(),
        base: base.map(|base| base.name),
        share: plan.share,
    };
    Ok(((plan.source.clone(), PathBytes::from(unfinished.as_os_str())), policy))
}
