//! What two entries of the same name have in common, as far as their metadata and attributes show it.
use dmover_local::error::{at_destination, entry_error};
use dmover_model::{
    Attribute, DifferenceKind, DifferenceSet, EntryError, EntryKind, EntryRecord, Metadata,
    Operation, PathBytes, Side, Verb,
};
use dmover_observe::{Activity, station};
use dmover_plan::decide::Existing;
use dmover_plan::equality::is_same_of_group;
use dmover_plan::history::is_racy;
use dmover_plan::verify::Differing;
use dmover_sys::xattr::Held;
use dmover_sys::{AsFd, BorrowedFd, path};

use crate::context::Engine;
use crate::finding::Pair;
use crate::level::{Level, TargetDirectory};
use crate::manifest_attributes::{Whose, flags_differ, plain_xattrs};
use crate::mover::Mover;
use crate::planned::Planned;

/// The paths of both sides of an entry for messages.
type Shown<'a> = (&'a dyn Fn() -> PathBytes, &'a dyn Fn() -> PathBytes);

impl Engine {
    /// Whether the source may have changed after the destination was last written.
    pub(crate) fn is_touched(&self, level: &Level, new: &Metadata, old: &Metadata) -> bool {
        self.history.is_touched(level.clocks(), (new, old), self.spec.verb == Verb::Sync)
    }

    /// Differences in attributes that statx does not show.
    pub(crate) fn attribute_differences(
        &self,
        (level, kind, held): (&Level, EntryKind, Held),
        (source, destination): (BorrowedFd<'_>, BorrowedFd<'_>),
        (source_shown, shown): Shown<'_>,
    ) -> Result<Differing, EntryError> {
        let expected = self.attributes().read(source, held, source_shown)?;
        let found = self.attributes().read(destination, held, shown).map_err(at_destination)?;
        let keeps = |attribute| self.spec.policy.preserve.has(attribute);
        let (mut kinds, mut unsettable) = (DifferenceSet::NONE, DifferenceSet::NONE);
        let mut note =
            |kind, counts| if counts { &mut kinds } else { &mut unsettable }.insert(kind);
        let (wanted, there) = (plain_xattrs(&expected), plain_xattrs(&found));
        if keeps(Attribute::Xattr) && wanted != there {
            let is_there = |name: &[u8]| there.iter().any(|(other, _)| other == name);
            let mut settable = wanted;
            settable.retain(|(name, _)| self.xattr_counts(name, is_there(name)));
            note(DifferenceKind::Xattr, settable != there);
        }
        if keeps(Attribute::Acl)
            && self.acls(&expected, Whose::Source) != self.acls(&found, Whose::Destination)
        {
            note(DifferenceKind::Acl, true);
        }
        if keeps(Attribute::Flags) && flags_differ(expected.flags, found.flags) {
            let settable = self.settable_flags(expected.flags, found.flags);
            note(DifferenceKind::Flags, flags_differ(settable, found.flags));
        }
        if keeps(Attribute::Project) && held == Held::Open && expected.project != found.project {
            let wanted =
                self.local().expected_project(self.project_of(level, kind), expected.project)?;
            if wanted.is_some_and(|wanted| wanted != found.project) {
                note(DifferenceKind::Project, true);
            }
        }
        Ok(Differing { kinds, unsettable })
    }

    /// Differences between the attributes of the directories of a level that statx does not show.
    pub(crate) fn directory_attributes(
        &self,
        level: &Level,
        target: &TargetDirectory,
    ) -> Result<Differing, EntryError> {
        let of = (level, EntryKind::Directory, Held::Open);
        let sides = (level.source.fd.as_fd(), target.fd.as_fd());
        let (one, other) = (|| level.own_source_path(), || level.own_target_path());
        self.attribute_differences(of, sides, (&one, &other))
    }

    pub(crate) fn pair_attributes(
        &self,
        level: &Level,
        record: &EntryRecord,
        pair: &Pair,
    ) -> Result<Differing, EntryError> {
        let sides = (pair.source.fd.as_fd(), pair.destination.fd.as_fd());
        let source_shown = || level.source_path(record.name.as_bytes());
        let shown = || level.target_path(record.destination_name().as_bytes());
        let of = (level, EntryKind::File, Held::Open);
        self.attribute_differences(of, sides, (&source_shown, &shown))
    }

    /// Differences in attributes that statx does not show, for entries without content.
    pub(crate) fn pinned_differences(
        &self,
        level: &Level,
        record: &EntryRecord,
    ) -> Result<Differing, EntryError> {
        station::at(Activity::SourceNames);
        let last = record.destination_name().as_bytes();
        let source_shown = || level.source_path(record.name.as_bytes());
        let shown = || level.target_path(last);
        let fail = |side, path, e| entry_error(side, Operation::Open, path, e);
        let Some(target) = &level.target else { return Ok(Differing::default()) };
        let source = path::pin_at(&level.source.fd, record.name.as_bytes())
            .map_err(|e| fail(Side::Source, source_shown(), e))?;
        let destination =
            path::pin_at(&target.fd, last).map_err(|e| fail(Side::Destination, shown(), e))?;
        let sides = (source.as_fd(), destination.as_fd());
        let of = (level, record.metadata.kind, Held::Pinned);
        self.attribute_differences(of, sides, (&source_shown, &shown))
    }
}

impl Mover<'_> {
    /// Whether the existing destination entry counts as the version of the source.
    pub(crate) fn is_the_same(
        &self,
        new: &Metadata,
        old: &Metadata,
        target: &TargetDirectory,
    ) -> bool {
        let step = target.facts.granularity_ns();
        let keeps_times = self.engine.spec.policy.preserve.has(Attribute::Times);
        is_same_of_group(new, old, step, keeps_times)
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
}
