//! Comparing: entries of two trees with each other, or of one tree with a manifest.
//!
//! A comparison runs as a copy that writes nothing: the same scan, the same checks of both sides. Differences are
//! reported, and copied again if requested (`repair`).
use crate::settable::Settable;
use dmover_local::end::LocalEnd;
use dmover_local::entry_attributes;
use dmover_local::error::changed;
use dmover_local::session::WriteError;
use dmover_local::source::Content;
use dmover_model::JobSpec;
use dmover_model::{
    Against, ByteRange, CompareTask, DifferenceDetail, DifferenceKind, DifferenceSet, EntryError,
    EntryKind, EntryRecord, ErrorClass, FileRef, FinishCompareTask, Identity, LinkGroup, Metadata,
    Name, NewNode, NewTask, Parent, PathBytes, RecordsTask, Side, TaskKind, Timestamp, VerifyLevel,
    VerifyPolicy,
};
use dmover_observe::Counter;
use dmover_plan::verify::{Differing, Scope, Sight, differences, is_sampled, merged};
use dmover_plan::{chunk, retry};

use crate::alike;
use crate::compare_content;
use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair, file_ref};
use crate::finding::{self, Finding, Unrepaired};
use crate::mover::Mover;
use crate::plan_entry;
use crate::planned::{CopyResult, Planned};

pub(crate) mod content;
pub(crate) mod records;
mod repair;
mod restore;
mod unproven;

/// The result for an entry, and whether it is final.
enum Compared {
    Done(Finding),
    /// Separate tasks compare its content.
    InParts,
}

/// Whether the content of a file must be read.
fn reads_content(spec: &JobSpec, path: &[u8]) -> bool {
    let VerifyPolicy { level, sample_millionths, seed, .. } = spec.verify_policy();
    *level >= VerifyLevel::Digest && is_sampled(*sample_millionths, *seed, path)
}

/// Called before a file is compared that must be repaired and looks unfinished: an earlier repair may have failed
/// to flush it, so that the page cache differs from storage.
fn forget_unproven(
    engine: &Engine,
    content: &Content,
    expected: Timestamp,
    shown: &dyn Fn() -> PathBytes,
) -> Result<(), EntryError> {
    if !engine.spec.repairs() || content.metadata.mtime == expected {
        return Ok(());
    }
    let whole = ByteRange { start: 0, end: content.metadata.size };
    engine.local().write_back_and_forget(content, whole, shown)
}

/// Ranges that differ, with those that could not be flushed.
fn with_unflushed(
    end: &LocalEnd,
    file: Identity,
    ranges: Option<Vec<ByteRange>>,
) -> Option<Vec<ByteRange>> {
    let unflushed = end.unflushed.of(file);
    if unflushed.is_empty() {
        return ranges;
    }
    Some(merged(ranges.into_iter().flatten().chain(unflushed).collect()))
}

/// Which differences count in a comparison with `found`.
fn scope<'a>(engine: &'a Engine, level: &DirectoryPair, found: &Metadata) -> Scope<'a> {
    let step = level.target.as_ref().map_or(1, |target| target.facts.shown_step_ns(found));
    Scope {
        level: engine.spec.verify_policy().level,
        attributes: engine.spec.policy.preserve,
        demanded: engine.spec.policy.demanded,
        granularity_ns: step,
        unprivileged: engine.settable.unprivileged.as_ref(),
    }
}

/// A source entry as the destination should have it.
fn wanted_sight<'a>(
    settable: &Settable,
    metadata: &Metadata,
    symlink: Option<&'a [u8]>,
) -> Sight<'a> {
    let owner = (settable.ids.user(metadata.uid), settable.ids.group(metadata.gid));
    Sight { owner, ..Sight::of(metadata, symlink) }
}

/// Compares a source entry with the destination.
pub(crate) fn verify_entry(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    planned: &Planned,
    round: u32,
) -> Result<CopyResult, WriteError> {
    if let Compared::Done(finding) = compare(mover, level, planned, Some(round))? {
        conclude(mover, level, planned, finding)?;
    }
    Ok(CopyResult::default())
}

