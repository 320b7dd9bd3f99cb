//! What the source has under its paths now, while renames are repeated.
use dmover_local::error::CallFailed;
use dmover_local::root::Root;
use dmover_model::{EntryError, Metadata, Move, Object, Operation, Side, TreePath};
use dmover_tree::Looked;
use std::collections::{BTreeSet, HashMap};

use crate::context::Engine;
use crate::directory_pair::{self, SourceDirectory};

/// The source of some renames. One that is read through messages is asked for all of them with one request.
pub(crate) struct SourceNow<'a> {
    engine: &'a Engine,
    root: &'a Root,
    told: HashMap<TreePath, Looked>,
}

impl<'a> SourceNow<'a> {
    /// Asks for all that is needed of these renames.
    ///
    /// # Errors
    /// The source cannot be asked.
    pub fn of(engine: &'a Engine, root: &'a Root, moves: &[Move]) -> Result<Self, EntryError> {
        let told = match root.source.remote().and_then(|tree| tree.catalog()) {
            Some(catalog) => {
                let paths: BTreeSet<TreePath> =
                    moves.iter().flat_map(|wanted| with_all_above(&wanted.to)).collect();
                let paths: Vec<TreePath> = paths.into_iter().collect();
                let looked = catalog.objects(&paths)?;
                paths.into_iter().zip(looked).collect()
            }
            None => HashMap::new(),
        };
        Ok(Self { engine, root, told })
    }

    /// Looks at an entry. `directory`: the one that it is in.
    ///
    /// # Errors
    /// It is not there, or cannot be looked at.
    pub fn look(
        &self,
        at: &TreePath,
        directory: &SourceDirectory,
    ) -> Result<(Metadata, Object), EntryError> {
        if let Some(told) = self.told.get(at) {
            return told.clone();
        }
        let (_, name) = at.split_last().unwrap_or((TreePath::root(), b""));
        let found = self.engine.end.source_object(directory, name);
        let fail =
            |e: CallFailed| e.at((Side::Source, Operation::Stat), directory.place.entry(name));
        found.map_err(fail)
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// It is not there, or cannot be opened.
    pub fn directory(&self, at: &TreePath) -> Result<SourceDirectory, EntryError> {
        let told = match self.told.get(at) {
            Some(Err(error)) => return Err(error.clone()),
            Some(Ok((metadata, _))) => {
                self.engine.end.told_source(&self.root.source, at, metadata.clone())
            }
            None => None,
        };
        told.map_or_else(|| directory_pair::open_source(self.engine, self.root, at), Ok)
    }
}

/// A path and all directories above it.
fn with_all_above(path: &TreePath) -> Vec<TreePath> {
    let mut all = vec![path.clone()];
    while let Some((above, _)) = all.last().and_then(TreePath::split_last) {
        all.push(above);
    }
    all
}
