//! Repairs a tree that was compared with a manifest, from a second tree.
use dmover_local::capability::Facts;
use dmover_local::directory::look_at;
use dmover_local::error::entry_error;
use dmover_model::{
    ByteRange, EntryError, EntryKind, EntryRecord, ErrorClass, Extended, Metadata, Name, Operation,
    PathBytes, Record, RootId, Side, TreePath, VerifyLevel,
};
use dmover_plan::decide::Decision;
use dmover_plan::verify::{Scope, differences};
use dmover_sys::xattr::Held;
use dmover_sys::{AsFd, BorrowedFd, Errno, directory};
use std::sync::Arc;

use super::records::{Linked, recorded_sight};
use crate::context::Engine;
use crate::finding::{Finding, changed};
use crate::level::Level;
use crate::manifest_attributes::Whose;
use crate::mover::Mover;

/// The tree from which repairs are copied.
const REPAIRED: RootId = RootId(1);

impl Mover<'_> {
    /// Copies an entry again from the second tree, if it matches the manifest.
    pub(super) fn repair_record(
        &mut self,
        record: &Record,
        finding: &Finding,
    ) -> Result<bool, EntryError> {
        let engine = self.engine;
        let Some((directory, name)) = record.path.split_last() else {
            let level = self.repaired_level(&TreePath::root())?;
            let metadata = level.source.metadata.clone();
            let facts = &level.source.facts;
            engine.check_source(level.own_source_path(), (&metadata, None), (record, facts))?;
            let shown = || level.own_source_path();
            engine.check_attributes((level.source.fd.as_fd(), Held::Open), record, &shown)?;
            return Ok(self.repair_directory(&level));
        };
        let above = self.repaired_level(&directory)?;
        let name = Name::new(name).map_err(|_| {
            entry_error(Side::Source, Operation::Stat, above.source_path(name), Errno::INVAL)
        })?;
        let entry = self.look(&above, &name)?;
        let (metadata, symlink) = (&entry.metadata, entry.symlink.as_deref());
        let path = above.source_path(name.as_bytes());
        engine.check_source(path, (metadata, symlink), (record, &above.source.facts))?;
        if record.body.extended != Extended::default() {
            let shown = || above.source_path(name.as_bytes());
            let (fd, held) = engine.open_for_attributes(&above, &entry)?;
            engine.check_attributes((fd.as_fd(), held), record, &shown)?;
        }
        if metadata.kind == EntryKind::Directory {
            self.touch(&above);
            let level = self.enter(&above, name.as_bytes())?;
            return Ok(self.repair_directory(&level));
        }
        self.check_source_content(&above, &entry, record, finding)?;
        let finding = Finding { source: Some(metadata.version()), ..finding.clone() };
        match self.plan_record(&above, entry) {
            Some(planned) if matches!(planned.decision, Decision::Refuse(..)) => Ok(false),
            Some(planned) => {
                let recorded = record.body.content.as_ref();
                let repaired = self.repair(&above, &planned, &finding, recorded);
                repaired.map(|()| true).map_err(|failed| failed.error)
            }
            None => Ok(false),
        }
    }

    /// Checks that the content to copy has the digests of the manifest.
    fn check_source_content(
        &mut self,
        level: &Level,
        entry: &EntryRecord,
        record: &Record,
        finding: &Finding,
    ) -> Result<(), EntryError> {
        let engine = self.engine;
        let whole = finding.needs_all();
        let Some(recorded) = record.body.content.as_ref() else { return Ok(()) };
        if entry.metadata.kind != EntryKind::File || (!whole && finding.ranges.is_empty()) {
            return Ok(());
        }
        let (fd, metadata) = engine.open_source_file(level, entry, self.permit())?;
        let shown = || level.source_path(entry.name.as_bytes());
        if metadata.version() != entry.metadata.version() {
            return Err(changed(Side::Source, shown()));
        }
        let facts = Arc::clone(&level.source.facts);
        let content =
            dmover_local::source::Content { fd, metadata, facts, is_stream: false, stored: false };
        let all = [ByteRange { start: 0, end: recorded.shape.length() }];
        let ranges = if whole { &all[..] } else { &finding.ranges };
        let differs = self.differ_from_record(&content, recorded, ranges, &shown)?;
        engine.local().check_unchanged(&content.facts, &content.fd, &content.metadata, &shown)?;
        if differs { Err(unlike(shown(), "content")) } else { Ok(()) }
    }

    /// Makes a name a hard link to another inode with the same content and attributes, so that nothing is lost. Returns
    /// false if they differ.
    pub(super) fn link_again(
        &mut self,
        anchor: &Linked,
        linked: &Linked,
    ) -> Result<bool, EntryError> {
        if !self.are_alike(anchor, linked)? {
            return Ok(false);
        }
        let name = linked.name.as_bytes();
        let above = self.repaired_level(&linked.level.path)?;
        let beside = self.repaired_level(&anchor.level.path)?;
        let fail =
            |operation, e| entry_error(Side::Destination, operation, above.target_path(name), e);
        let (Some(target), Some(from)) = (&above.target, &beside.target) else { return Ok(false) };
        self.check_lease(&above, name)?;
        self.touch(&above);
        let temporary = self.session.temporary_in(&above.source, target);
        let temporary = temporary.as_bytes();
        directory::hard_link(&from.fd, anchor.name.as_bytes(), &target.fd, temporary)
            .map_err(|e| fail(Operation::Link, e))?;
        let renamed = directory::rename(&target.fd, temporary, name);
        if renamed.is_err() {
            // An incomplete file must not stay; its failure is reported.
            let _ = directory::unlink(&target.fd, temporary);
        }
        renamed.map(|()| true).map_err(|e| fail(Operation::Rename, e))
    }

    fn are_alike(&mut self, anchor: &Linked, linked: &Linked) -> Result<bool, EntryError> {
        let engine = self.engine;
        let of = |of: &Metadata| (of.kind, of.size, of.mtime, of.mode, of.uid, of.gid);
        if of(&anchor.metadata) != of(&linked.metadata) {
            return Ok(false);
        }
        if anchor.metadata.kind != EntryKind::File {
            return Ok(true);
        }
        let shown = || linked.level.source_path(linked.name.as_bytes());
        let one = engine.open_checked_file(
            &anchor.level,
            &anchor.name,
            &anchor.metadata,
            self.permit(),
        )?;
        let other = engine.open_checked_file(
            &linked.level,
            &linked.name,
            &linked.metadata,
            self.permit(),
        )?;
        let of = |content: &dmover_local::source::Content| {
            engine
                .attributes()
                .read(content.fd.as_fd(), Held::Open, &shown)
                .map(|found| engine.extended(&found, Held::Open, Whose::Destination))
        };
        if of(&one)? != of(&other)? {
            return Ok(false);
        }
        let range = ByteRange { start: 0, end: one.metadata.size };
        let (first, second) =
            (engine.way_to_read(&one, range, &shown)?, engine.way_to_read(&other, range, &shown)?);
        let permit = self.permit();
        let readings = [
            engine.reading(&one, first, &shown, permit),
            engine.reading(&other, second, &shown, permit),
        ];
        Ok(engine
            .content()
            .compare_bytes(readings, range, &mut self.session.tools.buffer)?
            .is_empty())
    }

    /// A directory of the second tree and the one to repair; missing directories are created.
    fn repaired_level(&mut self, path: &TreePath) -> Result<Level, EntryError> {
        let mut level = self.open_root(REPAIRED)?;
        for name in path.components() {
            let target = level.target.as_ref();
            let absent = |target: &crate::level::TargetDirectory| {
                look_at(&target.fd, name).is_ok_and(|found| found.is_none())
            };
            if target.is_some_and(absent) {
                self.touch(&level);
            }
            level = self.enter(&level, name)?;
        }
        Ok(level)
    }
}

