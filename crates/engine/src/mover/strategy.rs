//! What a verb does with the entries that a scan finds.
use dmover_local::session::WriteError;
use dmover_local::source::Opened;
use dmover_model::{FileRef, LinkGroup, Metadata, Name};

use super::Mover;
use crate::context::Engine;
use crate::directory_pair::DirectoryPair;
use crate::planned::{CopyResult, Planned};

/// What a verb does with the entries that a scan finds.
pub(crate) trait Strategy: Sync {
    /// Deals with an entry that is no directory. `opened`: the file, if it is open already.
    fn entry(
        &self,
        mover: &mut Mover<'_>,
        level: &DirectoryPair,
        planned: &Planned,
        opened: Option<Opened>,
    ) -> Result<CopyResult, WriteError>;

    /// Begins a file that gets tasks of its own, for this time.
    fn large_file(
        &self,
        mover: &mut Mover<'_>,
        level: &DirectoryPair,
        which: (&FileRef, u32),
    ) -> Result<(), WriteError>;

    /// Whether several movers work on a file.
    fn is_in_parts(&self, mover: &Mover<'_>, metadata: &Metadata) -> bool;

    /// Deals with a directory that was entered, before its names are read.
    fn directory(&self, mover: &mut Mover<'_>, level: &DirectoryPair);

    /// Deals with the names of one inode.
    fn links(&self, mover: &mut Mover<'_>, group: &LinkGroup);

    /// Whether regular files of a directory are opened before their metadata is known.
    fn opens_at_sight(&self, engine: &Engine, level: &DirectoryPair) -> bool;

    /// Deals with a regular file by opening it. Returns the name if anything about it is unusual.
    fn file_at_sight(
        &self,
        mover: &mut Mover<'_>,
        level: &DirectoryPair,
        name: Name,
    ) -> Option<Name>;
}
