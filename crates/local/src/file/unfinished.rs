//! Files that are being written.
use dmover_model::{EntryKind, Identity, Metadata, PathBytes};
use dmover_sys::xattr::Held;
use dmover_sys::{AsFd, BorrowedFd, Errno, OwnedFd, directory, file, stat};
use dmover_tree::Permit;

use crate::attributes::Object;
use crate::content::Transfer;
use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::LocalEnd;
use crate::privilege::Privilege;
use crate::source::OpenedSource;

/// Attributes of a replaced file that the source does not determine.
#[derive(Debug, Clone)]
pub struct Replaced {
    /// Its metadata.
    pub metadata: Metadata,
    /// With an ACL, the group bits of the mode are its mask, so without it they would grant access.
    pub acl: Option<Vec<u8>>,
}

/// An incomplete destination file. Unless it is kept, it is removed.
pub struct Unfinished<'a> {
    /// The directory that it is in.
    pub target: &'a TargetDirectory,
    /// Taken only when the file is closed for good.
    file: Option<OwnedFd>,
    /// Its present name.
    pub name: Vec<u8>,
    /// Its metadata when it was opened.
    pub metadata: Metadata,
    /// The file that it replaces, or that was written into.
    pub replaces: Option<Replaced>,
    /// It is an existing file that is written into.
    pub written_into: bool,
    armed: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.remove();
        }
    }
}

impl<'a> Unfinished<'a> {
    /// An open file under a name.
    ///
    /// # Errors
    /// Its metadata cannot be read.
    pub(crate) fn new(
        end: &LocalEnd,
        target: &'a TargetDirectory,
        fd: OwnedFd,
        name: &[u8],
    ) -> Result<Self, Errno> {
        let metadata = end.mounts.metadata(&stat::stat_fd(&fd)?);
        let (file, name) = (Some(fd), name.to_vec());
        Ok(Self { target, file, name, metadata, replaces: None, written_into: false, armed: true })
    }

    /// A file that was just created on a file system where new files are as requested. Its identity is unknown, and not
    /// needed under a final name.
    pub(super) fn unseen(
        end: &LocalEnd,
        target: &'a TargetDirectory,
        fd: OwnedFd,
        (name, mode): (&[u8], u32),
    ) -> Self {
        let Privilege { uid, gid, .. } = end.privilege;
        let identity = Identity { mount: target.metadata.identity.mount, inode: 0 };
        let kind = EntryKind::File;
        let metadata =
            Metadata { kind, mode, uid, gid, size: 0, identity, ..target.metadata.clone() };
        let (file, name) = (Some(fd), name.to_vec());
        Self { target, file, name, metadata, replaces: None, written_into: false, armed: true }
    }

    /// Removes the name if it still refers to this file.
    fn remove(&self) {
        // Closed, it is one that was looked at when it was made: elsewhere closing has no late errors.
        let inode = self.file.as_ref().map_or(Ok(self.metadata.identity.inode), |file| {
            stat::stat_fd(file).map(|own| own.inode)
        });
        let there = stat::stat_at(&self.target.fd, &self.name, false);
        let same = inode.is_ok_and(|inode| there.is_ok_and(|there| there.inode == inode));
        if same && let Err(error) = directory::unlink(&self.target.fd, &self.name) {
            tracing::warn!(%error, name = ?String::from_utf8_lossy(&self.name),
                "cannot remove an unfinished file; the next run removes it");
        }
    }

    /// Keeps the name whatever happens: it belongs to a later task, or the file was there before.
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
    }

    /// Checks for late errors that NFS and FUSE report only when a descriptor is closed.
    pub(super) fn hear_late_errors(&self) -> Result<(), Errno> {
        if self.target.facts.local {
            return Ok(());
        }
        file::duplicate(self.fd()).map_or(Ok(()), file::close)
    }

    /// Closes the file and keeps it, unless a late error says that its content is not safe.
    ///
    /// # Errors
    /// The late error.
    pub fn keep(mut self) -> Result<(), Errno> {
        let closed = self.file.take().map_or(Ok(()), file::close);
        if closed.is_ok() {
            self.disarm();
        }
        closed
    }

    /// The open file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("a file that is being worked on is open").as_fd()
    }

    /// The copy of a source into it, with the paths of both for messages: flushed, and without a digest.
    pub(crate) fn transfer<'t>(
        &'t self,
        from: &'t SourceDirectory,
        supply: &'t OpenedSource,
        [source_path, target_path]: [&'t dyn Fn() -> PathBytes; 2],
        permit: &'t dyn Permit,
    ) -> Transfer<'t> {
        Transfer {
            source: supply.file.as_ref(),
            destination: self.fd(),
            size: supply.metadata.size,
            flushed: true,
            source_mount: supply.metadata.identity.mount,
            source_facts: &from.facts,
            facts: &self.target.facts,
            source_path,
            target_path,
            permit,
            tap: None,
        }
    }

    /// The file, to set its attributes.
    pub fn object<'o>(&'o self, shown: &'o dyn Fn() -> PathBytes) -> Object<'o> {
        Object {
            fd: self.fd(),
            held: Held::Open,
            kind: EntryKind::File,
            facts: &self.target.facts,
            made: true,
            replaces: self.replaces.as_ref().map(|replaced| &replaced.metadata),
            inherits: self.target.default_acl.filter(|_| !self.written_into),
            place: None,
            path: shown,
        }
    }
}
