//! Further names of an inode that the destination has.
use dmover_model::{
    EntryError, EntryKind, ErrorClass, Identity, Metadata, Operation, PathBytes, Side,
};
use dmover_plan::decide::Decision;
use dmover_sys::xattr::Held;
use dmover_sys::{AsFd, Errno, OwnedFd, directory, flags, path, stat};
use dmover_tree::TargetNames;
use std::io;

use crate::attributes::{Attributes, Object};
use crate::directory::{SourceDirectory, TargetDirectory, look_at};
use crate::end::Local;
use crate::error::entry_error;
use crate::put_in_place::Renaming;
use crate::session::{self, Session};

/// An inode that gets further names, by a name that it has.
#[derive(Clone, Copy)]
pub struct Anchor<'a> {
    /// The directory that has this name.
    pub at: &'a TargetDirectory,
    /// The name.
    pub name: &'a [u8],
    /// The metadata of the inode.
    pub metadata: &'a Metadata,
    /// The source inode that it is a copy of.
    pub source: Identity,
}

/// A further name.
#[derive(Clone, Copy)]
pub struct FurtherName<'a> {
    /// The directory that has it at the source.
    pub from: &'a SourceDirectory,
    /// The directory that gets it.
    pub to: &'a TargetDirectory,
    /// The name.
    pub last: &'a [u8],
    /// Another entry has it, which is replaced.
    pub replaces: bool,
    /// Who knows the names of other entries; `None`: they have those of the source directory.
    pub others: Option<&'a dyn TargetNames>,
}

/// What became of a further name.
#[derive(Debug)]
pub enum LinkOutcome {
    /// It is a name of the inode.
    Made,
    /// The inode cannot get it.
    Impossible(io::Error),
}

/// The flags of an immutable inode, which were cleared so that it can get further names.
#[derive(Default)]
pub struct ClearedLocks(Option<(OwnedFd, Attributes)>);

/// An inode that has the project of another directory for a moment.
pub struct LentProject {
    fd: OwnedFd,
    own: flags::Project,
}

impl LentProject {
    /// Gives the inode its own project back. `shown`: the name that it was for.
    ///
    /// # Errors
    /// It keeps the other one.
    pub fn give_back(self, shown: &dyn Fn() -> PathBytes) -> Result<(), EntryError> {
        let error = match flags::set_project(&self.fd, self.own) {
            Ok(true) => return Ok(()),
            given_back => given_back.err().unwrap_or(Errno::OPNOTSUPP),
        };
        Err(entry_error(Side::Destination, Operation::SetFlags, shown(), error))
    }
}

impl Local<'_> {
    /// The metadata of a name that an inode gets further names by.
    ///
    /// # Errors
    /// It is not there, or its directory cannot be searched.
    pub fn look_to_link(&self, at: &TargetDirectory, name: &[u8]) -> Result<Metadata, EntryError> {
        let found = stat::stat_at(&at.fd, name, false).map_err(|e| {
            entry_error(Side::Destination, Operation::Link, at.place.entry(name), e)
        })?;
        Ok(self.end.mounts.metadata(&found))
    }

    /// Gives an inode the project of a directory that hands its own down, where no file of another project can be linked
    /// (EXDEV). If a run is killed then, the file was changed after the last pass, and the next pass compares its
    /// attributes. `None`: this is not the reason, or cannot be done.
    pub fn lend_project(&self, to: &TargetDirectory, anchor: &Anchor<'_>) -> Option<LentProject> {
        let handed_down = flags::project(&to.fd).ok().flatten().filter(|own| own.inherit);
        let opened = path::open_file_at(&anchor.at.fd, anchor.name, false).ok();
        let (fd, there) =
            opened.zip(handed_down).filter(|_| anchor.metadata.kind == EntryKind::File)?;
        let same = stat::stat_fd(&fd)
            .is_ok_and(|found| self.end.mounts.identity(&found) == anchor.metadata.identity);
        let own = flags::project(&fd).ok().flatten().filter(|own| same && own.id != there.id)?;
        let lent = flags::Project { inherit: false, ..there };
        flags::set_project(&fd, lent).unwrap_or(false).then_some(LentProject { fd, own })
    }

    /// Sets the flags again that were cleared for further names.
    ///
    /// # Errors
    /// They cannot be set.
    pub fn lock_again(
        &self,
        anchor: &Anchor<'_>,
        ClearedLocks(cleared): ClearedLocks,
    ) -> Result<(), EntryError> {
        let Some((fd, attributes)) = cleared else { return Ok(()) };
        let shown = || anchor.at.place.entry(anchor.name);
        let object = Object {
            fd: fd.as_fd(),
            held: Held::Open,
            kind: EntryKind::File,
            facts: &anchor.at.facts,
            made: true,
            replaces: None,
            inherits: None,
            place: None,
            path: &shown,
        };
        self.attributes().carry_flags(object, &attributes, flags::LOCKS)
    }
}

