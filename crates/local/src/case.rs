//! Names whose case has changed, on a destination that ignores case.
use dmover_model::{EntryError, Operation, Side};
use dmover_sys::{Errno, directory, stat};

use crate::directory::{SourceDirectory, TargetDirectory, fold, look_at};
use crate::error::CallFailed;
use crate::listing::NameBuffer;
use crate::session::{self, Session};

impl Session<'_> {
    /// The name in another case under which the destination has an entry; `None` if it has none, or has it under this
    /// very name, or if the source has an entry with that other name as well.
    ///
    /// # Errors
    /// One of the directories cannot be read.
    pub fn name_in_other_case(
        &self,
        from: &SourceDirectory,
        to: &TargetDirectory,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>, EntryError> {
        let fail =
            |operation, e: CallFailed| e.at((Side::Destination, operation), to.place.entry(name));
        let found = look_at(&to.fd, name).map_err(|e| fail(Operation::Stat, e.into()))?;
        let Some(found) = found.filter(|_| !self.is_exact(to, name)) else { return Ok(None) };
        let mut stored = None;
        let alike = fold(name);
        let is_found = |known: &[u8]| {
            stat::stat_at(&to.fd, known, false)
                .is_ok_and(|known| (known.device, known.inode) == (found.device, found.inode))
        };
        let read = to.listing().and_then(|listing| {
            listing.read(&mut NameBuffer::default(), |known| {
                if fold(known.bytes) == alike && is_found(known.bytes) {
                    stored = Some(known.bytes.to_vec());
                }
                Ok(true)
            })
        });
        read.map_err(|e| fail(Operation::ReadDirectory, e))?;
        let Some(stored) = stored else { return Ok(None) };
        let mut has_both = false;
        from.read(&mut NameBuffer::default(), |known| {
            has_both |= known.bytes == stored;
            Ok(true)
        })?;
        Ok(Some(stored).filter(|_| !has_both))
    }

    /// Gives an entry the case of `name`, by way of a third name: rename(2) does nothing if both names refer to one
    /// object, although the kernel treats them as different.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub fn change_case(
        &self,
        target: &TargetDirectory,
        stored: &[u8],
        name: &[u8],
    ) -> Result<(), EntryError> {
        let changed = try_to_change_case(self, target, stored, name).map_err(CallFailed);
        changed.map_err(|e| e.at((Side::Destination, Operation::Rename), target.place.entry(name)))
    }
}

fn try_to_change_case(
    session: &Session<'_>,
    target: &TargetDirectory,
    stored: &[u8],
    name: &[u8],
) -> Result<(), Errno> {
    directory::rename(&target.fd, stored, name)?;
    session::forget_names(session);
    if session.is_exact(target, name) {
        return Ok(());
    }
    // This is not a temporary name: a run that finds it after a crash must not remove it.
    let between = [stored, b".dmover-case"].concat();
    directory::move_new(&target.fd, stored, &target.fd, &between)?;
    let moved = directory::move_new(&target.fd, &between, &target.fd, name);
    if moved.is_err() {
        directory::move_new(&target.fd, &between, &target.fd, stored)?;
    }
    session::forget_names(session);
    moved
}
