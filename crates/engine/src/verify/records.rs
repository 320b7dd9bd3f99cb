//! Compares a tree with its manifest.
use dmover_local::capability::Facts;
use dmover_local::digest::{self, pieces_of, whole_pieces};
use dmover_local::entry_attributes;
use dmover_local::error::{at_destination, changed, is_no_directory, not_a_name};
use dmover_model::{
    Against, ByteRange, CompareTask, DifferenceKind, DifferenceSet, Digest, EntryError, EntryKind,
    EntryRecord, Extended, FileRef, FinishCompareTask, Identity, LinkGroup, LinkName, Metadata,
    MountId, Name, NewTask, Parent, Record, RecordsTask, Shape, Side, TaskKind, TreePath,
    VerifyLevel, Version,
};
use dmover_observe::{Activity, Counter, activity};
use dmover_plan::chunk;
use dmover_plan::verify::{Differing, Scope, Sight, differences};
use dmover_tree::Permit;

use crate::checked_tree;
use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair};
use crate::file;
use crate::finding::{self, Finding, Unrepaired};
use crate::manifest_attributes::{self, Whose};
use crate::mover::Mover;
use crate::queue::Class;
use crate::sum;
use crate::verify;

/// A mount id that no mount has, under which hard links of a manifest are grouped.
const RECORDED: MountId = MountId(u32::MAX);

/// The result for the content of a file.
enum Content {
    /// It did not have to be read.
    Unread,
    /// These ranges differ.
    Read(Vec<ByteRange>),
    /// Separate tasks compare it.
    InParts,
}

/// An entry of the checked tree with its manifest record.
#[derive(Clone, Copy)]
struct Checked<'a> {
    level: &'a DirectoryPair,
    name: &'a Name,
    found: &'a Metadata,
    record: &'a Record,
}

/// One name of an inode with several names.
pub(super) struct Linked {
    pub level: DirectoryPair,
    pub name: Name,
    pub metadata: Metadata,
}

/// Compares entries with their manifest records.
pub(crate) fn run(mover: &mut Mover<'_>, RecordsTask { records, round }: &RecordsTask) {
    let mut place = None;
    for (number, record) in records.iter().enumerate() {
        let enough = mover.budget_is_spent() || mover.engine.control.is_stopping();
        let shares = mover.queue.is_hungry(Class::Small) && records.len() - number > 1;
        if number > 0 && (enough || shares) {
            let rest = &records[number..];
            let half = if enough { rest.len() } else { rest.len().div_ceil(2) };
            for part in rest.chunks(half) {
                let task = RecordsTask { records: part.to_vec(), round: *round };
                let kind = TaskKind::Records(task);
                mover.report.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
            }
            return mover.report.flush();
        }
        verify_record(mover, record, &mut place, *round);
        mover.spent.entries += 1;
        mover.lease.extend();
    }
}

fn verify_record(
    mover: &mut Mover<'_>,
    record: &Record,
    place: &mut Option<DirectoryPair>,
    round: u32,
) {
    let engine = mover.engine;
    if !engine.filter.admits_record(record) {
        return engine.reports.count(Counter::EntriesExcluded);
    }
    engine.resources.limits.operation(&engine.control, mover.lease);
    let mut attempt = round;
    mover.entry.unrepaired = None;
    loop {
        match try_record(mover, record, place, attempt) {
            Ok(()) => return,
            Err(error) if engine.may_pass(&error, attempt) => {
                attempt += 1;
                *place = None;
            }
            Err(error) => {
                verify::unproven::mark_unproven(engine, record);
                engine.error(EntryError { attempt, ..error });
                return mover.tell_unrepaired();
            }
        }
    }
}

fn try_record(
    mover: &mut Mover<'_>,
    record: &Record,
    place: &mut Option<DirectoryPair>,
    round: u32,
) -> Result<(), EntryError> {
    activity::at(Activity::TargetNames);
    let engine = mover.engine;
    let Some((directory, name)) = record.path.split_last() else {
        let level = checked_tree::checked_level(engine, &TreePath::root())?;
        let found = engine.proof.with_kept_times(&record.path, level.source.metadata.clone());
        let finding = finding_of_root(engine, &level, &found, record)?;
        return conclude_record(mover, record, finding);
    };
    if place.as_ref().is_none_or(|level| level.path != directory) {
        *place = match checked_tree::checked_level(engine, &directory) {
            Ok(level) => Some(level),
            Err(error) if is_no_directory(&error) => return conclude_missing(mover, record),
            Err(error) => return Err(error),
        };
    }
    let Some(level) = place.as_ref() else { return Ok(()) };
    let Some(found) = engine.end.checked(&level.source, name)? else {
        return conclude_missing(mover, record);
    };
    let found = engine.proof.with_kept_times(&record.path, found);
    let name = checked_name(level, name)?;
    if round == 1 {
        note_recorded_link(mover, level, &name, record);
    }
    if finding::is_untouched(engine, &found) {
        return conclude_record(mover, record, Finding::default());
    }
    let checked = Checked { level, name: &name, found: &found, record };
    let ranges = match compare_record_content(mover, checked, round)? {
        Content::InParts => return Ok(()),
        Content::Unread => None,
        Content::Read(ranges) => Some(ranges),
    };
    let finding = finding_of(engine, checked, ranges)?;
    conclude_record(mover, record, finding)
}