/// `round`: the number of attempts, for large files that separate tasks compare in parts.
fn compare(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    planned: &Planned,
    round: Option<u32>,
) -> Result<Compared, EntryError> {
    let engine = mover.engine;
    let record = &planned.record;
    let Some(found) = &planned.existing else {
        return Ok(Compared::Done(Finding::of(DifferenceKind::Missing)));
    };
    if finding::is_untouched(engine, found) {
        return Ok(Compared::Done(Finding::default()));
    }
    let last = record.destination_name().as_bytes();
    let link = symlink_at(level, last, found, record.metadata.kind)?;
    let expected = wanted_sight(&engine.settable, &record.metadata, record.symlink.as_deref());
    let sight = Sight::of(found, link.as_deref());
    let mut kinds = differences(expected, sight, scope(engine, level, found));
    let mut ranges = None;
    if compares_closely(&engine.spec) && !kinds.kinds.has(DifferenceKind::Type) {
        if record.metadata.kind == EntryKind::File {
            let pair = match mover.entry.pair.take() {
                Some(pair) => pair,
                None => compare_content::open_pair(engine, level, record, found, mover.permit())?,
            };
            if reads_content(&engine.spec, level.path.join(record.name.as_bytes()).as_bytes()) {
                let common = pair.common();
                let shown = || level.target_path(last);
                let (content, expected) = (&pair.destination, record.metadata.mtime);
                forget_unproven(engine, content, expected, &shown)?;
                let chunk = content::compare_chunk(engine, common.len());
                if let (Some(chunk), Some(round)) = (chunk, round) {
                    compare_in_parts(mover, level, record, (found, common), (chunk, round));
                    return Ok(Compared::InParts);
                }
                ranges = Some(compare_content::compare_range(mover, level, record, &pair, common)?);
            }
            kinds = kinds.and(alike::pair_attributes(engine, level, record, &pair)?);
        } else {
            kinds = kinds.and(alike::pinned_differences(engine, level, record)?);
        }
    }
    let ranges = with_unflushed(&engine.end, found.identity, ranges);
    let finding = Finding::new(kinds, ranges, (expected, sight));
    let versions = (record.metadata.version(), found.version());
    Ok(Compared::Done(finding.between(Some(versions.0), versions.1)))
}

/// Repairs differences if requested, and reports them. An error is about the repair: the next attempt compares
/// again.
fn conclude(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    planned: &Planned,
    mut finding: Finding,
) -> Result<(), WriteError> {
    let engine = mover.engine;
    let path = level.target_path(planned.record.destination_name().as_bytes());
    let kind = planned.record.metadata.kind;
    if finding.kinds.is_empty() && tell_mended(mover) {
        return Ok(());
    }
    if !engine.spec.repairs() || finding.kinds.is_empty() {
        finding::tell_finding(engine, path, kind, finding, None);
        return Ok(());
    }
    // Until the repair was looked at: another attempt finds no difference, and reports this one.
    let unrepaired = Unrepaired { path: path.clone(), kind, finding: finding.clone() };
    mover.entry.unrepaired = Some(unrepaired);
    repair::repair(mover, level, planned, &finding, None)?;
    let left = left_over(mover, level, planned)?;
    mover.entry.unrepaired = None;
    finding.tell_left_over(left);
    finding::tell_finding(engine, path, kind, finding, Some(left.is_empty()));
    Ok(())
}

