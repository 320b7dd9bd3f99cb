//! How movers report what they find for the catalog.
use dmover_local::object::says_nothing;
use dmover_model::{EntryError, Revisit, Surveyed};

use crate::context::Engine;
use crate::mover::Mover;

/// How many names are reported or recorded at once.
pub(super) const NAMES_MAX: usize = 4096;

/// Reports a finding.
pub(crate) fn tell(mover: &mut Mover<'_>, surveyed: Surveyed) {
    let many = match &surveyed {
        Surveyed::Listed { names, .. } => names.len() >= NAMES_MAX,
        Surveyed::Recorded(segment) => segment.entries.len() >= NAMES_MAX,
        _ => false,
    };
    mover.report.outcome.survey.push(surveyed);
    if many {
        mover.report.flush();
    }
}

/// Reports a directory whose names could not be compared with those of the catalog. Names that were exchanged in it
/// would be found by nothing else, so the pass has failed.
pub(super) fn tell_not_revisited(engine: &Engine, revisit: &Revisit, error: EntryError) {
    // What may not be read fails in the scan, which reports it.
    if !says_nothing(&error) {
        return engine.error(error);
    }
    let error = error.to_string();
    tracing::debug!(error, path = ?revisit.path, "cannot check a directory for renames");
}
