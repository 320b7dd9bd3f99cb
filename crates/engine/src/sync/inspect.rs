//! Entries that look equal: checks of their content and attributes.
use dmover_model::{
    ByteRange, EntryError, EntryKind, EntryRecord, FileRef, Identity, LinkGroup, Metadata, Name,
    Note, Operation, Side, TreePath, Verb,
};
use dmover_observe::{Activity, Counter, lock, station};
use dmover_plan::decide::Decision;
use dmover_sys::xattr::Held;
use dmover_sys::{AsFd, OwnedFd, cache, file, flags, path, stat};

use crate::apply::{Moved, Planned};
use crate::context::Engine;
use crate::level::{Level, TargetDirectory};
use crate::mover::Mover;
use crate::mover_report::ReportItem;
use crate::verify::changed;
use dmover_local::attributes::{Attributes, Object};
use dmover_local::error::entry_error;

impl Engine {
    /// Whether the source may have changed after the destination was last written.
    pub(crate) fn is_touched(&self, level: &Level, new: &Metadata, old: &Metadata) -> bool {
        self.history.is_touched(level.clocks(), (new, old), self.spec.verb == Verb::Sync)
    }

    /// Records a file that is open for writing: later writes through a mapping need not change any time. A program that
    /// opens the file later does change its times first.
    pub(crate) fn note_writers(
        &self,
        level: &Level,
        name: &Name,
        (metadata, file): (&Metadata, &OwnedFd),
    ) {
        if self.is_written_to(level, (metadata, file)) {
            self.note_written(level, name, metadata);
        }
    }

    /// Whether a file is open for writing, where this is recorded.
    fn is_written_to(&self, level: &Level, (metadata, file): (&Metadata, &OwnedFd)) -> bool {
        self.notes_writers()
            && level.source.facts.local
            && !self.rests(level, (metadata, file))
            && file::is_open_for_writing(file) == Some(true)
    }

    /// Whether a copy may skip the check for open writers, which costs as much as four other calls. A pass always
    /// checks.
    ///
    /// A page that was written back cannot be changed without a new time, even through a mapping. A write(2) sets the
    /// time when it begins: one to a short file takes less than the three seconds that are subtracted from the start of
    /// a pass, one to any file less than an hour.
    fn rests(&self, level: &Level, (metadata, file): (&Metadata, &OwnedFd)) -> bool {
        const AN_HOUR_S: i64 = 3600;
        const SHORT: u64 = 64 << 10;
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
        is_old && cache::is_clean(file) == Some(true)
    }

