//! Names whose case has changed, on a destination that ignores case.
use dmover_model::{EntryError, Verb};
use dmover_observe::Counter;

use crate::directory_pair::DirectoryPair;
use crate::mover::Mover;

/// Renames a destination entry to the case of the source, unless the source has an entry with the other case as
/// well. In that case two entries map to one name, and the second one is refused.
pub(crate) fn settle_case(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    name: &[u8],
) -> Result<(), EntryError> {
    let engine = mover.engine;
    let settles = engine.spec.verb == Verb::Sync && !engine.spec.policy.dry_run;
    let target = level.target.as_ref().filter(|target| settles && target.folds_case);
    let Some(target) = target else { return Ok(()) };
    let stored = mover.session.name_in_other_case(&level.source, target, name)?;
    let Some(stored) = stored else { return Ok(()) };
    mover.check_lease(level, name)?;
    mover.session.change_case(target, &stored, name)?;
    // It may have been finished already.
    mover.report.mark_dirty(&level.reference());
    engine.reports.count(Counter::EntriesRenamed);
    engine.reports.progress();
    Ok(())
}
