//! The catalog of a run: who keeps one, and who does not.
use dmover_model::{FollowLinks, JobId, Verb};
use dmover_sys::stat;

use super::{Job, JobList};
use crate::catalog::{Catalog, Survey};
use crate::error::Fatal;
use crate::root::Resolved;
use crate::sync::{Doubts, object_of};

/// Begins the survey of a pass over one whole tree. What is named in lists, or found through links, has no place of its
/// own that could be renamed. Answers also what an earlier pass has left in doubt.
pub(super) fn survey(
    job: &Job,
    id: &JobId,
    resolved: &Resolved,
    is_resumed: bool,
) -> Result<(Option<Survey>, Doubts), Fatal> {
    let sync = job.spec.policy.sync.as_ref().filter(|_| job.spec.verb == Verb::Sync);
    let (Some(sync), Some(state)) = (sync, &job.state) else {
        return Ok(Default::default());
    };
    if job.spec.policy.dry_run {
        return Ok(Default::default());
    }
    let directory = state.of_job(id);
    let whole = matches!(job.list, JobList::None);
    let plain = job.spec.selection.follow != FollowLinks::Always;
    let root = resolved.roots.first().filter(|root| root.is_directory && sync.renames);
    let Some(root) = root.filter(|_| whole && plain) else {
        return Ok((None, Catalog::leave_behind(&directory, id, whole)?));
    };
    let Ok(top) = stat::stat_born_at(&root.source.parent, b"") else {
        return Ok((None, Catalog::leave_behind(&directory, id, true)?));
    };
    let mut catalog = Catalog::open(&directory, id)?;
    let doubts = catalog.doubts()?;
    let top = object_of(&top);
    let survey = Survey::begin(catalog, &job.spill_directory, top, is_resumed)?;
    Ok((Some(survey), doubts))
}