/// Handles a missing entry, which may be one of several names; a repair first makes it a separate file.
fn conclude_missing(mover: &mut Mover<'_>, record: &Record) -> Result<(), EntryError> {
    conclude_record(mover, record, Finding::of(DifferenceKind::Missing))?;
    if let Some((directory, name)) = record.path.split_last()
        && mover.engine.spec.repairs()
        && let (Ok(level), Ok(name)) =
            (checked_tree::checked_level(mover.engine, &directory), Name::new(name))
    {
        note_recorded_link(mover, &level, &name, record);
    }
    Ok(())
}

fn compare_record_content(
    mover: &mut Mover<'_>,
    checked: Checked<'_>,
    round: u32,
) -> Result<Content, EntryError> {
    let Checked { level, name, found, record } = checked;
    let engine = mover.engine;
    let is_file = found.kind == EntryKind::File && record.body.kind == EntryKind::File;
    if !is_file || !verify::reads_content(&engine.spec, record.path.as_bytes()) {
        return Ok(Content::Unread);
    }
    let Some(recorded) = &record.body.content else {
        engine.reports.count(Counter::FilesWithoutDigest);
        return Ok(Content::Unread);
    };
    let content = open_checked_file(engine, level, name, found, mover.permit())?;
    let shape = &recorded.shape;
    let shown = || level.source_path(name.as_bytes());
    verify::forget_unproven(engine, &content, record.body.mtime, &shown)?;
    let there = whole_pieces(shape, content.metadata.size);
    let chunk = sum::hash_chunk(engine, shape)
        .filter(|chunk| !recorded.pieces.is_empty() && there.len() > *chunk);
    let Some(chunk) = chunk else {
        let compared = digest::compare_recorded(&mut mover.session, &content, recorded, &shown);
        return compared.map(Content::Read).map_err(at_destination);
    };
    let file = FileRef {
        directory: level.reference(),
        name: name.clone(),
        destination_name: name.clone(),
    };
    let rest = ByteRange { start: there.end, end: shape.length() };
    let destination = found.version();
    let number = verify::report_judge(
        mover,
        FinishCompareTask {
            file: file.clone(),
            record: Some(Box::new(record.clone())),
            versions: (None, destination),
            compared: there.len(),
            differing: if rest.is_empty() { Vec::new() } else { vec![rest] },
            failure: None,
            round,
        },
    );
    for range in chunk::chunks(there.len(), chunk) {
        let expected = pieces_of(shape, range, &recorded.pieces).to_vec();
        let (file, against) = (file.clone(), Against::Digests(*shape, expected));
        let task = CompareTask { file, destination, against, range };
        let kind = TaskKind::Compare(Box::new(task));
        mover.report.outcome.tasks.push(NewTask { parent: Parent::New(number), kind });
    }
    mover.report.flush();
    Ok(Content::InParts)
}

/// Compares a part of a large file with digests.
pub(super) fn compare_recorded_part(
    mover: &mut Mover<'_>,
    task: &CompareTask,
    shape: &Shape,
    expected: &[Digest],
) -> Result<Vec<ByteRange>, EntryError> {
    let (engine, name) = (mover.engine, &task.file.name);
    let level = directory_pair::open_level(engine, &task.file.directory).map_err(at_destination)?;
    let shown = || level.source_path(name.as_bytes());
    let found = engine.end.checked_there(&level.source, name.as_bytes())?;
    if found.version() != task.destination {
        return Err(changed(Side::Destination, shown()));
    }
    let content = open_checked_file(engine, &level, name, &found, mover.permit())?;
    let ranges =
        digest::compare_pieces(&mut mover.session, &content, shape, task.range, expected, &shown);
    let ranges = ranges.map_err(at_destination)?;
    engine.local().check_unchanged(&content, &shown).map_err(at_destination)?;
    Ok(ranges)
}

