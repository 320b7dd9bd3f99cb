//! The catalog of a run: who keeps one, and who does not.
use dmover_model::{FollowLinks, JobId, Verb};
use dmover_sys::stat;

use super::{Job, JobList};
use crate::catalog::{Catalog, Survey};
use crate::error::Fatal;
use crate::root::Resolved;
use crate::sync::object_of;

/// Begins the survey of a pass over one whole tree. What is named in lists, or found through links, has no place of its
/// own that could be renamed.
pub(super) fn survey(
    job: &Job,
    id: &JobId,
    resolved: &Resolved,
    is_resumed: bool,
) -> Result<Option<Survey>, Fatal> {
    let sync = job.spec.policy.sync.as_ref().filter(|_| job.spec.verb == Verb::Sync);
    let (Some(sync), Some(state)) = (sync, &job.state) else { return Ok(None) };
    if job.spec.policy.dry_run {
        return Ok(None);
    }
    let directory = state.of_job(id);
    let whole = matches!(job.list, JobList::None);
    let plain = job.spec.selection.follow != FollowLinks::Always;
    let root = resolved.roots.first().filter(|root| root.is_directory && sync.renames);
    let Some(root) = root.filter(|_| whole && plain) else {
        Catalog::leave_behind(&directory, id)?;
        return Ok(None);
    };
    let Ok(top) = stat::stat_born_at(&root.source.parent, b"") else { return Ok(None) };
    let catalog = Catalog::open(&directory, id)?;
    Survey::begin(catalog, &job.spill_directory, object_of(&top), is_resumed).map(Some)
}
