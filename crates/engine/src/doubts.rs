//! Files whose times prove nothing, because they were open for writing: another run compares them.
use dmover_local::source::OpenFile;
use dmover_model::{FileRef, Identity, LinkGroup, Metadata, Name, Note, TreePath, Verb};
use dmover_observe::lock;

use crate::context::Engine;
use crate::level::Level;
use crate::mover_report::ReportItem;

impl Engine {
    /// Records a file that is open for writing: later writes through a mapping need not change any time. A program that
    /// opens the file later does change its times first.
    pub(crate) fn note_writers(&self, level: &Level, name: &Name, file: OpenFile<'_>) {
        if self.is_written_to(level, file) {
            self.note_written(level, name, file.metadata);
        }
    }

    /// Whether a file is open for writing, where this is recorded.
    pub(crate) fn is_written_to(&self, level: &Level, file: OpenFile<'_>) -> bool {
        self.notes_writers()
            && level.source.facts.local
            && !self.rests(level, file)
            && file.is_open_for_writing()
    }

    /// Whether a copy may skip the check for open writers, which costs as much as four other calls. A pass always
    /// checks.
    ///
    /// A page that was written back cannot be changed without a new time, even through a mapping. A write(2) sets the
    /// time when it begins: one to a short file takes less than the three seconds that are subtracted from the start of
    /// a pass, one to any file less than an hour.
    fn rests(&self, level: &Level, file: OpenFile<'_>) -> bool {
        const AN_HOUR_S: i64 = 3600;
        const SHORT: u64 = 64 << 10;
        let metadata = file.metadata;
        let above = &level.source.metadata.identity;
        // A file that is mounted by itself may lie on any file system.
        let is_known = level.source.facts.writes_back && metadata.identity.mount == above.mount;
        // A mover elsewhere has another clock than the coordinator, who says when the pass began.
        if self.spec.verb != Verb::Copy || !is_known || self.desk.is_some() {
            return false;
        }
        // Setting another modification time changes this time.
        let changed = metadata.ctime;
        let is_old = if metadata.size <= SHORT {
            changed < self.history.pass_began
        } else {
            changed.seconds + AN_HOUR_S < self.history.pass_began.seconds
        };
        is_old && file.is_written_back()
    }

    pub(crate) fn note_written(&self, level: &Level, name: &Name, metadata: &Metadata) {
        self.note(Note::OpenForWriting, || level.source_path(name.as_bytes()));
        self.doubt(level.path.join(name.as_bytes()));
        if metadata.links > 1 {
            self.note_writer(metadata.identity);
        }
    }

    /// Copies a doubt about one name of a file to all its names, because that name may vanish before the next pass.
    pub(crate) fn share_doubts(&self, of: Identity, names: &[FileRef]) {
        let place = |file: &FileRef| file.directory.path.join(file.name.as_bytes());
        let known = self.desk.is_some() || lock(&self.writers).contains(&of);
        if self.notes_writers() && known {
            self.share_doubts_of(of, names.iter().map(place).collect());
        }
    }

    /// Copies a doubt about one name of a file to the names at these paths.
    pub(crate) fn share_doubts_of(&self, of: Identity, names: Vec<TreePath>) {
        if !self.tell(|| ReportItem::SharedDoubts(of, names.clone()))
            && lock(&self.writers).contains(&of)
        {
            for name in names {
                self.doubt(name);
            }
        }
    }

    /// Whether another run compares files that were open for writing in this one.
    fn notes_writers(&self) -> bool {
        self.keeps_journal || self.spec.verb == Verb::Copy
    }

    /// Records that a file with several names is open for writing.
    pub(crate) fn note_writer(&self, of: Identity) {
        if !self.tell(|| ReportItem::Writer(of)) {
            lock(&self.writers).insert(of);
        }
    }

    /// Whether any name of a file is doubtful.
    pub(crate) fn is_any_doubtful(&self, group: &LinkGroup) -> bool {
        std::iter::once(&group.first)
            .chain(&group.rest)
            .any(|file| self.doubtful.has(&file.directory.path, file.name.as_bytes()))
    }

    /// Moves doubts about renamed entries to their new names.
    pub(crate) fn carry_doubts(&self, moves: &[(&TreePath, &TreePath)]) {
        let owned = || moves.iter().map(|(from, to)| ((*from).clone(), (*to).clone())).collect();
        if !self.tell(|| ReportItem::Moved(owned())) {
            lock(&self.doubts).extend(self.doubtful.carry(moves));
        }
    }

    /// Whether an entry was renamed at the destination.
    pub(crate) fn was_renamed(&self, level: &Level, name: &[u8]) -> bool {
        self.doubtful.ask(|doubts| doubts.renamed.contains(&level.path.join(name)))
    }

    /// Whether a directory was renamed at the destination.
    pub(crate) fn was_renamed_itself(&self, level: &Level) -> bool {
        self.doubtful.ask(|doubts| doubts.renamed.contains(&level.path))
    }

    /// Records that an entry is equal to its source, or gone, so that it is not doubtful any more.
    pub(crate) fn settle_doubt(&self, is_directory: bool, path: impl FnOnce() -> TreePath) {
        if let Some(path) = self.doubtful.settles(is_directory, path)
            && !self.tell(|| ReportItem::Settled(path.clone()))
        {
            self.doubtful.settled(path);
        }
    }

    /// Whether a file was open for writing when it was copied.
    pub(crate) fn is_doubtful(&self, level: &Level, name: &[u8]) -> bool {
        self.doubtful.has(&level.path, name)
    }
}
