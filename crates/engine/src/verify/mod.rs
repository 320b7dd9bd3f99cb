//! Comparing: entries of two trees with each other, or of one tree with a manifest.
//!
//! A comparison runs as a copy that writes nothing: the same scan, the same checks of both sides. Differences are
//! reported, and copied again if requested (`repair`).
use dmover_local::error::changed;
use dmover_local::session::WriteError;
use dmover_local::source::Content;
use dmover_model::{
    Against, ByteRange, CompareTask, DifferenceDetail, DifferenceKind, DifferenceSet, EntryError,
    EntryKind, EntryRecord, ErrorClass, FileRef, Identity, JudgeTask, LinkGroup, Metadata, Name,
    NewNode, NewTask, Parent, PathBytes, RecordsTask, Side, TaskKind, Timestamp, VerifyLevel,
    VerifyPolicy,
};
use dmover_observe::Counter;
use dmover_plan::verify::{Differing, Scope, Sight, differences, is_sampled, merged};
use dmover_plan::{chunk, retry};

use crate::context::Engine;
use crate::finding::{Finding, Unrepaired};
use crate::level::{Level, file_ref};
use crate::mover::Mover;
use crate::planned::{CopyResult, Planned};

mod content;
mod records;
mod repair;
mod restore;
mod unproven;

/// The result for an entry, and whether it is final.
enum Compared {
    Done(Finding),
    /// Separate tasks compare its content.
    InParts,
}

impl Engine {
    /// Whether the content of a file must be read.
    fn reads_content(&self, path: &[u8]) -> bool {
        let VerifyPolicy { level, sample_millionths, seed, .. } = self.spec.verify_policy();
        *level >= VerifyLevel::Digest && is_sampled(*sample_millionths, *seed, path)
    }

    /// Called before a file is compared that must be repaired and looks unfinished: an earlier repair may have failed
    /// to flush it, so that the page cache differs from storage.
    fn forget_unproven(
        &self,
        content: &Content,
        expected: Timestamp,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<(), EntryError> {
        if !self.spec.repairs() || content.metadata.mtime == expected {
            return Ok(());
        }
        let whole = ByteRange { start: 0, end: content.metadata.size };
        self.local().write_back_and_forget(content, whole, shown)
    }

    /// Ranges that differ, with those that could not be flushed.
    fn with_unflushed(
        &self,
        file: Identity,
        ranges: Option<Vec<ByteRange>>,
    ) -> Option<Vec<ByteRange>> {
        let unflushed = self.end.unflushed.of(file);
        if unflushed.is_empty() {
            return ranges;
        }
        Some(merged(ranges.into_iter().flatten().chain(unflushed).collect()))
    }

    /// Which differences count in a comparison with `found`.
    fn scope(&self, level: &Level, found: &Metadata) -> Scope<'_> {
        let step = level.target.as_ref().map_or(1, |target| target.facts.shown_step_ns(found));
        Scope {
            level: self.spec.verify_policy().level,
            attributes: self.spec.policy.preserve,
            demanded: self.spec.policy.demanded,
            granularity_ns: step,
            unprivileged: self.settable.unprivileged.as_ref(),
        }
    }

    /// A source entry as the destination should have it.
    fn wanted_sight<'a>(&self, metadata: &Metadata, symlink: Option<&'a [u8]>) -> Sight<'a> {
        let owner = (self.settable.ids.user(metadata.uid), self.settable.ids.group(metadata.gid));
        Sight { owner, ..Sight::of(metadata, symlink) }
    }
}

