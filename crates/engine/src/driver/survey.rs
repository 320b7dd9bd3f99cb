//! The catalog of a run: which jobs keep one.
use dmover_journal::{Catalog, Only, Scope, Survey};
use dmover_local::root::Resolved;
use dmover_local::root_side::RootSide;
use dmover_local::source_root::SourceRoot;
use dmover_model::{
    ChangedPlace, EntryError, ErrorClass, Fatal, FollowLinks, JobId, Object, RecheckSet, TreePath,
    Verb,
};
use std::collections::BTreeSet;
use std::fmt::Display;

use super::{Job, JobList};

/// Starts the survey of a pass over one whole tree. Entries from lists, or behind followed links, have no place of
/// their own that could be renamed. Also returns the doubts of earlier passes.
pub(super) fn survey(
    job: &Job,
    id: &JobId,
    resolved: &Resolved,
    is_resumed: bool,
) -> Result<(Option<Survey>, RecheckSet), Fatal> {
    let sync = job.spec.policy.sync.as_ref().filter(|_| job.spec.verb == Verb::Sync);
    let (Some(sync), Some(state)) = (sync, &job.files.state) else {
        return Ok(Default::default());
    };
    if job.spec.policy.dry_run {
        return Ok(Default::default());
    }
    let directory = state.of_job(id);
    let whole = matches!(job.list, JobList::None);
    let plain =
        !matches!(job.spec.selection.follow, FollowLinks::Always | FollowLinks::AlwaysLinked);
    let root = resolved.roots.first().filter(|root| root.is_directory && sync.renames);
    let changed = if let JobList::Changed(places) = &job.list { Some(places) } else { None };
    let root = root.filter(|_| (whole || changed.is_some()) && plain);
    // Without the top the catalog would be lost, and with it what was renamed since the last pass.
    let top = root.map(|root| top_of(&root.source)).transpose()?.flatten();
    let (Some(root), Some(top)) = (root, top) else {
        return Ok((None, Catalog::leave_behind(&directory, id, whole)?));
    };
    let mut catalog = Catalog::open(&directory, id)?;
    let doubts = catalog.doubts()?;
    let scope = match changed {
        Some(places) => Scope::Only(Only {
            // Only trees of this host are watched.
            directories: root.source.here().map_or_else(Vec::new, |side| renamed_in(side, places)),
            names: places.iter().map(|place| place.path.clone()).collect(),
        }),
        None if is_resumed => Scope::Resumed,
        None => Scope::All,
    };
    let survey = Survey::begin(catalog, &job.process.spill_directory, top, scope)?;
    let is_far = root.source.remote().is_some();
    Ok((Some(survey.of_far_source(is_far)), doubts))
}

/// The object that is the directory of a root; `None`: renames cannot be followed there.
fn top_of(root: &SourceRoot) -> Result<Option<Object>, Fatal> {
    let path = root.path_here().to_path();
    let inaccessible = |reason: &dyn Display| {
        let message = format!("cannot access '{}': {reason}", path.display());
        Fatal::refused(message, "check the source, then run the same command again")
    };
    if let SourceRoot::Here(side) = root {
        return side.top_object().map(Some).map_err(|reason| inaccessible(&reason));
    }
    let Some(catalog) = root.remote().and_then(|tree| tree.catalog()) else { return Ok(None) };
    let looked = match catalog.objects(&[TreePath::root()]) {
        // An older version of the program.
        Err(error) if error.class == ErrorClass::Unsupported => return Ok(None),
        looked => looked.and_then(|mut looked| looked.pop().transpose()),
    };
    let lost = |error: EntryError| {
        let lost = root.remote().and_then(|tree| tree.lost());
        lost.unwrap_or_else(|| inaccessible(&error.detail))
    };
    let top = looked.map_err(lost)?;
    Ok(top.map(|(_, top)| top))
}

/// Source directories in which names were added or removed.
fn renamed_in(source: &RootSide, places: &[ChangedPlace]) -> Vec<(u64, TreePath)> {
    let moved = places.iter().filter(|place| place.what.moved);
    let directories: BTreeSet<TreePath> =
        moved.filter_map(|place| Some(place.path.split_last()?.0)).collect();
    // What is not there any more has nothing that could be followed.
    let known = |path| Some((source.directory_inode(&path)?, path));
    directories.into_iter().filter_map(known).collect()
}
