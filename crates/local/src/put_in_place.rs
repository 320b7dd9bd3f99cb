//! Entries under a temporary name get their final one.
use dmover_model::{EntryError, Identity, Operation, Overwrite, Side};
use dmover_plan::decide::Decision;
use dmover_sys::{Errno, directory, stat};
use dmover_tree::TargetNames;

use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::Local;
use crate::error::entry_error;
use crate::session::{self, Session};

mod backup;
mod separate_copy;

/// A finished temporary entry, to be renamed into place.
#[derive(Clone, Copy)]
pub struct Renaming<'a> {
    /// The directory of the source.
    pub from: &'a SourceDirectory,
    /// The directory of the destination.
    pub to: &'a TargetDirectory,
    /// Its temporary name.
    pub name: &'a [u8],
    /// Its final name.
    pub last: &'a [u8],
    /// What was decided.
    pub decision: Decision,
    /// The source is immutable or append-only, so an old copy may be too.
    pub locks: bool,
    /// The identity of the temporary entry.
    pub identity: Identity,
    /// The source entry that it is a copy of.
    pub source: Identity,
    /// It is a hard link to another name at the destination.
    pub is_link: bool,
    /// Who knows the names of other entries; `None`: they have those of the source directory.
    pub others: Option<&'a dyn TargetNames>,
}

impl Session<'_> {
    /// Renames a finished temporary entry into place. If the name was absent when the decision was made, it must still
    /// be absent.
    ///
    /// # Errors
    /// It could not be renamed. A file server may have done it nevertheless.
    pub fn put_in_place(&self, renaming: Renaming<'_>) -> Result<(), EntryError> {
        let Renaming { from, to, name, last, decision, locks, identity, .. } = renaming;
        let fail = |e| entry_error(Side::Destination, Operation::Rename, to.place.entry(last), e);
        self.check_commit(to, last)?;
        if decision != Decision::Create {
            backup::back_up(self, renaming)?;
            let mut renamed = directory::rename(&to.fd, name, last);
            if renamed == Err(Errno::PERM)
                && (locks || session::is_locked_by_us(&self.local, from, to, last))
                && session::lift_file(&self.local, to, last)
            {
                renamed = directory::rename(&to.fd, name, last);
            }
            return match renamed {
                // A file server did it and lost the answer.
                Err(_) if session::is_at(&self.local, to, last, identity) => Ok(()),
                result => result.map_err(fail),
            };
        }
        let linked = directory::hard_link(&to.fd, name, &to.fd, last);
        match linked {
            Ok(()) => directory::unlink(&to.fd, name).map_err(fail),
            Err(_) if session::is_at(&self.local, to, last, identity) => {
                directory::unlink(&to.fd, name).map_err(fail)
            }
            Err(Errno::EXIST) => Err(self.taken(to, last)),
            // No hard links here.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
                match directory::rename_new(&to.fd, name, last) {
                    Ok(true) => Ok(()),
                    Ok(false) if stat::stat_at(&to.fd, last, false).is_ok() => {
                        Err(self.taken(to, last))
                    }
                    Ok(false) => directory::rename(&to.fd, name, last).map_err(fail),
                    Err(_) if session::is_at(&self.local, to, last, identity) => Ok(()),
                    Err(Errno::EXIST) => Err(self.taken(to, last)),
                    Err(error) => Err(fail(error)),
                }
            }
            Err(error) => Err(fail(error)),
        }
    }
}

/// Whether an entry is written under a temporary name. A name that is absent gets its content at once, unless the
/// policy could later mistake an interrupted entry for one to keep.
pub(crate) fn needs_temporary(local: &Local<'_>, decision: Decision) -> bool {
    let policy = local.rules.policy;
    let keeps = matches!(policy.overwrite, Overwrite::Never | Overwrite::Older);
    decision == Decision::Replace || keeps || policy.backup.is_some()
}