    fn note_written(&self, level: &Level, name: &Name, metadata: &Metadata) {
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

    /// Records that the next pass must compare this path.
    pub(crate) fn doubt(&self, path: TreePath) {
        if self.tell(|| ReportItem::Doubt(path.clone())) {
            return;
        }
        match &self.open_files {
            Some(files) => files.note(&path),
            None if self.keeps_journal => lock(&self.doubts).push(path),
            None => {}
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

impl Mover<'_> {
    /// Compares a file that looks equal, and copies it if it differs. `None`: it is equal, and its attributes must be
    /// checked.
    pub(crate) fn compare_and_bring(
        &mut self,
        level: &Level,
        planned: &Planned,
    ) -> Result<Option<Moved>, EntryError> {
        let Some(found) = &planned.existing else { return Ok(None) };
        let pair = self.engine.open_pair(level, &planned.record, found, &self.permit())?;
        let source = &pair.source;
        // Before it is read: what begins to write later moves its times.
        let written = self.engine.is_written_to(level, (&source.metadata, &source.fd));
        let metadata = source.metadata.clone();
        let all = ByteRange { start: 0, end: pair.source.metadata.size };
        let last = planned.record.destination_name().as_bytes();
        if self.engine.is_suspect(level, last, (found.ctime, found.size)) {
            // If it could not be written, memory may still have what storage has not.
            cache::forget(&pair.destination.fd, 0, all.end);
        }
        let differs = self.compare_range(level, &planned.record, &pair, all)?;
        drop(pair);
        self.engine.count(Counter::FilesCompared);
        if differs.is_empty() {
            if written {
                self.engine.note_written(level, &planned.record.name, &metadata);
            }
            return Ok(None);
        }
        let policy = &self.engine.spec.policy;
        let in_place = policy.inplace && policy.backup.is_none() && found.links == 1;
        let decision = if in_place { Decision::UpdateInPlace } else { Decision::Replace };
        let planned = Planned { decision, ..planned.clone() };
        let moved = self.bring(level, &planned, None)?;
        Ok(Some(Moved { instead: Some(decision), ..moved }))
    }

    /// Sets the attributes of an entry with the right content.
    pub(crate) fn inspect(
        &mut self,
        level: &Level,
        planned: &Planned,
    ) -> Result<Moved, EntryError> {
        let dressed = self.dress_if_unlike(level, planned)?;
        if dressed == Decision::Replace {
            let planned = Planned { decision: Decision::Replace, ..planned.clone() };
            let moved = self.bring(level, &planned, None)?;
            return Ok(Moved { instead: Some(dressed), ..moved });
        }
        // What is left as it was counts for a manifest like anything that was skipped.
        let kept = self.digest_of_skipped(level, &planned.record)?;
        Ok(Moved { instead: Some(dressed), ..kept })
    }

    /// Returns what the entry needed: nothing, other attributes, or a new file.
    fn dress_if_unlike(
        &mut self,
        level: &Level,
        planned: &Planned,
    ) -> Result<Decision, EntryError> {
        let engine = self.engine;
        let record = &planned.record;
        let (Some(target), Some(found)) = (&level.target, &planned.existing) else {
            return Ok(Decision::Skip);
        };
        let sides = self.open_sides(level, target, record)?;
        let source_shown = || level.source_path(record.name.as_bytes());
        let last = record.destination_name().as_bytes();
        let shown = || level.target_path(last);
        let fds = (sides.source.as_fd(), sides.destination.as_fd());
        let of = (level, record.metadata.kind, sides.held);
        let unseen = engine.attribute_differences(of, fds, (&source_shown, &shown))?;
        if unseen.kinds.is_empty() && !self.is_dressed_otherwise(planned) {
            return Ok(Decision::Skip);
        }
        if engine.spec.policy.dry_run {
            return Ok(Decision::Inspect);
        }
        self.check_lease(level, last)?;
        if found.links > 1 && found.links != self.names_here {
            // Another name of the inode may belong to another tree: the file gets an inode of its own.
            return Ok(Decision::Replace);
        }
        let fail = |e| entry_error(Side::Destination, Operation::Stat, shown(), e);
        let now = engine.mounts.metadata(&stat::stat_fd(&sides.destination).map_err(fail)?);
        if now.version() != found.version() {
            return Err(changed(Side::Destination, shown()));
        }
        let kind = record.metadata.kind;
        let mut attributes =
            engine.attributes().read(sides.source.as_fd(), sides.held, &source_shown)?;
        engine.settle_project(level, kind, &mut attributes, false)?;
        if record.metadata.kind == EntryKind::File
            && engine.history.is_recent(level.clocks(), &record.metadata)
        {
            // It may have taken the place of another that looks alike since the names were compared, and its copy will look
            // younger than that.
            engine.doubt(level.path.join(record.name.as_bytes()));
        }
        // What fails from here on has moved the change time, and would look equal.
        self.in_place = true;
        let object = Object {
            fd: sides.destination.as_fd(),
            held: sides.held,
            kind,
            facts: &target.facts,
            made: false,
            replaces: None,
            inherits: None,
            place: Some((target.fd.as_fd(), last)),
            path: &shown,
        };
        self.engine.dress_again(object, record, &attributes, &now)?;
        Ok(Decision::Inspect)
    }

    fn open_sides(
        &self,
        level: &Level,
        target: &TargetDirectory,
        record: &EntryRecord,
    ) -> Result<Sides, EntryError> {
        station::at(Activity::SourceNames);
        let engine = self.engine;
        let last = record.destination_name().as_bytes();
        let at_target =
            |e| entry_error(Side::Destination, Operation::Open, level.target_path(last), e);
        if record.metadata.kind == EntryKind::File {
            let (source, _) = engine.open_source_file(level, record, &self.permit())?;
            let destination = engine.open_to_read(&target.fd, last, false).map_err(at_target)?;
            return Ok(Sides { source, destination, held: Held::Open });
        }
        let (source, held) = engine.open_for_attributes(level, record)?;
        let destination = path::pin_at(&target.fd, last).map_err(at_target)?;
        Ok(Sides { source, destination, held })
    }
}

/// Both sides of an entry, open.
struct Sides {
    source: OwnedFd,
    destination: OwnedFd,
    held: Held,
}

impl Engine {
    /// Sets all attributes, in the order of a new entry.
    fn dress_again(
        &self,
        object: Object<'_>,
        record: &EntryRecord,
        attributes: &Attributes,
        now: &Metadata,
    ) -> Result<(), EntryError> {
        if now.is_locked() {
            self.attributes().lift_flags(object.fd);
        }
        self.attributes().remove_foreign(object, attributes)?;
        self.attributes().set(object, &record.metadata, attributes, now)?;
        if object.held == Held::Open {
            self.attributes().set_project(object, attributes)?;
            self.attributes().carry_flags(object, attributes, flags::PLAIN)?;
            self.attributes().carry_flags(object, attributes, flags::LOCKS)?;
        }
        Ok(())
    }
}
