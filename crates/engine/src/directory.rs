//! Directories: created closed, filled, and given their metadata when nothing is left below them.
use dmover_local::entry_attributes;
use dmover_local::error::{EPERM, is_locked_out};
use dmover_local::finish::Finish;
use dmover_local::make_directory::{Arrival, NewDirectory};
use dmover_model::JobSpec;
use dmover_model::{
    Action, Attribute, DirectoryRef, EntryError, EntryKind, ErrorClass, Event, Identity, Item,
    Metadata, Operation, Side, Verb,
};
use dmover_observe::{Activity, Counter, activity};
use dmover_plan::equality::same_time;
use dmover_plan::itemize;
use dmover_plan::temporary::is_temporary;

use crate::alike;
use crate::case;
use crate::catalog_survey;
use crate::checked_tree;
use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair, SourceDirectory, TargetDirectory};
use crate::extra;
use crate::manifest_records;
use crate::mover::Mover;
use crate::narrow;
use crate::project;

/// Opens or creates the destination directory; `None` in a dry run if it does not exist.
pub(crate) fn make_target(
    mover: &mut Mover<'_>,
    new: &NewDirectory<'_>,
    source: &Metadata,
) -> Result<Option<TargetDirectory>, EntryError> {
    let engine = mover.engine;
    // A file server may make it and lose the answer: then the next attempt finds it.
    let mut tried = false;
    engine.insist(|| {
        let mut made = try_to_make(mover, new, source, &mut tried)?;
        if let Some(target) = &mut made {
            target.made |= tried;
        }
        Ok(made)
    })
}

fn try_to_make(
    mover: &mut Mover<'_>,
    new: &NewDirectory<'_>,
    source: &Metadata,
    tried: &mut bool,
) -> Result<Option<TargetDirectory>, EntryError> {
    let engine = mover.engine;
    let NewDirectory { inherits_acl, place, .. } = new;
    match engine.local().arrive(new)? {
        Arrival::Entered(found) => {
            let mut target = directory_pair::accept(engine, found)?;
            target.opened_up = engine.local().open_up(&target)?;
            remove_leftovers(mover, &target, Some(source))?;
            return Ok(Some(target));
        }
        Arrival::Missing => {}
        Arrival::Blocked if engine.spec.verb == Verb::Sync => {
            if engine.spec.policy.dry_run {
                count_missing_directory(engine);
                return Ok(None);
            }
            mover.session.make_way(new)?;
            engine.reports.count(Counter::EntriesReplaced);
        }
        Arrival::Blocked => {
            let words = "the destination entry is not a directory";
            let (side, class) = (Side::Destination, ErrorClass::TypeConflict);
            let operation = Operation::MakeDirectory;
            return Err(EntryError::plain(side, operation, class, place.own(), words));
        }
    }
    if engine.spec.policy.dry_run {
        count_missing_directory(engine);
        return Ok(None);
    }
    let mut target =
        directory_pair::accept(engine, mover.session.make_directory(new, source, tried)?)?;
    if !target.fresh {
        return Ok(Some(target));
    }
    let by_record = engine.dresses_by_record();
    if !by_record {
        target.default_acl = *inherits_acl;
    }
    mover.session.check_made(&target)?;
    engine.reports.count(Counter::DirectoriesCreated);
    if !by_record {
        mover.session.prepare_directory(&mut target)?;
    }
    Ok(Some(target))
}

/// Removes leftovers of an interrupted run of this job in a directory that existed before.
///
/// `source`: the directory that this one is a copy of, if any; flags that such a copy has may be cleared.
pub(crate) fn remove_leftovers(
    mover: &mut Mover<'_>,
    target: &TargetDirectory,
    source: Option<&Metadata>,
) -> Result<(), EntryError> {
    let engine = mover.engine;
    let identity = target.metadata.identity;
    let searched =
        *mover.thread.cleaned == Some(identity) && mover.lease.task.lost_leases().next().is_none();
    if engine.spec.policy.dry_run || searched {
        return Ok(());
    }
    let clears_locks = source.is_some_and(Metadata::is_locked);
    let has_removed = mover.with_buffer(|mover, buffer| {
        let is_leftover = |name: &[u8]| {
            // No other job works on a tree that becomes a snapshot.
            let foreign = engine.pass.sharing.is_some() && engine.temporaries.is_foreign(name);
            is_temporary(name) && (mover.is_leftover(name) || foreign)
        };
        let tell = |error| engine.error(error);
        mover.session.remove_leftovers(target, clears_locks, buffer, is_leftover, tell)
    })?;
    *mover.thread.cleaned = Some(identity);
    if has_removed && engine.spec.verb == Verb::Verify {
        // Nothing else may set the times of this directory: it was not repaired.
        target.set_times(target.metadata.atime, target.metadata.mtime)?;
    }
    Ok(())
}

