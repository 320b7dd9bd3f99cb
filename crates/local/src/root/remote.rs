//! Roots of sources that are read through messages.
use dmover_model::{EntryKind, Fatal, Name, PathBytes, Placement, TreePath};
use dmover_plan::overlap::Ends;
use dmover_tree::RemoteTree;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Found, Placed, Resolver, Root, refuse};
use crate::root_side::RootNames;
use crate::source_root::SourceRoot;

impl Resolver<'_> {
    /// Opens a source that is read through messages. `None`: it is of this host.
    pub(super) fn remote(&self, source: &PathBytes) -> Result<Option<Arc<dyn RemoteTree>>, Fatal> {
        let trees = self.remote.filter(|trees| trees.names(source));
        trees.map(|trees| trees.open(source, self.spec.selection.follow)).transpose()
    }

    /// A source that is only read, and must be a directory.
    pub(super) fn remote_directory(
        &self,
        tree: Arc<dyn RemoteTree>,
        source: &PathBytes,
    ) -> Result<Root, Fatal> {
        let metadata = tree.root().metadata.clone();
        if metadata.kind != EntryKind::Directory {
            return Err(refuse(source, "is not a directory", "check the path"));
        }
        Ok(Root {
            source: source_root(tree, None, true),
            destination: None,
            mount: metadata.identity.mount,
            is_directory: true,
            range: None,
            in_manifest: TreePath::root(),
        })
    }

    /// A source that is copied to, or compared with, a destination of this host.
    pub(super) fn remote_root(
        &self,
        tree: Arc<dyn RemoteTree>,
        source: &PathBytes,
        destination: &PathBytes,
        placement: Placement,
    ) -> Result<Placed, Fatal> {
        let root = tree.root();
        let metadata = root.metadata.clone();
        let name = root.name.as_deref().map(Name::new).transpose();
        let name = name
            .map_err(|e| refuse(source, &format!("is not a valid name: {e}"), "check the path"))?;
        let slash = source.0.ends_with(b"/");
        self.check_kind(source, slash, metadata.kind)?;
        let from = Found { display: source, metadata: &metadata, here: None };
        // What is typed as '..' or '.' has no name of its own.
        let target = self.checked_target(from, name.as_ref(), destination, placement)?;
        let ends =
            Ends { source: PathBuf::from(source.to_path()), target: target.canonical.clone() };
        let is_directory = metadata.kind == EntryKind::Directory;
        let source = source_root(tree, name, is_directory);
        let root = self.placed(source, &metadata, target, placement);
        Ok(Placed { root, ends, held_by: None })
    }
}

fn source_root(tree: Arc<dyn RemoteTree>, name: Option<Name>, is_directory: bool) -> SourceRoot {
    let names = Arc::new(RootNames { display: tree.display().clone(), is_directory });
    SourceRoot::Remote { tree, name: name.filter(|_| !is_directory), names }
}
