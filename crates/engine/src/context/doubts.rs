//! Entries that the next pass must compare, whatever their times say.
use dmover_journal::OpenFiles;
use dmover_model::{FileRef, Identity, LinkGroup, TreePath, Verb};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use std::collections::HashSet;
use std::sync::atomic::AtomicU64;

use crate::coordinator_client::CoordinatorLink;
use crate::mover_report::ReportItem;
use crate::recheck::Doubtful;

/// Files whose times prove nothing: those that earlier passes found, and those of this one.
pub(crate) struct Doubts {
    /// Files that were open for writing when an earlier pass copied them: a write through a mapping (mmap(2)) may not
    /// have changed their times.
    pub earlier: Doubtful,
    /// Doubtful files of this pass that are not in the journal yet.
    found: Mutex<Vec<TreePath>>,
    /// Files with several names that were open for writing.
    writers: Mutex<HashSet<Identity>>,
    /// Where a copy without a journal records such files.
    pub open_files: Option<OpenFiles>,
    /// Files whose extents were checked, because nothing else shows whether they are complete.
    pub files_asked: AtomicU64,
    /// The job has a journal.
    keeps_journal: bool,
    /// Another run compares files that were open for writing in this one.
    pub notes_writers: bool,
    coordinator: CoordinatorLink,
}

impl Doubts {
    /// `verb`, `keeps_journal`: of the job.
    pub fn new(
        earlier: Doubtful,
        open_files: Option<OpenFiles>,
        (verb, keeps_journal): (Verb, bool),
        coordinator: CoordinatorLink,
    ) -> Self {
        Self {
            earlier,
            found: Mutex::default(),
            writers: Mutex::default(),
            open_files,
            files_asked: AtomicU64::new(0),
            keeps_journal,
            notes_writers: keeps_journal || verb == Verb::Copy,
            coordinator,
        }
    }

    /// Records that the next pass must compare this path.
    pub fn add(&self, path: TreePath) {
        if self.coordinator.tell(|| ReportItem::Doubt(path.clone())) {
            return;
        }
        match &self.open_files {
            Some(files) => files.note(&path),
            None if self.keeps_journal => lock(&self.found).push(path),
            None => {}
        }
    }

    /// Takes the doubtful files of this pass that are not in the journal yet.
    pub fn take_found(&self) -> Vec<TreePath> {
        std::mem::take(&mut lock(&self.found))
    }

    /// Copies a doubt about one name of a file to all its names, because that name may vanish before the next pass.
    pub fn share(&self, of: Identity, names: &[FileRef]) {
        let place = |file: &FileRef| file.directory.path.join(file.name.as_bytes());
        let known = self.coordinator.is_remote() || lock(&self.writers).contains(&of);
        if self.notes_writers && known {
            self.share_of(of, names.iter().map(place).collect());
        }
    }

    /// Copies a doubt about one name of a file to the names at these paths.
    pub fn share_of(&self, of: Identity, names: Vec<TreePath>) {
        if !self.coordinator.tell(|| ReportItem::SharedDoubts(of, names.clone()))
            && lock(&self.writers).contains(&of)
        {
            for name in names {
                self.add(name);
            }
        }
    }

    /// Records that a file with several names is open for writing.
    pub fn note_writer(&self, of: Identity) {
        if !self.coordinator.tell(|| ReportItem::Writer(of)) {
            lock(&self.writers).insert(of);
        }
    }

    /// Whether any name of a file is doubtful.
    pub fn has_any(&self, group: &LinkGroup) -> bool {
        std::iter::once(&group.first)
            .chain(&group.rest)
            .any(|file| self.earlier.has(&file.directory.path, file.name.as_bytes()))
    }

    /// Moves doubts about renamed entries to their new names.
    pub fn carry(&self, moves: &[(&TreePath, &TreePath)]) {
        let owned = || moves.iter().map(|(from, to)| ((*from).clone(), (*to).clone())).collect();
        if !self.coordinator.tell(|| ReportItem::Moved(owned())) {
            lock(&self.found).extend(self.earlier.carry(moves));
        }
    }

    /// Whether an entry was renamed at the destination.
    pub fn was_renamed(&self, directory: &TreePath, name: &[u8]) -> bool {
        self.earlier.ask(|doubts| doubts.renamed.contains(&directory.join(name)))
    }

    /// Whether a directory was renamed at the destination.
    pub fn was_renamed_itself(&self, directory: &TreePath) -> bool {
        self.earlier.ask(|doubts| doubts.renamed.contains(directory))
    }

    /// Records that an entry is equal to its source, or gone, so that it is not doubtful any more.
    pub fn settle(&self, is_directory: bool, path: impl FnOnce() -> TreePath) {
        if let Some(path) = self.earlier.settles(is_directory, path)
            && !self.coordinator.tell(|| ReportItem::Settled(path.clone()))
        {
            self.earlier.settled(path);
        }
    }

    /// Whether a file was open for writing when it was copied.
    pub fn has(&self, directory: &TreePath, name: &[u8]) -> bool {
        self.earlier.has(directory, name)
    }
}
