//! The journal of a run: its initial state, and changes that are committed before they take effect.
use dmover_journal::{
    Begun, Ending, Journal, JournalEntry, LastPass, Ledger, Left, LookedInto, PassKind, PassPlaces,
    RunEnd, StateDirectory, now_ms, source_identity,
};
use dmover_local::mounts::MountTable;
use dmover_local::named_directory::device_and_inode;
use dmover_local::root::Root;
use dmover_model::{
    Budget, DirectoryRef, Failed, Fatal, JobId, JobSpec, LinkName, PathBytes, RecheckSet,
    Timestamp, TreePath, Verb, WithheldReason,
};
use dmover_plan::coordinator::{Change, Coordinator, Input};
use dmover_plan::history::{COARSE, History};
use dmover_tree::RemoteTree;
use std::collections::BTreeSet;
use std::time::Duration;

use super::{Job, JobList};
use crate::context::Engine;
use crate::control::StopReason;
use crate::recheck::Doubtful;
use crate::report::{JobReport, JobState};

/// An open journal, and the changes for the next commit.
#[derive(Debug)]
pub(super) struct Recording {
    journal: Journal,
    pub last: Option<LastPass>,
    entry: JournalEntry,
    /// When the journal was opened, before anything was read of either side.
    opened_ms: i64,
    /// Roots whose destination did not exist when the pass began.
    unplaced: Vec<(Option<String>, PathBytes)>,
    /// The number of devices in the journal.
    mounts: usize,
    pub is_resumed: bool,
    /// Failures of the interrupted run, if this run resumes its pass.
    pub failed: Failed,
    /// Source entries that the destination already had, so far in this pass.
    pub had: u64,
    /// The pass may delete.
    deletes: bool,
}

impl Recording {
    /// Opens the journal, if the job keeps one.
    pub fn open(
        spec: &JobSpec,
        state: Option<&StateDirectory>,
        id: &JobId,
    ) -> Result<Option<Self>, Fatal> {
        let Some(state) = state.filter(|_| spec.verb == Verb::Sync) else { return Ok(None) };
        let directory = state.of_job(id);
        if spec.policy.dry_run {
            return Ok(None);
        }
        let journal = Journal::open(&directory)?;
        let last = journal.last_pass()?;
        let entry = JournalEntry::default();
        let unplaced = Vec::new();
        let (mounts, is_resumed, failed, had) = (0, false, Failed::default(), 0);
        let deletes = spec.policy.sync.as_ref().is_some_and(|sync| sync.delete.is_some());
        let opened_ms = now_ms();
        let new = Self {
            journal,
            last,
            entry,
            opened_ms,
            unplaced,
            mounts,
            is_resumed,
            failed,
            had,
            deletes,
        };
        Ok(Some(new))
    }

    /// The devices in tasks of an earlier run.
    pub fn mounts(&self) -> Result<MountTable, Fatal> {
        Ok(MountTable::with(&self.journal.mounts()?))
    }

    /// Begins or resumes a pass.
    pub fn begin(&mut self, job: &Job, roots: &[Root], mounts: &MountTable) -> Result<(), Fatal> {
        let ends = ends(roots);
        // What the job was first given counts until it is forgotten: a pass without deletes over something else must
        // not open the way for one with.
        let known = self.last.as_ref().map(|last| last.source.clone());
        let source = known.filter(|known| !known.is_empty()).unwrap_or_else(|| source(roots));
        let roots_there = objects(&ends).unwrap_or_default();
        let source_skew = source_skew(roots);
        let places =
            PassPlaces { source, roots: roots_there, source_skew, began_ms: self.opened_ms };
        let kind = match &job.list {
            JobList::Failed(_) | JobList::Paths(_) => PassKind::Listed,
            JobList::Changed(places) => PassKind::Changed(places),
            _ => PassKind::Whole,
        };
        let begun = self.journal.begin(&job.spec, kind, &places)?;
        if places.roots.is_empty() {
            self.unplaced = ends;
        }
        self.is_resumed = begun == Begun::Resumed;
        if self.is_resumed {
            self.failed = self.journal.failed()?;
            self.had = self.journal.had()?;
        }
        self.mounts = if self.is_resumed { mounts.since(0).len() } else { 0 };
        Ok(())
    }

    /// Records that the destination had content before the first pass of this job.
    pub fn note_foreign(&self) -> Result<(), Fatal> {
        self.journal.set_foreign(true)
    }

    /// Adds names of linked inodes.
    pub fn links(&mut self, names: &[LinkName]) {
        self.entry.links.extend_from_slice(names);
    }

    /// Adds directories to finish again.
    pub fn dirty(&mut self, directories: &[DirectoryRef]) {
        self.entry.dirty.extend_from_slice(directories);
    }

    /// Removes directories that a task has taken.
    pub fn taken(&mut self, directories: &[DirectoryRef]) {
        self.entry.taken.extend_from_slice(directories);
    }

