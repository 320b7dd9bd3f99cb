//! Reads entries on both sides and lets `plan` decide what each needs.
use dmover_local::look::Seen;
use dmover_model::{
    EntryError, EntryKind, EntryRecord, ErrorClass, Metadata, Name, ScanNames, TaskKind,
};
use dmover_plan::decide::{self, Decision};

use crate::alike;
use crate::case;
use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair};
use crate::mover::Mover;
use crate::planned::Planned;
use crate::rights;
use crate::snapshot_base;

/// The record of a source entry.
pub(crate) fn look(
    mover: &Mover<'_>,
    level: &DirectoryPair,
    name: &Name,
) -> Result<EntryRecord, EntryError> {
    let follows = directory_pair::follows(&mover.engine.spec, level);
    let (metadata, symlink) = mover.session.local.look(&level.source, name.as_bytes(), follows)?;
    let renamed = if level.root.is_directory {
        None
    } else {
        let named = level.root.destination.as_ref().and_then(|d| d.name.clone());
        named.filter(|n| n != name)
    };
    Ok(EntryRecord { name: name.clone(), renamed, metadata, symlink })
}

/// The destination entry with the same name.
fn existing(
    mover: &Mover<'_>,
    level: &DirectoryPair,
    record: &EntryRecord,
    again: bool,
) -> Result<Option<Seen>, EntryError> {
    let Some(target) = level.target.as_ref().filter(|t| again || !t.fresh) else {
        return Ok(None);
    };
    let is_link = record.metadata.kind == EntryKind::Symlink;
    mover.session.local.existing(target, record.destination_name().as_bytes(), is_link)
}

/// Whether a symbolic link would replace the very entry that it leads to.
fn is_where_it_leads(
    engine: &Engine,
    level: &DirectoryPair,
    record: &EntryRecord,
    old: &Metadata,
) -> bool {
    if record.metadata.kind != EntryKind::Symlink || old.kind == EntryKind::Symlink {
        return false;
    }
    let typed = level.source_path(record.name.as_bytes()).to_path();
    let link = engine.places.base.join(typed);
    engine.end.leads_to(&link, record.name.as_bytes()) == Some(old.identity)
}

/// Reads an entry again after a failed attempt. `None`: it was returned as another task.
pub(crate) fn look_again(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    record: &EntryRecord,
) -> Result<Option<Planned>, EntryError> {
    let fresh = look(mover, level, &record.name)?;
    if fresh.metadata.kind == EntryKind::Directory {
        // It was something else when it was scanned. Going down is for a task of its own.
        let directory = level.reference();
        let names = ScanNames::Listed(vec![record.name.clone()]);
        mover.report.deferred.push(TaskKind::Scan { directory, names });
        return Ok(None);
    }
    let existing = existing(mover, level, &fresh, true)?;
    Ok(Some(decide(mover, level, fresh, existing)))
}

/// Plans a record; `None` if the destination could not be read (which was reported).
pub(crate) fn plan_record(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    record: EntryRecord,
) -> Option<Planned> {
    let settled = case::settle_case(mover, level, record.destination_name().as_bytes());
    match settled.and_then(|()| existing(mover, level, &record, false)) {
        Ok(existing) => Some(decide(mover, level, record, existing)),
        Err(error) => {
            mover.engine.error(error);
            None
        }
    }
}

pub(crate) fn decide(
    mover: &Mover<'_>,
    level: &DirectoryPair,
    record: EntryRecord,
    existing: Option<Seen>,
) -> Planned {
    if let (Some(target), Some((old, _))) = (&level.target, &existing) {
        mover.session.learn_granularity(target, record.metadata.mtime, old.mtime);
    }
    let view = existing.as_ref().zip(level.target.as_ref()).map(|((metadata, symlink), target)| {
        alike::existing_view(mover, level, target, &record, (metadata, symlink.as_deref()))
    });
    let mut decision = decide::decide(&record, view, &mover.engine.spec.policy);
    let looks = matches!(decision, Decision::Skip | Decision::Inspect | Decision::Compare);
    let joined = |(old, _): &(Metadata, _)| {
        snapshot_base::is_linked_to_others(&mover.engine.pass, level, &record, old)
    };
    if looks && existing.as_ref().is_some_and(joined) {
        decision = Decision::Replace;
    }
    let granted =
        |(old, _): &(Metadata, _)| rights::would_grant(mover, decision, level, (&record, old));
    if existing.as_ref().is_some_and(granted) {
        decision = Decision::Replace;
    }
    let empowered = |(old, _): &(Metadata, _)| rights::would_empower(mover, level, &record, old);
    if decision == Decision::Inspect && existing.as_ref().is_some_and(empowered) {
        decision = Decision::Compare;
    }
    let name = record.destination_name().as_bytes();
    // An entry that looks equal would be missing under its own name without any report.
    let taken = existing.is_some() && !matches!(decision, Decision::Refuse(..));
    if taken
        && level.target.as_ref().is_some_and(|t| t.folds_case && !mover.session.is_exact(t, name))
    {
        let words = "an entry whose name differs only in case exists here";
        decision = Decision::Refuse(ErrorClass::NameClash, words);
    }
    if level.root.range.is_some() && decision == Decision::Replace {
        decision = Decision::UpdateInPlace;
    }
    // A backup keeps what the link leads to.
    let keeps = mover.engine.spec.policy.backup.is_some();
    let replaced = existing.as_ref().filter(|_| decision == Decision::Replace && !keeps);
    if replaced.is_some_and(|(old, _)| is_where_it_leads(mover.engine, level, &record, old)) {
        let words = "the source is a symbolic link to this entry; replacing the entry could \
            lose its content";
        decision = Decision::Refuse(ErrorClass::SelfCopy, words);
    }
    let base = existing.is_none().then(|| snapshot_base::based(mover, level, &record)).flatten();
    Planned { record, decision, existing: existing.map(|(metadata, _)| metadata), base }
}
