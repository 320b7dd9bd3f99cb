//! What tells an entry apart from a later one that gets its inode number: the time of its creation.
use dmover_model::{
    DirectoryState, EntryError, ErrorClass, ListedName, Metadata, Object, Timestamp, TreePath,
};
use dmover_sys::stat::{self, Stat};
use dmover_sys::xattr::{self, Held};
use dmover_sys::{AsFd, Errno, OwnedFd, path};
use std::io;

use crate::attributes::ACCESS_ACL;
use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::LocalEnd;
use crate::error::CallFailed;
use crate::handle::errno_of;
use crate::listing::{ListedKind, NameBuffer};
use crate::root_side::RootSide;

/// What is read through messages does not say when it was made.
const UNKNOWN: CallFailed = CallFailed(Errno::OPNOTSUPP);

type Born = (Stat, Option<(i64, u32)>);

/// The object that a look with the time of creation has found.
pub(crate) fn object_of((found, birth): &Born) -> Object {
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
        stat::stat_born_at(self.handle.fd()?, name).ok().map(|found| object_of(&found))
    }

    /// The directory behind an overlay. `None`: the file system does not keep the time of creation.
    pub fn layer_object(&self) -> Option<LayerObject> {
        LayerObject::of(self.handle.fd()?)
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

fn state_of(found: &Born) -> DirectoryState {
    let time = |(seconds, nanoseconds)| Timestamp { seconds, nanoseconds };
    let stat = &found.0;
    DirectoryState { object: object_of(found), mtime: time(stat.mtime), ctime: time(stat.ctime) }
}

/// Whether an error only says that a directory went or may not be read, or that its names say nothing.
pub fn says_nothing(error: &EntryError) -> bool {
    let unsupported = error.class == ErrorClass::Unsupported;
    unsupported
        || matches!(
            errno_of(error),
            Errno::NOENT
                | Errno::NOTDIR
                | Errno::LOOP
                | Errno::OPNOTSUPP
                | Errno::ILSEQ
                | Errno::ACCESS
                | Errno::PERM
        )
}

impl SourceDirectory {
    /// Its object and times.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn state(&self) -> Result<DirectoryState, CallFailed> {
        let fd = self.handle.fd().ok_or(UNKNOWN)?;
        Ok(state_of(&stat::stat_born_at(fd, b"")?))
    }

    /// The access ACL of an entry, which is not followed if it is a symbolic link.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn access_acl(&self, name: &[u8]) -> Result<Option<Vec<u8>>, CallFailed> {
        let entry = path::pin_at(self.handle.fd().ok_or(UNKNOWN)?, name)?;
        Ok(xattr::get(entry, Held::Pinned, ACCESS_ACL)?)
    }

    /// Calls `each` with every name in it, until it answers `false`.
    ///
    /// # Errors
    /// It cannot be read, a name is none of a job, or the file system has other numbers in directories than elsewhere.
    pub fn each_numbered(&self, each: impl FnMut(ListedName) -> bool) -> Result<(), CallFailed> {
        let fd = self.handle.fd().ok_or(UNKNOWN)?;
        each_numbered(fd, &mut NameBuffer::default(), each)
    }
}

impl TargetDirectory {
    /// Which object it is.
    ///
    /// # Errors
    /// Its metadata cannot be read.
    pub fn identify(&self) -> Result<Object, CallFailed> {
        Ok(object_of(&stat::stat_born_at(&self.fd, b"")?))
    }

    /// Which object an entry is.
    ///
    /// # Errors
    /// Its metadata cannot be read.
    pub fn object_at(&self, name: &[u8]) -> Result<Object, CallFailed> {
        Ok(object_of(&stat::stat_born_at(&self.fd, name)?))
    }
}

impl LocalEnd {
    /// The state of a directory at a path below a root of the source, and its metadata.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn revisit(
        &self,
        root: &RootSide,
        path: &TreePath,
    ) -> Result<(DirectoryState, Metadata), CallFailed> {
        let found = stat::stat_born_at(&root.parent, &root.relative(path))?;
        Ok((state_of(&found), self.mounts.metadata(&found.0)))
    }

    /// An entry of the source as both see it.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn source_object(
        &self,
        from: &SourceDirectory,
        name: &[u8],
    ) -> Result<(Metadata, Object), CallFailed> {
        self.described(from.handle.fd().ok_or(UNKNOWN)?, name)
    }

    /// An entry of the destination as both see it.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn target_object(
        &self,
        to: &TargetDirectory,
        name: &[u8],
    ) -> Result<(Metadata, Object), CallFailed> {
        self.described(&to.fd, name)
    }

    fn described(
        &self,
        directory: impl AsFd,
        name: &[u8],
    ) -> Result<(Metadata, Object), CallFailed> {
        let found = stat::stat_born_at(directory, name)?;
        Ok((self.mounts.metadata(&found.0), object_of(&found)))
    }
}

impl RootSide {
    /// Calls `each` with the object of a directory of the source and every name in it. Returns the object.
    ///
    /// # Errors
    /// It cannot be read, a name is none of a job, or the file system has other numbers in directories than elsewhere.
    pub fn each_numbered(
        &self,
        path: &TreePath,
        buffer: &mut NameBuffer,
        mut each: impl FnMut(Object, ListedName),
    ) -> Result<Object, CallFailed> {
        let fd = path::open_directory_below(&self.parent, &self.relative(path))?;
        let object = object_of(&stat::stat_born_at(&fd, b"")?);
        each_numbered(&fd, buffer, |listed| {
            each(object, listed);
            true
        })?;
        Ok(object)
    }
}

/// Calls `each` with every name in a directory, until it answers `false`.
fn each_numbered(
    fd: &OwnedFd,
    buffer: &mut NameBuffer,
    mut each: impl FnMut(ListedName) -> bool,
) -> Result<(), CallFailed> {
    let mut first = true;
    buffer.read(fd, |listed| -> Result<bool, CallFailed> {
        let (bytes, inode) = (listed.bytes, listed.inode);
        // Some file systems have other numbers in directories than elsewhere: then these say nothing.
        if std::mem::take(&mut first) && stat::stat_at(fd, bytes, false)?.inode != inode {
            return Err(CallFailed(Errno::OPNOTSUPP));
        }
        let is_directory = match listed.kind {
            ListedKind::Directory => true,
            ListedKind::File | ListedKind::Other => false,
            ListedKind::Unknown => stat::stat_at(fd, bytes, false)
                .is_ok_and(|found| found.file_type() == stat::FileType::Directory),
        };
        Ok(each(ListedName { name: listed.name()?, inode, is_directory }))
    })?;
    Ok(())
}
