//! Directories of the destination that are searched for entries that the source does not have.
use dmover_model::{EntryError, Identity, Metadata, Name, Operation, PathBytes, Side, TreePath};
use dmover_sys::{Errno, OwnedFd, mount, path, stat};

use crate::directory::{Place, TargetDirectory};
use crate::end::LocalEnd;
use crate::error::{CallFailed, entry_error};
use crate::listing::{Listed, Listing, NameBuffer};
use crate::trash::is_trash;

/// A directory that only the destination has.
pub struct ExtraDirectory {
    fd: OwnedFd,
    place: Place,
    identity: Identity,
}

/// The directory of an extra entry: one of the job, or an [`ExtraDirectory`] below it.
#[derive(Clone, Copy)]
pub struct Holder<'a> {
    fd: &'a OwnedFd,
    place: &'a Place,
    /// Its identity.
    pub identity: Identity,
}

impl TargetDirectory {
    /// The directory as one that may have extra entries.
    pub fn holder(&self) -> Holder<'_> {
        Holder { fd: &self.fd, place: &self.place, identity: self.metadata.identity }
    }
}

impl ExtraDirectory {
    /// The directory as the one of its entries.
    pub fn holder(&self) -> Holder<'_> {
        Holder { fd: &self.fd, place: &self.place, identity: self.identity }
    }
}

impl Holder<'_> {
    fn shown(&self, name: &[u8]) -> PathBytes {
        self.place.own().join(&TreePath::root().join(name))
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
        let read = Listing::of(self.fd).and_then(|listing| listing.read(buffer, each));
        read.map_err(|e| e.at((Side::Destination, Operation::ReadDirectory), self.place.own()))
    }

    /// Whether a directory in it is a trash, of this job or another one.
    ///
    /// # Errors
    /// It could not be looked into. What it is, nobody knows, so it must not be emptied.
    pub fn has_trash(&self, name: &Name) -> Result<bool, EntryError> {
        is_trash(self.fd, name).map_err(|e| {
            entry_error(Side::Destination, Operation::Open, self.shown(name.as_bytes()), e)
        })
    }

    /// Whether something is mounted on a directory in it. If unknown, it is.
    pub fn has_mount(&self, name: &Name) -> bool {
        mount::is_mounted_on(self.fd, name.as_bytes()).unwrap_or(true)
    }
}

impl LocalEnd {
    /// Opens a directory below one of the destination.
    ///
    /// # Errors
    /// It cannot be opened, or its metadata cannot be read.
    pub fn open_extra(
        &self,
        top: &TargetDirectory,
        at: &TreePath,
    ) -> Result<ExtraDirectory, EntryError> {
        let place = top.place.further(at);
        let open = || -> Result<_, Errno> {
            let fd = path::open_directory_below(&top.fd, at.as_bytes())?;
            Ok((self.mounts.identity(&stat::stat_fd(&fd)?), fd))
        };
        let opened =
            open().map_err(|e| entry_error(Side::Destination, Operation::Open, place.own(), e));
        opened.map(|(identity, fd)| ExtraDirectory { fd, place, identity })
    }

    /// The metadata of a name in it; `None` if it is absent.
    ///
    /// # Errors
    /// Its directory cannot be searched.
    pub fn look_at_extra(
        &self,
        holder: Holder<'_>,
        name: &Name,
    ) -> Result<Option<Metadata>, EntryError> {
        let at = (Side::Destination, Operation::Stat);
        let found = self.find(holder.fd, name.as_bytes(), false);
        found.map_err(|e| e.at(at, holder.shown(name.as_bytes())))
    }
}