/// Finishes a large file: its metadata, and the ranges in which its parts differ.
pub(super) fn judge_record(
    mover: &mut Mover<'_>,
    record: &Record,
    ranges: Vec<ByteRange>,
    version: Version,
) -> Result<(), EntryError> {
    let engine = mover.engine;
    let Some((directory, name)) = record.path.split_last() else { return Ok(()) };
    let level = checked_tree::checked_level(engine, &directory)?;
    let found = engine.end.checked(&level.source, name)?;
    let found = found.filter(|found| found.version() == version);
    let found = found.ok_or_else(|| changed(Side::Destination, level.source_path(name)))?;
    let name = checked_name(&level, name)?;
    let checked = Checked { level: &level, name: &name, found: &found, record };
    let finding = finding_of(engine, checked, Some(ranges))?;
    conclude_record(mover, record, finding)
}

/// Repairs differences if requested, and reports them. An error is about the repair: the next attempt compares
/// again.
fn conclude_record(
    mover: &mut Mover<'_>,
    record: &Record,
    mut finding: Finding,
) -> Result<(), EntryError> {
    let engine = mover.engine;
    let (path, kind) = (checked_tree::checked_path(engine, &record.path), record.body.kind);
    if finding.kinds.is_empty() && verify::tell_mended(mover) {
        return Ok(());
    }
    if !engine.spec.repairs() || finding.kinds.is_empty() {
        if finding.kinds.is_of_content() {
            verify::unproven::mark_unproven(engine, record);
        }
        finding::tell_finding(engine, path, kind, finding, None);
        return Ok(());
    }
    // Until the repair was looked at: another attempt finds no difference, and reports this one.
    let unrepaired = Unrepaired { path: path.clone(), kind, finding: finding.clone() };
    mover.entry.unrepaired = Some(unrepaired);
    let repaired = verify::restore::repair_record(mover, record, &finding)?;
    let left = left_over_of(engine, record)?;
    mover.entry.unrepaired = None;
    finding.tell_left_over(left);
    finding::tell_finding(engine, path, kind, finding, Some(repaired && left.is_empty()));
    Ok(())
}

fn note_recorded_link(mover: &mut Mover<'_>, level: &DirectoryPair, name: &Name, record: &Record) {
    let policy = &mover.engine.spec.policy;
    let closely = mover.engine.spec.verify_policy().level >= VerifyLevel::Mtime;
    let links = policy.preserve.has(dmover_model::Attribute::Links);
    let Some(inode) = record.body.link.filter(|_| closely && links) else { return };
    let (name, directory) = (name.clone(), level.reference());
    let file = FileRef { directory, destination_name: name.clone(), name };
    mover.report.record_link(LinkName { identity: Identity { mount: RECORDED, inode }, file });
}

/// Compares hard links: names with one inode in the manifest must be one inode. Each name was already compared by
/// itself.
pub(super) fn verify_recorded_links(mover: &mut Mover<'_>, group: &LinkGroup) {
    let engine = mover.engine;
    let mut anchor: Option<Linked> = None;
    for file in std::iter::once(&group.first).chain(&group.rest) {
        mover.lease.extend();
        let linked = match look_at_link(engine, file) {
            Ok(Some(linked)) => linked,
            Ok(None) => continue, // reported as missing
            Err(error) => {
                engine.error(error);
                continue;
            }
        };
        let Some(first) = &anchor else {
            anchor = Some(linked);
            continue;
        };
        if first.metadata.identity == linked.metadata.identity {
            continue;
        }
        let repaired = engine.spec.repairs().then(|| {
            let done = verify::restore::link_again(mover, first, &linked);
            done.map_err(|error| engine.error(error)).is_ok_and(|done| done)
        });
        let name = first.name.as_bytes();
        if let Ok(Some(metadata)) = engine.end.checked(&first.level.source, name) {
            // Another name has changed it.
            anchor = anchor.map(|first| Linked { metadata, ..first });
        }
        let path = linked.level.source_path(linked.name.as_bytes());
        let finding = Finding::of(DifferenceKind::Links);
        finding::tell_finding(engine, path, linked.metadata.kind, finding, repaired);
    }
}

/// Differences that remain visible after a repair.
fn left_over_of(engine: &Engine, record: &Record) -> Result<DifferenceSet, EntryError> {
    let Some((directory, name)) = record.path.split_last() else {
        let level = checked_tree::checked_level(engine, &TreePath::root())?;
        let found = engine.proof.with_kept_times(&record.path, level.source.metadata.clone());
        return Ok(finding_of_root(engine, &level, &found, record)?.kinds);
    };
    let level = checked_tree::checked_level(engine, &directory)?;
    let Some(found) = engine.end.checked(&level.source, name)? else {
        return Ok(DifferenceSet::from_iter([DifferenceKind::Missing]));
    };
    let found = engine.proof.with_kept_times(&record.path, found);
    let name = checked_name(&level, name)?;
    let checked = Checked { level: &level, name: &name, found: &found, record };
    Ok(finding_of(engine, checked, None)?.kinds)
}

