//! Comparing a tree with its manifest.
use dmover_model::{
    ByteRange, CompareTask, ComparedFile, DifferenceKind, DifferenceSet, EntryError, EntryKind,
    EntryRecord, ErrorClass, FileRef, Identity, JudgeTask, LinkGroup, LinkName, Metadata, MountId,
    Name, NewTask, Operation, Parent, Record, RootId, Side, TaskKind, TreePath, VerifyLevel,
};
use dmover_observe::{Activity, station};
use dmover_plan::chunk;
use dmover_plan::decide::Decision;
use dmover_plan::verify::{Sight, differences};
use dmover_sys::{Errno, directory, stat};
use std::sync::Arc;

use super::content::{whole_around, whole_pieces};
use super::{Finding, at_destination, look_at};
use crate::context::{Engine, entry_error, lock};
use crate::level::Level;
use crate::mover::Mover;
use crate::sum::Content;

/// The tree that is compared with a manifest; nothing is written through it.
const CHECKED: RootId = RootId(0);
/// The tree that repairs come from, beside the one that is compared.
const REPAIRED: RootId = RootId(1);
/// Names of one inode of a manifest meet under this mount, which none has.
const RECORDED: MountId = MountId(u32::MAX);

/// An entry of the checked tree and what the manifest says of it.
#[derive(Clone, Copy)]
struct Checked<'a> {
    level: &'a Level,
    name: &'a Name,
    found: &'a Metadata,
    record: &'a Record,
}

