//! What two entries of the same name have in common, as far as their metadata and attributes show it.
use dmover_local::attributes::{Attributes, flags_differ};
use dmover_local::entry_attributes;
use dmover_local::pair::Pair;
use dmover_model::{
    Attribute, DifferenceKind, DifferenceSet, EntryError, EntryKind, EntryRecord, JobSpec,
    Metadata, Verb,
};
use dmover_observe::Counter;
use dmover_plan::decide::Existing;
use dmover_plan::equality::is_same_of_group;
use dmover_plan::history::is_racy;
use dmover_plan::verify::Differing;

use crate::context::Engine;
use crate::directory_pair::{DirectoryPair, TargetDirectory};
use crate::manifest_attributes::{self, Whose, plain_xattrs};
use crate::mover::Mover;
use crate::planned::Planned;
use crate::project;
use crate::rights;
use crate::settable::Settable;
use crate::storage;

/// Whether the source may have changed after the destination was last written.
pub(crate) fn is_touched(
    engine: &Engine,
    level: &DirectoryPair,
    new: &Metadata,
    old: &Metadata,
) -> bool {
    engine.facts.history.is_touched(level.clocks(), (new, old), engine.spec.verb == Verb::Sync)
}

/// Differences between the attributes of an entry and of its copy that statx does not show.
pub(crate) fn attribute_differences(
    engine: &Engine,
    level: &DirectoryPair,
    kind: EntryKind,
    [expected, found]: &[Attributes; 2],
) -> Result<Differing, EntryError> {
    let keeps = |attribute| engine.spec.policy.preserve.has(attribute);
    let (mut kinds, mut unsettable) = (DifferenceSet::NONE, DifferenceSet::NONE);
    let mut note = |kind, counts| if counts { &mut kinds } else { &mut unsettable }.insert(kind);
    let (wanted, there) = (plain_xattrs(expected), plain_xattrs(found));
    if keeps(Attribute::Xattr) && wanted != there {
        let is_there = |name: &[u8]| there.iter().any(|(other, _)| other == name);
        let mut settable = wanted;
        settable.retain(|(name, _)| engine.settable.xattr_counts(name, is_there(name)));
        note(DifferenceKind::Xattr, settable != there);
    }
    if keeps(Attribute::Acl)
        && manifest_attributes::acls(&engine.settable, expected, Whose::Source)
            != manifest_attributes::acls(&engine.settable, found, Whose::Destination)
    {
        note(DifferenceKind::Acl, true);
    }
    if keeps(Attribute::Flags) && flags_differ(expected.flags, found.flags) {
        let settable = engine.settable.settable_flags(expected.flags, found.flags);
        note(DifferenceKind::Flags, flags_differ(settable, found.flags));
    }
    let (id, there) = (engine.settable.ids.project(expected.project.id), found.project);
    let is_other = (id, expected.project.inherit) != (there.id, there.inherit);
    if keeps(Attribute::Project) && is_other {
        let wanted = engine
            .local()
            .expected_project(project::project_of(engine, level, kind), expected.project)?;
        if wanted.is_some_and(|wanted| wanted != found.project) {
            note(DifferenceKind::Project, true);
        }
    }
    Ok(Differing { kinds, unsettable })
}

pub(crate) fn pair_attributes(
    engine: &Engine,
    level: &DirectoryPair,
    record: &EntryRecord,
    pair: &Pair,
) -> Result<Differing, EntryError> {
    let source_shown = || level.source_path(record.name.as_bytes());
    let shown = || level.target_path(record.destination_name().as_bytes());
    let attributes =
        entry_attributes::attributes_of_pair(&engine.local(), pair, [&source_shown, &shown])?;
    attribute_differences(engine, level, EntryKind::File, &attributes)
}

/// Differences in attributes that statx does not show, for entries without content.
pub(crate) fn pinned_differences(
    engine: &Engine,
    level: &DirectoryPair,
    record: &EntryRecord,
) -> Result<Differing, EntryError> {
    let Some(target) = &level.target else { return Ok(Differing::default()) };
    let pinned = entry_attributes::pin_entry_pair(
        &engine.local(),
        rights::sides(engine, level, target),
        record,
    )?;
    attribute_differences(engine, level, record.metadata.kind, &pinned.attributes()?)
}

/// Whether the existing destination entry counts as the version of the source.
pub(crate) fn is_the_same(
    spec: &JobSpec,
    new: &Metadata,
    old: &Metadata,
    target: &TargetDirectory,
) -> bool {
    let step = target.facts.granularity_ns();
    let keeps_times = spec.policy.preserve.has(Attribute::Times);
    is_same_of_group(new, old, step, keeps_times)
}

/// What `plan` must know about the entry with the same name at the destination or in the previous snapshot.
pub(crate) fn existing_view<'a>(
    mover: &Mover<'_>,
    level: &DirectoryPair,
    directory: &TargetDirectory,
    record: &EntryRecord,
    (metadata, symlink): (&'a Metadata, Option<&'a [u8]>),
) -> Existing<'a> {
    let (engine, syncs) = (mover.engine, mover.engine.spec.verb == Verb::Sync);
    let name = record.name.as_bytes();
    // Equal in the coarse steps of the destination alone.
    let coarse = record.metadata.mtime != metadata.mtime;
    Existing {
        metadata,
        symlink,
        granularity_ns: directory.facts.granularity_ns(),
        ranged: level.root.range.is_some(),
        flags_matter: flags_matter(mover.engine, level),
        unlike: syncs
            && (is_unlike(&mover.engine.settable, &record.metadata, metadata)
                || engine.facts.history.is_foreign(level.clocks(), metadata)),
        touched: syncs
            && (is_touched(engine, level, &record.metadata, metadata)
                || engine.doubts.was_renamed(&level.path, name)),
        suspect: engine.spec.verb.fills()
            && metadata.kind == EntryKind::File
            && storage::is_suspect(
                engine,
                level,
                record.destination_name().as_bytes(),
                (metadata.ctime, metadata.size),
            ),
        doubtful: !syncs && (mover.entry.is_doubtful || engine.doubts.has(&level.path, name)),
        racy: syncs
            && (is_racy(&record.metadata, metadata)
                || (coarse
                    && engine.facts.history.is_later(level.clocks(), &record.metadata, metadata))
                || mover.entry.is_doubtful
                || engine.doubts.has(&level.path, name)),
    }
}

/// Whether an entry that is skipped as equal has another owner or mode than it should have.
pub(crate) fn needs_owner_or_mode(engine: &Engine, planned: &Planned) -> bool {
    let old = planned.existing.as_ref();
    old.is_some_and(|old| is_unlike(&engine.settable, &planned.record.metadata, old))
}

pub(crate) fn is_unlike(settable: &Settable, new: &Metadata, old: &Metadata) -> bool {
    settable.owner_or_mode_differs(new, old)
}

/// Counts an entry that keeps another owner than its source, because this process cannot set it.
pub(crate) fn count_other_owner(engine: &Engine, new: &Metadata, old: &Metadata) {
    if engine.settable.keeps_other_owner(new, old) {
        engine.reports.count(Counter::OwnersNotKept);
    }
}

/// Whether a missing immutable flag at the destination is a difference.
fn flags_matter(engine: &Engine, level: &DirectoryPair) -> bool {
    let facts = level.target.as_ref().map(|t| &t.facts);
    engine.spec.policy.preserve.has(Attribute::Flags)
        && engine.end.privilege.privileged
        && facts.is_some_and(|f| !f.is(&f.no_flags))
}
