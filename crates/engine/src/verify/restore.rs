//! Repairs a tree that was compared with a manifest, from a second tree.
use dmover_local::attributes::Attributes;
use dmover_local::capability::Facts;
use dmover_local::error::{changed, not_a_name};
use dmover_model::{
    ByteRange, EntryError, EntryKind, EntryRecord, ErrorClass, Extended, Metadata, Name, Operation,
    PathBytes, Record, RootId, Side, TreePath, VerifyLevel,
};
use dmover_plan::decide::Decision;
use dmover_plan::verify::{Scope, differences};

use super::records::{Linked, recorded_sight};
use crate::context::Engine;
use crate::finding::Finding;
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
            if record.body.extended != Extended::default() {
                let shown = || level.own_source_path();
                let attributes = engine.local().attributes_of(&level.source)?;
                engine.check_attributes(&attributes, record, &shown)?;
            }
            return Ok(self.repair_directory(&level));
        };
        let above = self.repaired_level(&directory)?;
        let name =
            Name::new(name).map_err(|_| not_a_name(Side::Source, above.source_path(name)))?;
        let entry = self.look(&above, &name)?;
        let (metadata, symlink) = (&entry.metadata, entry.symlink.as_deref());
        let path = above.source_path(name.as_bytes());
        engine.check_source(path, (metadata, symlink), (record, &above.source.facts))?;
        if record.body.extended != Extended::default() {
            let shown = || above.source_path(name.as_bytes());
            let follows = engine.follows(&above);
            let open = engine.local().open_entry(&above.source, &entry, follows)?;
            engine.check_attributes(&open.attributes, record, &shown)?;
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
        let content = engine.open_source_file(level, entry, self.permit())?;
        let shown = || level.source_path(entry.name.as_bytes());
        if content.metadata.version() != entry.metadata.version() {
            return Err(changed(Side::Source, shown()));
        }
        let all = [ByteRange { start: 0, end: recorded.shape.length() }];
        let ranges = if whole { &all[..] } else { &finding.ranges };
        let differs = self.session.differs_from_record(&content, recorded, ranges, &shown)?;
        engine.local().check_unchanged(&content, &shown)?;
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
        let (Some(target), Some(from)) = (&above.target, &beside.target) else { return Ok(false) };
        self.check_lease(&above, name)?;
        self.touch(&above);
        let (ends, anchor) = ((&above.source, target), (from, anchor.name.as_bytes()));
        self.session.replace_by_link(ends, name, anchor).map(|()| true)
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
            let found = engine.local().attributes_of_content(content, &shown);
            found.map(|found| engine.extended(&found, Whose::Destination))
        };
        if of(&one)? != of(&other)? {
            return Ok(false);
        }
        let range = ByteRange { start: 0, end: one.metadata.size };
        let differing = self.session.compare_contents([&one, &other], range, [&shown, &shown])?;
        Ok(differing.is_empty())
    }

    /// A directory of the second tree and the one to repair; missing directories are created.
    fn repaired_level(&mut self, path: &TreePath) -> Result<Level, EntryError> {
        let mut level = self.open_root(REPAIRED)?;
        for name in path.components() {
            if level.target.as_ref().is_some_and(|target| target.lacks(name)) {
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
        attributes: &Attributes,
        record: &Record,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<(), EntryError> {
        let recorded = &record.body.extended;
        let kinds = self.extended_differences(recorded, attributes, Whose::Source).kinds;
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
