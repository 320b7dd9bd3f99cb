//! Scans only paths that a change feed has reported.
use dmover_local::end::LocalEnd;
use dmover_local::error::{cancelled, no_name};
use dmover_model::{
    ChangedPlace, EntryError, EntryKind, Metadata, Name, NewTask, Parent, RootId, ScanNames,
    TaskKind, TreePath,
};
use dmover_observe::{Activity, activity};
use dmover_plan::temporary::is_temporary;

use crate::context::Engine;
use crate::directory;
use crate::directory_pair::DirectoryPair;
use crate::extra;
use crate::mover::Mover;
use crate::scan;

/// How far a path leads.
enum Way {
    /// The directory is the last of the stack.
    There,
    /// A directory on the way does not exist at the source.
    Missing,
    /// A directory on the way is not part of the job.
    LeftOut,
    /// A directory on the way does not exist at the destination, or is no directory any more: it must be scanned
    /// completely.
    Unmade(Name),
}

/// Copies the entries at the reported paths, and deletes those that no longer exist.
pub(crate) fn scan_changed(mover: &mut Mover<'_>, root: RootId, places: Vec<ChangedPlace>) {
    let top = match scan::open_root(mover, root) {
        Ok(top) => top,
        Err(error) => return mover.engine.error(error),
    };
    let mut stack = vec![top];
    let mut names = Vec::new();
    if mover.engine.pass.following.is_some() && mover.lease.task.lost_leases().next().is_some() {
        // The reports of the last holder are dropped, and it may already have taken some of these names here.
        mover.engine.pass.look_again("a mover lost its lease");
    }
    for place in places {
        if mover.engine.control.is_stopping() {
            let path = mover.engine.destination_path(root, &place.path, b"");
            mover.engine.error(cancelled(path));
            continue;
        }
        if let Err(error) = changed_place(mover, &mut stack, &mut names, place) {
            mover.engine.error(error);
        }
        mover.lease.extend();
    }
    take_changed(mover, &mut stack, &mut names);
    if !mover.lease.holds()
        && let Some(following) = &mover.engine.pass.following
    {
        // The next holder of these paths finds that they were taken.
        following.look_at_all("a mover lost its lease");
    }
}

fn changed_place(
    mover: &mut Mover<'_>,
    stack: &mut Vec<DirectoryPair>,
    names: &mut Vec<Name>,
    place: ChangedPlace,
) -> Result<(), EntryError> {
    let ChangedPlace { path, what } = place;
    let Some((directory, name)) = path.split_last() else {
        mover.report.outcome.dirty.push(stack[0].reference());
        return Ok(());
    };
    if stack[stack.len() - 1].path != directory {
        take_changed(mover, stack, names);
    }
    match go_down(mover, stack, &directory)? {
        Way::There => {
            let name = Name::new(name).map_err(|_| no_name_in(stack, name))?;
            changed_name(mover, stack, names, name, what.arrived)
        }
        Way::Unmade(name) => changed_name(mover, stack, names, name, true),
        // It was removed or renamed: the feed reports its old and its new name, and everything below it is scanned
        // there.
        Way::Missing | Way::LeftOut => Ok(()),
    }
}

fn no_name_in(stack: &[DirectoryPair], name: &[u8]) -> EntryError {
    no_name(stack[stack.len() - 1].source_path(name))
}

/// Makes `directory` the last of the stack, as far as both sides have it.
fn go_down(
    mover: &mut Mover<'_>,
    stack: &mut Vec<DirectoryPair>,
    directory: &TreePath,
) -> Result<Way, EntryError> {
    let is_above = |upper: &TreePath| {
        let rest = directory.as_bytes().strip_prefix(upper.as_bytes());
        rest.is_some_and(|rest| upper.is_root() || rest.is_empty() || rest[0] == b'/')
    };
    while stack.len() > 1 && !is_above(&stack[stack.len() - 1].path) {
        stack.pop();
    }
    let known = stack[stack.len() - 1].path.depth();
    for component in directory.components().skip(known) {
        let level = &stack[stack.len() - 1];
        let Some(found) = look_for(&mover.engine.end, level, component)? else {
            return Ok(Way::Missing);
        };
        if !is_followed(mover.engine, level, component, &found) {
            return Ok(Way::LeftOut);
        }
        let name = || Name::new(component).map_err(|_| no_name_in(stack, component));
        if found.kind != EntryKind::Directory || !is_directory_there(mover, level, component)? {
            return Ok(Way::Unmade(name()?));
        }
        let level = directory::enter(mover, level, component)?;
        stack.push(level);
    }
    Ok(Way::There)
}

fn look_for(
    end: &LocalEnd,
    level: &DirectoryPair,
    name: &[u8],
) -> Result<Option<Metadata>, EntryError> {
    activity::at(Activity::SourceNames);
    end.present(&level.source, name)
}

/// Whether rules and file system limits include a directory.
fn is_followed(engine: &Engine, level: &DirectoryPair, name: &[u8], found: &Metadata) -> bool {
    let here = level.source.metadata.identity.mount;
    let elsewhere = here != level.root.mount && engine.spec.selection.one_file_system;
    let path = level.path.join(name);
    !elsewhere && engine.filter.admits(path.as_bytes(), found)
}

fn is_directory_there(
    mover: &Mover<'_>,
    level: &DirectoryPair,
    name: &[u8],
) -> Result<bool, EntryError> {
    let Some(target) = &level.target else { return Ok(false) };
    let found = mover.session.local.existing(target, name, false)?;
    Ok(found.is_some_and(|(found, _)| found.kind == EntryKind::Directory))
}

fn changed_name(
    mover: &mut Mover<'_>,
    stack: &[DirectoryPair],
    names: &mut Vec<Name>,
    name: Name,
    arrived: bool,
) -> Result<(), EntryError> {
    let level = &stack[stack.len() - 1];
    let path = level.path.join(name.as_bytes());
    let taken =
        mover.engine.pass.following.as_ref().is_some_and(|following| !following.takes(&path));
    if taken || is_temporary(name.as_bytes()) {
        return Ok(());
    }
    let Some(found) = look_for(&mover.engine.end, level, name.as_bytes())? else {
        mover.report.outcome.dirty.push(level.reference());
        extra::delete::gone_name(mover, level, &name);
        return Ok(());
    };
    if !is_followed(mover.engine, level, name.as_bytes(), &found) {
        return Ok(());
    }
    if found.kind != EntryKind::Directory {
        names.push(name);
        return Ok(());
    }
    if arrived {
        // Its times are those of the change.
        mover.report.outcome.dirty.push(level.reference());
    } else if is_directory_there(mover, level, name.as_bytes())? {
        let level = directory::enter(mover, level, name.as_bytes())?;
        mover.report.outcome.dirty.push(level.reference());
        return Ok(());
    }
    // Also what was renamed at the destination: something in it may have been on its way there, and failed.
    let (directory, names) = (level.reference(), ScanNames::Directories(vec![name]));
    let kind = TaskKind::Scan { directory, names };
    mover.report.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
    Ok(())
}

/// Copies the names of the last directory of the stack.
fn take_changed(mover: &mut Mover<'_>, stack: &mut Vec<DirectoryPair>, names: &mut Vec<Name>) {
    if names.is_empty() {
        return;
    }
    let Some(level) = stack.pop() else { return };
    mover.report.outcome.dirty.push(level.reference());
    stack.extend(scan::take_listed(mover, level, std::mem::take(names)));
}
