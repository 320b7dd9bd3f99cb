//! The strategies of the verbs.
use dmover_local::session::WriteError;
use dmover_local::source::Opened;
use dmover_model::{FileRef, LinkGroup, Metadata, Name, Verb};

use crate::bring;
use crate::checked_tree;
use crate::context::Engine;
use crate::directory_pair::{self, DirectoryPair};
use crate::large;
use crate::links;
use crate::mover::{Mover, Strategy};
use crate::plan_names;
use crate::planned::{CopyResult, Planned};
use crate::scan;
use crate::sum;
use crate::verify;

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
        level: &DirectoryPair,
        planned: &Planned,
        opened: Option<Opened>,
    ) -> Result<CopyResult, WriteError> {
        bring::bring(mover, level, planned, opened)
    }

    fn large_file(
        &self,
        mover: &mut Mover<'_>,
        level: &DirectoryPair,
        (file, round): (&FileRef, u32),
    ) -> Result<(), WriteError> {
        large::open_large(mover, level, file, round)
    }

    fn is_in_parts(&self, mover: &Mover<'_>, metadata: &Metadata) -> bool {
        plan_names::is_worth_splitting(mover, metadata)
    }

    fn directory(&self, mover: &mut Mover<'_>, level: &DirectoryPair) {
        scan::show_directory(mover.engine, level);
    }

    fn links(&self, mover: &mut Mover<'_>, group: &LinkGroup) {
        if mover.engine.spec.policy.dry_run {
            links::preview(mover, group);
        } else {
            links::link_group(mover, group);
        }
    }

    fn opens_at_sight(&self, engine: &Engine, level: &DirectoryPair) -> bool {
        plan_names::takes_files_at_sight(engine, level)
    }

    fn file_at_sight(
        &self,
        mover: &mut Mover<'_>,
        level: &DirectoryPair,
        name: Name,
    ) -> Option<Name> {
        plan_names::take_at_sight(mover, level, name)
    }
}

impl Strategy for Summing {
    fn entry(
        &self,
        mover: &mut Mover<'_>,
        level: &DirectoryPair,
        planned: &Planned,
        opened: Option<Opened>,
    ) -> Result<CopyResult, WriteError> {
        Ok(sum::sum_entry(mover, level, &planned.record, opened)?)
    }

    fn large_file(
        &self,
        mover: &mut Mover<'_>,
        level: &DirectoryPair,
        (file, round): (&FileRef, u32),
    ) -> Result<(), WriteError> {
        Ok(sum::open_sum(mover, level, file, round)?)
    }

    fn is_in_parts(&self, mover: &Mover<'_>, metadata: &Metadata) -> bool {
        sum::hashes_apart(mover.engine, metadata.size)
    }

    fn directory(&self, mover: &mut Mover<'_>, level: &DirectoryPair) {
        scan::show_directory(mover.engine, level);
    }

    fn links(&self, _mover: &mut Mover<'_>, _group: &LinkGroup) {
        // Each name has its own line, so no group is ever collected.
    }

    fn opens_at_sight(&self, engine: &Engine, level: &DirectoryPair) -> bool {
        plan_names::takes_files_at_sight(engine, level)
    }

    fn file_at_sight(
        &self,
        mover: &mut Mover<'_>,
        level: &DirectoryPair,
        name: Name,
    ) -> Option<Name> {
        plan_names::take_at_sight(mover, level, name)
    }
}

impl Strategy for Comparing {
    fn entry(
        &self,
        mover: &mut Mover<'_>,
        level: &DirectoryPair,
        planned: &Planned,
        _opened: Option<Opened>,
    ) -> Result<CopyResult, WriteError> {
        verify::verify_entry(mover, level, planned, 1)
    }

    fn large_file(
        &self,
        mover: &mut Mover<'_>,
        level: &DirectoryPair,
        (file, round): (&FileRef, u32),
    ) -> Result<(), WriteError> {
        verify::verify_again(mover, level, &file.name, round)
    }

    fn is_in_parts(&self, _mover: &Mover<'_>, _metadata: &Metadata) -> bool {
        false // the comparison finds out
    }

    fn directory(&self, mover: &mut Mover<'_>, level: &DirectoryPair) {
        if directory_pair::looks_for_unknown(&mover.engine.spec, level) {
            checked_tree::tell_unless_known(mover.engine, &level.path, &level.source.metadata);
        } else {
            verify::verify_directory(mover, level);
        }
    }

    fn links(&self, mover: &mut Mover<'_>, group: &LinkGroup) {
        verify::verify_links(mover, group);
    }

    fn opens_at_sight(&self, engine: &Engine, level: &DirectoryPair) -> bool {
        verify::content::compares_at_sight(engine, level)
    }

    fn file_at_sight(
        &self,
        mover: &mut Mover<'_>,
        level: &DirectoryPair,
        name: Name,
    ) -> Option<Name> {
        verify::content::compare_at_sight(mover, level, name)
    }
}
