//! Compares a tree with its manifest.
use dmover_local::capability::Facts;
use dmover_local::digest::{pieces_of, whole_pieces};
use dmover_local::error::{at_destination, changed, is_no_directory, not_a_name};
use dmover_model::{
    Against, ByteRange, CompareTask, DifferenceKind, DifferenceSet, Digest, EntryError, EntryKind,
    EntryRecord, Extended, FileRef, Identity, JudgeTask, LinkGroup, LinkName, Metadata, MountId,
    Name, NewTask, Parent, Record, RecordsTask, Shape, Side, TaskKind, TreePath, VerifyLevel,
    Version,
};
use dmover_observe::{Activity, Counter, activity};
use dmover_plan::chunk;
use dmover_plan::verify::{Differing, Scope, Sight, differences};
use dmover_tree::Permit;

use crate::context::Engine;
use crate::finding::{Finding, Unrepaired};
use crate::level::Level;
use crate::manifest_attributes::Whose;
use crate::mover::Mover;
use crate::queue::Class;

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
    level: &'a Level,
    name: &'a Name,
    found: &'a Metadata,
    record: &'a Record,
}

/// One name of an inode with several names.
pub(super) struct Linked {
    pub level: Level,
    pub name: Name,
    pub metadata: Metadata,
}

impl Mover<'_> {
    /// Compares entries with their manifest records.
    pub(crate) fn run_records(&mut self, RecordsTask { records, round }: &RecordsTask) {
        let mut place = None;
        for (number, record) in records.iter().enumerate() {
            let enough = self.budget_is_spent() || self.engine.control.is_stopping();
            let shares = self.queue.is_hungry(Class::Small) && records.len() - number > 1;
            if number > 0 && (enough || shares) {
                let rest = &records[number..];
                let half = if enough { rest.len() } else { rest.len().div_ceil(2) };
                for part in rest.chunks(half) {
                    let task = RecordsTask { records: part.to_vec(), round: *round };
                    let kind = TaskKind::Records(task);
                    self.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
                }
                return self.flush();
            }
            self.verify_record(record, &mut place, *round);
            self.spent.entries += 1;
            self.lease.extend();
        }
    }

    fn verify_record(&mut self, record: &Record, place: &mut Option<Level>, round: u32) {
        let engine = self.engine;
        if !engine.filter.admits_record(record) {
            return engine.reports.count(Counter::EntriesExcluded);
        }
        engine.resources.limits.operation(&engine.control, self.lease);
        let mut attempt = round;
        self.unrepaired = None;
        loop {
            match self.try_record(record, place, attempt) {
                Ok(()) => return,
                Err(error) if engine.may_pass(&error, attempt) => {
                    attempt += 1;
                    *place = None;
                }
                Err(error) => {
                    engine.mark_unproven(record);
                    engine.error(EntryError { attempt, ..error });
                    return self.tell_unrepaired();
                }
            }
        }
    }

    fn try_record(
        &mut self,
        record: &Record,
        place: &mut Option<Level>,
        round: u32,
    ) -> Result<(), EntryError> {
        activity::at(Activity::TargetNames);
        let engine = self.engine;
        let Some((directory, name)) = record.path.split_last() else {
            let level = engine.checked_level(&TreePath::root())?;
            let found = engine.proof.with_kept_times(&record.path, level.source.metadata.clone());
            let finding = engine.finding_of_root(&level, &found, record)?;
            return self.conclude_record(record, finding);
        };
        if place.as_ref().is_none_or(|level| level.path != directory) {
            *place = match engine.checked_level(&directory) {
                Ok(level) => Some(level),
                Err(error) if is_no_directory(&error) => return self.conclude_missing(record),
                Err(error) => return Err(error),
            };
        }
        let Some(level) = place.as_ref() else { return Ok(()) };
        let Some(found) = engine.end.checked(&level.source, name)? else {
            return self.conclude_missing(record);
        };
        let found = engine.proof.with_kept_times(&record.path, found);
        let name = checked_name(level, name)?;
        if round == 1 {
            self.note_recorded_link(level, &name, record);
        }
        if engine.is_untouched(&found) {
            return self.conclude_record(record, Finding::default());
        }
        let checked = Checked { level, name: &name, found: &found, record };
        let ranges = match self.compare_record_content(checked, round)? {
            Content::InParts => return Ok(()),
            Content::Unread => None,
            Content::Read(ranges) => Some(ranges),
        };
        let finding = engine.finding_of(checked, ranges)?;
        self.conclude_record(record, finding)
    }

    /// Handles a missing entry, which may be one of several names; a repair first makes it a separate file.
    fn conclude_missing(&mut self, record: &Record) -> Result<(), EntryError> {
        self.conclude_record(record, Finding::of(DifferenceKind::Missing))?;
        if let Some((directory, name)) = record.path.split_last()
            && self.engine.spec.repairs()
            && let (Ok(level), Ok(name)) = (self.engine.checked_level(&directory), Name::new(name))
        {
            self.note_recorded_link(&level, &name, record);
        }
        Ok(())
    }

    fn compare_record_content(
        &mut self,
        checked: Checked<'_>,
        round: u32,
    ) -> Result<Content, EntryError> {
        let Checked { level, name, found, record } = checked;
        let engine = self.engine;
        let is_file = found.kind == EntryKind::File && record.body.kind == EntryKind::File;
        if !is_file || !engine.reads_content(record.path.as_bytes()) {
            return Ok(Content::Unread);
        }
        let Some(recorded) = &record.body.content else {
            engine.reports.count(Counter::FilesWithoutDigest);
            return Ok(Content::Unread);
        };
        let content = engine.open_checked_file(level, name, found, self.permit())?;
        let shape = &recorded.shape;
        let shown = || level.source_path(name.as_bytes());
        engine.forget_unproven(&content, record.body.mtime, &shown)?;
        let there = whole_pieces(shape, content.metadata.size);
        let chunk = engine
            .hash_chunk(shape)
            .filter(|chunk| !recorded.pieces.is_empty() && there.len() > *chunk);
        let Some(chunk) = chunk else {
            let compared = self.session.compare_recorded(&content, recorded, &shown);
            return compared.map(Content::Read).map_err(at_destination);
        };
        let file = FileRef {
            directory: level.reference(),
            name: name.clone(),
            destination_name: name.clone(),
        };
        let rest = ByteRange { start: there.end, end: shape.length() };
        let destination = found.version();
        let number = self.report_judge(JudgeTask {
            file: file.clone(),
            record: Some(Box::new(record.clone())),
            versions: (None, destination),
            compared: there.len(),
            differing: if rest.is_empty() { Vec::new() } else { vec![rest] },
            failure: None,
            round,
        });
        for range in chunk::chunks(there.len(), chunk) {
            let expected = pieces_of(shape, range, &recorded.pieces).to_vec();
            let (file, against) = (file.clone(), Against::Digests(*shape, expected));
            let task = CompareTask { file, destination, against, range };
            let kind = TaskKind::Compare(Box::new(task));
            self.outcome.tasks.push(NewTask { parent: Parent::New(number), kind });
        }
        self.flush();
        Ok(Content::InParts)
    }

    /// Compares a part of a large file with digests.
    pub(super) fn compare_recorded_part(
        &mut self,
        task: &CompareTask,
        shape: &Shape,
        expected: &[Digest],
    ) -> Result<Vec<ByteRange>, EntryError> {
        let (engine, name) = (self.engine, &task.file.name);
        let level = engine.open_level(&task.file.directory).map_err(at_destination)?;
        let shown = || level.source_path(name.as_bytes());
        let found = engine.end.checked_there(&level.source, name.as_bytes())?;
        if found.version() != task.destination {
            return Err(changed(Side::Destination, shown()));
        }
        let content = engine.open_checked_file(&level, name, &found, self.permit())?;
        let ranges = self.session.compare_pieces(&content, shape, task.range, expected, &shown);
        let ranges = ranges.map_err(at_destination)?;
        engine.local().check_unchanged(&content, &shown).map_err(at_destination)?;
        Ok(ranges)
    }

    /// Finishes a large file: its metadata, and the ranges in which its parts differ.
    pub(super) fn judge_record(
        &mut self,
        record: &Record,
        ranges: Vec<ByteRange>,
        version: Version,
    ) -> Result<(), EntryError> {
        let engine = self.engine;
        let Some((directory, name)) = record.path.split_last() else { return Ok(()) };
        let level = engine.checked_level(&directory)?;
        let found = engine.end.checked(&level.source, name)?;
        let found = found.filter(|found| found.version() == version);
        let found = found.ok_or_else(|| changed(Side::Destination, level.source_path(name)))?;
        let name = checked_name(&level, name)?;
        let checked = Checked { level: &level, name: &name, found: &found, record };
        let finding = engine.finding_of(checked, Some(ranges))?;
        self.conclude_record(record, finding)
    }

    /// Repairs differences if requested, and reports them. An error is about the repair: the next attempt compares
    /// again.
    fn conclude_record(&mut self, record: &Record, mut finding: Finding) -> Result<(), EntryError> {
        let engine = self.engine;
        let (path, kind) = (engine.checked_path(&record.path), record.body.kind);
        if finding.kinds.is_empty() && self.tell_mended() {
            return Ok(());
        }
        if !engine.spec.repairs() || finding.kinds.is_empty() {
            if finding.kinds.is_of_content() {
                engine.mark_unproven(record);
            }
            engine.tell_finding(path, kind, finding, None);
            return Ok(());
        }
        // Until the repair was looked at: another attempt finds no difference, and reports this one.
        let unrepaired = Unrepaired { path: path.clone(), kind, finding: finding.clone() };
        self.unrepaired = Some(unrepaired);
        let repaired = self.repair_record(record, &finding)?;
        let left = engine.left_over_of(record)?;
        self.unrepaired = None;
        finding.tell_left_over(left);
        engine.tell_finding(path, kind, finding, Some(repaired && left.is_empty()));
        Ok(())
    }

    fn note_recorded_link(&mut self, level: &Level, name: &Name, record: &Record) {
        let policy = &self.engine.spec.policy;
        let closely = self.engine.spec.verify_policy().level >= VerifyLevel::Mtime;
        let links = policy.preserve.has(dmover_model::Attribute::Links);
        let Some(inode) = record.body.link.filter(|_| closely && links) else { return };
        let (name, directory) = (name.clone(), level.reference());
        let file = FileRef { directory, destination_name: name.clone(), name };
        self.record_link(LinkName { identity: Identity { mount: RECORDED, inode }, file });
    }

    /// Compares hard links: names with one inode in the manifest must be one inode. Each name was already compared by
    /// itself.
    pub(super) fn verify_recorded_links(&mut self, group: &LinkGroup) {
        let engine = self.engine;
        let mut anchor: Option<Linked> = None;
        for file in std::iter::once(&group.first).chain(&group.rest) {
            self.lease.extend();
            let linked = match engine.look_at_link(file) {
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
                let done = self.link_again(first, &linked);
                done.map_err(|error| engine.error(error)).is_ok_and(|done| done)
            });
            let name = first.name.as_bytes();
            if let Ok(Some(metadata)) = engine.end.checked(&first.level.source, name) {
                // Another name has changed it.
                anchor = anchor.map(|first| Linked { metadata, ..first });
            }
            let path = linked.level.source_path(linked.name.as_bytes());
            let finding = Finding::of(DifferenceKind::Links);
            engine.tell_finding(path, linked.metadata.kind, finding, repaired);
        }
    }
}

