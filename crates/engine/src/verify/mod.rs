//! Comparing: entries of two trees with each other, or of one tree with a manifest.
//!
//! A comparison runs as a copy that writes nothing: the same scan, the same looks at both sides. What differs is told, and
//! brought over again where that is wanted (`repair`).
use dmover_model::{
    Attribute, ByteRange, Difference, DifferenceKind, DifferenceSet, EntryError, EntryKind,
    EntryRecord, ErrorClass, Event, FileRef, JudgeTask, LinkGroup, Metadata, Name, NewNode,
    NewTask, Operation, Parent, PathBytes, Side, TaskKind, Verb, VerifyLevel, VerifyPolicy,
};
use dmover_observe::{Activity, Counter, station};
use dmover_plan::verify::{Scope, Sight, describe, differences, is_sampled, merged};
use dmover_plan::{chunk, retry};
use dmover_sys::xattr::Held;
use dmover_sys::{AsFd, BorrowedFd, Errno, directory, path, stat};

use crate::apply::{Moved, Planned};
use crate::attributes::{Attributes, is_never_copied};
use crate::context::{Engine, entry_error};
use crate::level::{ACCESS_ACL, DEFAULT_ACL, Level};
use crate::look::file_ref;
use crate::mover::Mover;

mod content;
mod extra;
mod known;
mod records;
mod repair;

use content::Pair;
pub(crate) use extra::SeenNames;
pub(crate) use known::Known;

/// What a comparison found.
#[derive(Debug, Default)]
struct Finding {
    kinds: DifferenceSet,
    /// Bytes of the content that differ.
    ranges: Vec<ByteRange>,
    detail: String,
}

impl Finding {
    fn of(kind: DifferenceKind) -> Self {
        let kinds = DifferenceSet::from_iter([kind]);
        Self { kinds, ranges: Vec::new(), detail: kind.word().into() }
    }

    fn new(
        mut kinds: DifferenceSet,
        ranges: Vec<ByteRange>,
        (expected, found): (Sight<'_>, Sight<'_>),
    ) -> Self {
        if !ranges.is_empty() {
            kinds.insert(DifferenceKind::Content);
        }
        let detail = describe(kinds, Some(expected), Some(found), &ranges);
        Self { kinds, ranges, detail }
    }
}

/// What was found of an entry, and whether that is the end of it.
enum Compared {
    Done(Finding),
    /// Its content is compared by tasks of their own.
    InParts,
}

impl Engine {
    /// How entries are compared, where that is the job.
    fn verify_policy(&self) -> &VerifyPolicy {
        self.spec.policy.verify.as_ref().expect("a job that compares says how")
    }

    fn repairs(&self) -> bool {
        self.spec.policy.verify.as_ref().is_some_and(|policy| policy.repair)
    }

    /// Whether names of one inode belong together.
    pub(crate) fn compares_links(&self) -> bool {
        match self.spec.verb {
            Verb::Copy => true,
            Verb::Sum => false,
            Verb::Verify => self.verify_policy().level >= VerifyLevel::Mtime,
        }
    }

    /// Whether entries of a tree are only looked for that its manifest does not name.
    pub(crate) fn looks_for_unknown(&self, level: &Level) -> bool {
        self.spec.verb == Verb::Verify && level.root.destination.is_none()
    }

    /// Whether an error says that something else stands where a directory should be compared.
    pub(crate) fn is_no_directory(&self, error: &EntryError) -> bool {
        let conflict = error.class == ErrorClass::TypeConflict && error.side == Side::Destination;
        conflict && self.spec.verb == Verb::Verify
    }

    /// Whether the content of a file is to be read.
    fn reads_content(&self, path: &[u8]) -> bool {
        let VerifyPolicy { level, sample_millionths, seed, .. } = self.verify_policy();
        *level >= VerifyLevel::Digest && is_sampled(*sample_millionths, *seed, path)
    }

    /// Whether an entry was not changed since the time that is asked about.
    fn is_untouched(&self, found: &Metadata) -> bool {
        let since = self.verify_policy().since;
        let untouched = since.is_some_and(|since| found.ctime < since);
        if untouched {
            self.count(Counter::EntriesUntouched);
        }
        untouched
    }

    /// What counts in a comparison with `found`.
    fn scope(&self, level: &Level, found: &Metadata) -> Scope {
        let known = level.target.as_ref().map_or(1, |target| target.facts.granularity_ns());
        Scope {
            level: self.verify_policy().level,
            attributes: self.spec.policy.preserve,
            granularity_ns: known.max(step_of(found)),
        }
    }

