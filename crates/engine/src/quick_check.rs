//! The quick check of a file that is up to date, with one stat on each side: most entries of most passes need nothing
//! more, and no memory.
use dmover_local::look::{BothSides, look_at_both};
use dmover_model::Overwrite;
use dmover_observe::{Counter, activity};
use dmover_plan::history::is_racy;
use dmover_plan::temporary::is_temporary;

use crate::alike;
use crate::context::Engine;
use crate::directory_pair::{DirectoryPair, TargetDirectory};
use crate::extra;
use crate::mover::Mover;
use crate::plan_names;
use crate::queue::Class;
use crate::storage;

/// After this many files the mover checks its budget and whether other movers wait.
const PAUSE_EVERY: u64 = 64;

/// Files of one directory that were skipped.
#[derive(Debug, Default)]
pub(crate) struct QuickCheck {
    files: u64,
    bytes: u64,
    /// Another mover waits, or the budget is used: further names are processed in the normal way.
    over: bool,
}

/// Whether two stats are enough for a file without a visible difference.
fn allows_quick_check(engine: &Engine, level: &DirectoryPair) -> bool {
    let policy = &engine.spec.policy;
    let closely = policy.sync.as_ref().is_some_and(|sync| sync.checksum);
    engine.spec.verb.fills()
        && level.target.as_ref().is_some_and(|target| !target.fresh && !target.folds_case)
        && plan_names::asks_nothing_of_names(engine, level)
        && level.root.range.is_none()
        && policy.overwrite == Overwrite::Changed
        && policy.digest.is_none()
        && !closely
        && engine.proof.recorder.is_none()
        && engine.settable.ids.is_identity()
        && engine.spec.limits.operations_per_s.is_none()
        && !engine.reports.wants_items()
}

/// A quick check for the files of a directory, if it is possible there.
pub(crate) fn quick_check(mover: &Mover<'_>, level: &DirectoryPair) -> Option<QuickCheck> {
    let resumed = mover.lease.task.resumed;
    (!resumed && allows_quick_check(mover.engine, level)).then(QuickCheck::default)
}

/// Whether a regular file is up to date. If in doubt it is not, and the normal way decides.
pub(crate) fn is_left_alone(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    name: &[u8],
    quick_check: &mut QuickCheck,
) -> bool {
    let Some(target) = level.target.as_ref().filter(|_| !quick_check.over) else {
        return false;
    };
    if quick_check.files % PAUSE_EVERY == PAUSE_EVERY - 1 {
        mover.lease.extend();
        quick_check.over = mover.queue.is_hungry(Class::Small)
            || mover.budget_is_spent()
            || mover.engine.control.is_stopping();
    }
    let Some(both) = look_at_both(&level.source, target, name) else { return false };
    if is_temporary(name)
        || mover.engine.doubts.has(&level.path, name)
        || mover.engine.doubts.was_renamed(&level.path, name)
        || !is_plainly_equal(mover.engine, level, target, &both)
        || storage::is_suspect(mover.engine, level, name, both.old_change())
    {
        return false;
    }
    quick_check.files += 1;
    quick_check.bytes += both.size();
    mover.spent.entries += 1;
    activity::did(activity::ENTRY_WORK);
    true
}

fn is_plainly_equal(
    engine: &Engine,
    level: &DirectoryPair,
    target: &TargetDirectory,
    both: &BothSides,
) -> bool {
    // What has several names in a snapshot that is being made is looked up.
    let alone = engine.pass.sharing.is_none() || both.old_links() == 1;
    let alike = alone && both.are_alike(target.facts.granularity_ns());
    if !alike || engine.spec.policy.sync.is_none() {
        return alike;
    }
    let (new, old) = both.metadata(&engine.end.mounts);
    !alike::is_touched(engine, level, &new, &old)
        && !engine.facts.history.is_foreign(level.clocks(), &old)
        && !is_racy(&new, &old)
}

/// Counts the skipped files.
pub(crate) fn end_quick_check(mover: &Mover<'_>, quick_check: Option<QuickCheck>) {
    let Some(QuickCheck { files, bytes, .. }) =
        quick_check.filter(|quick_check| quick_check.files > 0)
    else {
        return;
    };
    for (counter, amount) in [
        (Counter::EntriesFound, files),
        (Counter::BytesFound, bytes),
        (Counter::EntriesSkipped, files),
        (Counter::BytesSkipped, bytes),
    ] {
        mover.engine.reports.add(counter, amount);
    }
    extra::note_had(mover, files);
}
