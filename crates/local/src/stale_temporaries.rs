//! Leftovers of interrupted runs: in one directory that a job works on, or of a job that is not running, anywhere below
//! its destination.
use dmover_model::{EntryError, JobId, Note, Operation, Side, TreePath};
use dmover_plan::temporary::TemporaryNames;
use dmover_sys::directory::{self, DirectoryReader, TypeHint};
use dmover_sys::{Errno, OwnedFd, path, stat};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::directory::TargetDirectory;
use crate::error::{CallFailed, entry_error};
use crate::listing::NameBuffer;
use crate::session::Session;

impl Session<'_> {
    /// Removes leftovers from a directory that existed before. `clears_locks`: the flags of the directory that forbid it
    /// are those of its source. What cannot be removed is passed to `tell`. Returns whether anything was removed.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn remove_leftovers(
        &self,
        target: &TargetDirectory,
        clears_locks: bool,
        buffer: &mut NameBuffer,
        is_leftover: impl Fn(&[u8]) -> bool,
        mut tell: impl FnMut(EntryError),
    ) -> Result<bool, EntryError> {
        let place = &target.place;
        let fail = |operation, e| entry_error(Side::Destination, operation, place.own(), e);
        let mut found = Vec::new();
        // A descriptor of its own, so that the position of `target` stays at the start.
        let fd = path::open_directory_at(&target.fd, b".").map_err(|e| fail(Operation::Open, e))?;
        let read = buffer.read(&fd, |listed| {
            if is_leftover(listed.bytes) {
                found.push(listed.bytes.to_vec());
            }
            Ok(true)
        });
        let at = (Side::Destination, Operation::ReadDirectory);
        read.map_err(|e: CallFailed| e.at(at, place.own()))?;
        let mut has_removed = false;
        for name in found {
            let mut gone = directory::unlink(&target.fd, &name);
            if gone == Err(Errno::PERM) && clears_locks && self.local.clear_locks(target) {
                gone = directory::unlink(&target.fd, &name);
            }
            match gone {
                Ok(()) => {
                    has_removed = true;
                    self.local.reports.note(Note::LeftoverRemoved, &|| {
                        place.own().join(&TreePath::root().join(&name))
                    });
                }
                Err(error) if stat::is_absent(error) => {}
                Err(error) => tell(fail(Operation::Unlink, error)),
            }
        }
        Ok(has_removed)
    }
}

/// Removes the leftovers of interrupted runs of a job below `at`, or only lists them. Errors are returned as messages.
pub fn remove_leftovers(job: &str, at: &Path, only_list: bool) -> Vec<Result<PathBuf, String>> {
    // The names of no run: all runs of the job are others.
    let names = TemporaryNames::new(&JobId(job.to_owned()), 0);
    let fail = |at: &Path, error: Errno| {
        format!("cannot look for leftovers in {}: {}", at.display(), std::io::Error::from(error))
    };
    let root = match path::open_directory(at) {
        Ok(root) => root,
        // A copy to a single name, or nothing was made yet.
        Err(Errno::NOENT | Errno::NOTDIR) => return Vec::new(),
        Err(error) => return vec![Err(fail(at, error))],
    };
    let mut found = Vec::new();
    let mut left = vec![TreePath::root()];
    while let Some(below) = left.pop() {
        let shown = at.join(OsStr::from_bytes(below.as_bytes()));
        let opened = path::open_directory_below(&root, below.as_bytes());
        let read = opened.and_then(|fd| clean(&fd, &below, &names, &mut left).map(|own| (fd, own)));
        match read {
            Err(error) => found.push(Err(fail(&shown, error))),
            Ok((fd, own)) => {
                for name in own {
                    let path = shown.join(OsStr::from_bytes(&name));
                    let removed = if only_list { Ok(()) } else { directory::unlink(&fd, &name) };
                    found.push(removed.map(|()| path.clone()).map_err(|error| {
                        let reason = std::io::Error::from(error);
                        format!("cannot remove {}: {reason}", path.display())
                    }));
                }
            }
        }
    }
    found
}

/// Handles the leftovers of one directory; its subdirectories are added to the list.
fn clean(
    fd: &OwnedFd,
    below: &TreePath,
    names: &TemporaryNames,
    left: &mut Vec<TreePath>,
) -> Result<Vec<Vec<u8>>, Errno> {
    let mut own = Vec::new();
    DirectoryReader::default().read(fd, |name, hint| -> Result<bool, Errno> {
        let is_directory = match hint {
            TypeHint::Unknown => stat::stat_at(fd, name, false)
                .is_ok_and(|found| found.mode & 0o170_000 == 0o040_000),
            hint => hint == TypeHint::Directory,
        };
        if is_directory {
            left.push(below.join(name));
        } else if names.is_leftover(name) {
            own.push(name.to_vec());
        }
        Ok(true)
    })?;
    Ok(own)
}
