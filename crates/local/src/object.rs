//! What tells an entry apart from a later one that gets its inode number: the time of its creation.
use dmover_model::{EntryError, Metadata, Object, Operation, Side, Timestamp, TreePath};
use dmover_sys::stat::{self, Stat};
use dmover_sys::{OwnedFd, path};
use std::io;

use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::Local;
use crate::error::entry_error;
use crate::root_side::RootSide;

/// The object that a look with the time of creation has found.
pub(crate) fn object_of((found, birth): &(Stat, Option<(i64, u32)>)) -> Object {
    let birth = birth.map(|(seconds, nanoseconds)| Timestamp { seconds, nanoseconds });
    Object { inode: found.inode, birth }
}

/// A directory as every overlay shows it that has it in a layer: the inode number without the bits that an overlay adds
/// for its layers, and the time of creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerObject {
    inode_end: u32,
    born: (i64, u32),
}

impl LayerObject {
    fn of(directory: &OwnedFd) -> Option<Self> {
        let (found, born) = stat::stat_born_at(directory, b"").ok()?;
        Some(Self { inode_end: found.inode as u32, born: born? })
    }
}

impl SourceDirectory {
    /// The object that has a name. `None`: it cannot be looked at.
    pub fn object_at(&self, name: &[u8]) -> Option<Object> {
        stat::stat_born_at(&self.fd, name).ok().map(|found| object_of(&found))
    }

    /// The directory behind an overlay. `None`: the file system does not keep the time of creation.
    pub fn layer_object(&self) -> Option<LayerObject> {
        LayerObject::of(&self.fd)
    }
}

impl TargetDirectory {
    /// The directory behind an overlay. `None`: the file system does not keep the time of creation.
    pub fn layer_object(&self) -> Option<LayerObject> {
        LayerObject::of(&self.fd)
    }
}

impl RootSide {
    /// The object that is the directory of the root.
    ///
    /// # Errors
    /// It cannot be accessed.
    pub fn top_object(&self) -> Result<Object, io::Error> {
        Ok(object_of(&stat::stat_born_at(&self.parent, b"")?))
    }

    /// The inode number of a directory below the root, which is a directory. `None`: it is not there, or cannot be opened.
    pub fn directory_inode(&self, below: &TreePath) -> Option<u64> {
        let fd = path::open_directory_below(&self.parent, below.as_bytes()).ok()?;
        Some(stat::stat_fd(fd).ok()?.inode)
    }
}

impl Local<'_> {
    /// Looks at a name of the source, and tells which object has it.
    ///
    /// # Errors
    /// It is not there, or its directory cannot be searched.
    pub fn look_at_object(
        &self,
        from: &SourceDirectory,
        name: &[u8],
    ) -> Result<(Metadata, Object), EntryError> {
        let found = stat::stat_born_at(&from.fd, name)
            .map_err(|e| entry_error(Side::Source, Operation::Stat, from.place.entry(name), e))?;
        Ok((self.end.mounts.metadata(&found.0), object_of(&found)))
    }
}
