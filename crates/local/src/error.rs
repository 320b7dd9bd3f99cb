//! The errors of system calls on entries. Errors of entries are data, see `dmover_model`.
use dmover_model::{EntryError, ErrorClass, Fatal, Operation, PathBytes, Side};
use dmover_sys::{Errno, stat};
use dmover_tree::Denied;
use std::path::Path;

/// The number of EPERM, for errors of entries.
pub const EPERM: i32 = 1;
const EACCES: i32 = 13;

/// Whether an error may come from a directory that cannot be changed now.
pub fn is_locked_out(errno: i32) -> bool {
    matches!(errno, EPERM | EACCES)
}

/// Whether an error says that an entry is not there.
pub fn is_absent(error: &EntryError) -> bool {
    stat::is_absent_number(error.errno)
}

/// Whether an error says that an entry is not there, or that its path leads through something else than directories.
pub fn has_no_place(error: &EntryError) -> bool {
    [Errno::NOENT, Errno::NOTDIR].map(Errno::raw_os_error).contains(&error.errno)
}

/// Whether an error says that there is no such directory.
pub fn is_no_directory(error: &EntryError) -> bool {
    has_no_place(error) || error.errno == Errno::LOOP.raw_os_error()
}

/// The error of a name that no entry can have.
pub fn not_a_name(side: Side, path: PathBytes) -> EntryError {
    entry_error(side, Operation::Stat, path, Errno::INVAL)
}

/// The error of a file that has changed while it was compared.
pub fn changed(side: Side, path: PathBytes) -> EntryError {
    let words = "the file changed while it was compared";
    EntryError::plain(side, Operation::Check, ErrorClass::Changed, path, words)
}

/// The error of an entry that is not there.
pub fn absent(side: Side, operation: Operation, path: PathBytes) -> EntryError {
    entry_error(side, operation, path, Errno::NOENT)
}

/// A system call that failed. Whoever asked for it knows of which entry, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallFailed(pub(crate) Errno);

impl CallFailed {
    /// The error of an entry.
    pub fn at(self, (side, operation): (Side, Operation), path: PathBytes) -> EntryError {
        entry_error(side, operation, path, self.0)
    }
}

impl From<Errno> for CallFailed {
    fn from(error: Errno) -> Self {
        Self(error)
    }
}

impl std::fmt::Display for CallFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The error of a source entry with a name that a job cannot work with.
pub fn no_name(path: PathBytes) -> EntryError {
    entry_error(Side::Source, Operation::Stat, path, Errno::ILSEQ)
}

/// Whether an error says that a name is no directory.
pub fn leads_to_no_directory(error: &EntryError) -> bool {
    [Errno::NOTDIR, Errno::LOOP].map(Errno::raw_os_error).contains(&error.errno)
}

/// The error of an entry that is not attempted because the job is stopping.
pub fn cancelled(path: PathBytes) -> EntryError {
    let class = ErrorClass::Cancelled;
    let words = "the job stopped before this entry was done";
    EntryError::plain(Side::Destination, Operation::Attempt, class, path, words)
}

/// The error of a system call on an entry.
pub(crate) fn entry_error(
    side: Side,
    operation: Operation,
    path: PathBytes,
    error: Errno,
) -> EntryError {
    let errno = error.raw_os_error();
    let class = ErrorClass::from_errno(errno, side);
    let mut detail = String::new();
    // Without write permission it would be EACCES. (New devices are refused for other reasons.)
    let names = [Operation::MakeDirectory, Operation::Rename, Operation::Unlink];
    if error == Errno::PERM && side == Side::Destination && names.contains(&operation) {
        "check for the immutable or append-only flag on it and its directory (lsattr), and for a \
        sticky directory with an entry of another user"
            .clone_into(&mut detail);
    }
    EntryError { side, operation, path, class, errno, detail, attempt: 1 }
}

/// The error of an entry whose work was interrupted.
pub fn denied(why: Denied, (side, operation): (Side, Operation), path: PathBytes) -> EntryError {
    match why {
        Denied::Dropped => cancelled(path),
        Denied::Fenced => {
            let words = "this mover lost its lease";
            EntryError::plain(side, operation, ErrorClass::Fenced, path, words)
        }
    }
}

/// The error with the destination as its side.
pub fn at_destination(error: EntryError) -> EntryError {
    let class = match error.errno {
        0 => error.class,
        errno => ErrorClass::from_errno(errno, Side::Destination),
    };
    EntryError { side: Side::Destination, class, ..error }
}

/// The refusal of a job that cannot use one of its own files or directories.
pub fn failed(at: &Path, doing: &str, error: Errno) -> Fatal {
    let reason = std::io::Error::from(error);
    Fatal::refused(
        format!("cannot {doing} '{}': {reason}", at.display()),
        "check permissions and space",
    )
}
