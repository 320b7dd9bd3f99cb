//! Reads entries on both sides and lets `plan` decide what each needs.
use dmover_local::error::entry_error;
use dmover_model::{
    EntryError, EntryKind, EntryRecord, ErrorClass, Metadata, Name, Operation, ScanNames, Side,
    TaskKind, Timestamp,
};
use dmover_observe::{Activity, station};
use dmover_plan::decide::{Decision, decide};
use dmover_sys::{Errno, directory, file, path, stat};
use std::os::fd::OwnedFd;

use crate::level::{Level, TargetDirectory};
use crate::mover::Mover;
use crate::planned::Planned;

/// The existing destination entry: its metadata, and the target of a symbolic link.
type Present = Option<(Metadata, Option<Vec<u8>>)>;

impl Mover<'_> {
    /// The record of a source entry.
    pub(crate) fn look(&self, level: &Level, name: &Name) -> Result<EntryRecord, EntryError> {
        station::at(Activity::SourceNames);
        let engine = self.engine;
        let shown = || level.source_path(name.as_bytes());
        let follows = engine.follows(level);
        let found = stat::stat_at(&level.source.fd, name.as_bytes(), follows).map_err(|e| {
            let mut error = entry_error(Side::Source, Operation::Stat, shown(), e);
            if follows && stat::stat_at(&level.source.fd, name.as_bytes(), false).is_ok() {
                error.class = ErrorClass::Other;
                "the symbolic link is dangling".clone_into(&mut error.detail);
            }
            error
        })?;
        let metadata = engine.end.mounts.metadata(&found);
        let symlink = (metadata.kind == EntryKind::Symlink)
            .then(|| directory::read_symlink(&level.source.fd, name.as_bytes()))
            .transpose()
            .map_err(|e| {
                // EINVAL: it is no link any more.
                let error = if e == Errno::INVAL { Errno::LOOP } else { e };
                entry_error(Side::Source, Operation::ReadLink, shown(), error)
            })?;
        let renamed = if level.root.is_directory {
            None
        } else {
            let named = level.root.destination.as_ref().and_then(|d| d.name.clone());
            named.filter(|n| n != name)
        };
        Ok(EntryRecord { name: name.clone(), renamed, metadata, symlink })
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

    pub(crate) fn decide(&self, level: &Level, record: EntryRecord, existing: Present) -> Planned {
        self.learn_granularity(level, &record, existing.as_ref().map(|(m, _)| m));
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

    /// Whether a symbolic link would replace the very entry that it leads to.
    fn is_where_it_leads(&self, level: &Level, record: &EntryRecord, old: &Metadata) -> bool {
        if record.metadata.kind != EntryKind::Symlink || old.kind == EntryKind::Symlink {
            return false;
        }
        // By its path as a person knows it: no link leads out of the source's own mount.
        let typed = level.source_path(record.name.as_bytes()).to_path();
        let path = self.engine.base.join(typed);
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let directory = path::open_directory(above.unwrap_or(std::path::Path::new(".")));
        let found = directory.and_then(|fd| stat::stat_at(&fd, record.name.as_bytes(), true));
        found.is_ok_and(|found| self.engine.end.mounts.identity(&found) == old.identity)
    }

    /// Learns the time resolution of the destination from times that differ only by rounding.
    fn learn_granularity(&self, level: &Level, record: &EntryRecord, old: Option<&Metadata>) {
        let (Some(target), Some(old)) = (&level.target, old) else { return };
        let (new, was) = (record.metadata.mtime, old.mtime);
        let doubtful = new != was && new.truncated(2_000_000_000) == was.truncated(2_000_000_000);
        let cut = was.nanoseconds.is_multiple_of(100) && was < new;
        let known = target.facts.granularity_is_known();
        if !(doubtful && cut) || known || self.engine.spec.policy.dry_run {
            return;
        }
        if let Err(error) = self.probe_granularity(target) {
            tracing::debug!(%error, "cannot determine the granularity of timestamps");
        }
    }

    fn probe_granularity(&self, target: &TargetDirectory) -> Result<(), Errno> {
        let odd = Timestamp { seconds: 1_000_000_001, nanoseconds: 123_456_789 };
        let time = Some((odd.seconds, odd.nanoseconds));
        let kept = |probe: OwnedFd| {
            dmover_sys::set::times(&probe, time, time).and_then(|()| stat::stat_fd(&probe))
        };
        // A name would move the directory's times, and could not be removed from a locked one.
        let found = match file::create_unnamed(&target.fd, 0o600) {
            Err(_) if !target.metadata.is_locked() => {
                let name = self.session.temporary_name();
                let found = file::create_new(&target.fd, name.as_bytes(), 0o600).map(kept)?;
                directory::unlink(&target.fd, name.as_bytes())?;
                found
            }
            made => made.and_then(kept),
        };
        target.facts.learn_granularity(odd, self.engine.end.mounts.metadata(&found?).mtime);
        Ok(())
    }

    /// The destination entry with the same name.
    fn existing(
        &mut self,
        level: &Level,
        record: &EntryRecord,
        again: bool,
    ) -> Result<Present, EntryError> {
        let Some(target) = level.target.as_ref().filter(|t| again || !t.fresh) else {
            return Ok(None);
        };
        station::at(Activity::TargetNames);
        let name = record.destination_name().as_bytes();
        let fail =
            |operation, e| entry_error(Side::Destination, operation, level.target_path(name), e);
        let metadata = match stat::stat_at(&target.fd, name, false) {
            Ok(found) => self.engine.end.mounts.metadata(&found),
            Err(error) if stat::is_absent(error) => return Ok(None),
            Err(error) => return Err(fail(Operation::Stat, error)),
        };
        let both_links =
            metadata.kind == EntryKind::Symlink && record.metadata.kind == EntryKind::Symlink;
        let symlink = both_links
            .then(|| directory::read_symlink(&target.fd, name))
            .transpose()
            .map_err(|e| fail(Operation::ReadLink, e))?;
        Ok(Some((metadata, symlink)))
    }
}