/// Differences that remain visible after a repair, such as an owner that cannot be set.
fn left_over(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    planned: &Planned,
) -> Result<DifferenceSet, EntryError> {
    let engine = mover.engine;
    let Some(now) = plan_entry::look_again(mover, level, &planned.record)? else {
        return Ok(DifferenceSet::NONE);
    };
    let Some(found) = &now.existing else {
        return Ok(DifferenceSet::from_iter([DifferenceKind::Missing]));
    };
    let last = now.record.destination_name().as_bytes();
    let link = symlink_at(level, last, found, now.record.metadata.kind)?;
    let expected =
        wanted_sight(&engine.settable, &now.record.metadata, now.record.symlink.as_deref());
    let sight = Sight::of(found, link.as_deref());
    let kinds = differences(expected, sight, scope(engine, level, found)).kinds;
    let more = match now.record.metadata.kind {
        _ if !compares_closely(&engine.spec) || !kinds.is_empty() => Differing::default(),
        EntryKind::File => {
            let pair =
                compare_content::open_pair(engine, level, &now.record, found, mover.permit())?;
            alike::pair_attributes(engine, level, &now.record, &pair)?
        }
        _ => alike::pinned_differences(engine, level, &now.record)?,
    };
    Ok(kinds.and(more.kinds))
}

/// Reports repairs of an earlier attempt that failed later, if this attempt finds no difference. Returns whether
/// there were any.
fn tell_mended(mover: &mut Mover<'_>) -> bool {
    let Some(Unrepaired { path, kind, finding }) = mover.entry.unrepaired.take() else {
        return false;
    };
    finding::tell_finding(mover.engine, path, kind, finding, Some(true));
    true
}

/// Compares a directory itself.
pub(crate) fn verify_directory(mover: &mut Mover<'_>, level: &DirectoryPair) {
    let engine = mover.engine;
    let found = match &level.target {
        Some(target) if !target.fresh => target.metadata.clone(),
        _ => {
            let finding = Finding::of(DifferenceKind::Missing);
            let repaired = engine.spec.repairs().then(|| repair::repair_directory(mover, level));
            return finding::tell_finding(
                engine,
                level.own_target_path(),
                EntryKind::Directory,
                finding,
                repaired,
            );
        }
    };
    if finding::is_untouched(engine, &found) {
        return engine.reports.count(Counter::EntriesCompared);
    }
    let expected = wanted_sight(&engine.settable, &level.source.metadata, None);
    let differing = match directory_differences(engine, level, &found) {
        Ok(differing) => differing,
        Err(error) => return engine.error(error),
    };
    let mut finding = Finding::new(differing, None, (expected, Sight::of(&found, None)));
    let mut repaired = None;
    if engine.spec.repairs() && !finding.kinds.is_empty() {
        let left = repair_and_compare(mover, level);
        repaired = Some(left.is_some_and(DifferenceSet::is_empty));
        finding.tell_left_over(left.unwrap_or_default());
    }
    finding::tell_finding(engine, level.own_target_path(), EntryKind::Directory, finding, repaired);
}

/// The remaining differences of a directory after its repair; `None` if the repair failed.
fn repair_and_compare(mover: &mut Mover<'_>, level: &DirectoryPair) -> Option<DifferenceSet> {
    if !repair::repair_directory(mover, level) {
        return None;
    }
    let engine = mover.engine;
    let now = engine.local().now(level.target.as_ref()?).ok()?;
    let left = directory_differences(engine, level, &now);
    left.map(|left| left.kinds).map_err(|error| engine.error(error)).ok()
}

/// Compares names of linked inodes: names of one source inode must be names of one destination inode.
pub(crate) fn verify_links(mover: &mut Mover<'_>, group: &LinkGroup) {
    let Ok(root) = mover.engine.root(group.first.directory.root) else { return };
    if root.destination.is_none() {
        return records::verify_recorded_links(mover, group);
    }
    let mut anchor: Option<(Identity, Finding)> = None;
    let mut found = Vec::new();
    for file in std::iter::once(&group.first).chain(&group.rest) {
        match compare_link(mover, file, &mut anchor) {
            Ok(Some(one)) => found.push(one),
            Ok(None) => {}
            Err(error) => mover.engine.error(error),
        }
        mover.lease.extend();
    }
    let differs = found.iter().any(|(.., finding)| !finding.kinds.is_empty());
    let repaired =
        (differs && mover.engine.spec.repairs()).then(|| repair::repair_links(mover, group));
    for (path, kind, finding) in found {
        finding::tell_finding(mover.engine, path, kind, finding, repaired);
    }
}