fn look_at_link(engine: &Engine, file: &FileRef) -> Result<Option<Linked>, EntryError> {
    let level = checked_tree::checked_level(engine, &file.directory.path)?;
    let metadata = engine.end.checked(&level.source, file.name.as_bytes())?;
    Ok(metadata.map(|metadata| Linked { level, name: file.name.clone(), metadata }))
}

/// Opens a file of the checked tree in the version that was found.
pub(super) fn open_checked_file(
    engine: &Engine,
    level: &DirectoryPair,
    name: &Name,
    found: &Metadata,
    permit: &dyn Permit,
) -> Result<dmover_local::source::Content, EntryError> {
    let (name, metadata) = (name.clone(), found.clone());
    let entry = EntryRecord { name, renamed: None, metadata, symlink: None };
    let mut content =
        file::open_source_file(engine, level, &entry, permit).map_err(at_destination)?;
    if content.metadata.version() != found.version() {
        return Err(changed(Side::Destination, level.source_path(entry.name.as_bytes())));
    }
    content.stored = engine.spec.verify_policy().stored;
    Ok(content)
}

fn finding_of(
    engine: &Engine,
    Checked { level, name, found, record }: Checked<'_>,
    ranges: Option<Vec<ByteRange>>,
) -> Result<Finding, EntryError> {
    let both = found.kind == EntryKind::Symlink && record.body.kind == EntryKind::Symlink;
    let link = both.then(|| level.source.checked_symlink(name.as_bytes())).transpose()?;
    let facts = &level.source.facts;
    let mut kinds = record_differences(engine, (found, facts), link.as_deref(), record);
    if verify::compares_closely(&engine.spec) && found.kind == record.body.kind {
        kinds = kinds.and(recorded_attributes(engine, level, name, found, record)?);
    }
    let sights = (recorded_sight(record), Sight::of(found, link.as_deref()));
    let ranges = verify::with_unflushed(&engine.end, found.identity, ranges);
    Ok(Finding::new(kinds, ranges, sights).between(None, found.version()))
}

/// Differences in attributes that statx does not show.
fn recorded_attributes(
    engine: &Engine,
    level: &DirectoryPair,
    name: &Name,
    found: &Metadata,
    record: &Record,
) -> Result<Differing, EntryError> {
    let extended = &record.body.extended;
    if *extended == Extended::default() {
        return Ok(Differing::default());
    }
    let (name, metadata) = (name.clone(), found.clone());
    let entry = EntryRecord { name, renamed: None, metadata, symlink: None };
    let open = entry_attributes::open_entry(
        &engine.local(),
        &level.source,
        &entry,
        directory_pair::follows(&engine.spec, level),
    );
    let open = open.map_err(at_destination)?;
    Ok(manifest_attributes::extended_differences(
        engine,
        extended,
        &open.attributes,
        Whose::Destination,
    ))
}

fn finding_of_root(
    engine: &Engine,
    level: &DirectoryPair,
    found: &Metadata,
    record: &Record,
) -> Result<Finding, EntryError> {
    let facts = &level.source.facts;
    let mut kinds = record_differences(engine, (found, facts), None, record);
    let extended = &record.body.extended;
    if verify::compares_closely(&engine.spec) && *extended != Extended::default() {
        let present = entry_attributes::attributes_of(&engine.local(), &level.source)
            .map_err(at_destination)?;
        let more = manifest_attributes::extended_differences(
            engine,
            extended,
            &present,
            Whose::Destination,
        );
        kinds = kinds.and(more);
    }
    Ok(Finding::new(kinds, None, (recorded_sight(record), Sight::of(found, None))))
}

fn record_differences(
    engine: &Engine,
    (found, facts): (&Metadata, &Facts),
    link: Option<&[u8]>,
    record: &Record,
) -> Differing {
    let scope = Scope {
        level: engine.spec.verify_policy().level,
        attributes: engine.spec.policy.preserve,
        demanded: engine.spec.policy.demanded,
        granularity_ns: facts.shown_step_ns(found),
        unprivileged: engine.settable.unprivileged.as_ref(),
    };
    differences(recorded_sight(record), Sight::of(found, link), scope)
}

/// The metadata of an entry in a manifest.
pub(super) fn recorded_sight(record: &Record) -> Sight<'_> {
    let body = &record.body;
    Sight {
        kind: body.kind,
        mode: body.mode,
        owner: (body.uid, body.gid),
        size: body.size,
        mtime: body.mtime,
        device: body.device.unwrap_or_default(),
        symlink: body.symlink.as_deref().map(Vec::as_slice),
    }
}

/// A name in a tree that is compared with a manifest.
fn checked_name(level: &DirectoryPair, name: &[u8]) -> Result<Name, EntryError> {
    Name::new(name).map_err(|_| not_a_name(Side::Destination, level.source_path(name)))
}
