//! Both ends of all roots as this host sees them: every mover must see the same as its coordinator.
use dmover_local::mounts::{MountTable, UNSEEN};
use dmover_local::root_side::RootSide;
use dmover_model::{Answer, CoordinatorRequest, EntryError, Fatal, RootMarks, SideMark};
use dmover_schedule::thread;
use std::time::Duration;

use crate::context::Engine;

/// The two sides check a root one after the other, and another program may create it in between: how often to check
/// again, and at what interval.
const LOOKS: u32 = 4;
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The hint if a coordinator cannot answer a question of a mover.
pub(crate) const AGAIN: &str = "the mover tries again";

/// An error with its path.
pub(crate) fn named(error: &EntryError) -> String {
    format!("'{}': {error}", error.path.to_path().display())
}

pub(crate) fn check_side(
    mounts: &MountTable,
    side: &RootSide,
    (known, follow): (&SideMark, bool),
) -> Result<(), Fatal> {
    let found = side
        .mark(mounts, follow)
        .map_err(|error| Fatal::refused(named(&error), "check that it is mounted on this host"))?;
    // Above a mount point each host has a directory of its own.
    let (here, there) = match (found.entry, known.entry) {
        (Some(here), Some(there)) => (here, there),
        (None, None) => (found.above, known.above),
        (Some(here), None) => (here, known.above),
        (None, Some(there)) => (found.above, there),
    };
    if here == there && found.entry.is_some() == known.entry.is_some() {
        return Ok(());
    }
    let shown = side.display().to_path();
    let what = if here.mount == UNSEEN || here.mount != there.mount {
        "is on another file system here than on the coordinator's host"
    } else {
        "is another directory here than on the coordinator's host"
    };
    let hint = "mount the same file system at the same path, or do not run movers on this host";
    Err(Fatal::refused(format!("'{}' {what}", shown.display()), hint))
}

/// Repeats a step that must have the same result on two hosts, until it does.
pub(crate) fn insist_on<T>(mut look: impl FnMut() -> Result<T, Fatal>) -> Result<T, Fatal> {
    for _ in 1..LOOKS {
        match look() {
            Err(Fatal::Refused { .. }) => thread::sleep(LOOK_AGAIN),
            result => return result,
        }
    }
    look()
}

/// Refuses to continue if a root differs from that of the coordinator because of a new mount.
pub(crate) fn check_roots_again(engine: &Engine) -> Result<(), Fatal> {
    insist_on(|| {
        let Some(Answer::Roots(Ok(known))) =
            engine.reports.coordinator.ask(|| CoordinatorRequest::Roots)
        else {
            return Err(Fatal::unavailable("the coordinator does not answer", AGAIN));
        };
        for (id, known) in engine.places.roots.ids().zip(&known) {
            let Ok(root) = engine.root(id) else { continue };
            if let Some(source) = root.source.here() {
                check_side(&engine.end.mounts, source, (&known.0, false))?;
            }
            if let (Some(side), Some(known)) = (root.destination.as_ref(), known.1.as_ref()) {
                check_side(&engine.end.mounts, side, (known, true))?;
            }
        }
        Ok(())
    })
}

/// The present identities of both ends of all roots.
pub(crate) fn marks(engine: &Engine) -> Result<RootMarks, EntryError> {
    let mark = |id| {
        let root = engine.root(id)?;
        let there = root.destination.as_ref().map(|side| side.mark(&engine.end.mounts, true));
        Ok((root.source.mark(&engine.end.mounts, false)?, there.transpose()?))
    };
    engine.places.roots.ids().map(mark).collect()
}
