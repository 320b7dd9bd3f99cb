//! A root of the source that another host asks for: there is no destination on this host.
use dmover_model::{EntryKind, Fatal, FollowLinks, Metadata, Name, PathBytes};
use dmover_sys::{Errno, path, stat};
use dmover_tree::NamedObject;
use std::path::{Path, PathBuf};

use super::{Argument, Resolver, refuse, refuse_errno};
use crate::missing_mounts::missing_at;
use crate::mounts::kind_of;
use crate::named_object::with_all_above;
use crate::source_root::SourceRoot;

/// An entry of any type that is read for a job on another host.
#[derive(Debug)]
pub struct SourceAlone {
    /// Where it is, open.
    pub root: SourceRoot,
    /// The last component of what was typed; `None`: that is `.`, `..` or `/`.
    pub name: Option<Name>,
    /// Its metadata; of what a symbolic link leads to, if links in arguments are followed.
    pub metadata: Metadata,
    /// Its path without symbolic links.
    pub canonical: PathBuf,
    /// The entry and the directories above it.
    pub above: Vec<NamedObject>,
    /// A file system that should be mounted there, and is not.
    pub missing_mount: Option<PathBuf>,
}

impl Resolver<'_> {
    /// Opens an entry to read it. `display`: what it is called in messages.
    ///
    /// # Errors
    /// It does not exist, or cannot be read.
    pub fn source_alone(
        &self,
        typed: &PathBytes,
        display: &PathBytes,
    ) -> Result<SourceAlone, Fatal> {
        let source = Argument::shown(self.base, typed, (display.clone(), 0))?;
        let follow = self.spec.selection.follow != FollowLinks::Never;
        let found = source
            .stat(follow)
            .map_err(|e| refuse_errno(display, "access", e, "check the path"))?
            .ok_or_else(|| refuse(display, "does not exist", "check the path"))?;
        let metadata = self.mounts.metadata(&found);
        if source.slash && metadata.kind != EntryKind::Directory {
            return Err(refuse(display, "is not a directory", "omit the trailing slash"));
        }
        let canonical = self.check_readable(&source, &metadata)?;
        let name = source.name.clone();
        let root = SourceRoot::Here(self.pin_source(source, &metadata, false)?);
        let above = with_all_above(&canonical);
        let missing_mount = missing_at(&canonical, true);
        Ok(SourceAlone { root, name, metadata, canonical, above, missing_mount })
    }
}

/// The type of what a path leads to; `None`: nothing is there.
///
/// # Errors
/// It cannot be looked at.
pub fn kind_of_path(path: &PathBytes) -> std::io::Result<Option<EntryKind>> {
    let base = path::reach_directory(Path::new("."))?;
    match stat::stat_at(&base, &path.0, true) {
        Ok(found) => Ok(Some(kind_of(&found))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
