//! Roots of sources that are read through messages.
use dmover_model::{EntryKind, Fatal, FollowLinks, Name, PathBytes, Placement, TreePath};
use dmover_plan::overlap::Ends;
use dmover_tree::{NamedObject, RemoteTree};
use std::sync::Arc;

use super::{Argument, Found, Placed, Resolver, Root, refuse};
use crate::named_object::{above, named};
use crate::root_side::RootNames;
use crate::source_root::SourceRoot;

impl Resolver<'_> {
    /// Opens a source that is read through messages. `None`: it is of this host.
    pub(super) fn remote(&self, source: &PathBytes) -> Result<Option<Arc<dyn RemoteTree>>, Fatal> {
        let trees = self.remote.filter(|trees| trees.names(source));
        let follow = match self.spec.selection.follow {
            // What a person names to be hashed may be a link.
            FollowLinks::Never if !self.spec.verb.has_destination() => FollowLinks::Arguments,
            follow => follow,
        };
        trees.map(|trees| trees.open(source, follow)).transpose()
    }

    /// A source that is only read: a directory or a file.
    pub(super) fn remote_alone(tree: Arc<dyn RemoteTree>) -> Result<Root, Fatal> {
        let root = tree.root();
        let (display, metadata) = (tree.display(), root.metadata.clone());
        let is_directory = metadata.kind == EntryKind::Directory;
        if !is_directory && metadata.kind != EntryKind::File {
            return Err(refuse(display, "is neither a directory nor a file", "check the path"));
        }
        let name = name_of(&tree)?;
        Ok(Root {
            source: source_root(tree, name, is_directory),
            destination: None,
            mount: metadata.identity.mount,
            is_directory,
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
        let name = name_of(&tree)?;
        let slash = source.0.ends_with(b"/");
        self.check_kind(source, slash, metadata.kind)?;
        let from = Found { display: source, metadata: &metadata, here: None };
        // What is typed as '..' or '.' has no name of its own.
        let target = self.checked_target(from, name.as_ref(), destination, placement)?;
        let writes = self.spec.policy.verify.as_ref().is_none_or(|policy| policy.repair);
        if writes {
            refuse_same_tree(source, &tree.root().above, &target)?;
        }
        let ends = Ends { source: source.to_path(), target: target.canonical.clone() };
        let is_directory = metadata.kind == EntryKind::Directory;
        let source = source_root(tree, name, is_directory);
        let root = self.placed(source, &metadata, target, placement);
        Ok(Placed { root, ends, held_by: None })
    }
}

/// Refuses a destination that is the source, inside it or above it, on a file system that both hosts have mounted, or on this
/// host by another name.
fn refuse_same_tree(
    source: &PathBytes,
    source_above: &[NamedObject],
    target: &Argument,
) -> Result<(), Fatal> {
    let Some((root, around)) = source_above.split_first() else { return Ok(()) };
    let entry = target.stat(false).ok().flatten().map(|found| named(&found));
    let directory = target.open_directory().ok();
    let here = directory.as_ref().map(above).unwrap_or_default();
    let own = here.first().or(entry.as_ref());
    let outside = if directory.is_some() { here.clone() } else { above(&target.parent) };
    let refused = |how: &str, hint| {
        let what = format!("{how} the source '{}'", source.to_path().display());
        Err(refuse(&target.display, &what, hint))
    };
    if own.is_some_and(|own| own.is(root)) {
        return refused("is", "choose another destination");
    }
    if outside.iter().any(|above| above.is(root)) {
        return refused("is inside", "choose a destination outside the source");
    }
    if here.first().is_some_and(|own| around.iter().any(|above| above.is(own))) {
        let hint = "choose a destination that does not contain the source";
        return refused("contains", hint);
    }
    Ok(())
}

/// The name of a root as its host has it.
fn name_of(tree: &Arc<dyn RemoteTree>) -> Result<Option<Name>, Fatal> {
    let name = tree.root().name.as_deref().map(Name::new).transpose();
    let refused =
        |e| refuse(tree.display(), &format!("is not a valid name: {e}"), "check the path");
    name.map_err(refused)
}

fn source_root(tree: Arc<dyn RemoteTree>, name: Option<Name>, is_directory: bool) -> SourceRoot {
    let names = Arc::new(RootNames { display: tree.display().clone(), host: 0, is_directory });
    SourceRoot::Remote { tree, name: name.filter(|_| !is_directory), names }
}
