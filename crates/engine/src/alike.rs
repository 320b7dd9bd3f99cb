//! What two entries of the same name have in common, as far as their metadata and attributes show it.
use dmover_local::attributes::{Attributes, flags_differ};
use dmover_local::pair::Pair;
use dmover_model::{
    Attribute, DifferenceKind, DifferenceSet, EntryError, EntryKind, EntryRecord, Metadata, Verb,
};
use dmover_observe::Counter;
use dmover_plan::decide::Existing;
use dmover_plan::equality::is_same_of_group;
use dmover_plan::history::is_racy;
use dmover_plan::verify::Differing;

use crate::context::Engine;
use crate::level::{Level, TargetDirectory};
use crate::manifest_attributes::{Whose, plain_xattrs};
use crate::mover::Mover;
use crate::planned::Planned;

impl Engine {
    /// Whether the source may have changed after the destination was last written.
    pub(crate) fn is_touched(&self, level: &Level, new: &Metadata, old: &Metadata) -> bool {
        self.facts.history.is_touched(level.clocks(), (new, old), self.spec.verb == Verb::Sync)
    }

    /// Differences between the attributes of an entry and of its copy that statx does not show.
    pub(crate) fn attribute_differences(
        &self,
        level: &Level,
        kind: EntryKind,
        [expected, found]: &[Attributes; 2],
    ) -> Result<Differing, EntryError> {
        let keeps = |attribute| self.spec.policy.preserve.has(attribute);
        let (mut kinds, mut unsettable) = (DifferenceSet::NONE, DifferenceSet::NONE);
        let mut note =
            |kind, counts| if counts { &mut kinds } else { &mut unsettable }.insert(kind);
        let (wanted, there) = (plain_xattrs(expected), plain_xattrs(found));
        if keeps(Attribute::Xattr) && wanted != there {
            let is_there = |name: &[u8]| there.iter().any(|(other, _)| other == name);
            let mut settable = wanted;
            settable.retain(|(name, _)| self.settable.xattr_counts(name, is_there(name)));
            note(DifferenceKind::Xattr, settable != there);
        }
        if keeps(Attribute::Acl)
            && self.acls(expected, Whose::Source) != self.acls(found, Whose::Destination)
        {
            note(DifferenceKind::Acl, true);
        }
        if keeps(Attribute::Flags) && flags_differ(expected.flags, found.flags) {
            let settable = self.settable.settable_flags(expected.flags, found.flags);
            note(DifferenceKind::Flags, flags_differ(settable, found.flags));
        }
        if keeps(Attribute::Project) && expected.project != found.project {
            let wanted =
                self.local().expected_project(self.project_of(level, kind), expected.project)?;
            if wanted.is_some_and(|wanted| wanted != found.project) {
                note(DifferenceKind::Project, true);
            }
        }
        Ok(Differing { kinds, unsettable })
    }

    pub(crate) fn pair_attributes(
        &self,
        level: &Level,
        record: &EntryRecord,
        pair: &Pair,
    ) -> Result<Differing, EntryError> {
        let source_shown = || level.source_path(record.name.as_bytes());
        let shown = || level.target_path(record.destination_name().as_bytes());
        let attributes = self.local().attributes_of_pair(pair, [&source_shown, &shown])?;
        self.attribute_differences(level, EntryKind::File, &attributes)
    }

    /// Differences in attributes that statx does not show, for entries without content.
    pub(crate) fn pinned_differences(
        &self,
        level: &Level,
        record: &EntryRecord,
    ) -> Result<Differing, EntryError> {
        let Some(target) = &level.target else { return Ok(Differing::default()) };
        let pinned = self.local().pin_entry_pair(self.sides(level, target), record)?;
        self.attribute_differences(level, record.metadata.kind, &pinned.attributes()?)
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
                    || engine.facts.history.is_foreign(level.clocks(), metadata)),
            touched: syncs
                && (engine.is_touched(level, &record.metadata, metadata)
                    || engine.doubts.was_renamed(&level.path, name)),
            suspect: engine.spec.verb.fills()
                && metadata.kind == EntryKind::File
                && engine.is_suspect(
                    level,
                    record.destination_name().as_bytes(),
                    (metadata.ctime, metadata.size),
                ),
            doubtful: !syncs && (self.is_doubtful || engine.doubts.has(&level.path, name)),
            racy: syncs
                && (is_racy(&record.metadata, metadata)
                    || (coarse
                        && engine.facts.history.is_later(
                            level.clocks(),
                            &record.metadata,
                            metadata,
                        ))
                    || self.is_doubtful
                    || engine.doubts.has(&level.path, name)),
        }
    }

    /// Whether an entry that is skipped as equal has another owner or mode than it should have.
    pub(crate) fn is_dressed_otherwise(&self, planned: &Planned) -> bool {
        let old = planned.existing.as_ref();
        old.is_some_and(|old| self.is_unlike(&planned.record.metadata, old))
    }

    pub(crate) fn is_unlike(&self, new: &Metadata, old: &Metadata) -> bool {
        self.engine.settable.is_dressed_unlike(new, old)
    }

    /// Counts an entry that keeps another owner than its source, because this process cannot set it.
    pub(crate) fn count_other_owner(&self, new: &Metadata, old: &Metadata) {
        if self.engine.settable.keeps_other_owner(new, old) {
            self.engine.reports.count(Counter::OwnersNotKept);
        }
    }

    /// Whether a missing immutable flag at the destination is a difference.
    fn flags_matter(&self, level: &Level) -> bool {
        let facts = level.target.as_ref().map(|t| &t.facts);
        self.engine.spec.policy.preserve.has(Attribute::Flags)
            && self.engine.end.privilege.privileged
            && facts.is_some_and(|f| !f.is(&f.no_flags))
    }
}