/// Sets the final metadata of directories in the given order.
pub(crate) fn run_finish(mover: &mut Mover<'_>, directories: &[DirectoryRef]) {
    for directory in directories {
        if mover.engine.control.is_over() {
            return;
        }
        let result = if mover.engine.restores_times() {
            checked_tree::restore_times(mover.engine, directory)
        } else {
            let level = directory_pair::open_level(mover.engine, directory);
            level.and_then(|level| finish_directory(mover, &level))
        };
        if let Err(error) = result {
            mover.engine.error(error);
        }
        mover.lease.extend();
    }
}

/// Sets the final metadata of a directory: everything below it is done.
pub(crate) fn finish_directory(mover: &Mover<'_>, level: &DirectoryPair) -> Result<(), EntryError> {
    let finished = mover.engine.insist(|| match try_to_finish(mover, level) {
        // An earlier run has locked it; what it is to have in the end is set again after everything else.
        Err(error) if error.errno == EPERM && unlock_directory(mover.engine, level) => {
            try_to_finish(mover, level)
        }
        finished => finished,
    });
    if finished.is_ok() {
        mover.engine.doubts.settle(true, || level.path.clone());
    }
    finished
}

fn unlock_directory(engine: &Engine, level: &DirectoryPair) -> bool {
    level.target.as_ref().is_some_and(|target| engine.local().clear_locks(target))
}

fn try_to_finish(mover: &Mover<'_>, level: &DirectoryPair) -> Result<(), EntryError> {
    let engine = mover.engine;
    let Some(target) = &level.target else { return Ok(()) };
    if !level.root.is_directory || engine.spec.clears_all() {
        return Ok(());
    }
    activity::at(Activity::TargetNames);
    if engine.spec.policy.dry_run {
        return preview_finish(mover.engine, level, target);
    }
    let (local, source) = (engine.local(), &level.source);
    let now = &local.now(target)?;
    if engine.spec.verb == Verb::Sync && is_finished(mover.engine, level, target, now) {
        alike::count_other_owner(mover.engine, &source.metadata, now);
        return Ok(());
    }
    mover.check_lease(level, b"")?;
    let project = project::project_of(engine, level, EntryKind::Directory);
    // A copy only adds, as cp does.
    let removes_foreign = !target.made && engine.spec.verb != Verb::Copy;
    if local.finish(source, target, Finish { now, project, removes_foreign })? {
        engine.reports.count(Counter::DirectoriesUpdated);
    }
    Ok(())
}

/// In a dry run, reports whether finishing an existing directory would set anything.
fn preview_finish(
    engine: &Engine,
    level: &DirectoryPair,
    target: &TargetDirectory,
) -> Result<(), EntryError> {
    let now = &target.metadata;
    if !engine.spec.verb.fills() || target.made {
        return Ok(());
    }
    let source = &level.source.metadata;
    alike::count_other_owner(engine, source, now);
    if is_finished(engine, level, target, now) {
        return Ok(());
    }
    let locks = !engine.settable.has_locks(source, now);
    let seen = alike::is_unlike(&engine.settable, source, now)
        || !has_times(&engine.spec, level, target, now)
        || (locks && engine.spec.policy.preserve.has(Attribute::Flags));
    let differs = seen || {
        let attributes =
            entry_attributes::attributes_of_directories(&engine.local(), &level.source, target)?;
        let kind = EntryKind::Directory;
        !alike::attribute_differences(engine, level, kind, &attributes)?.kinds.is_empty()
    };
    if differs {
        engine.reports.count(Counter::DirectoriesUpdated);
        list_updated(engine, level, now);
    }
    Ok(())
}