impl Engine {
    /// Differences that remain visible after a repair.
    fn left_over_of(&self, record: &Record) -> Result<DifferenceSet, EntryError> {
        let Some((directory, name)) = record.path.split_last() else {
            let level = self.checked_level(&TreePath::root())?;
            let found = self.proof.with_kept_times(&record.path, level.source.metadata.clone());
            return Ok(self.finding_of_root(&level, &found, record)?.kinds);
        };
        let level = self.checked_level(&directory)?;
        let Some(found) = self.end.checked(&level.source, name)? else {
            return Ok(DifferenceSet::from_iter([DifferenceKind::Missing]));
        };
        let found = self.proof.with_kept_times(&record.path, found);
        let name = checked_name(&level, name)?;
        let checked = Checked { level: &level, name: &name, found: &found, record };
        Ok(self.finding_of(checked, None)?.kinds)
    }

    fn look_at_link(&self, file: &FileRef) -> Result<Option<Linked>, EntryError> {
        let level = self.checked_level(&file.directory.path)?;
        let metadata = self.end.checked(&level.source, file.name.as_bytes())?;
        Ok(metadata.map(|metadata| Linked { level, name: file.name.clone(), metadata }))
    }

    /// Opens a file of the checked tree in the version that was found.
    pub(super) fn open_checked_file(
        &self,
        level: &Level,
        name: &Name,
        found: &Metadata,
        permit: &dyn Permit,
    ) -> Result<dmover_local::source::Content, EntryError> {
        let (name, metadata) = (name.clone(), found.clone());
        let entry = EntryRecord { name, renamed: None, metadata, symlink: None };
        let mut content = self.open_source_file(level, &entry, permit).map_err(at_destination)?;
        if content.metadata.version() != found.version() {
            return Err(changed(Side::Destination, level.source_path(entry.name.as_bytes())));
        }
        content.stored = self.spec.verify_policy().stored;
        Ok(content)
    }