    /// A source entry as the destination should have it.
    fn wanted_sight<'a>(&self, metadata: &Metadata, symlink: Option<&'a [u8]>) -> Sight<'a> {
        let owner = (self.ids.user(metadata.uid), self.ids.group(metadata.gid));
        Sight { owner, ..Sight::of(metadata, symlink) }
    }

    /// Tells what was found of an entry and counts it.
    fn tell_finding(
        &self,
        path: PathBytes,
        kind: EntryKind,
        finding: Finding,
        repaired: Option<bool>,
    ) {
        self.count(Counter::EntriesCompared);
        self.progress();
        let Finding { kinds, ranges, detail } = finding;
        if kinds.is_empty() {
            return;
        }
        self.count(Counter::EntriesDiffering);
        if repaired == Some(true) {
            self.count(Counter::EntriesRepaired);
        } else if kinds.is_of_content() {
            self.count(Counter::EntriesCorrupt);
        }
        self.monitor.event(&Event::Difference(Difference {
            path,
            kind,
            kinds,
            ranges,
            detail,
            repaired,
        }));
    }
}

impl Mover<'_> {
    /// Compares an entry of the source with what stands at the destination.
    pub(crate) fn verify_entry(
        &mut self,
        level: &Level,
        planned: &Planned,
        round: u32,
    ) -> Result<Moved, EntryError> {
        if let Compared::Done(finding) = self.compare(level, planned, round)? {
            self.conclude(level, planned, finding);
        }
        Ok(Moved::default())
    }

    fn compare(
        &mut self,
        level: &Level,
        planned: &Planned,
        round: u32,
    ) -> Result<Compared, EntryError> {
        let engine = self.engine;
        let record = &planned.record;
        let Some(found) = &planned.existing else {
            return Ok(Compared::Done(Finding::of(DifferenceKind::Missing)));
        };
        if engine.is_untouched(found) {
            return Ok(Compared::Done(Finding::default()));
        }
        let last = record.destination_name().as_bytes();
        let link = symlink_at(level, last, found, record.metadata.kind)?;
        let expected = engine.wanted_sight(&record.metadata, record.symlink.as_deref());
        let sight = Sight::of(found, link.as_deref());
        let mut kinds = differences(expected, sight, engine.scope(level, found));
        let mut ranges = Vec::new();
        let closely = engine.verify_policy().level >= VerifyLevel::Digest;
        if closely && !kinds.has(DifferenceKind::Type) {
            if record.metadata.kind == EntryKind::File {
                let pair = engine.open_pair(level, record, found)?;
                let attributes = engine.pair_attributes(level, record, &pair)?;
                kinds = kinds.and(attributes);
                if engine.reads_content(level.path.join(record.name.as_bytes()).as_bytes()) {
                    if let Some(chunk) = self.parts_of(&pair) {
                        self.compare_in_parts(level, record, &pair, chunk, round);
                        return Ok(Compared::InParts);
                    }
                    ranges = self.compare_pair(level, record, &pair)?;
                }
            } else {
                kinds = kinds.and(engine.pinned_differences(level, record)?);
            }
        }
        Ok(Compared::Done(Finding::new(kinds, ranges, (expected, sight))))
    }

    /// Repairs what differs, if that is wanted, and tells.
    fn conclude(&mut self, level: &Level, planned: &Planned, finding: Finding) {
        let wanted = self.engine.repairs() && !finding.kinds.is_empty();
        let repaired = wanted.then(|| self.repair(level, planned, &finding, None));
        let path = level.target_path(planned.record.destination_name().as_bytes());
        self.engine.tell_finding(path, planned.record.metadata.kind, finding, repaired);
    }

    /// Compares a directory itself. `None` stands for one that is missing.
    pub(crate) fn verify_directory(&mut self, level: &Level) {
        let engine = self.engine;
        let source = &level.source.metadata;
        let finding = match &level.target {
            None => Ok(Finding::of(DifferenceKind::Missing)),
            Some(target) if target.fresh => Ok(Finding::of(DifferenceKind::Missing)),
            Some(target) if engine.is_untouched(&target.metadata) => Ok(Finding::default()),
            Some(target) => {
                let expected = engine.wanted_sight(source, None);
                let sight = Sight::of(&target.metadata, None);
                let kinds = differences(expected, sight, engine.scope(level, &target.metadata));
                let more = if engine.verify_policy().level >= VerifyLevel::Digest {
                    let sides = (level.source.fd.as_fd(), target.fd.as_fd());
                    let (one, other) = (|| level.own_source_path(), || level.own_target_path());
                    engine.attribute_differences(sides, Held::Open, (&one, &other))
                } else {
                    Ok(DifferenceSet::NONE)
                };
                more.map(|more| Finding::new(kinds.and(more), Vec::new(), (expected, sight)))
            }
        };
        let finding = match finding {
            Ok(finding) => finding,
            Err(error) => return engine.error(error),
        };
        let wanted = engine.repairs() && !finding.kinds.is_empty();
        let repaired = wanted.then(|| self.repair_directory(level));
        engine.tell_finding(level.own_target_path(), EntryKind::Directory, finding, repaired);
    }

    /// Something that is no directory stands where a directory should be.
    pub(crate) fn tell_no_directory(&self, path: PathBytes) {
        let finding = Finding::of(DifferenceKind::Type);
        let repaired = self.engine.repairs().then_some(false);
        self.engine.tell_finding(path, EntryKind::Directory, finding, repaired);
    }

    /// Compares names of linked inodes: what is one inode at the source has to be one at the destination.
    pub(crate) fn verify_links(&mut self, group: &LinkGroup) {
        let Ok(root) = self.engine.root(group.first.directory.root) else { return };
        if root.destination.is_none() {
            return self.verify_recorded_links(group);
        }
        let mut anchor = None;
        let mut found = Vec::new();
        for file in std::iter::once(&group.first).chain(&group.rest) {
            match self.compare_link(file, &mut anchor) {
                Ok(Some(one)) => found.push(one),
                Ok(None) => {}
                Err(error) => self.engine.error(error),
            }
            self.lease.extend();
        }
        let differs = found.iter().any(|(.., finding)| !finding.kinds.is_empty());
        let repaired = (differs && self.engine.repairs()).then(|| self.repair_links(group));
        for (path, kind, finding) in found {
            self.engine.tell_finding(path, kind, finding, repaired);
        }
    }

    fn compare_link(
        &mut self,
        file: &FileRef,
        anchor: &mut Option<dmover_model::Identity>,
    ) -> Result<Option<(PathBytes, EntryKind, Finding)>, EntryError> {
        let engine = self.engine;
        let level = engine.open_level(&file.directory)?;
        let record = self.look(&level, &file.name)?;
        let kind = record.metadata.kind;
        let path = level.target_path(file.destination_name.as_bytes());
        let Some(planned) = self.plan_record(&level, record) else { return Ok(None) };
        let identity = planned.existing.as_ref().map(|found| found.identity);
        if identity.is_some() && identity == *anchor {
            return Ok(Some((path, kind, Finding::default())));
        }
        // The first name is compared as a file of its own, and so is any that is another inode.
        let compared = self.compare(&level, &planned, retry::ATTEMPTS_MAX)?;
        let mut finding = match compared {
            Compared::Done(finding) => finding,
            Compared::InParts => return Ok(None),
        };
        if anchor.is_some() && identity.is_some() && !finding.kinds.has(DifferenceKind::Type) {
            let before = if finding.detail.is_empty() { "" } else { "; " };
            finding.detail = format!("{}{before}{}", finding.detail, "links");
            finding.kinds.insert(DifferenceKind::Links);
        }
        if identity.is_some() && anchor.is_none() {
            *anchor = identity;
        }
        Ok(Some((path, kind, finding)))
    }

    /// Begins a file again whose comparison failed.
    pub(crate) fn verify_again(
        &mut self,
        level: &Level,
        name: &Name,
        round: u32,
    ) -> Result<(), EntryError> {
        let record = self.look(level, name)?;
        match self.plan_record(level, record) {
            Some(planned) => self.verify_entry(level, &planned, round).map(drop),
            None => Ok(()),
        }
    }

    /// The size of the parts in which a file is compared, if it is worth that.
    fn parts_of(&self, pair: &Pair) -> Option<u64> {
        self.engine.hash_chunk(&pair.shape)
    }

    fn compare_in_parts(
        &mut self,
        level: &Level,
        record: &EntryRecord,
        pair: &Pair,
        chunk: u64,
        round: u32,
    ) {
        let file = file_ref(level, record);
        let judge = JudgeTask {
            file: file.clone(),
            record: None,
            differing: Vec::new(),
            failure: None,
            round,
        };
        let number = self.report_judge(judge);
        let compared = pair.in_parts(file);
        for range in chunk::chunks(pair.shape.length(), chunk) {
            let task =
                dmover_model::CompareTask { file: compared.clone(), range, expected: Vec::new() };
            let kind = TaskKind::Compare(Box::new(task));
            self.outcome.tasks.push(NewTask { parent: Parent::New(number), kind });
        }
        self.flush();
    }

    fn report_judge(&mut self, judge: JudgeTask) -> usize {
        let finish = TaskKind::Judge(Box::new(judge));
        self.report(NewNode { parent: Parent::Inherited, finish })
    }

    /// Ends a file whose parts were compared.
    pub(crate) fn run_judge(&mut self, task: &JudgeTask) {
        let engine = self.engine;
        let result = match &task.failure {
            Some(error) => Err((**error).clone()),
            None => self.judge(task),
        };
        let Err(mut error) = result else { return };
        let at = &task.file.directory;
        let shown = || {
            let name = task.file.destination_name.as_bytes();
            engine.destination_path(at.root, &at.path, name)
        };
        error.attempt = task.round;
        if error.path.0.is_empty() {
            error.path = shown();
        }
        let again = error.retryable() || error.class == ErrorClass::Fenced;
        if !again || task.round >= retry::ATTEMPTS_MAX || engine.control.is_stopping() {
            return engine.error(error);
        }
        engine.count(Counter::Retries);
        let kind = match &task.record {
            Some(record) => TaskKind::Records(vec![(**record).clone()]),
            None => TaskKind::Open { file: task.file.clone(), round: task.round + 1 },
        };
        self.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
    }

    fn judge(&mut self, task: &JudgeTask) -> Result<(), EntryError> {
        let ranges = merged(task.differing.clone());
        if let Some(record) = &task.record {
            return self.judge_record(record, ranges);
        }
        let engine = self.engine;
        let level = engine.open_level(&task.file.directory)?;
        let record = self.look(&level, &task.file.name)?;
        let Some(planned) = self.plan_record(&level, record) else { return Ok(()) };
        let Some(found) = &planned.existing else {
            self.conclude(&level, &planned, Finding::of(DifferenceKind::Missing));
            return Ok(());
        };
        let record = &planned.record;
        let expected = engine.wanted_sight(&record.metadata, record.symlink.as_deref());
        let sight = Sight::of(found, None);
        let mut kinds = differences(expected, sight, engine.scope(&level, found));
        if !kinds.has(DifferenceKind::Type) && found.kind == EntryKind::File {
            let pair = engine.open_pair(&level, record, found)?;
            kinds = kinds.and(engine.pair_attributes(&level, record, &pair)?);
        }
        let finding = Finding::new(kinds, ranges, (expected, sight));
        self.conclude(&level, &planned, finding);
        Ok(())
    }
}