/// Whether a directory has the times of its source, if times are kept.
fn has_times(
    spec: &JobSpec,
    level: &DirectoryPair,
    target: &TargetDirectory,
    now: &Metadata,
) -> bool {
    let step = target.facts.granularity_ns();
    same_time(level.source.metadata.mtime, now.mtime, step)
        || !spec.policy.preserve.has(Attribute::Times)
}

/// Lists a directory whose attributes would be set. One that differs in mode or owner was listed when it was
/// entered. One that differs only in its time is not listed: usually names in it have changed, and they are listed.
fn list_updated(engine: &Engine, level: &DirectoryPair, now: &Metadata) {
    let source = &level.source.metadata;
    let is_listed = alike::is_unlike(&engine.settable, source, now);
    let only_time = now.mtime != source.mtime;
    if is_listed || only_time || !engine.reports.wants_items() {
        return;
    }
    engine.reports.show(Event::Item(Item {
        path: level.own_source_path(),
        target: level.own_target_path(),
        action: Action::MetadataUpdated,
        kind: EntryKind::Directory,
        bytes: 0,
        elapsed_us: 0,
        itemized: itemize::columns(
            Action::MetadataUpdated,
            &engine.settable.as_settable(source, Some(now)),
            Some(now),
        ),
    }));
}

/// Whether a directory has all metadata of its source, as far as it shows: nothing has changed since.
fn is_finished(
    engine: &Engine,
    level: &DirectoryPair,
    target: &TargetDirectory,
    now: &Metadata,
) -> bool {
    let source = &level.source.metadata;
    let times = has_times(&engine.spec, level, target, now);
    let filled = !target.made && !target.opened_up;
    filled
        && times
        && engine.settable.has_locks(source, now)
        && !alike::is_touched(engine, level, source, now)
        && !engine.facts.history.is_foreign(level.clocks(), now)
        && !engine.doubts.was_renamed_itself(&level.path)
        && !alike::is_unlike(&engine.settable, source, now)
}

/// On a destination that ignores case, refuses a name that another entry has in another case.
fn refuse_other_case(
    mover: &Mover<'_>,
    level: &DirectoryPair,
    name: &[u8],
) -> Result<(), EntryError> {
    let Some(target) = level.target.as_ref().filter(|target| target.folds_case) else {
        return Ok(());
    };
    if target.kind_of(name).is_none() || mover.session.is_exact(target, name) {
        return Ok(());
    }
    let words = "an entry whose name differs only in case exists here";
    let (side, class) = (Side::Destination, ErrorClass::NameClash);
    let path = level.target_path(name);
    Err(EntryError::plain(side, Operation::MakeDirectory, class, path, words))
}

/// Refuses to replace an entry that is excluded by a rule with a directory of the same name that is not.
fn refuse_to_replace_excluded(
    engine: &Engine,
    level: &DirectoryPair,
    name: &[u8],
) -> Result<(), EntryError> {
    let Some(target) = level.target.as_ref().filter(|_| engine.spec.verb == Verb::Sync) else {
        return Ok(());
    };
    let excludes = || !engine.filter.admits_name(level.path.join(name).as_bytes(), false);
    if !engine.filter.has_rules() || !excludes() {
        return Ok(());
    }
    if target.kind_of(name).is_some_and(|kind| kind != EntryKind::Directory) {
        let words = "a rule excludes the destination entry, which is not a directory";
        let (side, class) = (Side::Destination, ErrorClass::TypeConflict);
        let (operation, path) = (Operation::MakeDirectory, level.target_path(name));
        return Err(EntryError::plain(side, operation, class, path, words));
    }
    Ok(())
}