impl Engine {
    /// Whether a source entry is the one in the manifest.
    fn check_source(
        &self,
        path: PathBytes,
        (metadata, symlink): (&Metadata, Option<&[u8]>),
        (record, facts): (&Record, &Facts),
    ) -> Result<(), EntryError> {
        let scope = Scope {
            level: VerifyLevel::Mtime,
            attributes: self.spec.policy.preserve,
            demanded: self.spec.policy.demanded,
            granularity_ns: facts.shown_step_ns(metadata),
            // It was not this process that has made the source.
            unprivileged: None,
        };
        let sight = self.wanted_sight(metadata, symlink);
        let kinds = differences(recorded_sight(record), sight, scope).kinds;
        if kinds.is_empty() { Ok(()) } else { Err(unlike(path, &kinds.words())) }
    }

    /// Checks attributes that statx does not show.
    fn check_attributes(
        &self,
        open: (BorrowedFd<'_>, Held),
        record: &Record,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<(), EntryError> {
        let kinds =
            self.extended_differences(&record.body.extended, open, Whose::Source, shown)?.kinds;
        let words = kinds.words();
        let way_out = format!("{words} (--no-preserve={words} ignores this)");
        if kinds.is_empty() { Ok(()) } else { Err(unlike(shown(), &way_out)) }
    }
}

/// The error for a source entry that does not match the manifest.
fn unlike(path: PathBytes, what: &str) -> EntryError {
    let words = format!("the source does not match the manifest either: {what}");
    let (side, class) = (Side::Source, ErrorClass::Integrity);
    EntryError::plain(side, Operation::Check, class, path, words)
}
