//! Reads entries on both sides and lets `plan` decide what each needs.
use dmover_local::look::Seen;
use dmover_model::{
    EntryError, EntryKind, EntryRecord, ErrorClass, Metadata, Name, ScanNames, TaskKind,
};
use dmover_plan::decide::{Decision, decide};

use crate::level::Level;
use crate::mover::Mover;
use crate::planned::Planned;

impl Mover<'_> {
    /// The record of a source entry.
    pub(crate) fn look(&self, level: &Level, name: &Name) -> Result<EntryRecord, EntryError> {
        let follows = self.engine.follows(level);
        let (metadata, symlink) =
            self.session.local.look(&level.source, name.as_bytes(), follows)?;
        let renamed = if level.root.is_directory {
            None
        } else {
            let named = level.root.destination.as_ref().and_then(|d| d.name.clone());
            named.filter(|n| n != name)
        };
        Ok(EntryRecord { name: name.clone(), renamed, metadata, symlink })
    }

    /// The destination entry with the same name.
    fn existing(
        &self,
        level: &Level,
        record: &EntryRecord,
        again: bool,
    ) -> Result<Option<Seen>, EntryError> {
        let Some(target) = level.target.as_ref().filter(|t| again || !t.fresh) else {
            return Ok(None);
        };
        let is_link = record.metadata.kind == EntryKind::Symlink;
        self.session.local.existing(target, record.destination_name().as_bytes(), is_link)
    }

    /// Whether a symbolic link would replace the very entry that it leads to.
    fn is_where_it_leads(&self, level: &Level, record: &EntryRecord, old: &Metadata) -> bool {
        if record.metadata.kind != EntryKind::Symlink || old.kind == EntryKind::Symlink {
            return false;
        }
        let typed = level.source_path(record.name.as_bytes()).to_path();
        let link = self.engine.places.base.join(typed);
        self.engine.end.leads_to(&link, record.name.as_bytes()) == Some(old.identity)
    }

    /// Reads an entry again after a failed attempt. `None`: it was returned as another task.
    pub(crate) fn look_again(
        &mut self,
        level: &Level,
        record: &EntryRecord,
    ) -> Result<Option<Planned>, EntryError> {
        let fresh = self.look(level, &record.name)?;
        if fresh.metadata.kind == EntryKind::Directory {
            // It was something else when it was scanned. Going down is for a task of its own.
            let directory = level.reference();
            let names = ScanNames::Listed(vec![record.name.clone()]);
            self.deferred.push(TaskKind::Scan { directory, names });
            return Ok(None);
        }
        let existing = self.existing(level, &fresh, true)?;
        Ok(Some(self.decide(level, fresh, existing)))
    }

    /// Plans a record; `None` if the destination could not be read (which was reported).
    pub(crate) fn plan_record(&mut self, level: &Level, record: EntryRecord) -> Option<Planned> {
        let settled = self.settle_case(level, record.destination_name().as_bytes());
        match settled.and_then(|()| self.existing(level, &record, false)) {
            Ok(existing) => Some(self.decide(level, record, existing)),
            Err(error) => {
                self.engine.error(error);
                None
            }
        }
    }

    pub(crate) fn decide(
        &self,
        level: &Level,
        record: EntryRecord,
        existing: Option<Seen>,
    ) -> Planned {
        if let (Some(target), Some((old, _))) = (&level.target, &existing) {
            self.session.learn_granularity(target, record.metadata.mtime, old.mtime);
        }
        let view =
            existing.as_ref().zip(level.target.as_ref()).map(|((metadata, symlink), target)| {
                self.existing_view(level, target, &record, (metadata, symlink.as_deref()))
            });
        let mut decision = decide(&record, view, &self.engine.spec.policy);
        let looks = matches!(decision, Decision::Skip | Decision::Inspect | Decision::Compare);
        let joined =
            |(old, _): &(Metadata, _)| self.engine.is_linked_to_others(level, &record, old);
        if looks && existing.as_ref().is_some_and(joined) {
            decision = Decision::Replace;
        }
        let granted = |(old, _): &(Metadata, _)| self.would_grant(decision, level, (&record, old));
        if existing.as_ref().is_some_and(granted) {
            decision = Decision::Replace;
        }
        let empowered = |(old, _): &(Metadata, _)| self.would_empower(level, &record, old);
        if decision == Decision::Inspect && existing.as_ref().is_some_and(empowered) {
            decision = Decision::Compare;
        }
        let name = record.destination_name().as_bytes();
        // An entry that looks equal would be missing under its own name without any report.
        let taken = existing.is_some() && !matches!(decision, Decision::Refuse(..));
        if taken
            && level
                .target
                .as_ref()
                .is_some_and(|t| t.folds_case && !self.session.is_exact(t, name))
        {
            let words = "an entry whose name differs only in case exists here";
            decision = Decision::Refuse(ErrorClass::NameClash, words);
        }
        if level.root.range.is_some() && decision == Decision::Replace {
            decision = Decision::UpdateInPlace;
        }
        // A backup keeps what the link leads to.
        let keeps = self.engine.spec.policy.backup.is_some();
        let replaced = existing.as_ref().filter(|_| decision == Decision::Replace && !keeps);
        if replaced.is_some_and(|(old, _)| self.is_where_it_leads(level, &record, old)) {
            let words = "the source is a symbolic link to this entry; replacing the entry could \
                lose its content";
            decision = Decision::Refuse(ErrorClass::SelfCopy, words);
        }
        let base = existing.is_none().then(|| self.based(level, &record)).flatten();
        Planned { record, decision, existing: existing.map(|(metadata, _)| metadata), base }
    }
}