/// Opens a source directory below `level` and its destination directory.
pub(crate) fn enter(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    name: &[u8],
) -> Result<DirectoryPair, EntryError> {
    let engine = mover.engine;
    let shown = || level.source_path(name);
    let source = engine.insist(|| enter_source(mover.engine, level, name))?;
    engine.reports.count(Counter::EntriesFound);
    activity::did(activity::ENTRY_WORK);
    mover.spent.entries += 1;
    let ancestors = cycle_free(engine, level, name, &source)?;
    // What has the name in another case must not make way.
    case::settle_case(mover, level, name)?;
    refuse_other_case(mover, level, name)?;
    refuse_to_replace_excluded(mover.engine, level, name)?;
    let target = match &level.target {
        None => {
            count_missing_directory(engine);
            None
        }
        Some(above) => {
            let new = above.new_directory(name);
            let mut make = || make_target(mover, &new, &source.metadata);
            match make() {
                Err(error)
                    if is_locked_out(error.errno)
                        && directory_pair::lift_directory(engine, level) =>
                {
                    make()?
                }
                made => made?,
            }
        }
    };
    if target.as_ref().is_some_and(|made| !made.fresh) {
        refuse_other_case(mover, level, name)?;
    }
    if target.as_ref().is_some_and(|target| !target.made) {
        extra::note_had(mover, 1);
    }
    if target.is_none() && level.root.destination.is_some() && !engine.spec.policy.dry_run {
        let words = "its parent directory is missing at the destination";
        let class = ErrorClass::Other;
        let side = Side::Destination;
        return Err(EntryError::plain(side, Operation::Open, class, shown(), words));
    }
    let path = level.path.join(name);
    let root = std::sync::Arc::clone(&level.root);
    let (root_id, base) = (level.root_id, directory_pair::enter_base(engine, level, name));
    let mut entered = DirectoryPair { root_id, root, path, source, target, base, ancestors };
    narrow::narrow(mover.engine, &mut entered)?;
    manifest_records::keep_directory(engine, &entered);
    catalog_survey::tell_entered(mover, level, &entered);
    Ok(entered)
}

/// Creates a directory that cannot be read: it exists, without its contents.
pub(crate) fn bring_closed_directory(mover: &mut Mover<'_>, level: &DirectoryPair, name: &[u8]) {
    if let Err(error) = try_closed_directory(mover, level, name) {
        mover.engine.error(error);
    }
}

fn try_closed_directory(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    name: &[u8],
) -> Result<(), EntryError> {
    let engine = mover.engine;
    let metadata = engine.end.pinned_metadata(&level.source, name)?;
    let Some(above) = level.target.as_ref().filter(|_| metadata.kind == EntryKind::Directory)
    else {
        return Ok(());
    };
    let made = make_target(mover, &above.new_directory(name), &metadata)?;
    let Some(target) = made.filter(|_| !engine.spec.policy.dry_run) else { return Ok(()) };
    engine.local().finish_unread(&metadata, &target)
}

fn enter_source(
    engine: &Engine,
    level: &DirectoryPair,
    name: &[u8],
) -> Result<SourceDirectory, EntryError> {
    let source = engine.end.enter_source(&level.source, name, engine.spec.follows_links())?;
    let target = level.target.as_ref();
    let layered = source.facts.layered || target.is_some_and(|target| target.facts.layered);
    let inside = engine.places.forbidden.has(source.metadata.identity)
        || (layered && engine.places.forbidden.has_in_layers(&source))
        || (engine.spec.follows_links() && engine.lies_in_destination(&source));
    if inside {
        let words = "the destination is inside the source";
        let (side, class) = (Side::Source, ErrorClass::SelfCopy);
        let path = level.source_path(name);
        return Err(EntryError::plain(side, Operation::Open, class, path, words));
    }
    Ok(source)
}

/// Counts a directory that a run would create, in a dry run.
fn count_missing_directory(engine: &Engine) {
    if engine.spec.verb.fills() {
        engine.reports.count(Counter::DirectoriesCreated);
    }
}

/// The ancestors of a directory, or an error if a followed link leads back to one of them.
fn cycle_free(
    engine: &Engine,
    level: &DirectoryPair,
    name: &[u8],
    source: &SourceDirectory,
) -> Result<Vec<Identity>, EntryError> {
    if !engine.spec.follows_links() {
        return Ok(Vec::new());
    }
    let mut ancestors = level.ancestors.clone();
    ancestors.push(level.source.metadata.identity);
    if ancestors.contains(&source.metadata.identity) {
        let words = "a symbolic link leads back to one of its parent directories";
        let (side, class) = (Side::Source, ErrorClass::SelfCopy);
        let path = level.source_path(name);
        return Err(EntryError::plain(side, Operation::Open, class, path, words));
    }
    Ok(ancestors)
}
