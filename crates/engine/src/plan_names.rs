//! Names that the scan has read become plans, tasks or directories to enter.
use dmover_local::trash::is_mark_there;
use dmover_model::JobSpec;
use dmover_model::{
    Action, Attribute, EntryError, EntryKind, EntryRecord, ErrorClass, Event, FollowLinks, Item,
    LinkName, Metadata, Name, Note, Operation, RootId, Side, TaskKind, TreePath, Verb,
};
use dmover_observe::Counter;
use dmover_plan::decide::Decision;
use dmover_plan::temporary::is_temporary;
use dmover_plan::{chunk, itemize};
use std::collections::VecDeque;

use crate::apply;
use crate::checked_tree;
use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair, file_ref};
use crate::mover::Mover;
use crate::plan_entry;
use crate::planned::Planned;
use crate::sum;

/// A file of at least this size is started so that another run can resume it, even if one mover does everything.
const CONTINUED_AT_LEAST: u64 = 1 << 30;

/// Reads one name on both sides and decides. `None`: there is nothing more to do for it here.
pub(crate) fn plan_name(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    name: Name,
    directories: &mut VecDeque<Name>,
) -> Option<Planned> {
    let engine = mover.engine;
    if is_temporary(name.as_bytes()) {
        engine.reports.note(Note::TemporarySkipped, || level.source_path(name.as_bytes()));
        return None;
    }
    if engine.spec.verb.fills() && is_mark_there(name.as_bytes(), level.target.as_ref()) {
        return None;
    }
    engine.resources.limits.operation(&engine.control, mover.lease);
    mover.lease.extend();
    let record = match plan_entry::look(mover, level, &name) {
        Ok(record) => record,
        Err(error) => {
            engine.error(error);
            return None;
        }
    };
    if !is_admitted(mover.engine, level, &record) {
        return None;
    }
    if record.metadata.kind == EntryKind::Directory {
        // Counted when it is entered: a directory that is returned is read again.
        directories.push_back(name);
        return None;
    }
    if directory_pair::looks_for_unknown(&mover.engine.spec, level) {
        let path = level.path.join(name.as_bytes());
        checked_tree::tell_unless_known(mover.engine, &path, &record.metadata);
        return None;
    }
    mover.count_found(&record.metadata);
    if is_anothers(mover.engine, level, &record) {
        let path = level.target_path(record.destination_name().as_bytes());
        let (side, class) = (Side::Destination, ErrorClass::NameClash);
        let words = "another source maps to the same destination; dmover keeps that entry";
        engine.error(EntryError::plain(side, Operation::Create, class, path, words));
        return None;
    }
    if is_for_the_link_phase(&mover.engine.spec, level, &record) {
        if mover.engine.pass.following.is_some() {
            // Its other names are not known here.
            mover.engine.pass.look_again("files with several hard links changed");
            return None;
        }
        let file = file_ref(level, &record);
        mover.report.record_link(LinkName { identity: record.metadata.identity, file });
        mover.spent.entries += 1;
        return None;
    }
    let planned = plan_entry::plan_record(mover, level, record)?;
    if is_large(mover, level, &planned) {
        let file = file_ref(level, &planned.record);
        let kind = TaskKind::Open { file, round: 1 };
        mover.report.deferred.push(kind);
        return None;
    }
    Some(planned)
}

/// Copies a regular file into a directory that was just created: nothing must be compared, so the file is opened at
/// once and its metadata comes from the open file. Returns the name if it is no such file, or cannot be opened; the
/// normal way then reports the reason.
pub(crate) fn take_at_sight(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    name: Name,
) -> Option<Name> {
    let engine = mover.engine;
    if is_temporary(name.as_bytes()) || engine.control.is_stopping() {
        return Some(name);
    }
    let local = mover.session.local;
    let opened = local.open_at_sight(&level.source, name.as_bytes(), mover.permit());
    let Some((opened, metadata)) = opened else { return Some(name) };
    let record = EntryRecord { name, renamed: None, metadata, symlink: None };
    let ordinary = record.metadata.kind == EntryKind::File
        && !is_for_the_link_phase(&mover.engine.spec, level, &record)
        && !is_in_parts(mover, &record.metadata);
    if !ordinary {
        return Some(record.name);
    }
    engine.resources.limits.operation(&engine.control, mover.lease);
    mover.count_found(&record.metadata);
    let planned = plan_entry::decide(mover, level, record, None);
    apply::apply_opened(mover, level, planned, Some(opened));
    mover.lease.extend();
    None
}

fn is_admitted(engine: &Engine, level: &DirectoryPair, record: &EntryRecord) -> bool {
    let root_entry = !level.root.is_directory;
    let path = level.path.join(record.name.as_bytes());
    if root_entry || engine.filter.admits(path.as_bytes(), &record.metadata) {
        return true;
    }
    engine.reports.count(Counter::EntriesExcluded);
    if engine.reports.wants_items() {
        engine.reports.show(Event::Item(Item {
            path: level.source_path(record.name.as_bytes()),
            target: level.target_path(record.destination_name().as_bytes()),
            action: Action::Excluded,
            kind: record.metadata.kind,
            bytes: 0,
            elapsed_us: 0,
            itemized: itemize::columns(Action::Excluded, &record.metadata, None),
        }));
    }
    false
}

