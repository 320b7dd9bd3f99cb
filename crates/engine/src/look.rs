//! Reads entries on both sides and lets `plan` decide what each needs.
use dmover_model::{
    Action, Attribute, EntryError, EntryKind, EntryRecord, ErrorClass, Event, FollowLinks, Item,
    LinkName, Metadata, Name, Note, Operation, RootId, ScanNames, Side, TaskKind, Timestamp,
    TreePath, Verb,
};
use dmover_observe::{Activity, Counter, station};
use dmover_plan::decide::{Decision, Existing, decide};
use dmover_plan::history::is_racy;
use dmover_plan::itemize;
use dmover_plan::temporary::is_temporary;
use dmover_sys::{Errno, directory, file, path, stat};
use dmover_tree::Limit;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use crate::context::Engine;
use crate::level::{Level, TargetDirectory, file_ref};
use crate::mover::Mover;
use crate::planned::Planned;
use dmover_local::error::entry_error;
use dmover_local::source::Opened;
use dmover_local::trash::is_mark_there;

/// How many linked names are reported at once.
const LINKS_MAX: usize = 256;

/// The existing destination entry: its metadata, and the target of a symbolic link.
type Present = Option<(Metadata, Option<Vec<u8>>)>;

impl Mover<'_> {
    /// Reads one name on both sides and decides. `None`: there is nothing more to do for it here.
    pub(crate) fn plan_name(
        &mut self,
        level: &Level,
        name: Name,
        directories: &mut VecDeque<Name>,
    ) -> Option<Planned> {
        let engine = self.engine;
        if is_temporary(name.as_bytes()) {
            engine.note(Note::TemporarySkipped, || level.source_path(name.as_bytes()));
            return None;
        }
        if engine.spec.verb.fills() && is_mark_there(name.as_bytes(), level.target.as_ref()) {
            return None;
        }
        engine.limits.operation(&engine.control, self.lease);
        self.lease.extend();
        let record = match self.look(level, &name) {
            Ok(record) => record,
            Err(error) => {
                engine.error(error);
                return None;
            }
        };
        if !self.is_admitted(level, &record) {
            return None;
        }
        if record.metadata.kind == EntryKind::Directory {
            // Counted when it is entered: a directory that is returned is read again.
            directories.push_back(name);
            return None;
        }
        if self.engine.looks_for_unknown(level) {
            let path = level.path.join(name.as_bytes());
            self.tell_unless_known(&path, &record.metadata);
            return None;
        }
        self.count_found(&record.metadata);
        if self.is_anothers(level, &record) {
            let path = level.target_path(record.destination_name().as_bytes());
            let (side, class) = (Side::Destination, ErrorClass::NameClash);
            let words = "another source maps to the same destination; dmover keeps that entry";
            engine.error(EntryError::plain(side, Operation::Create, class, path, words));
            return None;
        }
        if self.is_for_the_link_phase(level, &record) {
            if self.engine.following.is_some() {
                // Its other names are not known here.
                self.engine.look_again("files with several hard links changed");
                return None;
            }
            let file = file_ref(level, &record);
            self.record_link(LinkName { identity: record.metadata.identity, file });
            self.spent.entries += 1;
            return None;
        }
        let planned = self.plan_record(level, record)?;
        if self.is_large(level, &planned) {
            let file = file_ref(level, &planned.record);
            let kind = TaskKind::Open { file, round: 1 };
            self.deferred.push(kind);
            return None;
        }
        Some(planned)
    }

    /// Reports a name of an inode with several names.
    ///
    /// The ledger stores them. A mover may read hundreds of thousands of names in one task.
    pub(crate) fn record_link(&mut self, name: LinkName) {
        self.outcome.links.push(name);
        if self.outcome.links.len() >= LINKS_MAX {
            self.flush();
        }
    }

    pub(crate) fn count_found(&self, metadata: &Metadata) {
        self.engine.count(Counter::EntriesFound);
        if metadata.kind == EntryKind::File {
            self.engine.add(Counter::BytesFound, metadata.size);
        }
    }

    /// Copies a regular file into a directory that was just created: nothing must be compared, so the file is opened at
    /// once and its metadata comes from the open file. Returns the name if it is no such file, or cannot be opened; the
    /// normal way then reports the reason.
    pub(crate) fn take_at_sight(&mut self, level: &Level, name: Name) -> Option<Name> {
        let engine = self.engine;
        if is_temporary(name.as_bytes()) || engine.control.is_stopping() {
            return Some(name);
        }
        self.permit().one_more(Limit::Opens);
        station::at(Activity::SourceNames);
        let opened = path::open_file_at(&level.source.fd, name.as_bytes(), false);
        let found = opened.and_then(|fd| stat::stat_fd(&fd).map(|found| (fd, found)));
        let Ok((fd, found)) = found else { return Some(name) };
        let metadata = engine.end.mounts.metadata(&found);
        let record = EntryRecord { name, renamed: None, metadata, symlink: None };
        let ordinary = record.metadata.kind == EntryKind::File
            && !self.is_for_the_link_phase(level, &record)
            && !self.is_in_parts(&record.metadata);
        if !ordinary {
            return Some(record.name);
        }
        engine.limits.operation(&engine.control, self.lease);
        self.count_found(&record.metadata);
        let planned = self.decide(level, record, None);
        self.apply_opened(level, planned, Some(Opened { fd, found }));
        self.lease.extend();
        None
    }

    fn is_admitted(&self, level: &Level, record: &EntryRecord) -> bool {
        let engine = self.engine;
        let root_entry = !level.root.is_directory;
        let path = level.path.join(record.name.as_bytes());
        if root_entry || engine.filter.admits(path.as_bytes(), &record.metadata) {
            return true;
        }
        engine.count(Counter::EntriesExcluded);
        if engine.monitor.wants_items() {
            engine.show(Event::Item(Item {
                path: level.source_path(record.name.as_bytes()),
                target: level.target_path(record.destination_name().as_bytes()),
                action: Action::Excluded,
                kind: record.metadata.kind,
                bytes: 0,
                elapsed_us: 0,
                itemized: itemize::columns(Action::Excluded, &record.metadata, None),
            }));
        }
        false
    }

    /// Whether another root, whose target lies below this one's, has an entry for the same destination. Both would be
    /// copied there, and the last one would win. (A directory against a file is an error by itself.)
    fn is_anothers(&self, level: &Level, record: &EntryRecord) -> bool {
        let engine = self.engine;
        if engine.meetings.is_empty() || !level.root.is_directory {
            return false;
        }
        let path = level.path.join(record.name.as_bytes());
        let mut above = Some(path.clone());
        while let Some(at) = above {
            let below = &path.as_bytes()[at.as_bytes().len()..];
            let below = below.strip_prefix(b"/").unwrap_or(below);
            above = at.split_last().map(|(directory, _)| directory);
            let other = engine.meetings.get(&(level.root_id, at));
            if other.is_some_and(|other| engine.has_no_directory(*other, below)) {
                return true;
            }
        }
        false
    }

    fn is_for_the_link_phase(&self, level: &Level, record: &EntryRecord) -> bool {
        let policy = &self.engine.spec.policy;
        self.engine.compares_links()
            && level.root.destination.is_some()
            && policy.preserve.has(Attribute::Links)
            && level.root.range.is_none()
            && match self.engine.spec.selection.follow {
                FollowLinks::Never | FollowLinks::Arguments => record.is_hard_linked(),
                FollowLinks::Always => false,
                // The number of links says nothing of symbolic links that lead here.
                FollowLinks::AlwaysLinked => record.metadata.kind == EntryKind::File,
            }
    }

    fn is_large(&self, level: &Level, planned: &Planned) -> bool {
        let policy = &self.engine.spec.policy;
        let metadata = &planned.record.metadata;
        let whole = matches!(planned.decision, Decision::Create | Decision::Replace)
            && metadata.kind == EntryKind::File
            && level.root.range.is_none()
            && !planned.is_in_base()
            && !policy.dry_run;
        whole && self.is_in_parts(metadata)
    }

    /// Whether several movers work on a file.
    fn is_in_parts(&self, metadata: &Metadata) -> bool {
        match self.engine.spec.verb {
            Verb::Copy | Verb::Sync => self.is_worth_splitting(metadata),
            Verb::Sum => self.engine.hashes_apart(metadata.size),
            // The comparison finds out.
            Verb::Verify => false,
        }
    }

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

    /// What `plan` must know about the entry with the same name at the destination or in the previous snapshot.
    pub(crate) fn existing_view<'a>(
        &self,
        level: &Level,
        directory: &TargetDirectory,
        record: &EntryRecord,
        (metadata, symlink): (&'a Metadata, Option<&'a [u8]>),
    ) -> Existing<'a> {
        let (engine, syncs) = (self.engine, self.engine.spec.verb == Verb::Sync);
        let name = record.name.as_bytes();
        // Equal in the coarse steps of the destination alone.
        let coarse = record.metadata.mtime != metadata.mtime;
        Existing {
            metadata,
            symlink,
            granularity_ns: directory.facts.granularity_ns(),
            ranged: level.root.range.is_some(),
            flags_matter: self.flags_matter(level),
            unlike: syncs
                && (self.is_unlike(&record.metadata, metadata)
                    || engine.history.is_foreign(level.clocks(), metadata)),
            touched: syncs
                && (engine.is_touched(level, &record.metadata, metadata)
                    || engine.was_renamed(level, name)),
            suspect: engine.spec.verb.fills()
                && metadata.kind == EntryKind::File
                && engine.is_suspect(
                    level,
                    record.destination_name().as_bytes(),
                    (metadata.ctime, metadata.size),
                ),
            doubtful: !syncs && (self.is_doubtful || engine.is_doubtful(level, name)),
            racy: syncs
                && (is_racy(&record.metadata, metadata)
                    || (coarse && level.clocks().is_later(&record.metadata, metadata))
                    || self.is_doubtful
                    || engine.is_doubtful(level, name)),
        }
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

    /// Whether an entry that is skipped as equal has another owner or mode than it should have.
    pub(crate) fn is_dressed_otherwise(&self, planned: &Planned) -> bool {
        let old = planned.existing.as_ref();
        old.is_some_and(|old| self.is_unlike(&planned.record.metadata, old))
    }

    pub(crate) fn is_unlike(&self, new: &Metadata, old: &Metadata) -> bool {
        self.engine.is_dressed_unlike(new, old)
    }

    /// Whether a missing immutable flag at the destination is a difference.
    fn flags_matter(&self, level: &Level) -> bool {
        let facts = level.target.as_ref().map(|t| &t.facts);
        self.engine.spec.policy.preserve.has(Attribute::Flags)
            && self.engine.end.privilege.privileged
            && facts.is_some_and(|f| !f.is(&f.no_flags))
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

impl Engine {
    /// Whether a root will copy an entry that is not a directory to a path below it.
    fn has_no_directory(&self, id: RootId, below: &[u8]) -> bool {
        let (Ok(root), Ok(path)) = (self.root(id), TreePath::new(below)) else { return false };
        let Some((directory, name)) = path.split_last() else { return !root.is_directory };
        if !root.is_directory {
            return false;
        }
        // An unreadable directory is reported by that root.
        let found = self.open_source(&root, &directory).ok().and_then(|directory| {
            let found = stat::stat_at(&directory.fd, name, self.follows_links()).ok()?;
            Some(self.end.mounts.metadata(&found))
        });
        found.is_some_and(|metadata| {
            metadata.kind != EntryKind::Directory && self.filter.admits(below, &metadata)
        })
    }

    /// Whether regular files of a directory need neither a rule nor a check of the destination.
    pub(crate) fn takes_files_at_sight(&self, level: &Level) -> bool {
        let nothing_there = level.target.as_ref().is_some_and(|target| target.fresh);
        (nothing_there || self.spec.verb == Verb::Sum)
            && level.base.is_none()
            && self.spec.verb != Verb::Verify
            && level.root.range.is_none()
            && !self.spec.policy.dry_run
            && self.asks_nothing_of_names(level)
    }

    /// Whether name and type are enough to open a regular file.
    pub(crate) fn asks_nothing_of_names(&self, level: &Level) -> bool {
        level.root.is_directory
            && self.filter.admits_all()
            && !self.follows_links()
            && self.meetings.is_empty()
    }
}
