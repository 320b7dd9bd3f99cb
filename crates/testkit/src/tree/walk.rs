//! A walk that works beyond `PATH_MAX` and changes no access time.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// One entry as [`walk`] shows it.
pub struct Visit<'a> {
    /// The directory that holds the entry.
    pub parent: BorrowedFd<'a>,
    /// The entry's name in that directory; `.` for the root.
    pub name: &'a OsStr,
    /// Path below the root; empty for the root.
    pub path: &'a Path,
    /// The entry itself, never what a symlink points to.
    pub stat: Stat,
}

impl Visit<'_> {
    /// The type of the entry.
    pub fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

/// Opens something without following it and, where permitted, without touching its access time.
pub fn open_quietly(parent: impl AsFd, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let parent = parent.as_fd();
    match rustix::fs::openat(parent, name, flags | OFlags::NOATIME, Mode::empty()) {
        // O_NOATIME is for the owner and for root only.
        Err(Errno::PERM) => rustix::fs::openat(parent, name, flags, Mode::empty()),
        other => other,
    }
}

/// Opens a directory below `root` one component at a time, so that its path may have any length.
pub fn open_beneath(root: impl AsFd, path: &Path) -> Result<OwnedFd> {
    let mut open = open_quietly(root, OsStr::new("."), OFlags::DIRECTORY)?;
    for component in path.components() {
        let Component::Normal(name) = component else { continue };
        open = open_quietly(&open, name, OFlags::DIRECTORY)
            .with_context(|| format!("open {name:?} of {path:?}"))?;
    }
    Ok(open)
}

/// Visits the root and everything below it, parents first; few descriptors are open at any time.
pub fn walk(root: &Path, visit: &mut dyn FnMut(&Visit<'_>) -> Result<()>) -> Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::PATH;
    let root_fd = rustix::fs::openat(CWD, root, flags, Mode::empty())
        .with_context(|| format!("open {root:?}"))?;
    let stat = rustix::fs::fstat(&root_fd)?;
    let name = OsStr::new(".");
    visit(&Visit { parent: root_fd.as_fd(), name, path: Path::new(""), stat })?;
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        let directory = open_beneath(&root_fd, &path)?;
        for name in names(&directory)? {
            let stat = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            let name = OsStr::from_bytes(name.to_bytes());
            let path = path.join(name);
            visit(&Visit { parent: directory.as_fd(), name, path: &path, stat })?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                pending.push(path);
            }
        }
    }
    Ok(())
}

/// The names in an open directory, without `.` and `..`.
pub fn names(directory: &OwnedFd) -> Result<Vec<std::ffi::CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}
