//! Reading the names of directories.
use dmover_model::{EntryError, Name, Operation, Side};
use dmover_sys::directory::{DirectoryReader, TypeHint};
use dmover_sys::{AsFd, Errno, path};

use crate::directory::{SourceDirectory, TargetDirectory};
use crate::error::CallFailed;
use crate::handle::{DirectoryHandle, call_failed};

pub use dmover_tree::ListedKind;

fn listed_kind(hint: TypeHint) -> ListedKind {
    match hint {
        TypeHint::Directory => ListedKind::Directory,
        TypeHint::File => ListedKind::File,
        TypeHint::Other => ListedKind::Other,
        TypeHint::Unknown => ListedKind::Unknown,
    }
}

/// An entry as its directory lists it.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'a> {
    /// Its name, which may be none that a job can work with.
    pub bytes: &'a [u8],
    /// Its type.
    pub kind: ListedKind,
    /// Its inode number. That of a mount point is of what is below the mount.
    pub inode: u64,
}

impl Listed<'_> {
    /// Its name.
    ///
    /// # Errors
    /// A job cannot work with it.
    pub fn name(&self) -> Result<Name, CallFailed> {
        Name::new(self.bytes).map_err(|_| CallFailed(Errno::ILSEQ))
    }
}

/// A buffer for the names of a directory while it is read.
#[derive(Debug, Default)]
pub struct NameBuffer(DirectoryReader);

impl NameBuffer {
    /// Calls `each` with every entry until it answers `false`. The position of the descriptor moves.
    pub(crate) fn read<E: From<CallFailed>>(
        &mut self,
        directory: impl AsFd,
        mut each: impl FnMut(Listed<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut failed = None;
        let read = self.0.read_numbered(directory, |bytes, hint, inode| -> Result<bool, Errno> {
            let listed = Listed { bytes, kind: listed_kind(hint), inode };
            Ok(each(listed).unwrap_or_else(|error| {
                failed = Some(error);
                false
            }))
        });
        match failed {
            Some(error) => Err(error),
            None => read.map(drop).map_err(|error| CallFailed(error).into()),
        }
    }
}

/// The names of a directory that are to be read. It has a descriptor of its own, so that the position of the directory's
/// stays at the start.
pub struct Listing(DirectoryHandle);

impl Listing {
    pub(crate) fn of(directory: impl AsFd) -> Result<Self, CallFailed> {
        Ok(Self(DirectoryHandle::Open(path::open_directory_at(directory, b".")?)))
    }

    /// Calls `each` with every entry, in the order of the file system, until it answers `false`.
    ///
    /// # Errors
    /// The directory cannot be read to its end, or `each` failed.
    pub fn read(
        &self,
        buffer: &mut NameBuffer,
        mut each: impl FnMut(Listed<'_>) -> Result<bool, CallFailed>,
    ) -> Result<(), CallFailed> {
        let directory = match &self.0 {
            DirectoryHandle::Open(directory) => return buffer.read(directory, each),
            DirectoryHandle::Remote(directory) => directory,
        };
        let mut failed = None;
        let read = directory.list(&mut |bytes, kind, inode| {
            each(Listed { bytes, kind, inode }).unwrap_or_else(|error| {
                failed = Some(error);
                false
            })
        });
        match failed {
            Some(error) => Err(error),
            None => read.map_err(|error| call_failed(&error)),
        }
    }
}

impl SourceDirectory {
    /// Its names, to be read. Whoever reads them knows what an error means.
    ///
    /// # Errors
    /// It cannot be opened again.
    pub fn listing(&self) -> Result<Listing, CallFailed> {
        Ok(Listing(self.handle.again()?))
    }

    /// Calls `each` with every entry, in the order of the file system, until it answers `false`.
    ///
    /// # Errors
    /// It cannot be read to its end, or `each` failed.
    pub fn read(
        &self,
        buffer: &mut NameBuffer,
        each: impl FnMut(Listed<'_>) -> Result<bool, CallFailed>,
    ) -> Result<(), EntryError> {
        let read = self.listing().and_then(|listing| listing.read(buffer, each));
        read.map_err(|e| self.unread(e))
    }

    /// All names with which a job can work.
    ///
    /// # Errors
    /// It cannot be opened again, or not read to its end.
    pub fn names(&self, buffer: &mut NameBuffer) -> Result<Vec<Name>, EntryError> {
        let listing = self.listing();
        let listing =
            listing.map_err(|e| e.at((Side::Source, Operation::Open), self.place.own()))?;
        let mut names = Vec::new();
        let read = listing.read(buffer, |listed| {
            names.extend(Name::new(listed.bytes).ok());
            Ok(true)
        });
        read.map_err(|e| self.unread(e)).map(|()| names)
    }

    /// The error of a directory that could not be read to its end.
    pub fn unread(&self, error: CallFailed) -> EntryError {
        error.at((Side::Source, Operation::ReadDirectory), self.place.own())
    }
}

impl TargetDirectory {
    /// Its names, to be read. Whoever reads them knows what an error means.
    ///
    /// # Errors
    /// It cannot be opened again.
    pub fn listing(&self) -> Result<Listing, CallFailed> {
        Listing::of(&self.fd)
    }

    /// The names of a directory in this one.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn listing_of(&self, name: &[u8]) -> Result<Listing, CallFailed> {
        Listing::of(path::open_directory_at(&self.fd, name)?)
    }
}