/// Whether another root, whose target lies below this one's, has an entry for the same destination. Both would be
/// copied there, and the last one would win. (A directory against a file is an error by itself.)
fn is_anothers(engine: &Engine, level: &DirectoryPair, record: &EntryRecord) -> bool {
    if engine.places.meetings.is_empty() || !level.root.is_directory {
        return false;
    }
    let path = level.path.join(record.name.as_bytes());
    let mut above = Some(path.clone());
    while let Some(at) = above {
        let below = &path.as_bytes()[at.as_bytes().len()..];
        let below = below.strip_prefix(b"/").unwrap_or(below);
        above = at.split_last().map(|(directory, _)| directory);
        let other = engine.places.meetings.get(&(level.root_id, at));
        if other.is_some_and(|other| has_no_directory(engine, *other, below)) {
            return true;
        }
    }
    false
}

pub(crate) fn is_for_the_link_phase(
    spec: &JobSpec,
    level: &DirectoryPair,
    record: &EntryRecord,
) -> bool {
    let policy = &spec.policy;
    spec.compares_links()
        && level.root.destination.is_some()
        && policy.preserve.has(Attribute::Links)
        && level.root.range.is_none()
        && match spec.selection.follow {
            FollowLinks::Never | FollowLinks::Arguments => record.is_hard_linked(),
            FollowLinks::Always => false,
            // The number of links says nothing of symbolic links that lead here.
            FollowLinks::AlwaysLinked => record.metadata.kind == EntryKind::File,
        }
}

fn is_large(mover: &Mover<'_>, level: &DirectoryPair, planned: &Planned) -> bool {
    let policy = &mover.engine.spec.policy;
    let metadata = &planned.record.metadata;
    let whole = matches!(planned.decision, Decision::Create | Decision::Replace)
        && metadata.kind == EntryKind::File
        && level.root.range.is_none()
        && !planned.is_in_base()
        && !policy.dry_run;
    whole && is_in_parts(mover, metadata)
}

/// Whether a file is cut into chunks; this depends on its allocated blocks, so that holes do not count.
pub(crate) fn is_worth_splitting(mover: &Mover<'_>, metadata: &Metadata) -> bool {
    let policy = &mover.engine.spec.policy;
    let size = metadata.size.min(metadata.blocks.saturating_mul(512).max(1));
    // A digest that no pieces make is made by one mover.
    let shape = mover.session.local.rules.digest_shape(metadata.size);
    let in_pieces = shape.is_none_or(|shape| sum::hash_chunk(mover.engine, &shape).is_some());
    let splits =
        chunk::chunk_bytes(size, mover.engine.chunk_takers(), policy.split_bytes).is_some();
    // One mover alone begins it as a large file if it takes long: another run can continue it then.
    let continues = mover.engine.facts.keeps_parts && policy.split_bytes.is_none();
    in_pieces && (splits || (continues && size >= CONTINUED_AT_LEAST))
}

/// Whether several movers work on a file.
fn is_in_parts(mover: &Mover<'_>, metadata: &Metadata) -> bool {
    mover.thread.strategy.is_in_parts(mover, metadata)
}

/// Whether a root will copy an entry that is not a directory to a path below it.
fn has_no_directory(engine: &Engine, id: RootId, below: &[u8]) -> bool {
    let (Ok(root), Ok(path)) = (engine.root(id), TreePath::new(below)) else { return false };
    let Some((directory, name)) = path.split_last() else { return !root.is_directory };
    if !root.is_directory {
        return false;
    }
    // An unreadable directory is reported by that root.
    let found = directory_pair::open_source(engine, &root, &directory).ok().and_then(|directory| {
        engine.end.find_source(&directory, name, engine.spec.follows_links()).ok()?
    });
    found.is_some_and(|metadata| {
        metadata.kind != EntryKind::Directory && engine.filter.admits(below, &metadata)
    })
}

/// Whether regular files of a directory need neither a rule nor a check of the destination.
pub(crate) fn takes_files_at_sight(engine: &Engine, level: &DirectoryPair) -> bool {
    let nothing_there = level.target.as_ref().is_some_and(|target| target.fresh);
    (nothing_there || engine.spec.verb == Verb::Sum)
        && level.base.is_none()
        && level.root.range.is_none()
        && !engine.spec.policy.dry_run
        && asks_nothing_of_names(engine, level)
}

/// Whether name and type are enough to open a regular file.
pub(crate) fn asks_nothing_of_names(engine: &Engine, level: &DirectoryPair) -> bool {
    level.root.is_directory
        && engine.filter.admits_all()
        && !engine.spec.follows_links()
        && engine.places.meetings.is_empty()
}