    /// Adds changes of the remaining work.
    pub fn changes(&mut self, changes: Vec<Change>) {
        self.entry.changes.extend(changes);
    }

    /// Commits all changes so far.
    pub fn settle(&mut self, engine: &Engine) -> Result<(), Fatal> {
        let entry = &mut self.entry;
        entry.errors.append(&mut engine.reports.take_unrecorded());
        entry.doubts.append(&mut engine.doubts.take_found());
        entry.had = engine.pass.guard.had_so_far();
        self.had = entry.had;
        // It is made by the first task.
        if let Some(places) = objects(&self.unplaced) {
            entry.roots = Some(places);
            self.unplaced = Vec::new();
        }
        entry.mounts = (self.mounts, engine.end.mounts.since(self.mounts));
        self.journal.commit(entry)?;
        self.mounts += entry.mounts.1.len();
        *entry = JournalEntry::default();
        Ok(())
    }

    /// Passes the work of an earlier run to the ledger, and returns the first input.
    pub fn first_input(&self, ledger: &mut dyn Ledger) -> Result<Input, Fatal> {
        let mut left = Left::default();
        loop {
            let links = self.journal.links(&mut left)?;
            if links.is_empty() {
                break;
            }
            ledger.record_links(links)?;
        }
        let mut left = Left::default();
        loop {
            let dirty = self.journal.dirty(&mut left)?;
            if dirty.is_empty() {
                break;
            }
            ledger.record_dirty(dirty)?;
        }
        let (nodes, next) = self.journal.nodes()?;
        Ok(Input::Resume { nodes, next })
    }

    /// The next tasks that an earlier run left.
    pub fn next_input(&self, left: &mut Left, budget: Budget) -> Result<Input, Fatal> {
        let tasks = self.journal.tasks(left, budget)?;
        let more = !tasks.is_empty();
        Ok(Input::Left { tasks, more })
    }

    /// Files to compare, because they were open for writing when they were copied.
    pub fn doubtful(&self) -> Result<BTreeSet<TreePath>, Fatal> {
        self.journal.doubts()
    }

    /// Temporary files that this run resumes.
    pub fn temporaries(&self) -> Result<Vec<dmover_model::Name>, Fatal> {
        if self.is_resumed { self.journal.temporaries() } else { Ok(Vec::new()) }
    }

    /// Records that everything that this run wrote is on storage, although it cannot end the pass.
    pub fn note_flushed(&self) {
        if let Err(error) = self.journal.note_flushed() {
            tracing::warn!(%error, "cannot record that everything was flushed; the next run compares more files");
        }
    }

