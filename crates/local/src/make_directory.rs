//! New directories of the destination.
use dmover_model::{EntryError, ErrorClass, Metadata, Operation, Side, TreePath};
use dmover_observe::{Activity, activity};
use dmover_sys::{AsFd, Errno, OwnedFd, directory, path, stat};
use dmover_tree::Limit;

use crate::attributes::Attributes;
use crate::directory::{Place, TargetDirectory, handed_down};
use crate::end::Local;
use crate::error::entry_error;
use crate::locks;
use crate::root_side::RootSide;
use crate::session::Session;

/// A directory that is to be made.
pub struct NewDirectory<'a> {
    /// The directory above it.
    parent: &'a OwnedFd,
    /// The default ACL that the parent gives to new entries.
    pub inherits_acl: Option<u32>,
    /// Its name there.
    name: &'a [u8],
    /// Where it is, for messages.
    pub place: Place,
}

impl TargetDirectory {
    /// A directory that is to be made in this one.
    pub fn new_directory<'a>(&'a self, name: &'a [u8]) -> NewDirectory<'a> {
        let (parent, inherits_acl) = (&self.fd, self.default_acl);
        NewDirectory { parent, inherits_acl, name, place: self.place.below(name) }
    }
}

impl RootSide {
    /// The root as a directory that is to be made. `None`: it is an open directory.
    pub fn new_directory(&self) -> Option<NewDirectory<'_>> {
        let (parent, name) = (&self.parent, self.name.as_ref()?.as_bytes());
        let place = Place::new(&self.names, TreePath::root());
        Some(NewDirectory { parent, inherits_acl: handed_down(parent), name, place })
    }
}

/// What has the name of a directory that is to be there.
pub enum Arrival {
    /// The directory.
    Entered(TargetDirectory),
    /// Nothing.
    Missing,
    /// An entry that is no directory.
    Blocked,
}

impl Local<'_> {
    /// Opens a directory that may be there already.
    ///
    /// # Errors
    /// It cannot be opened, or its metadata cannot be read.
    pub fn arrive(&self, new: &NewDirectory<'_>) -> Result<Arrival, EntryError> {
        activity::at(Activity::TargetNames);
        let NewDirectory { parent, name, place, .. } = new;
        match locks::open_own_directory(self, parent, name) {
            Ok(fd) => self.end.target_directory(fd, false, place.clone()).map(Arrival::Entered),
            Err(error) if stat::is_absent(error) => Ok(Arrival::Missing),
            Err(Errno::NOTDIR | Errno::LOOP) => Ok(Arrival::Blocked),
            Err(e) => Err(entry_error(Side::Destination, Operation::Open, place.own(), e)),
        }
    }
}

impl Session<'_> {
    /// Makes a directory, closed to all others, and opens it. It is not fresh if it was there already because another
    /// mover of this job works on the same list. `tried` is set once it may have been made: a file server may do
    /// it and lose the answer.
    ///
    /// # Errors
    /// It could not be made or opened.
    pub fn make_directory(
        &self,
        new: &NewDirectory<'_>,
        source: &Metadata,
        tried: &mut bool,
    ) -> Result<TargetDirectory, EntryError> {
        activity::at(Activity::TargetNames);
        let NewDirectory { parent, name, place, .. } = new;
        let fail = |operation, e| entry_error(Side::Destination, operation, place.own(), e);
        let privileged = self.local.end.privilege.privileged;
        let mode = if privileged { source.mode & 0o700 } else { 0o700 };
        self.permit.one_more(Limit::Creates);
        let is_made = match directory::make_directory(parent, name, mode) {
            Err(Errno::EXIST) => false,
            made => {
                *tried = true;
                made.map_err(|e| fail(Operation::MakeDirectory, e))?;
                true
            }
        };
        let opened = path::open_directory_below(parent, name);
        let fd = opened.map_err(|e| fail(Operation::Open, e))?;
        self.local.end.target_directory(fd, is_made, place.clone())
    }

    /// Checks that a directory that was just made is the one that was opened: another program may have replaced it.
    ///
    /// # Errors
    /// It is another one.
    pub fn check_made(&self, target: &TargetDirectory) -> Result<(), EntryError> {
        if target.facts.is_own(target.metadata.uid, self.local.end.privilege.uid) {
            self.writes_to(target);
            return Ok(());
        }
        let words = "another directory has replaced this one";
        let (side, class) = (Side::Destination, ErrorClass::Escaped);
        Err(EntryError::plain(side, Operation::Check, class, target.place.own(), words))
    }

    /// Takes away from a new directory what the directory above it has handed down and its source does not have.
    ///
    /// # Errors
    /// An attribute cannot be removed.
    pub fn prepare_directory(&self, target: &mut TargetDirectory) -> Result<(), EntryError> {
        let place = target.place.clone();
        let shown = || place.own();
        let (rules, attributes) = (self.local.attributes(), Attributes::default());
        let object = target.object(&shown);
        rules.prepare(object, &attributes)?;
        if rules.takes_acl_away(object, &attributes) {
            target.default_acl = None;
        }
        Ok(())
    }

    /// Removes an entry that is not a directory where the source has one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn make_way(&self, new: &NewDirectory<'_>) -> Result<(), EntryError> {
        let NewDirectory { parent, name, place, .. } = new;
        // unlink(2) takes no directory, so what has become one meanwhile stays.
        let mut gone = directory::unlink(parent, name);
        if gone == Err(Errno::PERM)
            && let Ok(fd) = path::open_file_at(parent, name, false)
            && self.local.attributes().lift_flags(fd.as_fd())
        {
            gone = directory::unlink(parent, name);
        }
        gone.map_err(|e| entry_error(Side::Destination, Operation::Unlink, place.own(), e))
    }
}