    fn finding_of(
        &self,
        Checked { level, name, found, record }: Checked<'_>,
        ranges: Option<Vec<ByteRange>>,
    ) -> Result<Finding, EntryError> {
        let both = found.kind == EntryKind::Symlink && record.body.kind == EntryKind::Symlink;
        let link = both.then(|| level.source.checked_symlink(name.as_bytes())).transpose()?;
        let facts = &level.source.facts;
        let mut kinds = self.record_differences((found, facts), link.as_deref(), record);
        if self.compares_closely() && found.kind == record.body.kind {
            kinds = kinds.and(self.recorded_attributes(level, name, found, record)?);
        }
        let sights = (recorded_sight(record), Sight::of(found, link.as_deref()));
        let ranges = self.with_unflushed(found.identity, ranges);
        Ok(Finding::new(kinds, ranges, sights).between(None, found.version()))
    }

    /// Differences in attributes that statx does not show.
    fn recorded_attributes(
        &self,
        level: &Level,
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
        let open = self.local().open_entry(&level.source, &entry, self.follows(level));
        let open = open.map_err(at_destination)?;
        Ok(self.extended_differences(extended, &open.attributes, Whose::Destination))
    }

    fn finding_of_root(
        &self,
        level: &Level,
        found: &Metadata,
        record: &Record,
    ) -> Result<Finding, EntryError> {
        let facts = &level.source.facts;
        let mut kinds = self.record_differences((found, facts), None, record);
        let extended = &record.body.extended;
        if self.compares_closely() && *extended != Extended::default() {
            let present = self.local().attributes_of(&level.source).map_err(at_destination)?;
            let more = self.extended_differences(extended, &present, Whose::Destination);
            kinds = kinds.and(more);
        }
        Ok(Finding::new(kinds, None, (recorded_sight(record), Sight::of(found, None))))
    }

    fn record_differences(
        &self,
        (found, facts): (&Metadata, &Facts),
        link: Option<&[u8]>,
        record: &Record,
    ) -> Differing {
        let scope = Scope {
            level: self.spec.verify_policy().level,
            attributes: self.spec.policy.preserve,
            demanded: self.spec.policy.demanded,
            granularity_ns: facts.shown_step_ns(found),
            unprivileged: self.settable.unprivileged.as_ref(),
        };
        differences(recorded_sight(record), Sight::of(found, link), scope)
    }
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
fn checked_name(level: &Level, name: &[u8]) -> Result<Name, EntryError> {
    Name::new(name).map_err(|_| not_a_name(Side::Destination, level.source_path(name)))
}
