//! Opening things below a directory without ever leaving it.
//!
//! With openat2(2) the kernel resolves a path of many components and refuses symbolic links, `..`
//! and magic links on the way; without it every component is opened on its own.
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use crate::{AsFd, BorrowedFd, Errno, OwnedFd, Result, kernel, retry};

/// Longer paths are resolved in pieces; the kernel's limit (PATH_MAX) counts the final NUL.
const PIECE_MAX: usize = 4095;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

fn has_openat2() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    *PRESENT.get_or_init(|| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH;
        let asked = retry(|| kernel::openat2(CWD, c".", flags, Mode::empty(), resolve));
        // Filters of system calls in containers answer EPERM. Other errors are those of the working directory.
        !matches!(asked, Err(Errno::NOSYS | Errno::PERM))
    })
}

/// Whether path resolution is confined by the kernel itself (openat2(2), Linux 5.6).
pub fn kernel_confines() -> bool {
    has_openat2()
}

/// Opens the directory at `path` (components joined by `/`, may be longer than PATH_MAX) below
/// `root`; symbolic links anywhere on the way are an error (`ELOOP`, or `ENOTDIR` at the end).
pub fn open_directory_below(root: impl AsFd, path: &[u8]) -> Result<OwnedFd> {
    if path.is_empty() {
        return open_again(root);
    }
    if !has_openat2() {
        return open_each(root.as_fd(), path);
    }
    let mut current: Option<OwnedFd> = None;
    let mut rest = path;
    while !rest.is_empty() {
        let piece = next_piece(rest)?;
        let base = current.as_ref().map_or_else(|| root.as_fd(), AsFd::as_fd);
        current = Some(open_piece(base, piece)?);
        rest = rest.get(piece.len() + 1..).unwrap_or_default();
    }
    current.ok_or(Errno::INVAL)
}

/// As many whole components as fit into one system call.
fn next_piece(path: &[u8]) -> Result<&[u8]> {
    if path.len() <= PIECE_MAX {
        return Ok(path);
    }
    let cut = path[..PIECE_MAX].iter().rposition(|b| *b == b'/').ok_or(Errno::NAMETOOLONG)?;
    Ok(&path[..cut])
}

fn open_piece(base: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    with_noatime(DIRECTORY, |flags| {
        // EAGAIN: a rename elsewhere raced with the walk; the kernel asks to repeat (openat2(2)).
        for _ in 0..1000 {
            match retry(|| kernel::openat2(base, path, flags, Mode::empty(), resolve)) {
                Err(Errno::AGAIN) => {}
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    })
}

fn open_each(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    let mut current: Option<OwnedFd> = None;
    for component in path.split(|b| *b == b'/') {
        let base = current.as_ref().map_or(root, AsFd::as_fd);
        current = Some(open_directory_at(base, component)?);
    }
    current.ok_or(Errno::INVAL)
}

/// Opens a directory component by component, following symbolic links, for `--dereference`.
pub fn open_directory_each(root: impl AsFd, path: &[u8]) -> Result<OwnedFd> {
    let mut current = open_again(&root)?;
    for component in path.split(|b| *b == b'/').filter(|c| !c.is_empty()) {
        current = open_directory_following(&current, component)?;
    }
    Ok(current)
}

/// Opens a directory once more, for reading; one that was only reached (`reach_directory`) and may not be read is reached again.
pub fn open_again(directory: impl AsFd) -> Result<OwnedFd> {
    let opened = open_directory_at(&directory, b".");
    // Not of another descriptor: a copy shares the position in the list of names.
    let is_reached = || kernel::fcntl_getfl(&directory).is_ok_and(|f| f.contains(OFlags::PATH));
    match opened {
        Err(Errno::ACCESS) if is_reached() => {
            retry(|| kernel::fcntl_dupfd_cloexec(directory.as_fd(), 0))
        }
        opened => opened,
    }
}

/// Opens a directory for reading by its name in `parent`, never through a symbolic link.
pub fn open_directory_at(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd> {
    with_noatime(DIRECTORY, |flags| {
        retry(|| kernel::openat(parent.as_fd(), name, flags, Mode::empty()))
    })
}

/// Opens the directory that `path` names, following links as the person who typed it means.
pub fn open_directory(path: &std::path::Path) -> Result<OwnedFd> {
    let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
    with_noatime(flags, |flags| retry(|| kernel::openat(CWD, path, flags, Mode::empty())))
}

/// The same for a directory that need not be readable (`O_PATH`): names in it can be used, but it cannot be listed, locked or
/// flushed.
pub fn reach_directory(path: &std::path::Path) -> Result<OwnedFd> {
    reach_directory_at(CWD, path.as_os_str().as_bytes())
}

/// The same for a name in an open directory.
pub fn reach_directory_at(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry(|| kernel::openat(parent.as_fd(), name, flags, Mode::empty()))
}

/// Opens a directory through a symbolic link, for `--dereference`.
pub fn open_directory_following(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd> {
    let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
    with_noatime(flags, |flags| {
        retry(|| kernel::openat(parent.as_fd(), name, flags, Mode::empty()))
    })
}

/// Opens a source file for reading without following a link, waiting for a FIFO or updating atime.
pub fn open_file_at(parent: impl AsFd, name: &[u8], follow: bool) -> Result<OwnedFd> {
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    flags.set(OFlags::NOFOLLOW, !follow);
    with_noatime(flags, |flags| {
        retry(|| kernel::openat(parent.as_fd(), name, flags, Mode::empty()))
    })
}

/// Opens what a path leads to for reading, as the person who typed it means it: through links, and waiting for the
/// other end of a FIFO.
pub fn open_as_named(path: &std::path::Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    with_noatime(flags, |flags| retry(|| kernel::openat(CWD, path, flags, Mode::empty())))
}

/// Pins an object of any type without opening it (`O_PATH`).
pub fn pin_at(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd> {
    pin(parent, name, OFlags::NOFOLLOW)
}

/// The same for what a symbolic link leads to.
pub fn pin_at_following(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd> {
    pin(parent, name, OFlags::empty())
}

fn pin(parent: impl AsFd, name: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    retry(|| kernel::openat(parent.as_fd(), name, flags, Mode::empty()))
}

/// `O_NOATIME` is for the owner and for root (open(2)); others get EPERM and read without it.
fn with_noatime(flags: OFlags, open: impl Fn(OFlags) -> Result<OwnedFd>) -> Result<OwnedFd> {
    match open(flags | OFlags::NOATIME) {
        Err(Errno::PERM) => open(flags),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbolic_link_on_the_way_is_refused_by_both_walks() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("l")).unwrap();
        std::os::unix::fs::symlink("b", dir.path().join("a/m")).unwrap();
        let root = open_directory(dir.path()).unwrap();
        assert!(open_directory_below(&root, b"a/b").is_ok());
        assert!(open_each(root.as_fd(), b"a/b").is_ok());
        for path in [&b"l/b"[..], b"a/m", b"l"] {
            assert!(open_directory_below(&root, path).is_err(), "{path:?}");
            assert!(open_each(root.as_fd(), path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn pieces_end_at_a_separator() {
        let long = vec![b"x".repeat(200); 50].join(&b'/');
        let piece = next_piece(&long).unwrap();
        assert!(piece.len() <= PIECE_MAX && long[piece.len()] == b'/');
        assert_eq!(next_piece(&[b'x'; 5000]), Err(Errno::NAMETOOLONG));
    }
}