/// How both sides of an entry are called.
type Shown<'a> = (&'a dyn Fn() -> PathBytes, &'a dyn Fn() -> PathBytes);

impl Engine {
    /// What differs in attributes that a look does not show.
    fn attribute_differences(
        &self,
        (source, destination): (BorrowedFd<'_>, BorrowedFd<'_>),
        held: Held,
        (source_shown, shown): Shown<'_>,
    ) -> Result<DifferenceSet, EntryError> {
        let expected = self.read_attributes(source, held, source_shown)?;
        let found = self.read_attributes(destination, held, shown).map_err(at_destination)?;
        let keeps = |attribute| self.spec.policy.preserve.has(attribute);
        let mut kinds = DifferenceSet::NONE;
        if keeps(Attribute::Xattr) && plain_xattrs(&expected) != plain_xattrs(&found) {
            kinds.insert(DifferenceKind::Xattr);
        }
        if keeps(Attribute::Acl) && self.acls(&expected, true) != self.acls(&found, false) {
            kinds.insert(DifferenceKind::Acl);
        }
        if keeps(Attribute::Flags) && expected.flags != found.flags {
            kinds.insert(DifferenceKind::Flags);
        }
        if keeps(Attribute::Project) && expected.project != found.project {
            kinds.insert(DifferenceKind::Project);
        }
        Ok(kinds)
    }

