//! One end of a root: the open directory in which it lies.
use dmover_model::{EntryError, Name, Operation, PathBytes, Side, SideMark, TreePath};
use dmover_sys::{Errno, OwnedFd, directory, path, stat};
use std::sync::Arc;

use crate::error::entry_error;
use crate::mounts::MountTable;

/// How the entries of a root are called in messages.
#[derive(Debug)]
pub struct RootNames {
    /// The root entry as a user would type it, with the host if the user is at another one.
    pub display: PathBytes,
    /// How many bytes of `display` name the host.
    pub host: usize,
    /// Whether the root is a directory. Otherwise it is a single entry, and paths below it stand for the directory that
    /// contains it.
    pub is_directory: bool,
}

impl RootNames {
    /// The path by which this host opens the root.
    fn here(&self) -> PathBytes {
        self.without_host(&self.display)
    }

    /// A path of these names as this host has it.
    pub fn without_host(&self, path: &PathBytes) -> PathBytes {
        PathBytes(path.0[self.host..].to_vec())
    }

    /// The path of an entry in a directory below the root. Without a name it is the directory.
    pub fn path(&self, directory: &TreePath, name: &[u8]) -> PathBytes {
        if !self.is_directory {
            return self.display.clone();
        }
        let root = &self.display.0;
        // One allocation, because this is called for each reported file.
        let room = root.len() + directory.as_bytes().len() + name.len() + 2;
        let mut path = Vec::with_capacity(room);
        path.extend_from_slice(root);
        for part in [directory.as_bytes(), name] {
            if !(part.is_empty() || path.is_empty() || path.ends_with(b"/")) {
                path.push(b'/');
            }
            path.extend_from_slice(part);
        }
        PathBytes(path)
    }
}

/// One end of a root: an open directory and a name in it, or the directory itself.
#[derive(Debug)]
pub struct RootSide {
    /// Roots in one directory share it: a shell expands a '*' to thousands of them.
    pub parent: Arc<OwnedFd>,
    /// `None`: the root entry is `parent` itself.
    pub name: Option<Name>,
    /// How its entries are called.
    pub names: Arc<RootNames>,
}

impl RootSide {
    /// The path from `parent` to a path below the root entry.
    pub fn relative(&self, below: &TreePath) -> Vec<u8> {
        match &self.name {
            None => below.as_bytes().to_vec(),
            Some(name) if below.is_root() => name.as_bytes().to_vec(),
            Some(name) => [name.as_bytes(), b"/", below.as_bytes()].concat(),
        }
    }

    /// The path from `parent` to a directory below the root. A root that is a single entry lies in `parent`.
    pub fn directory(&self, below: &TreePath) -> Vec<u8> {
        if self.names.is_directory { self.relative(below) } else { Vec::new() }
    }

    /// The root entry as a user would type it.
    pub fn display(&self) -> &PathBytes {
        &self.names.display
    }

    /// The path by which this host opens the root entry.
    pub fn path_here(&self) -> PathBytes {
        self.names.here()
    }

    /// Opens the root entry, if it has a name and is a directory. It may be a mount of its own.
    pub(crate) fn open_entry(&self) -> Option<OwnedFd> {
        path::open_directory_below(&self.parent, self.name.as_ref()?.as_bytes()).ok()
    }

    /// Whether this host must not write there. `exists`: in the root entry, if that can be opened; otherwise above it.
    pub fn is_read_only(&self, exists: bool) -> bool {
        let name = self.name.as_ref().filter(|_| exists);
        let entry =
            name.and_then(|name| path::open_directory_at(&self.parent, name.as_bytes()).ok());
        directory::is_read_only(entry.as_ref().unwrap_or(&*self.parent))
    }

    /// What the root is now, as this host sees it. `follow`: the entry is what a symbolic link leads to.
    ///
    /// # Errors
    /// It cannot be looked at, or what is above it is gone.
    pub fn mark(&self, mounts: &MountTable, follow: bool) -> Result<SideMark, EntryError> {
        let fail = |e| entry_error(Side::Destination, Operation::Stat, self.display().clone(), e);
        let look = |name: &[u8]| match stat::stat_at(&self.parent, name, follow) {
            Ok(found) => Ok(Some(mounts.identity(&found))),
            Err(error) if stat::is_absent(error) => Ok(None),
            Err(error) => Err(fail(error)),
        };
        let (above, entry) = match &self.name {
            Some(name) => (look(b".")?, look(name.as_bytes())?),
            None => (look(b"..")?, look(b".")?),
        };
        Ok(SideMark { above: above.ok_or_else(|| fail(Errno::NOENT))?, entry })
    }
}