/// Whether all names of a group are right, and one inode.
fn links_are_right(mover: &mut Mover<'_>, group: &LinkGroup) -> bool {
    let mut anchor = None;
    std::iter::once(&group.first).chain(&group.rest).all(|file| {
        let compared = compare_link(mover, file, &mut anchor);
        compared.is_ok_and(|one| one.is_some_and(|(.., finding)| finding.kinds.is_empty()))
    })
}

fn compare_link(
    mover: &mut Mover<'_>,
    file: &FileRef,
    anchor: &mut Option<(Identity, Finding)>,
) -> Result<Option<(PathBytes, EntryKind, Finding)>, EntryError> {
    let engine = mover.engine;
    let level = directory_pair::open_level(engine, &file.directory)?;
    let record = plan_entry::look(mover, &level, &file.name)?;
    let kind = record.metadata.kind;
    let path = level.target_path(file.destination_name.as_bytes());
    let Some(planned) = plan_entry::plan_record(mover, &level, record) else { return Ok(None) };
    let identity = planned.existing.as_ref().map(|found| found.identity);
    if let Some((_, finding)) = anchor.as_ref().filter(|(of, _)| Some(*of) == identity) {
        // What is the matter with an inode is the matter with all its names.
        return Ok(Some((path, kind, finding.clone())));
    }
    // The first name is compared as a file of its own, and so is any that is another inode.
    let Compared::Done(mut finding) = compare(mover, &level, &planned, None)? else {
        return Ok(None);
    };
    if anchor.is_some() && identity.is_some() && !finding.kinds.has(DifferenceKind::Type) {
        let links = DifferenceKind::Links;
        finding.detail.push(DifferenceDetail::Words(links.word().into()));
        finding.kinds.insert(links);
    }
    if let Some(identity) = identity.filter(|_| anchor.is_none()) {
        *anchor = Some((identity, finding.clone()));
    }
    Ok(Some((path, kind, finding)))
}

/// Starts a file again whose comparison failed.
pub(crate) fn verify_again(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    name: &Name,
    round: u32,
) -> Result<(), WriteError> {
    let record = plan_entry::look(mover, level, name)?;
    match plan_entry::plan_record(mover, level, record) {
        Some(planned) => verify_entry(mover, level, &planned, round).map(drop),
        None => Ok(()),
    }
}

fn compare_in_parts(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    record: &EntryRecord,
    (found, common): (&Metadata, ByteRange),
    (chunk, round): (u64, u32),
) {
    let file = file_ref(level, record);
    let (source, destination) = (record.metadata.version(), found.version());
    let number = report_judge(
        mover,
        FinishCompareTask {
            file: file.clone(),
            record: None,
            versions: (Some(source), destination),
            compared: common.len(),
            differing: Vec::new(),
            failure: None,
            round,
        },
    );
    for range in chunk::chunks(common.len(), chunk) {
        let (file, against) = (file.clone(), Against::Source(source));
        let task = CompareTask { file, destination, against, range };
        let kind = TaskKind::Compare(Box::new(task));
        mover.report.outcome.tasks.push(NewTask { parent: Parent::New(number), kind });
    }
    mover.report.flush();
}

fn report_judge(mover: &mut Mover<'_>, judge: FinishCompareTask) -> usize {
    let finish = TaskKind::FinishCompare(Box::new(judge));
    mover.report.add_node(NewNode::new(Parent::Inherited, finish))
}

