//! What movers share about manifests and check lists.
use dmover_journal::KnownPaths;
use dmover_model::{
    Answer, Carried, CoordinatorRequest, EntryKind, Fatal, Identity, Metadata, Record, Times,
    TreePath,
};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::control::{Control, StopReason};
use crate::coordinator_client::CoordinatorLink;
use crate::hash_guesses::Guesses;
use crate::mover_report::ReportItem;
use crate::recorder::Recorder;

/// How many sealed large files are remembered.
const SEALED_MAX: usize = 64;

/// What movers share about the manifest that the job writes, and the one or the lists that it compares with.
pub(crate) struct Proof {
    /// Writes a manifest.
    pub recorder: Option<Arc<Recorder>>,
    /// Paths in the manifest that a tree is compared with.
    known: Mutex<KnownPaths>,
    /// Times to set on directories after repairs below them.
    kept_times: Mutex<HashMap<TreePath, Times>>,
    /// Results of large files with several names, until the other names are linked.
    sealed: Mutex<VecDeque<Carried>>,
    /// Which functions digests of 64 digits had so far, in lists that do not name the function.
    pub guesses: Guesses,
    coordinator: CoordinatorLink,
    control: Arc<Control>,
}

impl Proof {
    /// `known`: an empty set for the paths of the manifest that a tree is compared with.
    pub fn new(
        recorder: Option<Arc<Recorder>>,
        known: KnownPaths,
        coordinator: CoordinatorLink,
        control: Arc<Control>,
    ) -> Self {
        Self {
            recorder,
            known: Mutex::new(known),
            kept_times: Mutex::default(),
            sealed: Mutex::default(),
            guesses: Guesses::default(),
            coordinator,
            control,
        }
    }

    /// Whether the manifest also has entries that already existed.
    pub fn keeps_what_is_there(&self) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| !recorder.is_of_written())
    }

    /// Writes a record to the manifest, if there is one. The job stops if it cannot be written.
    pub fn keep(&self, record: impl FnOnce() -> Record) {
        let Some(recorder) = &self.recorder else { return };
        let record = record();
        if self.coordinator.is_remote() {
            self.coordinator.tell(|| ReportItem::Record(Box::new(record)));
        } else if !recorder.keep(&record) {
            self.control.stop(StopReason::Manifest);
        }
    }

    /// Records that an entry is missing in the manifest, which is then incomplete.
    pub fn leave_out(&self) {
        if let Some(recorder) = &self.recorder
            && !self.coordinator.tell(|| ReportItem::LeftOut)
        {
            recorder.note_left_out();
        }
    }

    /// Whether the manifest that a tree is compared with has these paths, or why that is not known.
    pub fn known(&self, paths: &[TreePath]) -> Result<Vec<bool>, String> {
        if let Some(Answer::Known(known)) =
            self.coordinator.ask(|| CoordinatorRequest::Known(paths.to_vec()))
        {
            return known;
        }
        let known = lock(&self.known);
        paths.iter().map(|path| known.has(path)).collect()
    }

    /// Adds paths of the manifest that a tree is compared with. An error says why this is not possible.
    pub fn learn<'a>(&self, paths: impl IntoIterator<Item = &'a TreePath>) -> Result<(), Fatal> {
        let mut known = lock(&self.known);
        paths.into_iter().try_for_each(|path| known.insert(path))
    }

    /// Remembers a sealed large file: another task links its further names.
    pub fn remember_sealed(&self, carried: &Carried) {
        if carried.content.is_none() {
            return;
        }
        self.coordinator.tell(|| ReportItem::Sealed(Box::new(carried.clone())));
        let sealed = &mut *lock(&self.sealed);
        if sealed.len() == SEALED_MAX {
            sealed.pop_front();
        }
        sealed.push_back(carried.clone());
    }

    /// The result of a large file that was just sealed.
    pub fn sealed(&self, identity: Identity) -> Option<Carried> {
        let known = lock(&self.sealed).iter().rev().find(|c| c.of == identity).cloned();
        known.or_else(|| match self.coordinator.ask(|| CoordinatorRequest::Sealed(identity)) {
            Some(Answer::Sealed(carried)) => carried.map(|carried| *carried),
            _ => None,
        })
    }

    /// The metadata of a directory as it was, or should be, before an entry in it was repaired.
    pub fn with_kept_times(&self, path: &TreePath, found: Metadata) -> Metadata {
        if found.kind != EntryKind::Directory {
            return found;
        }
        match self.kept_times(path) {
            Some((atime, mtime)) => Metadata { atime, mtime, ..found },
            None => found,
        }
    }

    /// The times that a directory must get after repairs below it.
    pub fn kept_times(&self, path: &TreePath) -> Option<Times> {
        let known = lock(&self.kept_times).get(path).copied();
        known.or_else(|| {
            match self.coordinator.ask(|| CoordinatorRequest::KeptTimes(path.clone())) {
                Some(Answer::KeptTimes(times)) => times,
                _ => None,
            }
        })
    }

    /// Records the times of a directory.
    pub fn keep_times(&self, path: TreePath, times: Times, unless_known: bool) {
        self.coordinator.tell(|| ReportItem::KeptTimes(path.clone(), times, unless_known));
        let mut all = lock(&self.kept_times);
        if !unless_known || !all.contains_key(&path) {
            all.insert(path, times);
        }
    }
}