impl Mover<'_> {
    /// Compares entries with what a manifest says of them.
    pub(crate) fn run_records(&mut self, records: &[Record]) {
        let mut place = None;
        for (number, record) in records.iter().enumerate() {
            let enough = self.budget_is_spent() || self.engine.control.is_stopping();
            let shares = self.queue.is_hungry() && records.len() - number > 1;
            if number > 0 && (enough || shares) {
                let rest = &records[number..];
                let half = if enough { rest.len() } else { rest.len().div_ceil(2) };
                for part in rest.chunks(half) {
                    let kind = TaskKind::Records(part.to_vec());
                    self.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
                }
                return self.flush();
            }
            self.verify_record(record, &mut place);
            self.spent.entries += 1;
            self.lease.extend();
        }
    }

    fn verify_record(&mut self, record: &Record, place: &mut Option<Level>) {
        let engine = self.engine;
        engine.limits.operation(&engine.control);
        let mut attempt = 1;
        loop {
            match self.try_record(record, place) {
                Ok(()) => return,
                Err(error) if engine.may_pass(&error, attempt) => {
                    attempt += 1;
                    *place = None;
                }
                Err(error) => return engine.error(EntryError { attempt, ..error }),
            }
        }
    }

    fn try_record(&mut self, record: &Record, place: &mut Option<Level>) -> Result<(), EntryError> {
        station::at(Activity::TargetNames);
        let engine = self.engine;
        let Some((directory, name)) = record.path.split_last() else {
            let level = engine.checked_level(&TreePath::root())?;
            let finding = engine.compare_with_record(&level.source.metadata, None, record);
            self.conclude_record(record, finding);
            return Ok(());
        };
        if place.as_ref().is_none_or(|level| level.path != directory) {
            *place = match engine.checked_level(&directory) {
                Ok(level) => Some(level),
                Err(error) if is_gone(error.errno) => {
                    self.conclude_record(record, Finding::of(DifferenceKind::Missing));
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
        }
        let Some(level) = place.as_ref() else { return Ok(()) };
        let fail =
            |operation, e| entry_error(Side::Destination, operation, level.source_path(name), e);
        let found = look_at(&level.source.fd, name).map_err(|e| fail(Operation::Stat, e))?;
        let Some(found) = found.map(|found| engine.mounts.metadata(&found)) else {
            self.conclude_record(record, Finding::of(DifferenceKind::Missing));
            return Ok(());
        };
        let name = Name::new(name).map_err(|_| fail(Operation::Stat, Errno::INVAL))?;
        self.note_recorded_link(level, &name, record);
        if engine.is_untouched(&found) {
            self.conclude_record(record, Finding::default());
            return Ok(());
        }
        let checked = Checked { level, name: &name, found: &found, record };
        if let Some(ranges) = self.compare_record_content(checked)? {
            let finding = engine.finding_of(checked, ranges)?;
            self.conclude_record(record, finding);
        }
        Ok(())
    }

    /// Bytes that differ; `None` if tasks of their own will find out.
    fn compare_record_content(
        &mut self,
        checked: Checked<'_>,
    ) -> Result<Option<Vec<ByteRange>>, EntryError> {
        let Checked { level, name, found, record } = checked;
        let engine = self.engine;
        let Some(recorded) = &record.body.content else { return Ok(Some(Vec::new())) };
        let is_file = found.kind == EntryKind::File && record.body.kind == EntryKind::File;
        if !is_file || !engine.reads_content(record.path.as_bytes()) {
            return Ok(Some(Vec::new()));
        }
        let content = engine.open_checked_file(level, name, found)?;
        let shape = &recorded.shape;
        let shown = || level.source_path(name.as_bytes());
        let there = whole_pieces(shape, content.metadata.size);
        let chunk = engine
            .hash_chunk(shape)
            .filter(|chunk| !recorded.pieces.is_empty() && there.len() > *chunk);
        let Some(chunk) = chunk else {
            let compared = self.compare_recorded(&content, recorded, &shown);
            return compared.map(Some).map_err(at_destination);
        };
        let file = FileRef {
            directory: level.reference(),
            name: name.clone(),
            destination_name: name.clone(),
        };
        let rest = ByteRange { start: there.end, end: shape.length() };
        let judge = JudgeTask {
            file: file.clone(),
            record: Some(Box::new(record.clone())),
            differing: if rest.is_empty() { Vec::new() } else { vec![rest] },
            failure: None,
            round: 1,
        };
        let number = self.report_judge(judge);
        let compared =
            ComparedFile { file, source: None, destination: found.version(), shape: *shape };
        for range in chunk::chunks(there.len(), chunk) {
            let expected = pieces_of(shape, range, &recorded.pieces).to_vec();
            let task = CompareTask { file: compared.clone(), range, expected };
            let kind = TaskKind::Compare(Box::new(task));
            self.outcome.tasks.push(NewTask { parent: Parent::New(number), kind });
        }
        self.flush();
        Ok(None)
    }

    /// Compares a part of a large file with digests.
    pub(super) fn compare_recorded_part(
        &mut self,
        level: &Level,
        task: &CompareTask,
    ) -> Result<Vec<ByteRange>, EntryError> {
        let CompareTask { file: compared, range, expected } = task;
        let (engine, name) = (self.engine, &compared.file.name);
        let shown = || level.source_path(name.as_bytes());
        let found = stat::stat_at(&level.source.fd, name.as_bytes(), false)
            .map_err(|e| entry_error(Side::Destination, Operation::Stat, shown(), e))?;
        let content = engine.open_checked_file(level, name, &engine.mounts.metadata(&found))?;
        if content.metadata.version() != compared.destination {
            let words = "the file changed while it was compared";
            let (side, class) = (Side::Destination, ErrorClass::Changed);
            return Err(EntryError::plain(side, Operation::Check, class, shown(), words));
        }
        let ranges = self.compare_pieces(&content, &compared.shape, *range, expected, &shown);
        let ranges = ranges.map_err(at_destination)?;
        let checked =
            engine.check_unchanged(&content.facts, &content.fd, &content.metadata, &shown);
        checked.map_err(at_destination)?;
        Ok(ranges)
    }

    /// Ends a large file: its metadata, and the bytes that its parts were found to differ in.
    pub(super) fn judge_record(
        &mut self,
        record: &Record,
        ranges: Vec<ByteRange>,
    ) -> Result<(), EntryError> {
        let engine = self.engine;
        let Some((directory, name)) = record.path.split_last() else { return Ok(()) };
        let level = engine.checked_level(&directory)?;
        let fail = |e| entry_error(Side::Destination, Operation::Stat, level.source_path(name), e);
        let found = look_at(&level.source.fd, name).map_err(fail)?;
        let finding = match found.map(|found| engine.mounts.metadata(&found)) {
            None => Finding::of(DifferenceKind::Missing),
            Some(found) => {
                let name = Name::new(name).map_err(|_| fail(Errno::INVAL))?;
                engine.finding_of(
                    Checked { level: &level, name: &name, found: &found, record },
                    ranges,
                )?
            }
        };
        self.conclude_record(record, finding);
        Ok(())
    }

    fn conclude_record(&mut self, record: &Record, finding: Finding) {
        let engine = self.engine;
        let wanted = engine.repairs() && !finding.kinds.is_empty();
        let repaired = wanted.then(|| self.repair_record(record, &finding));
        engine.tell_finding(engine.checked_path(record), record.body.kind, finding, repaired);
    }

    fn note_recorded_link(&mut self, level: &Level, name: &Name, record: &Record) {
        let policy = &self.engine.spec.policy;
        let closely = self.engine.verify_policy().level >= VerifyLevel::Mtime;
        let links = policy.preserve.has(dmover_model::Attribute::Links);
        let Some(inode) = record.body.link.filter(|_| closely && links) else { return };
        let (name, directory) = (name.clone(), level.reference());
        let file = FileRef { directory, destination_name: name.clone(), name };
        self.record_link(LinkName { identity: Identity { mount: RECORDED, inode }, file });
    }

    /// Names that the manifest has for one inode have to be one inode. They were compared by themselves already.
    pub(super) fn verify_recorded_links(&mut self, group: &LinkGroup) {
        let engine = self.engine;
        let mut anchor = None;
        let mut apart = Vec::new();
        for file in std::iter::once(&group.first).chain(&group.rest) {
            let looked = engine.open_level(&file.directory).and_then(|level| {
                let name = file.name.as_bytes();
                let shown = level.source_path(name);
                let found = look_at(&level.source.fd, name);
                let found = found.map_err(|e| {
                    entry_error(Side::Destination, Operation::Stat, shown.clone(), e)
                })?;
                Ok((shown, found.map(|found| engine.mounts.metadata(&found))))
            });
            match looked {
                Ok((path, Some(found))) => match anchor {
                    Some(identity) if identity != found.identity => apart.push((path, found.kind)),
                    _ => anchor = Some(found.identity),
                },
                Ok((_, None)) => {} // told as missing
                Err(error) => engine.error(at_destination(error)),
            }
            self.lease.extend();
        }
        if apart.is_empty() {
            return;
        }
        let repaired = engine.repairs().then(|| self.repair_recorded_links(group));
        for (path, kind) in apart {
            engine.tell_finding(path, kind, Finding::of(DifferenceKind::Links), repaired);
        }
    }

    fn repair_recorded_links(&mut self, group: &LinkGroup) -> bool {
        let there = |mover: &mut Self, file: &FileRef| -> Result<FileRef, EntryError> {
            let level = mover.repaired_level(&file.directory.path)?;
            Ok(FileRef { directory: level.reference(), ..file.clone() })
        };
        let all = std::iter::once(&group.first).chain(&group.rest);
        let files: Result<Vec<FileRef>, EntryError> = all.map(|file| there(self, file)).collect();
        match files {
            Ok(files) => match files.split_first() {
                Some((first, rest)) => {
                    let group = LinkGroup { first: first.clone(), rest: rest.to_vec(), ..*group };
                    self.repair_links(&group)
                }
                None => true,
            },
            Err(error) => {
                self.engine.error(error);
                false
            }
        }
    }

    /// Tells what of a directory the manifest does not name. Answers whether the entry is known.
    pub(crate) fn is_known(&mut self, path: &TreePath, kind: EntryKind) -> bool {
        let engine = self.engine;
        let shown = || engine.destination_path(CHECKED, path, b"");
        match lock(&engine.known).has(path) {
            Ok(true) => true,
            Ok(false) => {
                let repaired = engine.repairs().then_some(false);
                let finding = Finding::of(DifferenceKind::Extra);
                engine.tell_finding(shown(), kind, finding, repaired);
                false
            }
            Err(reason) => {
                let (side, class) = (Side::Destination, ErrorClass::Other);
                let words = format!("whether the manifest names it cannot be found out: {reason}");
                engine.error(EntryError::plain(side, Operation::Check, class, shown(), words));
                true
            }
        }
    }

    /// Brings an entry over again from the tree that repairs come from, if that is as the manifest says.
    fn repair_record(&mut self, record: &Record, finding: &Finding) -> bool {
        let result = self.try_to_repair_record(record, finding);
        result.unwrap_or_else(|error| {
            self.engine.error(error);
            false
        })
    }

    fn try_to_repair_record(
        &mut self,
        record: &Record,
        finding: &Finding,
    ) -> Result<bool, EntryError> {
        let engine = self.engine;
        let Some((directory, name)) = record.path.split_last() else {
            let level = self.repaired_level(&TreePath::root())?;
            engine.check_source(&level, b"", &level.source.metadata, None, record)?;
            return Ok(self.repair_directory(&level));
        };
        let above = self.repaired_level(&directory)?;
        let name = Name::new(name).map_err(|_| {
            entry_error(Side::Source, Operation::Stat, above.source_path(name), Errno::INVAL)
        })?;
        let found = self.look(&above, &name)?;
        engine.check_source(
            &above,
            name.as_bytes(),
            &found.metadata,
            found.symlink.as_deref(),
            record,
        )?;
        if found.metadata.kind == EntryKind::Directory {
            let level = self.enter(&above, name.as_bytes())?;
            if level.target.as_ref().is_some_and(|target| target.fresh) {
                self.mark_dirty(&above.reference());
            }
            return Ok(self.repair_directory(&level));
        }
        self.check_source_content(&above, &found, record, finding)?;
        match self.plan_record(&above, found) {
            Some(planned) if matches!(planned.decision, Decision::Refuse(..)) => Ok(false),
            Some(planned) => {
                Ok(self.repair(&above, &planned, finding, record.body.content.as_ref()))
            }
            None => Ok(false),
        }
    }

    /// What is to be brought over has to have the digests of the manifest.
    fn check_source_content(
        &mut self,
        level: &Level,
        entry: &EntryRecord,
        record: &Record,
        finding: &Finding,
    ) -> Result<(), EntryError> {
        let engine = self.engine;
        let whole =
            finding.kinds.has(DifferenceKind::Missing) || finding.kinds.has(DifferenceKind::Type);
        let Some(recorded) = record.body.content.as_ref() else { return Ok(()) };
        if entry.metadata.kind != EntryKind::File || (!whole && finding.ranges.is_empty()) {
            return Ok(());
        }
        let (fd, metadata) = engine.open_source_file(level, entry)?;
        let facts = Arc::clone(&level.source.facts);
        let content = Content { fd, metadata, facts, is_stream: false };
        let shown = || level.source_path(entry.name.as_bytes());
        let all = [ByteRange { start: 0, end: recorded.shape.length() }];
        let ranges = if whole { &all[..] } else { &finding.ranges };
        let differs = self.differ_from_record(&content, recorded, ranges, &shown)?;
        engine.check_unchanged(&content.facts, &content.fd, &content.metadata, &shown)?;
        if differs { Err(unlike(shown(), "content")) } else { Ok(()) }
    }

    /// Whether some bytes of a file are not as a manifest says. It has to have the size that the manifest says.
    pub(super) fn differ_from_record(
        &mut self,
        content: &Content,
        recorded: &dmover_model::Content,
        ranges: &[ByteRange],
        shown: &dyn Fn() -> dmover_model::PathBytes,
    ) -> Result<bool, EntryError> {
        let shape = &recorded.shape;
        if content.metadata.size != shape.length() {
            return Ok(true);
        }
        if recorded.pieces.is_empty() {
            return Ok(!self.compare_recorded(content, recorded, shown)?.is_empty());
        }
        for range in ranges {
            let range = whole_around(shape, *range);
            let expected = pieces_of(shape, range, &recorded.pieces);
            if !self.compare_pieces(content, shape, range, expected, shown)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A directory of the tree that repairs come from, and the one that is repaired; what is missing there is made.
    fn repaired_level(&mut self, path: &TreePath) -> Result<Level, EntryError> {
        let mut level = self.open_root(REPAIRED)?;
        for name in path.components() {
            let below = self.enter(&level, name)?;
            if below.target.as_ref().is_some_and(|target| target.fresh) {
                self.mark_dirty(&level.reference());
                self.mark_dirty(&below.reference());
            }
            level = below;
        }
        Ok(level)
    }
}

/// The source is no help.
fn unlike(path: dmover_model::PathBytes, what: &str) -> EntryError {
    let words = format!("the source is not as the manifest says either: {what}");
    let (side, class) = (Side::Source, ErrorClass::Integrity);
    EntryError::plain(side, Operation::Check, class, path, words)
}

impl Engine {
    /// A directory of the tree that is compared with a manifest.
    fn checked_level(&self, path: &TreePath) -> Result<Level, EntryError> {
        let root = self.root(CHECKED)?;
        let source = self.insist(|| self.open_source(&root, path)).map_err(at_destination)?;
        let (root_id, path) = (CHECKED, path.clone());
        Ok(Level { root_id, root, path, source, target: None, ancestors: Vec::new() })
    }

    fn checked_path(&self, record: &Record) -> dmover_model::PathBytes {
        self.destination_path(CHECKED, &record.path, b"")
    }

    fn open_checked_file(
        &self,
        level: &Level,
        name: &Name,
        found: &Metadata,
    ) -> Result<Content, EntryError> {
        let entry = EntryRecord {
            name: name.clone(),
            renamed: None,
            metadata: found.clone(),
            symlink: None,
        };
        let (fd, metadata) = self.open_source_file(level, &entry).map_err(at_destination)?;
        let facts = Arc::clone(&level.source.facts);
        Ok(Content { fd, metadata, facts, is_stream: false })
    }

    fn finding_of(
        &self,
        Checked { level, name, found, record }: Checked<'_>,
        ranges: Vec<ByteRange>,
    ) -> Result<Finding, EntryError> {
        let both = found.kind == EntryKind::Symlink && record.body.kind == EntryKind::Symlink;
        let link = both.then(|| directory::read_symlink(&level.source.fd, name.as_bytes()));
        let link = link.transpose().map_err(|e| {
            let path = level.source_path(name.as_bytes());
            entry_error(Side::Destination, Operation::ReadLink, path, e)
        })?;
        let kinds = self.record_differences(found, link.as_deref(), record);
        let sights = (recorded_sight(record), Sight::of(found, link.as_deref()));
        Ok(Finding::new(kinds, ranges, sights))
    }

    fn compare_with_record(
        &self,
        found: &Metadata,
        link: Option<&[u8]>,
        record: &Record,
    ) -> Finding {
        let kinds = self.record_differences(found, link, record);
        Finding::new(kinds, Vec::new(), (recorded_sight(record), Sight::of(found, link)))
    }

    fn record_differences(
        &self,
        found: &Metadata,
        link: Option<&[u8]>,
        record: &Record,
    ) -> DifferenceSet {
        let scope = dmover_plan::verify::Scope {
            level: self.verify_policy().level,
            attributes: self.spec.policy.preserve,
            granularity_ns: super::step_of(found),
        };
        differences(recorded_sight(record), Sight::of(found, link), scope)
    }

    /// Whether an entry of the source is the one that the manifest was made of.
    fn check_source(
        &self,
        level: &Level,
        name: &[u8],
        metadata: &Metadata,
        symlink: Option<&[u8]>,
        record: &Record,
    ) -> Result<(), EntryError> {
        let sight = self.wanted_sight(metadata, symlink);
        let scope = dmover_plan::verify::Scope {
            level: VerifyLevel::Mtime,
            attributes: self.spec.policy.preserve,
            granularity_ns: super::step_of(metadata),
        };
        let kinds = differences(recorded_sight(record), sight, scope);
        if kinds.is_empty() {
            return Ok(());
        }
        Err(unlike(level.source_path(name), &kinds.words()))
    }
}

fn recorded_sight(record: &Record) -> Sight<'_> {
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

/// The digests of the pieces in a range, which is on their borders.
fn pieces_of<'a>(
    shape: &dmover_model::Shape,
    range: ByteRange,
    pieces: &'a [dmover_model::Digest],
) -> &'a [dmover_model::Digest] {
    let (from, to) = (range.start / shape.piece(), range.end.div_ceil(shape.piece()));
    &pieces[(from as usize).min(pieces.len())..(to as usize).min(pieces.len())]
}

/// What a directory that is not there answers.
fn is_gone(errno: i32) -> bool {
    [Errno::NOENT, Errno::NOTDIR, Errno::LOOP].map(Errno::raw_os_error).contains(&errno)
}
