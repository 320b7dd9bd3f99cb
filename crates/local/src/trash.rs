//! The trash directory, which receives entries instead of deleting them.
use dmover_model::{EntryKind, ExtraName, Fatal, Name, PathBytes, TreePath};
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_sys::xattr::{self, Held};
use dmover_sys::{Errno, OwnedFd, Result, directory, file, mount, path, set, stat};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::directory::{SourceDirectory, TargetDirectory};
use crate::handle::{DirectoryHandle, errno_of};
use crate::root_side::RootSide;

/// The result for a name.
pub enum Gone {
    /// It is gone.
    Removed,
    /// It is in the trash.
    Trashed,
    /// It is a directory that is not empty.
    Holds,
}

/// The name of the mark in a trash. The mark identifies its directory, so that a copy of it can be distinguished.
const MARK: &[u8] = b".dmover-trash";
/// The longest content of a mark.
const MARK_MAX: usize = 64;

/// Whether an open directory is a trash.
fn find_mark(directory: &OwnedFd) -> Result<bool> {
    match stat::stat_at(directory, MARK, false) {
        Ok(_) => Ok(true),
        Err(error) if stat::is_absent(error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether an open directory is a trash. If unknown, it is.
fn holds_mark(directory: &OwnedFd) -> bool {
    find_mark(directory).unwrap_or(true)
}

/// Whether a source name is a mark and the destination already has one, which stays: a trash that was moved or restored
/// is another directory than its mark says.
pub fn is_mark_there(name: &[u8], target: Option<&TargetDirectory>) -> bool {
    name == MARK && target.is_some_and(|target| holds_mark(&target.fd))
}

/// The content of the mark in a directory.
fn read_mark(directory: &OwnedFd) -> Result<Vec<u8>> {
    let file = path::open_file_at(directory, MARK, false)?;
    let mut bytes = [0; MARK_MAX];
    let length = file::read(&file, &mut bytes)?;
    Ok(bytes[..length].to_vec())
}

/// The content of the mark in a directory of the source.
fn read_mark_of_source(directory: &DirectoryHandle) -> Result<Vec<u8>> {
    let directory = match directory {
        DirectoryHandle::Open(directory) => return read_mark(directory),
        DirectoryHandle::Remote(directory) => directory,
    };
    let mut bytes = [0; MARK_MAX];
    let read = directory.open_file(MARK, false).and_then(|file| file.read(0, &mut bytes));
    let length = read.map_err(|error| errno_of(&error))?;
    Ok(bytes[..length].to_vec())
}

/// The content of the mark of a directory, which identifies it. `None`: its file system has no lasting identity.
fn mark_of(directory: &OwnedFd) -> Result<Option<Vec<u8>>> {
    let (found, birth) = stat::stat_born_at(directory, b"")?;
    let words = |(seconds, nanoseconds)| format!("{} {seconds}.{nanoseconds:09}\n", found.inode);
    Ok(birth.map(|birth| words(birth).into_bytes()))
}

/// Whether a destination directory is a trash, of this job or another one.
///
/// # Errors
/// It could not be looked into. What it is, nobody knows, so it must not be emptied.
pub(crate) fn is_trash(parent: &OwnedFd, name: &Name) -> Result<bool> {
    match path::open_directory_at(parent, name.as_bytes()) {
        Ok(fd) => find_mark(&fd),
        // It went, or is no directory any more.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a directory of both sides is a trash at the destination. A copy of a trash of the source is none: it
/// contains the mark of the source, which identifies another directory.
pub fn is_trash_of_both(target: &TargetDirectory, source: &SourceDirectory) -> bool {
    holds_mark(&target.fd)
        && (has_own_mark(&target.fd) || {
            let marks = read_mark(&target.fd).ok().zip(read_mark_of_source(&source.handle).ok());
            marks.is_none_or(|(there, here)| there != here)
        })
}

/// Whether a mark identifies the directory that contains it. If unknown, it does.
fn has_own_mark(directory: &OwnedFd) -> bool {
    match (read_mark(directory), mark_of(directory)) {
        (Ok(there), Ok(Some(own))) => there.is_empty() || there == own,
        // Without a time of birth an inode number may be another's by now, and may not stay the same.
        _ => true,
    }
}

/// The directory in the trash for the names of one run.
#[derive(Debug)]
pub struct Trash {
    top: OwnedFd,
    name: String,
    /// The directory of this run, created for the first name.
    run: Mutex<Option<OwnedFd>>,
}

impl Trash {
    /// Opens `named`, and creates it if needed. It must be on the file system of the `destination`.
    pub fn open(
        named: &Path,
        destination: &RootSide,
        run: String,
    ) -> std::result::Result<Self, Fatal> {
        let shown = named;
        let fail = |reason: &dyn std::fmt::Display| {
            let message = format!("cannot use '{}' as --trash: {reason}", shown.display());
            Fatal::refused(message, "name a directory on the destination's file system")
        };
        // A destination that is still to be made lies on the file system of the directory that will hold it.
        let place = destination
            .name
            .as_ref()
            .and_then(|name| path::open_directory_below(&destination.parent, name.as_bytes()).ok());
        let there = place.as_ref().unwrap_or(&*destination.parent);
        let there = stat::stat_fd(there).map_err(|e| fail(&std::io::Error::from(e)))?;
        let top = open_or_make(shown, there.device).map_err(|error| match error {
            Errno::XDEV => fail(&"it is on another file system than the destination"),
            error => fail(&std::io::Error::from(error)),
        })?;
        let found = stat::stat_fd(&top).map_err(|e| fail(&std::io::Error::from(e)))?;
        if found.device != there.device {
            return Err(fail(&"it is on another file system than the destination"));
        }
        if found.inode == there.inode {
            return Err(fail(&"it is the destination itself"));
        }
        // The mark protects the contents against deletes of any later job.
        write_mark(&top).map_err(|error| fail(&std::io::Error::from(error)))?;
        Ok(Self { top, name: run, run: Mutex::new(None) })
    }

    /// The name of this run's directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether `named` will be inside a destination that the pass creates.
    pub fn has_no_place_yet(named: &PathBytes, destination: &RootSide) -> bool {
        let Some(name) = &destination.name else { return false };
        let missing = stat::stat_at(&destination.parent, name.as_bytes(), false);
        let parent = mount::path_of(&destination.parent);
        let to_be = parent.map(|parent| parent.join(OsStr::from_bytes(name.as_bytes())));
        let named = std::path::absolute(named.to_path());
        let inside = to_be.zip(named.ok()).is_some_and(|(to_be, named)| named.starts_with(to_be));
        inside && missing.is_err_and(|error| error == Errno::NOENT)
    }

    fn run(&self) -> Result<OwnedFd> {
        let mut run = lock(&self.run);
        if let Some(run) = &*run {
            return path::open_directory_at(run, b".");
        }
        let name = self.name.as_bytes();
        make(&self.top, name)?;
        let made = path::open_directory_at(&self.top, name)?;
        let own = path::open_directory_at(&made, b".")?;
        *run = Some(made);
        Ok(own)
    }

    /// The directory for names of `place`, created closed to other users.
    fn directory(&self, place: &TreePath) -> Result<OwnedFd> {
        let run = self.run()?;
        // One directory after the other: an existing one costs one call, not one for each level.
        let mut at = place.as_bytes();
        let mut current = loop {
            match path::open_directory_below(&run, at) {
                Err(Errno::NOENT) if !at.is_empty() => {
                    at = &at[..at.iter().rposition(|byte| *byte == b'/').unwrap_or(0)];
                }
                opened => break opened?,
            }
        };
        for part in place.as_bytes()[at.len()..].split(|byte| *byte == b'/') {
            if !part.is_empty() {
                make(&current, part)?;
                current = path::open_directory_at(&current, part)?;
            }
        }
        Ok(current)
    }

    /// Moves a name of a directory at `place` into the trash. The entries of a directory were moved before it.
    pub(crate) fn take(
        &self,
        target: &TargetDirectory,
        entry: &ExtraName,
        place: &TreePath,
    ) -> Result<Gone> {
        let name = entry.name.as_bytes();
        let to = self.directory(place)?;
        if entry.kind == EntryKind::Directory {
            let old = path::open_directory_at(&target.fd, name)?;
            match directory::remove_directory(&target.fd, name) {
                Ok(()) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(Gone::Holds),
                Err(error) => return Err(error),
            }
            make(&to, name)?;
            let new = path::open_directory_at(&to, name)?;
            let mtime = entry.mtime;
            dress_alike(&old, &new, (mtime.seconds, mtime.nanoseconds))?;
            return Ok(Gone::Trashed);
        }
        match directory::move_new(&target.fd, name, &to, name) {
            Err(Errno::EXIST) => {
                // A later run of the same second, or a name that came back and went again.
                let other = format!(".{:016x}", dmover_host::random_u64());
                let other = [name, other.as_bytes()].concat();
                directory::move_new(&target.fd, name, &to, &other)?;
            }
            moved => moved?,
        }
        Ok(Gone::Trashed)
    }
}

/// Marks a directory, even if it has the mark of another one or an incomplete mark.
fn write_mark(directory: &OwnedFd) -> Result<()> {
    let own = mark_of(directory)?.unwrap_or_default();
    let known = holds_mark(directory);
    if known && has_own_mark(directory) && read_mark(directory).is_ok_and(|mark| !mark.is_empty()) {
        return Ok(());
    }
    let new = format!(".dmover-trash-{:016x}", dmover_host::random_u64());
    let marked = file::create_new(directory, new.as_bytes(), 0o644).and_then(|file| {
        file::write_all_at(&file, &own, 0)?;
        directory::rename(directory, new.as_bytes(), MARK)
    });
    if marked.is_err() {
        // It marks nothing.
        let _ = directory::unlink(directory, new.as_bytes());
    }
    match marked {
        // It belongs to another user, and has that user's mark.
        Err(Errno::ACCESS | Errno::PERM) if known => Ok(()),
        marked => marked,
    }
}

/// Opens a directory. It is created if it does not exist, but only on this device.
fn open_or_make(named: &Path, device: u64) -> Result<OwnedFd> {
    match (path::open_directory(named), named.file_name()) {
        (Err(Errno::NOENT), Some(name)) => {
            let above = named.parent().filter(|above| !above.as_os_str().is_empty());
            let above = path::open_directory(above.unwrap_or(Path::new(".")))?;
            if stat::stat_fd(&above)?.device != device {
                return Err(Errno::XDEV);
            }
            make(&above, name.as_bytes())?;
            path::open_directory_at(&above, name.as_bytes())
        }
        (opened, _) => opened,
    }
}

fn make(parent: &OwnedFd, name: &[u8]) -> Result<()> {
    match directory::make_directory(parent, name, 0o700) {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

/// Gives a directory of the trash the attributes of the directory that it stands for, as far as possible.
///
/// `mtime`: the time before it was emptied.
fn dress_alike(old: &OwnedFd, new: &OwnedFd, mtime: (i64, u32)) -> Result<()> {
    let found = stat::stat_fd(old)?;
    // Without privilege the owner is one's own already.
    match set::owner(new, Some(found.uid), Some(found.gid)) {
        Err(Errno::PERM) | Ok(()) => {}
        Err(error) => return Err(error),
    }
    for name in xattr::list(old, Held::Open)?.unwrap_or_default() {
        if let Some(value) = xattr::get(old, Held::Open, &name)?
            && let Err(error) = xattr::set(new, Held::Open, &name, &value)
        {
            tracing::warn!(%error, name = ?String::from_utf8_lossy(&name),
                "cannot set an attribute of a directory in the trash");
        }
    }
    set::mode(new, found.mode & 0o7777)?;
    set::times(new, Some(found.atime), Some(mtime))
}