    fn acls(&self, attributes: &Attributes, mapped: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
        let acls = attributes.xattrs.iter().filter(|(name, _)| is_acl(name));
        let mut acls: Vec<_> = acls
            .map(|(name, value)| {
                let maps = mapped && !self.ids.is_identity();
                let value = maps.then(|| self.ids.posix_acl(value)).flatten();
                (name, value)
            })
            .zip(attributes.xattrs.iter().filter(|(name, _)| is_acl(name)))
            .map(|((name, value), (_, own))| (name.clone(), value.unwrap_or_else(|| own.clone())))
            .collect();
        acls.sort();
        acls
    }

    fn pair_attributes(
        &self,
        level: &Level,
        record: &EntryRecord,
        pair: &Pair,
    ) -> Result<DifferenceSet, EntryError> {
        let sides = (pair.source.fd.as_fd(), pair.destination.fd.as_fd());
        let source_shown = || level.source_path(record.name.as_bytes());
        let shown = || level.target_path(record.destination_name().as_bytes());
        self.attribute_differences(sides, Held::Open, (&source_shown, &shown))
    }

    /// The same for what has no content.
    fn pinned_differences(
        &self,
        level: &Level,
        record: &EntryRecord,
    ) -> Result<DifferenceSet, EntryError> {
        station::at(Activity::SourceNames);
        let last = record.destination_name().as_bytes();
        let source_shown = || level.source_path(record.name.as_bytes());
        let shown = || level.target_path(last);
        let fail = |side, path, e| entry_error(side, Operation::Open, path, e);
        let Some(target) = &level.target else { return Ok(DifferenceSet::NONE) };
        let source = path::pin_at(&level.source.fd, record.name.as_bytes())
            .map_err(|e| fail(Side::Source, source_shown(), e))?;
        let destination =
            path::pin_at(&target.fd, last).map_err(|e| fail(Side::Destination, shown(), e))?;
        let sides = (source.as_fd(), destination.as_fd());
        self.attribute_differences(sides, Held::Pinned, (&source_shown, &shown))
    }
}

fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

fn plain_xattrs(attributes: &Attributes) -> Vec<&(Vec<u8>, Vec<u8>)> {
    let plain = |(name, _): &&(Vec<u8>, Vec<u8>)| !is_acl(name) && !is_never_copied(name);
    let mut xattrs: Vec<_> = attributes.xattrs.iter().filter(plain).collect();
    xattrs.sort();
    xattrs
}

/// An error that was met where the destination is read.
fn at_destination(error: EntryError) -> EntryError {
    let class = match error.errno {
        0 => error.class,
        errno => ErrorClass::from_errno(errno, Side::Destination),
    };
    EntryError { side: Side::Destination, class, ..error }
}

/// What a symbolic link at the destination contains, where one is expected.
fn symlink_at(
    level: &Level,
    name: &[u8],
    found: &Metadata,
    expected: EntryKind,
) -> Result<Option<Vec<u8>>, EntryError> {
    let both = found.kind == EntryKind::Symlink && expected == EntryKind::Symlink;
    let Some(target) = level.target.as_ref().filter(|_| both) else { return Ok(None) };
    directory::read_symlink(&target.fd, name).map(Some).map_err(|e| {
        entry_error(Side::Destination, Operation::ReadLink, level.target_path(name), e)
    })
}

/// The steps in which a file system keeps times, as far as an entry shows them: the kernel sets the time of the last
/// change from a clock that is finer than any file system's steps.
fn step_of(found: &Metadata) -> u32 {
    const STEPS: [u32; 6] = [2_000_000_000, 1_000_000_000, 1_000_000, 1_000, 100, 1];
    let nanoseconds = found.ctime.nanoseconds;
    let fits = |step: &&u32| {
        if **step == 2_000_000_000 {
            // Those of FAT are even in the time of the last write only.
            return nanoseconds == 0
                && found.mtime.nanoseconds == 0
                && found.mtime.seconds % 2 == 0;
        }
        nanoseconds.is_multiple_of(**step)
    };
    STEPS.iter().find(fits).copied().unwrap_or(1)
}

/// What stands under a name, if anything does.
fn look_at(fd: impl AsFd, name: &[u8]) -> Result<Option<stat::Stat>, Errno> {
    match stat::stat_at(fd, name, false) {
        Ok(found) => Ok(Some(found)),
        Err(error) if stat::is_absent(error) => Ok(None),
        Err(error) => Err(error),
    }
}
