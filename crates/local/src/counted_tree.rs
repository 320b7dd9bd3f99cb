//! Directories of a source that are counted ahead of a job.
use dmover_model::Metadata;
use dmover_sys::{OwnedFd, path, stat};

use crate::error::CallFailed;
use crate::listing::{Listed, NameBuffer};
use crate::mounts::MountTable;
use crate::root_side::RootSide;

/// An open directory that is counted.
pub struct CountedDirectory {
    fd: OwnedFd,
    /// The device number of its file system.
    device: u64,
}

impl CountedDirectory {
    /// The metadata of a root that is a single entry; `None` if it is a directory itself.
    ///
    /// # Errors
    /// It is gone, or its directory cannot be searched.
    pub fn single(root: &RootSide, mounts: &MountTable) -> Result<Option<Metadata>, CallFailed> {
        let Some(name) = &root.name else { return Ok(None) };
        Ok(Some(mounts.metadata(&stat::stat_at(&root.parent, name.as_bytes(), false)?)))
    }

    /// Opens a root that is a directory.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn of_root(root: &RootSide) -> Result<Self, CallFailed> {
        let fd = path::open_directory_at(&root.parent, b".")?;
        let device = stat::stat_fd(&fd)?.device;
        Ok(Self { fd, device })
    }

    /// Opens a directory in this one; `None` if it is on another file system that is not counted.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn enter(&self, name: &[u8], one_file_system: bool) -> Result<Option<Self>, CallFailed> {
        let fd = path::open_directory_at(&self.fd, name)?;
        let device = stat::stat_fd(&fd)?.device;
        if device != self.device {
            let system = stat::file_system(&fd)?;
            if one_file_system || stat::is_pseudo(stat::file_system_name(system.magic)) {
                return Ok(None);
            }
        }
        Ok(Some(Self { fd, device }))
    }

    /// The metadata of an entry.
    ///
    /// # Errors
    /// It is gone, or the directory cannot be searched.
    pub fn metadata(&self, mounts: &MountTable, name: &[u8]) -> Result<Metadata, CallFailed> {
        Ok(mounts.metadata(&stat::stat_at(&self.fd, name, false)?))
    }

    /// Calls `each` with every entry until it answers `false`. A directory can be read once.
    ///
    /// # Errors
    /// It cannot be read to its end, or `each` failed.
    pub fn read<E: From<CallFailed>>(
        &self,
        buffer: &mut NameBuffer,
        each: impl FnMut(Listed<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        buffer.read(&self.fd, each)
    }
}
