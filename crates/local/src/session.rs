//! What one mover does at the destination while it has a task.
use dmover_model::{EntryError, ErrorClass, Identity, MountId, Name, Operation, Side};
use dmover_plan::temporary::TemporaryNames;
use dmover_sys::{AsFd, Errno, directory, path, stat};
use dmover_tree::Permit;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap, HashSet};

use crate::content::Tools;
use crate::directory::{SourceDirectory, TargetDirectory, clocks};
use crate::end::Local;
use crate::error::{CallFailed, denied, entry_error};

/// The highest number of a backup for each name.
pub(crate) type BackupNumbers = HashMap<Vec<u8>, u64>;

/// The names of one directory.
type KnownNames = (Identity, HashSet<Vec<u8>>);

/// What a failed write left at the destination.
#[derive(Debug)]
pub struct WriteError {
    /// What failed.
    pub error: EntryError,
    /// The entry looks complete: another attempt would find it equal and skip it.
    pub in_place: bool,
}

impl WriteError {
    /// A failure after the entry has got its name, or was changed in a way that hides what is missing.
    pub fn in_place(error: EntryError) -> Self {
        Self { error, in_place: true }
    }
}

impl From<EntryError> for WriteError {
    fn from(error: EntryError) -> Self {
        Self { error, in_place: false }
    }
}

/// Temporary names that no other mover uses.
pub struct Temporaries<'a> {
    names: &'a TemporaryNames,
    /// The number of the grant under which the mover works.
    grant: u32,
    /// How many names it has used.
    used: Cell<u32>,
}

impl<'a> Temporaries<'a> {
    /// The names of a grant.
    pub fn new(names: &'a TemporaryNames, grant: u32) -> Self {
        Self { names, grant, used: Cell::new(0) }
    }

    fn next(&self) -> Name {
        let number = self.used.get();
        self.used.set(number + 1);
        self.names.of_lease(self.grant, number)
    }
}

/// One mover at work with one task.
pub struct Session<'a> {
    /// The end it works at.
    pub local: Local<'a>,
    /// Says when to stop and how fast to go.
    pub permit: &'a dyn Permit,
    /// Its buffers.
    pub tools: &'a mut Tools,
    temporaries: Temporaries<'a>,
    /// File systems that it has written to since they were last flushed.
    written: RefCell<BTreeSet<MountId>>,
    /// The names of the last directory that was asked for an exact name, where case is ignored.
    exact_names: RefCell<Option<KnownNames>>,
    /// The numbers of backups in the last directory that was asked for them.
    pub(crate) backups: RefCell<Option<(Identity, BackupNumbers)>>,
}

impl<'a> Session<'a> {
    /// A session with nothing written yet.
    pub fn new(
        local: Local<'a>,
        permit: &'a dyn Permit,
        tools: &'a mut Tools,
        temporaries: Temporaries<'a>,
    ) -> Self {
        let (written, exact_names, backups) = Default::default();
        Self { local, permit, tools, temporaries, written, exact_names, backups }
    }

    /// Records that the task writes to a directory.
    pub fn writes_to(&self, target: &TargetDirectory) {
        let mount = target.metadata.identity.mount;
        if let Some(flusher) = &self.local.end.flusher
            && self.written.borrow_mut().insert(mount)
        {
            flusher.know(mount, &target.fd);
        }
    }

    /// The file systems that were written to since the last call.
    pub fn take_written(&self) -> BTreeSet<MountId> {
        std::mem::take(&mut *self.written.borrow_mut())
    }

    /// Flushes everything that was written so far.
    ///
    /// # Errors
    /// The last of the failures. What was written is not on storage, and nothing says what of it.
    pub fn flush_written(&self) -> Result<(), CallFailed> {
        let Some(flusher) = &self.local.end.flusher else { return Ok(()) };
        let mut flushed = Ok(());
        for mount in &*self.written.borrow() {
            // Each is tried: what is on another file system may be safe.
            flushed = flusher.flush(*mount).map_err(CallFailed).and(flushed);
        }
        flushed
    }

    /// Checks that this mover still has its task, before a step on an entry that cannot be undone. Without a name it is
    /// about the directory.
    ///
    /// # Errors
    /// Another mover has the task.
    pub fn check_commit(&self, to: &TargetDirectory, name: &[u8]) -> Result<(), EntryError> {
        self.writes_to(to);
        self.permit.may_commit().map_err(|why| {
            let path = if name.is_empty() { to.place.own() } else { to.place.entry(name) };
            denied(why, (Side::Destination, Operation::Attempt), path)
        })
    }

