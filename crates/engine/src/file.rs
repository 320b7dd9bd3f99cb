//! Regular files: what an end needs to write one.
use dmover_local::entry_attributes;
use dmover_local::file::{FileOrder, OldVersion};
use dmover_local::session::WriteError;
use dmover_local::source::{Content, Opened, OpenedSource};
use dmover_model::{EntryError, EntryKind, EntryRecord};
use dmover_plan::decide::Decision;
use dmover_tree::{Permit, TargetNames};

use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair, TargetDirectory};
use crate::doubts;
use crate::manifest_attributes;
use crate::mover::Mover;
use crate::planned::{CopyResult, Planned};
use crate::project;

/// Opens a source file and reads its attributes.
pub(crate) fn supply(
    engine: &Engine,
    level: &DirectoryPair,
    record: &EntryRecord,
    permit: &dyn Permit,
) -> Result<OpenedSource, EntryError> {
    let opened = open_content(engine, level, record, permit)?;
    supply_opened(engine, level, record, opened, permit)
}

/// Opens a source file without its attributes.
pub(crate) fn open_source_file(
    engine: &Engine,
    level: &DirectoryPair,
    record: &EntryRecord,
    permit: &dyn Permit,
) -> Result<Content, EntryError> {
    engine.local().content_of(
        &level.source,
        record,
        directory_pair::follows(&engine.spec, level),
        permit,
    )
}

pub(crate) fn open_content(
    engine: &Engine,
    level: &DirectoryPair,
    record: &EntryRecord,
    permit: &dyn Permit,
) -> Result<Opened, EntryError> {
    let (name, follows) = (record.name.as_bytes(), directory_pair::follows(&engine.spec, level));
    engine.local().open_content(&level.source, name, follows, permit)
}

/// Reads the attributes of an open file.
fn supply_opened(
    engine: &Engine,
    level: &DirectoryPair,
    record: &EntryRecord,
    opened: Opened,
    permit: &dyn Permit,
) -> Result<OpenedSource, EntryError> {
    let mut supply = engine.local().supply(&level.source, record, opened, permit)?;
    project::settle_project(engine, level, EntryKind::File, &mut supply.attributes, true)?;
    doubts::note_writers(engine, level, &record.name, supply.open_file());
    Ok(supply)
}

/// What an end needs to know of a planned file.
pub(crate) fn order<'o>(
    engine: &'o Engine,
    level: &'o DirectoryPair,
    to: &'o TargetDirectory,
    planned: &'o Planned,
) -> FileOrder<'o> {
    let old = match (&planned.existing, &planned.base, &level.base) {
        (Some(metadata), ..) if planned.decision != Decision::Create => {
            Some(OldVersion { holder: to, metadata })
        }
        // The new one shares with the snapshot before what has not changed.
        (None, Some(based), Some(base)) => {
            Some(OldVersion { holder: base, metadata: &based.metadata })
        }
        _ => None,
    };
    let last = planned.record.destination_name().as_bytes();
    FileOrder {
        from: &level.source,
        name: planned.record.name.as_bytes(),
        to,
        last,
        decision: planned.decision,
        existing: planned.existing.as_ref(),
        old,
        others: names_beside(engine, level),
        may_wait: false,
    }
}

/// Whether the rename of a file may be delayed.
fn may_wait(mover: &Mover<'_>, target: &TargetDirectory, decision: Decision, bytes: u64) -> bool {
    /// Larger files are flushed one by one.
    const FILE_BYTES_MAX: u64 = 1 << 20;
    mover.waiting.puts_off
        && decision == Decision::Replace
        && bytes <= FILE_BYTES_MAX
        && target.facts.local
        && mover.engine.end.flusher.is_some()
        && mover.engine.spec.policy.backup.is_none()
        && !mover.engine.spec.policy.fsync
}

/// Who knows the names that other entries get beside one of this directory; `None`: they have those of the source.
pub(crate) fn names_beside<'a>(
    engine: &'a Engine,
    level: &DirectoryPair,
) -> Option<&'a dyn TargetNames> {
    // What other lines of a list bring is not known; what lies beside a source may be one.
    let is_beside_its_source = level.root.is_directory || !engine.facts.directories_apart;
    (!is_beside_its_source).then_some(engine as &dyn TargetNames)
}

/// Copies a whole file at once.
pub(crate) fn bring_file(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    target: &TargetDirectory,
    planned: &Planned,
    opened: Option<Opened>,
) -> Result<CopyResult, WriteError> {
    let (engine, record, decision) = (mover.engine, &planned.record, planned.decision);
    let range = level.root.range.as_ref();
    let writes_into = range.is_some() || decision == Decision::UpdateInPlace;
    let mut supply = match opened.filter(|_| !writes_into) {
        Some(opened) => supply_opened(engine, level, record, opened, mover.permit())?,
        None => supply(engine, level, record, mover.permit())?,
    };
    let order = order(mover.engine, level, target, planned);
    let written = if writes_into {
        if range.is_none() && decision != Decision::Create {
            project::settle_project(engine, level, EntryKind::File, &mut supply.attributes, false)?;
        }
        mover.session.write_into(order, &supply, range)?
    } else {
        let may_wait = may_wait(mover, target, decision, supply.metadata.size);
        mover.session.write_file(FileOrder { may_wait, ..order }, &supply)?
    };
    let is_partial = writes_into && range.is_some();
    Ok(CopyResult {
        bytes: written.bytes,
        made: written.made,
        extended: manifest_attributes::extended_to_keep(engine, &supply.attributes),
        version: (!is_partial).then_some(supply.metadata),
        instead: None,
        later: written.waits,
    })
}

/// Copies an entry without file content.
pub(crate) fn bring_other(
    mover: &Mover<'_>,
    level: &DirectoryPair,
    target: &TargetDirectory,
    record: &EntryRecord,
    decision: Decision,
) -> Result<CopyResult, EntryError> {
    let engine = mover.engine;
    let follows = directory_pair::follows(&engine.spec, level);
    let entry = entry_attributes::open_entry(&engine.local(), &level.source, record, follows)?;
    let how = (decision, names_beside(mover.engine, level));
    mover.session.make_special((&level.source, target), record, &entry.attributes, how)?;
    let extended = manifest_attributes::extended_to_keep(engine, &entry.attributes);
    Ok(CopyResult { extended, ..CopyResult::default() })
}
