//! What the source has under its paths now, while renames are repeated.
use dmover_local::error::CallFailed;
use dmover_local::narrow::ToldAcl;
use dmover_local::root::Root;
use dmover_model::{EntryError, EntryKind, Metadata, Move, Object, Operation, Side, TreePath};
use dmover_tree::{Looked, LookedAcl};
use std::collections::{BTreeSet, HashMap};

use crate::context::Engine;
use crate::directory_pair::{self, SourceDirectory};

/// The source of some renames. One that is read through messages is asked for all of them with one request.
pub(crate) struct SourceNow<'a> {
    engine: &'a Engine,
    root: &'a Root,
    told: HashMap<TreePath, Looked>,
    /// The ACLs of files that move into another directory.
    acls: HashMap<TreePath, LookedAcl>,
}

impl<'a> SourceNow<'a> {
    /// Asks for all that is needed of these renames.
    ///
    /// # Errors
    /// The source cannot be asked.
    pub fn of(engine: &'a Engine, root: &'a Root, moves: &[Move]) -> Result<Self, EntryError> {
        let (mut told, mut acls) = (HashMap::new(), HashMap::new());
        if let Some(catalog) = root.source.remote().and_then(|tree| tree.catalog()) {
            let paths: BTreeSet<TreePath> =
                moves.iter().flat_map(|wanted| with_all_above(&wanted.to)).collect();
            let paths: Vec<TreePath> = paths.into_iter().collect();
            let looked = catalog.objects(&paths)?;
            told = paths.into_iter().zip(looked).collect();
            let files = moves.iter().filter(|wanted| needs_acl(wanted));
            let files: Vec<TreePath> = files.map(|wanted| wanted.to.clone()).collect();
            if !files.is_empty() {
                let looked = catalog.acls(&files)?;
                acls = files.into_iter().zip(looked).collect();
            }
        }
        Ok(Self { engine, root, told, acls })
    }

    /// The ACL of a file that moves into another directory; `None`: it was not asked for.
    ///
    /// # Errors
    /// It could not be read.
    pub fn acl(&self, at: &TreePath) -> Result<Option<ToldAcl<'_>>, EntryError> {
        let acl = self.acls.get(at).map(|acl| acl.as_ref().map_err(Clone::clone));
        Ok(acl.transpose()?.map(|acl| ToldAcl(acl.as_deref())))
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

/// Whether an entry moves to where its permissions count in another way.
fn needs_acl(Move { entry, from, to, .. }: &Move) -> bool {
    let place = |path: &TreePath| path.split_last().map(|(place, _)| place);
    entry.kind == EntryKind::File && place(from) != place(to)
}

/// A path and all directories above it.
fn with_all_above(path: &TreePath) -> Vec<TreePath> {
    let mut all = vec![path.clone()];
    while let Some((above, _)) = all.last().and_then(TreePath::split_last) {
        all.push(above);
    }
    all
}