    /// Whether a directory that ignores case has an entry with exactly this name.
    pub fn is_exact(&self, target: &TargetDirectory, wanted: &[u8]) -> bool {
        let mut known = self.exact_names.borrow_mut();
        let identity = target.metadata.identity;
        if known.as_ref().is_some_and(|(of, names)| *of == identity && names.contains(wanted)) {
            return true;
        }
        // It may have been made since the names were read.
        let mut names = HashSet::new();
        let read = path::open_directory_at(&target.fd, b".").and_then(|fd| {
            directory::DirectoryReader::default().read(&fd, |name, _| -> Result<bool, Errno> {
                names.insert(name.to_vec());
                Ok(true)
            })
        });
        // Unreadable: in doubt nothing is replaced.
        let exact = read.is_ok() && names.contains(wanted);
        *known = Some((identity, names));
        exact
    }

    /// The error for a name that was absent and is taken now: by another source entry on a destination that ignores
    /// case, or by another program, which a new scan shows.
    pub fn taken(&self, target: &TargetDirectory, last: &[u8]) -> EntryError {
        let (class, words) = if self.is_exact(target, last) {
            (ErrorClass::Busy, "another writer created an entry with this name")
        } else {
            (ErrorClass::NameClash, "an entry whose name differs only in case exists here")
        };
        let path = target.place.entry(last);
        EntryError::plain(Side::Destination, Operation::Create, class, path, words)
    }
}

/// A temporary name that no other mover uses.
pub(crate) fn temporary_name(session: &Session<'_>) -> Name {
    session.temporaries.next()
}

/// A temporary name in a directory, which is prepared for it.
pub(crate) fn temporary_in(
    session: &Session<'_>,
    from: &SourceDirectory,
    to: &TargetDirectory,
) -> Name {
    unlock_for_temporaries(&session.local, from, to);
    temporary_name(session)
}

/// Clears the append-only flag of a directory, in which a temporary file could be created but neither renamed nor
/// removed. Returns whether flags were cleared.
pub(crate) fn unlock_for_temporaries(
    local: &Local<'_>,
    from: &SourceDirectory,
    to: &TargetDirectory,
) -> bool {
    to.metadata.is_locked() && local.lift_directory(from, to)
}

/// Whether a name refers to this very entry.
pub(crate) fn is_at(
    local: &Local<'_>,
    target: &TargetDirectory,
    name: &[u8],
    identity: Identity,
) -> bool {
    let found = stat::stat_at(&target.fd, name, false);
    found.is_ok_and(|found| local.end.mounts.identity(&found) == identity)
}

/// Reads the names of directories anew when it is next asked for an exact one.
pub(crate) fn forget_names(session: &Session<'_>) {
    session.exact_names.replace(None);
}

/// Whether an earlier pass has locked the entry under a name, while its source is not locked any more.
pub(crate) fn is_locked_by_us(
    local: &Local<'_>,
    from: &SourceDirectory,
    to: &TargetDirectory,
    last: &[u8],
) -> bool {
    let Local { end, rules, .. } = local;
    let found = stat::stat_at(&to.fd, last, false);
    found.is_ok_and(|found| {
        rules.history.is_own_lock(clocks(from, Some(to)), &end.mounts.metadata(&found))
    })
}

/// Clears the locks of a file. Returns whether it had any.
pub(crate) fn lift_file(local: &Local<'_>, target: &TargetDirectory, last: &[u8]) -> bool {
    path::open_file_at(&target.fd, last, false)
        .is_ok_and(|fd| local.attributes().lift_flags(fd.as_fd()))
}

/// The error of an entry that could not be created under `name`, which may be a temporary one.
///
/// A file server may have created it although its answer was lost. An entry under a random name of this job can be
/// nothing else, so it is removed.
pub(crate) fn not_made(
    target: &TargetDirectory,
    name: &[u8],
    last: &[u8],
    error: Errno,
) -> EntryError {
    // A person knows the final name, not the temporary one.
    let shown = target.place.entry(last);
    if name != last {
        // Usually there is nothing to remove, and the original error is reported.
        let _ = directory::unlink(&target.fd, name);
        if error == Errno::EXIST {
            let words = "another entry has its temporary name";
            let (side, class) = (Side::Destination, ErrorClass::Busy);
            return EntryError::plain(side, Operation::Create, class, shown, words);
        }
    }
    entry_error(Side::Destination, Operation::Create, shown, error)
}
