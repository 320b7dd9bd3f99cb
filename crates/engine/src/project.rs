//! Project ids of copies.
use dmover_local::attributes::Attributes;
use dmover_local::project::ProjectOf;
use dmover_model::{EntryError, EntryKind, Verb};

use crate::context::Engine;
use crate::directory_pair::DirectoryPair;

/// An entry of this level, or the level's own directory, whose project is to be determined.
pub(crate) fn project_of<'l>(
    engine: &Engine,
    level: &'l DirectoryPair,
    kind: EntryKind,
) -> ProjectOf<'l> {
    ProjectOf {
        from: &level.source,
        to: level.target.as_ref(),
        root: level.root.destination.as_ref(),
        kind,
        is_filled: engine.spec.verb == Verb::Sync && engine.facts.history.seen_before.is_some(),
    }
}

/// Determines the project id for the copy of an entry with these attributes.
pub(crate) fn settle_project(
    engine: &Engine,
    level: &DirectoryPair,
    kind: EntryKind,
    attributes: &mut Attributes,
    is_new: bool,
) -> Result<(), EntryError> {
    engine.local().settle_project(project_of(engine, level, kind), attributes, is_new)
}
