//! Regular files: what an end needs to write one.
use dmover_local::file::{FileOrder, OldVersion};
use dmover_local::session::WriteError;
use dmover_local::source::{Content, Opened, OpenedSource};
use dmover_model::{EntryError, EntryKind, EntryRecord};
use dmover_plan::decide::Decision;
use dmover_tree::{Permit, TargetNames};

use crate::context::Engine;
use crate::level::{Level, TargetDirectory};
use crate::mover::Mover;
use crate::planned::{CopyResult, Planned};

impl Engine {
    /// Opens a source file and reads its attributes.
    pub(crate) fn supply(
        &self,
        level: &Level,
        record: &EntryRecord,
        permit: &dyn Permit,
    ) -> Result<OpenedSource, EntryError> {
        let opened = self.open_content(level, record, permit)?;
        self.supply_opened(level, record, opened, permit)
    }

    /// Opens a source file without its attributes.
    pub(crate) fn open_source_file(
        &self,
        level: &Level,
        record: &EntryRecord,
        permit: &dyn Permit,
    ) -> Result<Content, EntryError> {
        self.local().content_of(&level.source, record, self.follows(level), permit)
    }

    pub(crate) fn open_content(
        &self,
        level: &Level,
        record: &EntryRecord,
        permit: &dyn Permit,
    ) -> Result<Opened, EntryError> {
        let (name, follows) = (record.name.as_bytes(), self.follows(level));
        self.local().open_content(&level.source, name, follows, permit)
    }

    /// Reads the attributes of an open file.
    fn supply_opened(
        &self,
        level: &Level,
        record: &EntryRecord,
        opened: Opened,
        permit: &dyn Permit,
    ) -> Result<OpenedSource, EntryError> {
        let mut supply = self.local().supply(&level.source, record, opened, permit)?;
        self.settle_project(level, EntryKind::File, &mut supply.attributes, true)?;
        self.note_writers(level, &record.name, supply.open_file());
        Ok(supply)
    }
}

impl<'a> Mover<'a> {
    /// What an end needs to know of a planned file.
    pub(crate) fn order<'o>(
        &self,
        level: &'o Level,
        to: &'o TargetDirectory,
        planned: &'o Planned,
    ) -> FileOrder<'o>
    where
        'a: 'o,
    {
        let old = match (&planned.existing, &planned.base, &level.base) {
            (Some(metadata), ..) if planned.decision != Decision::Create => {
                Some(OldVersion { holder: to, metadata })
            }
            // The new one shares with the snapshot before what has not changed.
            (None, Some(based), Some(base)) => {
                Some(OldVersion { holder: base, metadata: &based.metadata })
            }
            _ => None,
        };
        let last = planned.record.destination_name().as_bytes();
        FileOrder {
            from: &level.source,
            name: planned.record.name.as_bytes(),
            to,
            last,
            decision: planned.decision,
            existing: planned.existing.as_ref(),
            old,
            others: self.names_beside(level),
            may_wait: false,
        }
    }

    /// Whether the rename of a file may be delayed.
    fn may_wait(&self, target: &TargetDirectory, decision: Decision, bytes: u64) -> bool {
        /// Larger files are flushed one by one.
        const FILE_BYTES_MAX: u64 = 1 << 20;
        self.puts_off
            && decision == Decision::Replace
            && bytes <= FILE_BYTES_MAX
            && target.facts.local
            && self.engine.end.flusher.is_some()
            && self.engine.spec.policy.backup.is_none()
            && !self.engine.spec.policy.fsync
    }

    /// Who knows the names that other entries get beside one of this directory; `None`: they have those of the source.
    pub(crate) fn names_beside(&self, level: &Level) -> Option<&'a dyn TargetNames> {
        // What other lines of a list bring is not known; what lies beside a source may be one.
        let is_beside_its_source = level.root.is_directory || !self.engine.facts.directories_apart;
        (!is_beside_its_source).then_some(self.engine as &dyn TargetNames)
    }

    /// Copies a whole file at once.
    pub(crate) fn bring_file(
        &mut self,
        level: &Level,
        target: &TargetDirectory,
        planned: &Planned,
        opened: Option<Opened>,
    ) -> Result<CopyResult, WriteError> {
        let (engine, record, decision) = (self.engine, &planned.record, planned.decision);
        let range = level.root.range.as_ref();
        let writes_into = range.is_some() || decision == Decision::UpdateInPlace;
        let mut supply = match opened.filter(|_| !writes_into) {
            Some(opened) => engine.supply_opened(level, record, opened, self.permit())?,
            None => engine.supply(level, record, self.permit())?,
        };
        let order = self.order(level, target, planned);
        let written = if writes_into {
            if range.is_none() && decision != Decision::Create {
                engine.settle_project(level, EntryKind::File, &mut supply.attributes, false)?;
            }
            self.session.write_into(order, &supply, range)?
        } else {
            let may_wait = self.may_wait(target, decision, supply.metadata.size);
            self.session.write_file(FileOrder { may_wait, ..order }, &supply)?
        };
        let is_partial = writes_into && range.is_some();
        Ok(CopyResult {
            bytes: written.bytes,
            made: written.made,
            extended: engine.extended_to_keep(&supply.attributes),
            version: (!is_partial).then_some(supply.metadata),
            instead: None,
            later: written.waits,
        })
    }

    /// Copies an entry without file content.
    pub(crate) fn bring_other(
        &self,
        level: &Level,
        target: &TargetDirectory,
        record: &EntryRecord,
        decision: Decision,
    ) -> Result<CopyResult, EntryError> {
        let engine = self.engine;
        let follows = engine.follows(level);
        let entry = engine.local().open_entry(&level.source, record, follows)?;
        let how = (decision, self.names_beside(level));
        self.session.make_special((&level.source, target), record, &entry.attributes, how)?;
        let extended = engine.extended_to_keep(&entry.attributes);
        Ok(CopyResult { extended, ..CopyResult::default() })
    }
}
