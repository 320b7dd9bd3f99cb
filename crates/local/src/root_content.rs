//! What the directories of a root hold before a job.
use dmover_model::{Identity, Metadata, Name, TreePath};
use dmover_sys::{Errno, OwnedFd, path, stat};
use std::collections::HashSet;

use crate::directory::look_at;
use crate::error::CallFailed;
use crate::handle::{DirectoryHandle, call_failed};
use crate::listing::{Listing, NameBuffer};
use crate::mounts::MountTable;
use crate::root_side::RootSide;
use crate::source_root::SourceRoot;
use crate::trash::is_trash;

impl SourceRoot {
    /// Whether a root that is a directory surely has no entries.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Here(side) => side.is_empty(),
            Self::Remote { tree, .. } => {
                let mut any = false;
                let listed = tree.open(&TreePath::root(), false).and_then(|top| {
                    top.list(&mut |_, _, _| {
                        any = true;
                        false
                    })
                });
                listed.is_ok() && !any
            }
        }
    }

    /// Whether a root that is a directory has a name.
    ///
    /// # Errors
    /// It cannot be searched.
    pub fn has(&self, name: &Name) -> Result<bool, CallFailed> {
        match self {
            Self::Here(side) => side.has(name),
            Self::Remote { tree, .. } => {
                let top = tree.open(&TreePath::root(), false);
                let top = top.map_err(|error| call_failed(&error))?;
                DirectoryHandle::Remote(top).has(name.as_bytes())
            }
        }
    }

    /// All names in the root directory of a source that is read through messages, because to look for each would take a
    /// round trip. `None`: they can be looked for here, or the directory cannot be listed.
    pub fn names_there(&self) -> Option<HashSet<Vec<u8>>> {
        let Self::Remote { tree, .. } = self else { return None };
        let mut names = HashSet::new();
        let top = tree.open(&TreePath::root(), false).ok()?;
        top.list(&mut |name, _, _| {
            names.insert(name.to_vec());
            true
        })
        .ok()?;
        Some(names)
    }
}

impl RootSide {
    /// Whether a root of the source that is a directory surely has no entries.
    pub fn is_empty(&self) -> bool {
        let mut any = false;
        let read = Listing::of(&self.parent).and_then(|listing| {
            listing.read(&mut NameBuffer::default(), |_| {
                any = true;
                Ok(false)
            })
        });
        read.is_ok() && !any
    }

    /// Whether a root of the source that is a directory has a name.
    ///
    /// # Errors
    /// It cannot be searched.
    pub fn has(&self, name: &Name) -> Result<bool, CallFailed> {
        Ok(look_at(&self.parent, name.as_bytes())?.is_some())
    }

    /// Opens a root of the destination.
    pub fn open_top<'a>(&self, mounts: &'a MountTable) -> Top<'a> {
        let opened = match &self.name {
            Some(name) => path::open_directory_below(&self.parent, name.as_bytes()),
            None => path::open_directory_at(&self.parent, b"."),
        };
        match opened {
            Ok(fd) => Top::Open(TopDirectory { fd, mounts }),
            Err(Errno::NOENT | Errno::NOTDIR) => Top::Missing,
            Err(_) => Top::Closed,
        }
    }
}

/// A root of the destination before a job.
pub enum Top<'a> {
    /// It is there.
    Open(TopDirectory<'a>),
    /// It is to be made.
    Missing,
    /// It cannot be opened now.
    Closed,
}

/// The open directory of a root of the destination before a job.
pub struct TopDirectory<'a> {
    fd: OwnedFd,
    mounts: &'a MountTable,
}

impl TopDirectory<'_> {
    /// The metadata of an entry; `None` if it is absent.
    ///
    /// # Errors
    /// The directory cannot be searched.
    pub fn find(&self, name: &Name) -> Result<Option<Metadata>, CallFailed> {
        Ok(look_at(&self.fd, name.as_bytes())?.map(|found| self.mounts.metadata(&found)))
    }

    /// The identity of an entry, if it can be looked at.
    pub fn identity(&self, name: &Name) -> Option<Identity> {
        let found = stat::stat_at(&self.fd, name.as_bytes(), false).ok()?;
        Some(self.mounts.identity(&found))
    }

    /// Whether an entry is a trash. What cannot be looked into counts as none.
    pub fn has_trash(&self, name: &Name) -> bool {
        is_trash(&self.fd, name).unwrap_or(false)
    }

    /// Calls `each` with every name.
    ///
    /// # Errors
    /// It cannot be read to its end, or `each` failed.
    pub fn each_name(
        &self,
        mut each: impl FnMut(Name) -> Result<(), CallFailed>,
    ) -> Result<(), CallFailed> {
        Listing::of(&self.fd)?.read(&mut NameBuffer::default(), |listed| {
            each(listed.name()?)?;
            Ok(true)
        })
    }
}