impl Mover<'_> {
    /// Compares a source entry with the destination.
    pub(crate) fn verify_entry(
        &mut self,
        level: &Level,
        planned: &Planned,
        round: u32,
    ) -> Result<CopyResult, WriteError> {
        if let Compared::Done(finding) = self.compare(level, planned, Some(round))? {
            self.conclude(level, planned, finding)?;
        }
        Ok(CopyResult::default())
    }

    /// `round`: the number of attempts, for large files that separate tasks compare in parts.
    fn compare(
        &mut self,
        level: &Level,
        planned: &Planned,
        round: Option<u32>,
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
        let mut ranges = None;
        if engine.compares_closely() && !kinds.kinds.has(DifferenceKind::Type) {
            if record.metadata.kind == EntryKind::File {
                let pair = match self.pair.take() {
                    Some(pair) => pair,
                    None => engine.open_pair(level, record, found, self.permit())?,
                };
                if engine.reads_content(level.path.join(record.name.as_bytes()).as_bytes()) {
                    let common = pair.common();
                    let shown = || level.target_path(last);
                    let (content, expected) = (&pair.destination, record.metadata.mtime);
                    engine.forget_unproven(content, expected, &shown)?;
                    let chunk = engine.compare_chunk(common.len());
                    if let (Some(chunk), Some(round)) = (chunk, round) {
                        self.compare_in_parts(level, record, (found, common), (chunk, round));
                        return Ok(Compared::InParts);
                    }
                    ranges = Some(self.compare_range(level, record, &pair, common)?);
                }
                kinds = kinds.and(engine.pair_attributes(level, record, &pair)?);
            } else {
                kinds = kinds.and(engine.pinned_differences(level, record)?);
            }
        }
        let ranges = engine.with_unflushed(found.identity, ranges);
        let finding = Finding::new(kinds, ranges, (expected, sight));
        let versions = (record.metadata.version(), found.version());
        Ok(Compared::Done(finding.between(Some(versions.0), versions.1)))
    }

    /// Repairs differences if requested, and reports them. An error is about the repair: the next attempt compares
    /// again.
    fn conclude(
        &mut self,
        level: &Level,
        planned: &Planned,
        mut finding: Finding,
    ) -> Result<(), WriteError> {
        let engine = self.engine;
        let path = level.target_path(planned.record.destination_name().as_bytes());
        let kind = planned.record.metadata.kind;
        if finding.kinds.is_empty() && self.tell_mended() {
            return Ok(());
        }
        if !engine.spec.repairs() || finding.kinds.is_empty() {
            engine.tell_finding(path, kind, finding, None);
            return Ok(());
        }
        // Until the repair was looked at: another attempt finds no difference, and reports this one.
        let unrepaired = Unrepaired { path: path.clone(), kind, finding: finding.clone() };
        self.unrepaired = Some(unrepaired);
        self.repair(level, planned, &finding, None)?;
        let left = self.left_over(level, planned)?;
        self.unrepaired = None;
        finding.tell_left_over(left);
        engine.tell_finding(path, kind, finding, Some(left.is_empty()));
        Ok(())
    }

    /// Differences that remain visible after a repair, such as an owner that cannot be set.
    fn left_over(&mut self, level: &Level, planned: &Planned) -> Result<DifferenceSet, EntryError> {
        let engine = self.engine;
        let Some(now) = self.look_again(level, &planned.record)? else {
            return Ok(DifferenceSet::NONE);
        };
        let Some(found) = &now.existing else {
            return Ok(DifferenceSet::from_iter([DifferenceKind::Missing]));
        };
        let last = now.record.destination_name().as_bytes();
        let link = symlink_at(level, last, found, now.record.metadata.kind)?;
        let expected = engine.wanted_sight(&now.record.metadata, now.record.symlink.as_deref());
        let sight = Sight::of(found, link.as_deref());
        let kinds = differences(expected, sight, engine.scope(level, found)).kinds;
        let more = match now.record.metadata.kind {
            _ if !engine.compares_closely() || !kinds.is_empty() => Differing::default(),
            EntryKind::File => {
                let pair = engine.open_pair(level, &now.record, found, self.permit())?;
                engine.pair_attributes(level, &now.record, &pair)?
            }
            _ => engine.pinned_differences(level, &now.record)?,
        };
        Ok(kinds.and(more.kinds))
    }

    /// Reports repairs of an earlier attempt that failed later, if this attempt finds no difference. Returns whether
    /// there were any.
    fn tell_mended(&mut self) -> bool {
        let Some(Unrepaired { path, kind, finding }) = self.unrepaired.take() else { return false };
        self.engine.tell_finding(path, kind, finding, Some(true));
        true
    }

    /// Compares a directory itself.
    pub(crate) fn verify_directory(&mut self, level: &Level) {
        let engine = self.engine;
        let found = match &level.target {
            Some(target) if !target.fresh => target.metadata.clone(),
            _ => {
                let finding = Finding::of(DifferenceKind::Missing);
                let repaired = engine.spec.repairs().then(|| self.repair_directory(level));
                return engine.tell_finding(
                    level.own_target_path(),
                    EntryKind::Directory,
                    finding,
                    repaired,
                );
            }
        };
        if engine.is_untouched(&found) {
            return engine.reports.count(Counter::EntriesCompared);
        }
        let expected = engine.wanted_sight(&level.source.metadata, None);
        let differing = match engine.directory_differences(level, &found) {
            Ok(differing) => differing,
            Err(error) => return engine.error(error),
        };
        let mut finding = Finding::new(differing, None, (expected, Sight::of(&found, None)));
        let mut repaired = None;
        if engine.spec.repairs() && !finding.kinds.is_empty() {
            let left = self.repair_and_compare(level);
            repaired = Some(left.is_some_and(DifferenceSet::is_empty));
            finding.tell_left_over(left.unwrap_or_default());
        }
        engine.tell_finding(level.own_target_path(), EntryKind::Directory, finding, repaired);
    }

    /// The remaining differences of a directory after its repair; `None` if the repair failed.
    fn repair_and_compare(&mut self, level: &Level) -> Option<DifferenceSet> {
        if !self.repair_directory(level) {
            return None;
        }
        let engine = self.engine;
        let now = engine.local().now(level.target.as_ref()?).ok()?;
        let left = engine.directory_differences(level, &now);
        left.map(|left| left.kinds).map_err(|error| engine.error(error)).ok()
    }

    /// Compares names of linked inodes: names of one source inode must be names of one destination inode.
    pub(crate) fn verify_links(&mut self, group: &LinkGroup) {
        let Ok(root) = self.engine.root(group.first.directory.root) else { return };
        if root.destination.is_none() {
            return self.verify_recorded_links(group);
        }
        let mut anchor: Option<(Identity, Finding)> = None;
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
        let repaired = (differs && self.engine.spec.repairs()).then(|| self.repair_links(group));
        for (path, kind, finding) in found {
            self.engine.tell_finding(path, kind, finding, repaired);
        }
    }

    /// Whether all names of a group are right, and one inode.
    fn links_are_right(&mut self, group: &LinkGroup) -> bool {
        let mut anchor = None;
        std::iter::once(&group.first).chain(&group.rest).all(|file| {
            let compared = self.compare_link(file, &mut anchor);
            compared.is_ok_and(|one| one.is_some_and(|(.., finding)| finding.kinds.is_empty()))
        })
    }

    fn compare_link(
        &mut self,
        file: &FileRef,
        anchor: &mut Option<(Identity, Finding)>,
    ) -> Result<Option<(PathBytes, EntryKind, Finding)>, EntryError> {
        let engine = self.engine;
        let level = engine.open_level(&file.directory)?;
        let record = self.look(&level, &file.name)?;
        let kind = record.metadata.kind;
        let path = level.target_path(file.destination_name.as_bytes());
        let Some(planned) = self.plan_record(&level, record) else { return Ok(None) };
        let identity = planned.existing.as_ref().map(|found| found.identity);
        if let Some((_, finding)) = anchor.as_ref().filter(|(of, _)| Some(*of) == identity) {
            // What is the matter with an inode is the matter with all its names.
            return Ok(Some((path, kind, finding.clone())));
        }
        // The first name is compared as a file of its own, and so is any that is another inode.
        let Compared::Done(mut finding) = self.compare(&level, &planned, None)? else {
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
        &mut self,
        level: &Level,
        name: &Name,
        round: u32,
    ) -> Result<(), WriteError> {
        let record = self.look(level, name)?;
        match self.plan_record(level, record) {
            Some(planned) => self.verify_entry(level, &planned, round).map(drop),
            None => Ok(()),
        }
    }

    fn compare_in_parts(
        &mut self,
        level: &Level,
        record: &EntryRecord,
        (found, common): (&Metadata, ByteRange),
        (chunk, round): (u64, u32),
    ) {
        let file = file_ref(level, record);
        let (source, destination) = (record.metadata.version(), found.version());
        let number = self.report_judge(JudgeTask {
            file: file.clone(),
            record: None,
            versions: (Some(source), destination),
            compared: common.len(),
            differing: Vec::new(),
            failure: None,
            round,
        });
        for range in chunk::chunks(common.len(), chunk) {
            let (file, against) = (file.clone(), Against::Source(source));
            let task = CompareTask { file, destination, against, range };
            let kind = TaskKind::Compare(Box::new(task));
            self.outcome.tasks.push(NewTask { parent: Parent::New(number), kind });
        }
        self.flush();
    }

    fn report_judge(&mut self, judge: JudgeTask) -> usize {
        let finish = TaskKind::Judge(Box::new(judge));
        self.report(NewNode::new(Parent::Inherited, finish))
    }

    /// Finishes a file whose parts were compared.
    pub(crate) fn run_judge(&mut self, task: &JudgeTask) {
        let engine = self.engine;
        let result = match &task.failure {
            Some(error) => Err((**error).clone()),
            None => self.judge(task),
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
                engine.mark_unproven(record);
            }
            engine.error(error);
            return self.tell_unrepaired();
        }
        engine.reports.count(Counter::Retries);
        let round = task.round + 1;
        let kind = match &task.record {
            Some(record) => {
                TaskKind::Records(RecordsTask { records: vec![(**record).clone()], round })
            }
            None => TaskKind::Open { file: task.file.clone(), round },
        };
        self.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
    }

    fn judge(&mut self, task: &JudgeTask) -> Result<(), EntryError> {
        let ranges = merged(task.differing.clone());
        let (source, destination) = task.versions;
        if let Some(record) = &task.record {
            return self.judge_record(record, ranges, destination);
        }
        let engine = self.engine;
        let level = engine.open_level(&task.file.directory)?;
        let record = self.look(&level, &task.file.name)?;
        let path = level.target_path(record.destination_name().as_bytes());
        let source_path = level.source_path(record.name.as_bytes());
        let Some(planned) = self.plan_record(&level, record) else { return Ok(()) };
        let found = planned.existing.as_ref().filter(|found| found.version() == destination);
        let found = found.ok_or_else(|| changed(Side::Destination, path))?;
        let record = &planned.record;
        if Some(record.metadata.version()) != source {
            return Err(changed(Side::Source, source_path));
        }
        let expected = engine.wanted_sight(&record.metadata, None);
        let sight = Sight::of(found, None);
        let kinds = differences(expected, sight, engine.scope(&level, found));
        let pair = engine.open_pair(&level, record, found, self.permit())?;
        let kinds = kinds.and(engine.pair_attributes(&level, record, &pair)?);
        let ranges = engine.with_unflushed(found.identity, Some(ranges));
        let finding = Finding::new(kinds, ranges, (expected, sight));
        let finding = finding.between(source, destination);
        self.conclude(&level, &planned, finding).map_err(|failed| failed.error)
    }
}

impl Engine {
    /// Whether attributes and content are compared that statx does not show.
    fn compares_closely(&self) -> bool {
        self.spec.verify_policy().level >= VerifyLevel::Digest
    }

    /// Differences between a directory and the `found` one.
    fn directory_differences(
        &self,
        level: &Level,
        found: &Metadata,
    ) -> Result<Differing, EntryError> {
        let expected = self.wanted_sight(&level.source.metadata, None);
        let kinds = differences(expected, Sight::of(found, None), self.scope(level, found));
        let Some(target) = level.target.as_ref().filter(|_| self.compares_closely()) else {
            return Ok(kinds);
        };
        let attributes = self.local().attributes_of_directories(&level.source, target)?;
        Ok(kinds.and(self.attribute_differences(level, EntryKind::Directory, &attributes)?))
    }
}

/// The target of a symbolic link at the destination, where one is expected.
fn symlink_at(
    level: &Level,
    name: &[u8],
    found: &Metadata,
    expected: EntryKind,
) -> Result<Option<Vec<u8>>, EntryError> {
    let both = found.kind == EntryKind::Symlink && expected == EntryKind::Symlink;
    let Some(target) = level.target.as_ref().filter(|_| both) else { return Ok(None) };
    target.symlink(name).map(Some)
}