/// Clears the flags of an immutable inode, which could not get another name.
fn unlock_anchor(local: &Local<'_>, anchor: &Anchor<'_>) -> Option<(OwnedFd, Attributes)> {
    if anchor.metadata.kind != EntryKind::File {
        return None;
    }
    let fd = path::open_file_at(&anchor.at.fd, anchor.name, false).ok()?;
    let found = stat::stat_fd(&fd).ok()?;
    let same = local.end.mounts.identity(&found) == anchor.metadata.identity;
    let flags = flags::get(&fd).ok().flatten()? & flags::CARRIED;
    (same && local.attributes().lift_flags(fd.as_fd()))
        .then(|| (fd, Attributes { flags, ..Attributes::default() }))
}

impl Session<'_> {
    /// The metadata of what has a name that is about to become a further name of an inode.
    ///
    /// # Errors
    /// Its directory cannot be searched, or it has the name in another case.
    pub fn in_place_of_link(
        &self,
        to: &TargetDirectory,
        last: &[u8],
    ) -> Result<Option<Metadata>, EntryError> {
        let found = look_at(&to.fd, last).map_err(|e| {
            entry_error(Side::Destination, Operation::Stat, to.place.entry(last), e)
        })?;
        if found.is_some() && to.folds_case && !self.is_exact(to, last) {
            let words = "an entry whose name differs only in case exists here";
            let (side, class) = (Side::Destination, ErrorClass::NameClash);
            let path = to.place.entry(last);
            return Err(EntryError::plain(side, Operation::Link, class, path, words));
        }
        Ok(found.map(|found| self.local.end.mounts.metadata(&found)))
    }

    /// Makes a further name of an inode. `cleared` gets the flags that forbid it and were cleared; `unlocks` is set if the
    /// directory was unlocked, which then has to be finished again.
    ///
    /// # Errors
    /// It could not be made, or another writer has its place.
    pub fn link(
        &self,
        further: FurtherName<'_>,
        anchor: &Anchor<'_>,
        cleared: &mut ClearedLocks,
        unlocks: &mut bool,
    ) -> Result<LinkOutcome, EntryError> {
        let FurtherName { from, to, last, replaces, others } = further;
        let fail =
            |operation, e| entry_error(Side::Destination, operation, to.place.entry(last), e);
        self.check_commit(to, last)?;
        let temporary = replaces.then(|| {
            // The directory may be finished already.
            *unlocks |= session::unlock_for_temporaries(&self.local, from, to);
            session::temporary_name(self)
        });
        let name = temporary.as_ref().map_or(last, |t| t.as_bytes());
        let link = || directory::hard_link(&anchor.at.fd, anchor.name, &to.fd, name);
        let mut linked = link();
        if linked == Err(Errno::PERM) && cleared.0.is_none() {
            cleared.0 = unlock_anchor(&self.local, anchor);
            linked = link();
        }
        let linked = match linked {
            Err(Errno::PERM | Errno::ACCESS) if self.local.lift_directory(from, to) => {
                *unlocks = true;
                link()
            }
            linked => linked,
        };
        match linked {
            Ok(()) => {}
            Err(
                error
                @ (Errno::MLINK | Errno::XDEV | Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS),
            ) => return Ok(LinkOutcome::Impossible(error.into())),
            // A file server did it and lost the answer.
            Err(_) if session::is_at(&self.local, to, name, anchor.metadata.identity) => {}
            Err(Errno::EXIST) if !replaces => return Err(self.taken(to, last)),
            Err(error) => {
                let not_made = session::not_made(to, name, last, error);
                return Err(EntryError { operation: Operation::Link, ..not_made });
            }
        }
        // The anchor is not held open: another program may have replaced it.
        let made = stat::stat_at(&to.fd, name, false).map_err(|e| fail(Operation::Stat, e))?;
        if self.local.end.mounts.identity(&made) != anchor.metadata.identity {
            directory::unlink(&to.fd, name).map_err(|e| fail(Operation::Unlink, e))?;
            let words = "another file had replaced the file to link to";
            let (side, class) = (Side::Destination, ErrorClass::Escaped);
            let path = to.place.entry(last);
            return Err(EntryError::plain(side, Operation::Link, class, path, words));
        }
        if replaces {
            let renaming = Renaming {
                from,
                to,
                name,
                last,
                decision: Decision::Replace,
                locks: false,
                identity: anchor.metadata.identity,
                source: anchor.source,
                is_link: true,
                others,
            };
            if let Err(error) = self.put_in_place(renaming) {
                // An incomplete link must not stay; the error below reports it if it does.
                let _ = directory::unlink(&to.fd, name);
                return Err(error);
            }
        }
        Ok(LinkOutcome::Made)
    }
}
