//! How directories and files of a source are reached: by a descriptor, or through messages.
use dmover_model::{ByteRange, EntryError, Metadata, Operation, PathBytes, Side};
use dmover_sys::file::{self, DataRange};
use dmover_sys::{AsFd, BorrowedFd, Errno, OwnedFd, path, stat};
use dmover_tree::{NextData, RemoteDirectory, RemoteFile, Seen};
use std::sync::Arc;

use crate::error::{CallFailed, entry_error};
use crate::mounts::MountTable;

/// An open directory of a source.
#[derive(Debug)]
pub(crate) enum DirectoryHandle {
    /// This host has it mounted.
    Open(OwnedFd),
    /// It is read through messages.
    Remote(Arc<dyn RemoteDirectory>),
}

/// An open file of a source.
#[derive(Debug)]
pub(crate) enum FileHandle {
    /// This host has it mounted.
    Open(OwnedFd),
    /// It is read through messages.
    Remote(Arc<dyn RemoteFile>),
}

/// A file of a source that is being read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FileRef<'a> {
    /// This host has it mounted.
    Open(BorrowedFd<'a>),
    /// It is read through messages.
    Remote(&'a dyn RemoteFile),
}

/// What kept an end from answering, for those who only ask what kind of error it is.
pub(crate) fn errno_of(error: &EntryError) -> Errno {
    match error.errno {
        0 => Errno::IO,
        errno => Errno::from_raw_os_error(errno),
    }
}

/// The same for a look at an entry: that its directory is gone does not say that the entry is absent.
fn errno_of_entry(error: &EntryError) -> Errno {
    match errno_of(error) {
        errno if stat::is_absent(errno) && error.operation != Operation::Stat => Errno::STALE,
        errno => errno,
    }
}

pub(crate) fn call_failed(error: &EntryError) -> CallFailed {
    CallFailed(errno_of(error))
}

/// What a look at an entry on another host has shown; `None`: it is absent.
pub(crate) fn present_of(found: Result<Seen, EntryError>) -> Result<Option<Metadata>, CallFailed> {
    match found {
        Ok((found, _)) => Ok(Some(found)),
        Err(error) if stat::is_absent(errno_of_entry(&error)) => Ok(None),
        Err(error) => Err(CallFailed(errno_of_entry(&error))),
    }
}

impl DirectoryHandle {
    /// The descriptor, if there is one.
    pub fn fd(&self) -> Option<&OwnedFd> {
        match self {
            Self::Open(fd) => Some(fd),
            Self::Remote(_) => None,
        }
    }

    /// Another handle of the directory.
    pub fn again(&self) -> Result<Self, CallFailed> {
        Ok(match self {
            Self::Open(fd) => Self::Open(path::open_directory_at(fd, b".")?),
            Self::Remote(directory) => Self::Remote(Arc::clone(directory)),
        })
    }

    /// The metadata of an entry; `None` if it is absent. `follows`: of what it is a symbolic link to.
    pub fn find(
        &self,
        name: &[u8],
        follows: bool,
        mounts: &MountTable,
    ) -> Result<Option<Metadata>, CallFailed> {
        let absent = |error| if stat::is_absent(error) { Ok(None) } else { Err(CallFailed(error)) };
        match self {
            Self::Open(fd) => stat::stat_at(fd, name, follows)
                .map_or_else(absent, |found| Ok(Some(mounts.metadata(&found)))),
            Self::Remote(directory) => present_of(directory.look(name, follows)),
        }
    }

    /// Whether there is an entry of this name.
    pub fn has(&self, name: &[u8]) -> Result<bool, CallFailed> {
        let found = match self {
            Self::Open(fd) => stat::stat_at(fd, name, false).map(drop),
            Self::Remote(directory) => {
                directory.look(name, false).map(drop).map_err(|error| errno_of_entry(&error))
            }
        };
        match found {
            Ok(()) => Ok(true),
            Err(error) if stat::is_absent(error) => Ok(false),
            Err(error) => Err(CallFailed(error)),
        }
    }
}

impl FileHandle {
    /// The file, to be read.
    pub fn as_ref(&self) -> FileRef<'_> {
        match self {
            Self::Open(fd) => FileRef::Open(fd.as_fd()),
            Self::Remote(file) => FileRef::Remote(&**file),
        }
    }

    /// The descriptor, if there is one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.as_ref().fd()
    }

    /// Another handle of the file.
    pub fn again(&self) -> Result<Self, Errno> {
        Ok(match self {
            Self::Open(fd) => Self::Open(file::duplicate(fd)?),
            Self::Remote(file) => Self::Remote(Arc::clone(file)),
        })
    }
}

impl<'a> FileRef<'a> {
    /// The descriptor, if there is one.
    pub fn fd(self) -> Option<BorrowedFd<'a>> {
        match self {
            Self::Open(fd) => Some(fd),
            Self::Remote(_) => None,
        }
    }

    /// Announces a range that will be read in order.
    pub fn will_read(self, range: ByteRange) {
        if let Self::Remote(file) = self {
            file.will_read(range);
        }
    }

    /// What follows at an offset. `shown`: the path of the file.
    pub fn next_data(
        self,
        at: u64,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<DataRange, EntryError> {
        match self {
            Self::Open(fd) => file::next_data(fd, at)
                .map_err(|e| entry_error(Side::Source, Operation::Read, shown(), e)),
            Self::Remote(file) => Ok(match file.next_data(at)? {
                NextData::Data(range) => DataRange::Data(range.start, range.end),
                NextData::End => DataRange::End,
                NextData::Unknown => DataRange::Unknown,
            }),
        }
    }

    /// Reads up to `buffer` bytes, 0 at the end of the file.
    pub fn read(
        self,
        at: u64,
        buffer: &mut [u8],
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<usize, EntryError> {
        match self {
            Self::Open(fd) => file::read_at(fd, buffer, at)
                .map_err(|e| entry_error(Side::Source, Operation::Read, shown(), e)),
            Self::Remote(file) => file.read(at, buffer),
        }
    }

    /// The present metadata of the file.
    pub fn now(
        self,
        mounts: &MountTable,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<Metadata, EntryError> {
        match self {
            Self::Open(fd) => {
                let found = stat::stat_fd(fd)
                    .map_err(|e| entry_error(Side::Source, Operation::Stat, shown(), e))?;
                Ok(mounts.metadata(&found))
            }
            Self::Remote(file) => file.now(),
        }
    }
}
