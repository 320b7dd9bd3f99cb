//! Repairs a tree that was compared with a manifest, from a second tree.
use dmover_local::attributes::Attributes;
use dmover_local::capability::Facts;
use dmover_local::comparison;
use dmover_local::digest;
use dmover_local::entry_attributes;
use dmover_local::error::{changed, not_a_name};
use dmover_model::{
    ByteRange, EntryError, EntryKind, EntryRecord, ErrorClass, Extended, Metadata, Name, Operation,
    PathBytes, Record, RootId, Side, TreePath, VerifyLevel,
};
use dmover_plan::decide::Decision;
use dmover_plan::verify::{Scope, differences};

use super::records::{Linked, recorded_sight};
use crate::context::Engine;
use crate::directory;
use crate::directory_pair::{self, DirectoryPair};
use crate::file;
use crate::finding::Finding;
use crate::manifest_attributes::{self, Whose};
use crate::mover::Mover;
use crate::plan_entry;
use crate::scan;
use crate::verify;

/// The tree from which repairs are copied.
const REPAIRED: RootId = RootId(1);

/// Copies an entry again from the second tree, if it matches the manifest.
pub(super) fn repair_record(
    mover: &mut Mover<'_>,
    record: &Record,
    finding: &Finding,
) -> Result<bool, EntryError> {
    let engine = mover.engine;
    let Some((directory, name)) = record.path.split_last() else {
        let level = repaired_level(mover, &TreePath::root())?;
        let metadata = level.source.metadata.clone();
        let facts = &level.source.facts;
        check_source(engine, level.own_source_path(), (&metadata, None), (record, facts))?;
        if record.body.extended != Extended::default() {
            let shown = || level.own_source_path();
            let attributes = entry_attributes::attributes_of(&engine.local(), &level.source)?;
            check_attributes(engine, &attributes, record, &shown)?;
        }
        return Ok(verify::repair::repair_directory(mover, &level));
    };
    let above = repaired_level(mover, &directory)?;
    let name = Name::new(name).map_err(|_| not_a_name(Side::Source, above.source_path(name)))?;
    let entry = plan_entry::look(mover, &above, &name)?;
    let (metadata, symlink) = (&entry.metadata, entry.symlink.as_deref());
    let path = above.source_path(name.as_bytes());
    check_source(engine, path, (metadata, symlink), (record, &above.source.facts))?;
    if record.body.extended != Extended::default() {
        let shown = || above.source_path(name.as_bytes());
        let follows = directory_pair::follows(&engine.spec, &above);
        let open = entry_attributes::open_entry(&engine.local(), &above.source, &entry, follows)?;
        check_attributes(engine, &open.attributes, record, &shown)?;
    }
    if metadata.kind == EntryKind::Directory {
        verify::repair::touch(mover, &above);
        let level = directory::enter(mover, &above, name.as_bytes())?;
        return Ok(verify::repair::repair_directory(mover, &level));
    }
    check_source_content(mover, &above, &entry, record, finding)?;
    let finding = Finding { source: Some(metadata.version()), ..finding.clone() };
    match plan_entry::plan_record(mover, &above, entry) {
        Some(planned) if matches!(planned.decision, Decision::Refuse(..)) => Ok(false),
        Some(planned) => {
            let recorded = record.body.content.as_ref();
            let repaired = verify::repair::repair(mover, &above, &planned, &finding, recorded);
            repaired.map(|()| true).map_err(|failed| failed.error)
        }
        None => Ok(false),
    }
}

/// Checks that the content to copy has the digests of the manifest.
fn check_source_content(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    entry: &EntryRecord,
    record: &Record,
    finding: &Finding,
) -> Result<(), EntryError> {
    let engine = mover.engine;
    let whole = finding.needs_all();
    let Some(recorded) = record.body.content.as_ref() else { return Ok(()) };
    if entry.metadata.kind != EntryKind::File || (!whole && finding.ranges.is_empty()) {
        return Ok(());
    }
    let content = file::open_source_file(engine, level, entry, mover.permit())?;
    let shown = || level.source_path(entry.name.as_bytes());
    if content.metadata.version() != entry.metadata.version() {
        return Err(changed(Side::Source, shown()));
    }
    let all = [ByteRange { start: 0, end: recorded.shape.length() }];
    let ranges = if whole { &all[..] } else { &finding.ranges };
    let differs =
        digest::differs_from_record(&mut mover.session, &content, recorded, ranges, &shown)?;
    engine.local().check_unchanged(&content, &shown)?;
    if differs { Err(unlike(shown(), "content")) } else { Ok(()) }
}