/// Finishes a file whose parts were compared.
pub(crate) fn run_finish_compare(mover: &mut Mover<'_>, task: &FinishCompareTask) {
    let engine = mover.engine;
    let result = match &task.failure {
        Some(error) => Err((**error).clone()),
        None => judge(mover, task),
    };
    let Err(mut error) = result else { return };
    let at = &task.file.directory;
    error.attempt = task.round;
    if error.path.0.is_empty() {
        let name = task.file.destination_name.as_bytes();
        error.path = engine.destination_path(at.root, &at.path, name);
    }
    let again = error.retryable() || error.class == ErrorClass::Fenced;
    if !again || task.round >= retry::ATTEMPTS_MAX || engine.control.is_stopping() {
        if let Some(record) = &task.record {
            unproven::mark_unproven(engine, record);
        }
        engine.error(error);
        return mover.tell_unrepaired();
    }
    engine.reports.count(Counter::Retries);
    let round = task.round + 1;
    let kind = match &task.record {
        Some(record) => TaskKind::Records(RecordsTask { records: vec![(**record).clone()], round }),
        None => TaskKind::Open { file: task.file.clone(), round },
    };
    mover.report.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
}

fn judge(mover: &mut Mover<'_>, task: &FinishCompareTask) -> Result<(), EntryError> {
    let ranges = merged(task.differing.clone());
    let (source, destination) = task.versions;
    if let Some(record) = &task.record {
        return records::judge_record(mover, record, ranges, destination);
    }
    let engine = mover.engine;
    let level = directory_pair::open_level(engine, &task.file.directory)?;
    let record = plan_entry::look(mover, &level, &task.file.name)?;
    let path = level.target_path(record.destination_name().as_bytes());
    let source_path = level.source_path(record.name.as_bytes());
    let Some(planned) = plan_entry::plan_record(mover, &level, record) else { return Ok(()) };
    let found = planned.existing.as_ref().filter(|found| found.version() == destination);
    let found = found.ok_or_else(|| changed(Side::Destination, path))?;
    let record = &planned.record;
    if Some(record.metadata.version()) != source {
        return Err(changed(Side::Source, source_path));
    }
    let expected = wanted_sight(&engine.settable, &record.metadata, None);
    let sight = Sight::of(found, None);
    let kinds = differences(expected, sight, scope(engine, &level, found));
    let pair = compare_content::open_pair(engine, &level, record, found, mover.permit())?;
    let kinds = kinds.and(alike::pair_attributes(engine, &level, record, &pair)?);
    let ranges = with_unflushed(&engine.end, found.identity, Some(ranges));
    let finding = Finding::new(kinds, ranges, (expected, sight));
    let finding = finding.between(source, destination);
    conclude(mover, &level, &planned, finding).map_err(|failed| failed.error)
}

/// Whether attributes and content are compared that statx does not show.
fn compares_closely(spec: &JobSpec) -> bool {
    spec.verify_policy().level >= VerifyLevel::Digest
}

/// Differences between a directory and the `found` one.
fn directory_differences(
    engine: &Engine,
    level: &DirectoryPair,
    found: &Metadata,
) -> Result<Differing, EntryError> {
    let expected = wanted_sight(&engine.settable, &level.source.metadata, None);
    let kinds = differences(expected, Sight::of(found, None), scope(engine, level, found));
    let Some(target) = level.target.as_ref().filter(|_| compares_closely(&engine.spec)) else {
        return Ok(kinds);
    };
    let attributes =
        entry_attributes::attributes_of_directories(&engine.local(), &level.source, target)?;
    Ok(kinds.and(alike::attribute_differences(engine, level, EntryKind::Directory, &attributes)?))
}

/// The target of a symbolic link at the destination, where one is expected.
fn symlink_at(
    level: &DirectoryPair,
    name: &[u8],
    found: &Metadata,
    expected: EntryKind,
) -> Result<Option<Vec<u8>>, EntryError> {
    let both = found.kind == EntryKind::Symlink && expected == EntryKind::Symlink;
    let Some(target) = level.target.as_ref().filter(|_| both) else { return Ok(None) };
    target.symlink(name).map(Some)
}