    /// Ends the pass. A stopped pass stays open, to be resumed. `is_flushed`: see `RunEnd`.
    pub fn end(
        &mut self,
        report: &JobReport,
        coordinator: &mut Coordinator,
        (looked_into, is_flushed): (LookedInto<'_>, bool),
    ) -> Result<(), Fatal> {
        drop(coordinator.take_changes());
        let counters: serde_json::Map<_, _> = report
            .counters
            .iter()
            .map(|(counter, value)| (counter.name().to_owned(), value.into()))
            .collect();
        let ending = match report.state {
            JobState::Finished => Ending::Finished,
            JobState::Stopped(StopReason::Cancelled) => Ending::Cancelled,
            JobState::Stopped(_) => Ending::Stopped,
        };
        if self.deletes && report.state == JobState::Finished {
            match &report.withheld {
                None => {
                    self.journal.set_foreign(false)?;
                    self.journal.set_had_when_withheld(None)?;
                }
                // The next pass finds what this one has brought: the share would become smaller from pass to pass.
                Some(withheld) if withheld.reason.is_a_share() => {
                    self.journal.set_had_when_withheld(Some(self.had))?;
                }
                Some(_) => {}
            }
        }
        let counters = serde_json::Value::Object(counters).to_string();
        let code = report.process_code(report.exit_code());
        let end = RunEnd { ending, code, counters: &counters, is_flushed };
        self.journal.end(end, looked_into)
    }
}

/// What earlier passes of the job have seen.
pub(super) fn history(
    spec: &JobSpec,
    record: Option<&Recording>,
    last: Option<&LastPass>,
) -> History {
    History {
        seen_before: last.and_then(|last| last.seen_before(spec)),
        seen_until: last.and_then(|last| last.seen_until(spec)),
        pass_began: pass_began(record, last),
        // By a comparison of change times, what changed within the difference of the clocks counts as well.
        source_skew: last.and_then(|last| last.source_skew(spec)).filter(|_| !compares_ctime(spec)),
        suspect_since: last.and_then(|last| last.unflushed_since_ms).map(|ms| ms / 1000),
    }
}

fn compares_ctime(spec: &JobSpec) -> bool {
    spec.policy.sync.as_ref().is_some_and(|sync| sync.ctime)
}

/// The latest time at which a pass may have begun, at the coarsest time resolution of file systems.
fn pass_began(record: Option<&Recording>, last: Option<&LastPass>) -> Timestamp {
    let resumed = record.is_some_and(|record| record.is_resumed);
    let earlier = last.and_then(|last| last.unfinished_since_ms).filter(|_| resumed);
    let seconds = earlier.unwrap_or_else(now_ms) / 1000 - COARSE.as_secs() as i64;
    Timestamp { seconds, nanoseconds: 0 }
}

/// Paths to check more closely, from the journal and other records.
pub(super) fn doubtful(record: Option<&Recording>, doubts: RecheckSet) -> Result<Doubtful, Fatal> {
    let content = record.map_or(Ok(BTreeSet::new()), Recording::doubtful)?;
    let doubtful = Doubtful::new(RecheckSet { content, ..RecheckSet::default() });
    doubtful.add(doubts);
    Ok(doubtful)
}

/// Refuses a source that had entries in the last pass and has none now; if the job may delete, the guard reports this.
pub(super) fn refuse_what_was_emptied(
    spec: &JobSpec,
    roots: &[Root],
    last: Option<&LastPass>,
) -> Result<(), Fatal> {
    let Some(sync) = spec.policy.sync.as_ref().filter(|sync| sync.delete.is_none()) else {
        return Ok(());
    };
    // The root itself is an entry.
    let had = last.is_some_and(|last| last.entries > 1);
    if had
        && !sync.allow_empty_source
        && let Some(root) = roots.first().filter(|root| root.source.is_empty())
    {
        let shown = root.source.display().to_path();
        let message =
            format!("'{}' had entries in the last pass and is empty now", shown.display());
        let hint = "check that it is mounted; if it should be empty, use --allow-empty-source";
        return Err(Fatal::refused(message, hint));
    }
    Ok(())
}

/// The previous pass. A dry run has no journal of its own, and needs the record of the last pass for its prediction.
pub(super) fn last_pass(
    job: &Job,
    id: &JobId,
    record: Option<&Recording>,
) -> Result<Option<LastPass>, Fatal> {
    let state = job.files.state.as_ref().filter(|_| job.spec.verb == Verb::Sync);
    match (record, state) {
        (Some(record), _) => Ok(record.last.clone()),
        (None, Some(state)) => LastPass::of_job(&state.of_job(id)),
        (None, None) => Ok(None),
    }
}

/// Describes a source that differs from the source of the last pass.
pub(super) fn other_source(roots: &[Root], last: Option<&LastPass>) -> Option<WithheldReason> {
    let last = last?;
    let now = source(roots);
    let words = "the source is not the directory or file system of the last pass";
    (now != last.source).then(|| WithheldReason::Doubtful(words.into()))
}

fn source(roots: &[Root]) -> String {
    let identity = |root: &Root| match root.source.remote() {
        Some(tree) => identity_there(&**tree),
        None => source_identity(&root.source.path_here().to_path()),
    };
    roots.first().map(identity).unwrap_or_default()
}

/// How far the clocks of other hosts with sources differ from the clock here; `None`: not known of one of them.
fn source_skew(roots: &[Root]) -> Option<Duration> {
    let skews = roots.iter().filter_map(|root| root.source.remote()).map(|tree| tree.clock_skew());
    skews.reduce(|one, other| one.zip(other).map(|(one, other)| one.max(other))).flatten()
}

/// A tree of another host by its file system and inode. The number of the file system depends on the host and the
/// device, so that it is the same in each pass.
fn identity_there(tree: &dyn RemoteTree) -> String {
    let identity = tree.root().metadata.identity;
    format!("{}:{}", identity.mount.0, identity.inode)
}

/// The source of each root as an object, if it can be looked at, and the path of its destination.
fn ends(roots: &[Root]) -> Vec<(Option<String>, PathBytes)> {
    let source = |root: &Root| match root.source.remote() {
        Some(tree) => Some(identity_there(&**tree)),
        None => object(&root.source.path_here()),
    };
    roots.iter().map(|root| (source(root), root.written_here())).collect()
}

/// What is at a path here, by device and inode.
fn object(at: &PathBytes) -> Option<String> {
    let (device, inode) = device_and_inode(&at.to_path())?;
    Some(format!("{device}:{inode}"))
}

/// Both ends of all roots as objects. `None`: one does not exist yet.
fn objects(ends: &[(Option<String>, PathBytes)]) -> Option<String> {
    let pairs = ends.iter().map(|(source, target)| {
        let source = source.as_ref()?;
        Some(format!("{source} {}", object(target)?))
    });
    let pairs: Option<Vec<String>> = pairs.collect();
    pairs.filter(|pairs| !pairs.is_empty()).map(|pairs| pairs.join("\n"))
}