/// Makes a name a hard link to another inode with the same content and attributes, so that nothing is lost. Returns
/// false if they differ.
pub(super) fn link_again(
    mover: &mut Mover<'_>,
    anchor: &Linked,
    linked: &Linked,
) -> Result<bool, EntryError> {
    if !are_alike(mover, anchor, linked)? {
        return Ok(false);
    }
    let name = linked.name.as_bytes();
    let above = repaired_level(mover, &linked.level.path)?;
    let beside = repaired_level(mover, &anchor.level.path)?;
    let (Some(target), Some(from)) = (&above.target, &beside.target) else { return Ok(false) };
    mover.check_lease(&above, name)?;
    verify::repair::touch(mover, &above);
    let (ends, anchor) = ((&above.source, target), (from, anchor.name.as_bytes()));
    mover.session.replace_by_link(ends, name, anchor).map(|()| true)
}

fn are_alike(mover: &mut Mover<'_>, anchor: &Linked, linked: &Linked) -> Result<bool, EntryError> {
    let engine = mover.engine;
    let of = |of: &Metadata| (of.kind, of.size, of.mtime, of.mode, of.uid, of.gid);
    if of(&anchor.metadata) != of(&linked.metadata) {
        return Ok(false);
    }
    if anchor.metadata.kind != EntryKind::File {
        return Ok(true);
    }
    let shown = || linked.level.source_path(linked.name.as_bytes());
    let one = verify::records::open_checked_file(
        engine,
        &anchor.level,
        &anchor.name,
        &anchor.metadata,
        mover.permit(),
    )?;
    let other = verify::records::open_checked_file(
        engine,
        &linked.level,
        &linked.name,
        &linked.metadata,
        mover.permit(),
    )?;
    let of = |content: &dmover_local::source::Content| {
        let found = entry_attributes::attributes_of_content(&engine.local(), content, &shown);
        found.map(|found| manifest_attributes::extended(engine, &found, Whose::Destination))
    };
    if of(&one)? != of(&other)? {
        return Ok(false);
    }
    let range = ByteRange { start: 0, end: one.metadata.size };
    let differing =
        comparison::compare_contents(&mut mover.session, [&one, &other], range, [&shown, &shown])?;
    Ok(differing.is_empty())
}

/// A directory of the second tree and the one to repair; missing directories are created.
fn repaired_level(mover: &mut Mover<'_>, path: &TreePath) -> Result<DirectoryPair, EntryError> {
    let mut level = scan::open_root(mover, REPAIRED)?;
    for name in path.components() {
        if level.target.as_ref().is_some_and(|target| target.lacks(name)) {
            verify::repair::touch(mover, &level);
        }
        level = directory::enter(mover, &level, name)?;
    }
    Ok(level)
}

/// Whether a source entry is the one in the manifest.
fn check_source(
    engine: &Engine,
    path: PathBytes,
    (metadata, symlink): (&Metadata, Option<&[u8]>),
    (record, facts): (&Record, &Facts),
) -> Result<(), EntryError> {
    let scope = Scope {
        level: VerifyLevel::Mtime,
        attributes: engine.spec.policy.preserve,
        demanded: engine.spec.policy.demanded,
        granularity_ns: facts.shown_step_ns(metadata),
        // It was not this process that has made the source.
        unprivileged: None,
    };
    let sight = verify::wanted_sight(&engine.settable, metadata, symlink);
    let kinds = differences(recorded_sight(record), sight, scope).kinds;
    if kinds.is_empty() { Ok(()) } else { Err(unlike(path, &kinds.words())) }
}

/// Checks attributes that statx does not show.
fn check_attributes(
    engine: &Engine,
    attributes: &Attributes,
    record: &Record,
    shown: &dyn Fn() -> PathBytes,
) -> Result<(), EntryError> {
    let recorded = &record.body.extended;
    let kinds =
        manifest_attributes::extended_differences(engine, recorded, attributes, Whose::Source)
            .kinds;
    let words = kinds.words();
    let way_out = format!("{words} (--no-preserve={words} ignores this)");
    if kinds.is_empty() { Ok(()) } else { Err(unlike(shown(), &way_out)) }
}

/// The error for a source entry that does not match the manifest.
fn unlike(path: PathBytes, what: &str) -> EntryError {
    let words = format!("the source does not match the manifest either: {what}");
    let (side, class) = (Side::Source, ErrorClass::Integrity);
    EntryError::plain(side, Operation::Check, class, path, words)
}
