//! Entries from a list: paths below the source, or pairs of source and destination.
use dmover_local::error::leads_to_no_directory;
use dmover_local::root::Root;
use dmover_model::{
    DirectoryRef, EntryError, ErrorClass, Name, NewTask, Operation, Parent, PathBytes, Placement,
    RangeCopy, RootId, ScanNames, Side, TaskKind, TreePath,
};
use std::sync::Arc;

use crate::context::Engine;
use crate::directory;
use crate::directory_pair::DirectoryPair;
use crate::mover::Mover;
use crate::plan_names;
use crate::scan;

/// It was never seen, so it has not vanished: the list is wrong.
const NOT_THERE: &str = "the list names it, but it does not exist";

/// Copies paths below the root, and creates the directories above them.
pub(crate) fn scan_paths(mover: &mut Mover<'_>, root: RootId, paths: Vec<TreePath>) {
    let top = match scan::open_root(mover, root) {
        Ok(top) => top,
        Err(error) => {
            for path in paths {
                let path = listed_path(mover.engine, root, &path);
                mover.engine.error(EntryError { path, ..error.clone() });
            }
            return;
        }
    };
    mover.report.outcome.dirty.push(top.reference());
    // The directories on the way to the last path; lists come mostly in order.
    let mut stack: Vec<DirectoryPair> = vec![top];
    let mut names: Vec<Name> = Vec::new();
    for path in paths {
        let Some((directory, name)) = path.split_last() else {
            // The root itself was named: everything.
            if let Err(error) = hand_on_everything(mover, &stack[0]) {
                mover.engine.error(error);
            }
            continue;
        };
        if stack[stack.len() - 1].path != directory {
            hand_on_names(mover, &stack, &mut names);
            if let Err(mut error) = go_to(mover, &mut stack, &directory) {
                error.path = listed_path(mover.engine, root, &path);
                "cannot enter its parent directory".clone_into(&mut error.detail);
                if error.class == ErrorClass::Vanished {
                    NOT_THERE.clone_into(&mut error.detail);
                    (error.class, error.errno) = (ErrorClass::Other, 0);
                }
                if leads_to_no_directory(&error) {
                    let words =
                        "a parent in its path is a symbolic link or a file, not a directory";
                    words.clone_into(&mut error.detail);
                    (error.class, error.errno) = (ErrorClass::Other, 0);
                }
                mover.engine.error(error);
                continue;
            }
        }
        let level = &stack[stack.len() - 1];
        if level.source.lacks(name) {
            let (side, class) = (Side::Source, ErrorClass::Other);
            let path = level.source_path(name);
            let operation = Operation::Stat;
            mover.engine.error(EntryError::plain(side, operation, class, path, NOT_THERE));
        } else {
            names.extend(Name::new(name).ok());
        }
        mover.lease.extend();
    }
    hand_on_names(mover, &stack, &mut names);
}

fn listed_path(engine: &Engine, root: RootId, path: &TreePath) -> PathBytes {
    let root = engine.root(root);
    root.map_or_else(|_| PathBytes(path.as_bytes().to_vec()), |r| r.source.display().join(path))
}

/// Returns names of one directory as an ordinary scan task.
fn hand_on_names(mover: &mut Mover<'_>, stack: &[DirectoryPair], names: &mut Vec<Name>) {
    if !names.is_empty() {
        let directory = stack[stack.len() - 1].reference();
        let names = ScanNames::Listed(std::mem::take(names));
        let kind = TaskKind::Scan { directory, names };
        mover.report.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
    }
}

/// Makes `directory` the last one of the stack.
fn go_to(
    mover: &mut Mover<'_>,
    stack: &mut Vec<DirectoryPair>,
    directory: &TreePath,
) -> Result<(), EntryError> {
    while stack.len() > 1 && !is_above(&stack[stack.len() - 1].path, directory) {
        stack.pop();
    }
    let known = stack[stack.len() - 1].path.depth();
    for component in directory.components().skip(known) {
        let level = directory::enter(mover, &stack[stack.len() - 1], component)?;
        mover.report.outcome.dirty.push(level.reference());
        stack.push(level);
    }
    Ok(())
}

fn hand_on_everything(mover: &mut Mover<'_>, top: &DirectoryPair) -> Result<(), EntryError> {
    let names = mover.with_buffer(|_, buffer| top.source.names(buffer))?;
    let kind = TaskKind::Scan { directory: top.reference(), names: ScanNames::Listed(names) };
    mover.report.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
    Ok(())
}

/// Copies pairs of a batch list.
pub(crate) fn run_pairs(
    mover: &mut Mover<'_>,
    pairs: &[(PathBytes, PathBytes, Option<RangeCopy>)],
) {
    for (source, destination, range) in pairs {
        if mover.engine.control.is_stopping() {
            mover.engine.error(dmover_local::error::cancelled(destination.clone()));
            continue;
        }
        match mover.engine.resolve_pair(source, destination, range.clone()) {
            Ok((root, placement)) => {
                bring_pair(mover, source, destination, Arc::new(root), placement);
            }
            Err(error) => mover.engine.error(error),
        }
        mover.lease.extend();
    }
}

/// Copies one pair: a small file at once; anything that needs tasks of its own gets a root in the table.
fn bring_pair(
    mover: &mut Mover<'_>,
    source: &PathBytes,
    destination: &PathBytes,
    root: Arc<Root>,
    placement: Placement,
) {
    if is_simple(mover, &root) {
        if let Err(error) = scan::scan_single(mover, root, RootId(u32::MAX)) {
            mover.engine.error(error);
        }
        return;
    }
    let id = mover.engine.add_listed(source.clone(), destination.clone(), placement, &root);
    let directory = DirectoryRef::of_root(id);
    let kind = TaskKind::Scan { directory, names: ScanNames::Root };
    mover.report.outcome.tasks.push(NewTask { parent: Parent::Inherited, kind });
}

fn is_simple(mover: &Mover<'_>, root: &Root) -> bool {
    let follow = mover.engine.spec.selection.follow != dmover_model::FollowLinks::Never;
    let metadata = mover.engine.end.look_at_root(&root.source, follow);
    metadata.is_some_and(|m| {
        // Whatever makes tasks of its own needs a root that others can look up.
        m.links == 1 && !plan_names::is_worth_splitting(mover, &m)
    })
}

fn is_above(upper: &TreePath, lower: &TreePath) -> bool {
    let (upper, lower) = (upper.as_bytes(), lower.as_bytes());
    upper.is_empty()
        || lower.strip_prefix(upper).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}
