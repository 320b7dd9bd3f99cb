//! The strategies of the verbs.
use dmover_local::session::WriteError;
use dmover_local::source::Opened;
use dmover_model::{FileRef, LinkGroup, Metadata, Name, Verb};

use crate::context::Engine;
use crate::level::Level;
use crate::mover::{Mover, Strategy};
use crate::planned::{CopyResult, Planned};

/// The strategy of a verb.
pub(crate) fn strategy_of(verb: Verb) -> &'static dyn Strategy {
    match verb {
        Verb::Copy | Verb::Sync => &Filling,
        Verb::Sum => &Summing,
        Verb::Verify => &Comparing,
    }
}

/// What a repair does with entries.
pub(crate) const REPAIRS: &dyn Strategy = &Filling;

/// Makes the destination like the source: `copy`, `sync`, and repairs.
struct Filling;

/// Computes digests.
struct Summing;

/// Compares the destination with the source.
struct Comparing;

impl Strategy for Filling {
    fn entry(
        &self,
        mover: &mut Mover<'_>,
        level: &Level,
        planned: &Planned,
        opened: Option<Opened>,
    ) -> Result<CopyResult, WriteError> {
        mover.bring(level, planned, opened)
    }

    fn large_file(
        &self,
        mover: &mut Mover<'_>,
        level: &Level,
        (file, round): (&FileRef, u32),
    ) -> Result<(), WriteError> {
        mover.open_large(level, file, round)
    }

    fn is_in_parts(&self, mover: &Mover<'_>, metadata: &Metadata) -> bool {
        mover.is_worth_splitting(metadata)
    }

    fn directory(&self, mover: &mut Mover<'_>, level: &Level) {
        mover.show_directory(level);
    }

    fn links(&self, mover: &mut Mover<'_>, group: &LinkGroup) {
        if mover.engine.spec.policy.dry_run {
            mover.preview(group);
        } else {
            mover.link_group(group);
        }
    }

    fn opens_at_sight(&self, engine: &Engine, level: &Level) -> bool {
        engine.takes_files_at_sight(level)
    }

    fn file_at_sight(&self, mover: &mut Mover<'_>, level: &Level, name: Name) -> Option<Name> {
        mover.take_at_sight(level, name)
    }
}

impl Strategy for Summing {
    fn entry(
        &self,
        mover: &mut Mover<'_>,
        level: &Level,
        planned: &Planned,
        opened: Option<Opened>,
    ) -> Result<CopyResult, WriteError> {
        Ok(mover.sum_entry(level, &planned.record, opened)?)
    }

    fn large_file(
        &self,
        mover: &mut Mover<'_>,
        level: &Level,
        (file, round): (&FileRef, u32),
    ) -> Result<(), WriteError> {
        Ok(mover.open_sum(level, file, round)?)
    }

    fn is_in_parts(&self, mover: &Mover<'_>, metadata: &Metadata) -> bool {
        mover.engine.hashes_apart(metadata.size)
    }

    fn directory(&self, mover: &mut Mover<'_>, level: &Level) {
        mover.show_directory(level);
    }

    fn links(&self, _mover: &mut Mover<'_>, _group: &LinkGroup) {
        // Each name has its own line, so no group is ever collected.
    }

    fn opens_at_sight(&self, engine: &Engine, level: &Level) -> bool {
        engine.takes_files_at_sight(level)
    }

    fn file_at_sight(&self, mover: &mut Mover<'_>, level: &Level, name: Name) -> Option<Name> {
        mover.take_at_sight(level, name)
    }
}

impl Strategy for Comparing {
    fn entry(
        &self,
        mover: &mut Mover<'_>,
        level: &Level,
        planned: &Planned,
        _opened: Option<Opened>,
    ) -> Result<CopyResult, WriteError> {
        mover.verify_entry(level, planned, 1)
    }

    fn large_file(
        &self,
        mover: &mut Mover<'_>,
        level: &Level,
        (file, round): (&FileRef, u32),
    ) -> Result<(), WriteError> {
        mover.verify_again(level, &file.name, round)
    }

    fn is_in_parts(&self, _mover: &Mover<'_>, _metadata: &Metadata) -> bool {
        false // the comparison finds out
    }

    fn directory(&self, mover: &mut Mover<'_>, level: &Level) {
        if mover.engine.looks_for_unknown(level) {
            mover.tell_unless_known(&level.path, &level.source.metadata);
        } else {
            mover.verify_directory(level);
        }
    }

    fn links(&self, mover: &mut Mover<'_>, group: &LinkGroup) {
        mover.verify_links(group);
    }

    fn opens_at_sight(&self, engine: &Engine, level: &Level) -> bool {
        engine.compares_at_sight(level)
    }

    fn file_at_sight(&self, mover: &mut Mover<'_>, level: &Level, name: Name) -> Option<Name> {
        mover.compare_at_sight(level, name)
    }
}
