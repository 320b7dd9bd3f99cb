//! A tree that is compared with a manifest: it is a destination, and its directories are only open for reading.
use dmover_model::{EntryError, EntryKind, Metadata, Operation, Side, Timestamp};
use dmover_sys::{Errno, OwnedFd, directory, path, set, stat};

use crate::directory::{SourceDirectory, TargetDirectory, look_at};
use crate::end::LocalEnd;
use crate::error::entry_error;
use crate::file::unfinished_time;
use crate::session::{self, Session};

/// A file whose modification time differs from the one that it got by more than this was written by another program.
const NEAR_S: u64 = 2;

impl LocalEnd {
    /// The metadata of an entry; `None` if it is absent.
    ///
    /// # Errors
    /// Its directory cannot be searched.
    pub fn checked(
        &self,
        at: &SourceDirectory,
        name: &[u8],
    ) -> Result<Option<Metadata>, EntryError> {
        let found = at.mounted().and_then(|fd| look_at(fd, name)).map_err(|e| {
            entry_error(Side::Destination, Operation::Stat, at.place.entry(name), e)
        })?;
        Ok(found.map(|found| self.mounts.metadata(&found)))
    }

    /// The metadata of an entry that must be there.
    ///
    /// # Errors
    /// It is absent, or its directory cannot be searched.
    pub fn checked_there(&self, at: &SourceDirectory, name: &[u8]) -> Result<Metadata, EntryError> {
        let found = at.mounted().and_then(|fd| stat::stat_at(fd, name, false)).map_err(|e| {
            entry_error(Side::Destination, Operation::Stat, at.place.entry(name), e)
        })?;
        Ok(self.mounts.metadata(&found))
    }

    /// Marks a file as incomplete by its modification time, unless it is gone, or was written since it got the time `was`.
    ///
    /// # Errors
    /// It cannot be opened or changed.
    pub fn mark_unfinished(
        &self,
        at: &SourceDirectory,
        name: &[u8],
        was: Timestamp,
    ) -> Result<(), EntryError> {
        let fail = |e| entry_error(Side::Destination, Operation::SetTimes, at.place.entry(name), e);
        let fd = match at.mounted().and_then(|fd| path::open_file_at(fd, name, false)) {
            Ok(fd) => fd,
            // It is gone or was replaced.
            Err(error) if stat::is_absent(error) || error == Errno::LOOP => return Ok(()),
            Err(error) => return Err(fail(error)),
        };
        let found = self.mounts.metadata(&stat::stat_fd(&fd).map_err(fail)?);
        if found.kind != EntryKind::File || found.mtime.seconds.abs_diff(was.seconds) > NEAR_S {
            return Ok(());
        }
        set::times(&fd, None, Some(unfinished_time(was))).map_err(fail)
    }
}

impl SourceDirectory {
    /// The descriptor. A tree that is compared with a manifest is of this host.
    fn mounted(&self) -> Result<&OwnedFd, Errno> {
        self.handle.fd().ok_or(Errno::OPNOTSUPP)
    }

    /// The target of a symbolic link of a tree that is compared with a manifest.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn checked_symlink(&self, name: &[u8]) -> Result<Vec<u8>, EntryError> {
        self.mounted().and_then(|fd| directory::read_symlink(fd, name)).map_err(|e| {
            entry_error(Side::Destination, Operation::ReadLink, self.place.entry(name), e)
        })
    }
}

impl Session<'_> {
    /// Replaces an entry by a hard link to another one.
    ///
    /// # Errors
    /// The link cannot be made, or cannot get the name.
    pub fn replace_by_link(
        &self,
        (from, to): (&SourceDirectory, &TargetDirectory),
        name: &[u8],
        (holder, anchor): (&TargetDirectory, &[u8]),
    ) -> Result<(), EntryError> {
        let fail =
            |operation, e| entry_error(Side::Destination, operation, to.place.entry(name), e);
        let temporary = session::temporary_in(self, from, to);
        let temporary = temporary.as_bytes();
        directory::hard_link(&holder.fd, anchor, &to.fd, temporary)
            .map_err(|e| fail(Operation::Link, e))?;
        let renamed = directory::rename(&to.fd, temporary, name);
        if renamed.is_err() {
            // An incomplete file must not stay; its failure is reported.
            let _ = directory::unlink(&to.fd, temporary);
        }
        renamed.map_err(|e| fail(Operation::Rename, e))
    }
}
