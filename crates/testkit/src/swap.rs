//! An attacker who exchanges names while a copier looks at them.

use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// How two names are exchanged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SwapKind {
    /// In one step: at any instant the name leads to one or the other.
    Exchange,
    /// By single renames through a third name: at times the name leads nowhere.
    Rotate,
}

/// What an attacker puts in the place of an entry.
#[derive(Clone, Copy, Debug)]
pub enum Decoy<'a> {
    /// A symbolic link, for example to a directory outside the tree.
    SymlinkTo(&'a Path),
    /// A second name of a file, for example of one outside the tree on the same file system.
    HardLinkTo(&'a Path),
    /// A FIFO, whose opening blocks a careless program.
    Fifo,
    /// An empty directory.
    Directory,
}

impl Decoy<'_> {
    /// Makes the decoy; it must lie on the file system of its victim, outside the tree that is scanned.
    pub fn create(self, at: &Path) -> Result<()> {
        let made = match self {
            Decoy::SymlinkTo(target) => rustix::fs::symlinkat(target, CWD, at),
            Decoy::HardLinkTo(file) => rustix::fs::linkat(CWD, file, CWD, at, AtFlags::empty()),
            Decoy::Fifo => {
                let mode = Mode::from_raw_mode(0o644);
                rustix::fs::mknodat(CWD, at, FileType::Fifo, mode, 0)
            }
            Decoy::Directory => rustix::fs::mkdirat(CWD, at, Mode::from_raw_mode(0o755)),
        };
        made.with_context(|| format!("decoy {self:?} at {}", at.display()))
    }
}

/// A thread that exchanges two names as fast as it can.
pub struct Swapper {
    stop: Arc<AtomicBool>,
    swaps: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// A name in a directory that stays the same whatever happens to the path to it.
struct Place {
    directory: OwnedFd,
    name: OsString,
    path: PathBuf,
}

impl Place {
    fn new(path: &Path) -> Result<Self> {
        let name = path.file_name().with_context(|| format!("no name in {}", path.display()))?;
        let parent = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(parent, flags, Mode::empty())
            .with_context(|| format!("directory {}", parent.display()))?;
        Ok(Self { directory, name: name.to_owned(), path: path.to_owned() })
    }

    fn inode(&self) -> Result<(u64, u64), Errno> {
        let stat = rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    fn rename(&self, to: &Place, flags: RenameFlags) -> Result<(), Errno> {
        rustix::fs::renameat_with(&self.directory, &self.name, &to.directory, &to.name, flags)
    }

    fn parking(&self) -> Result<Self> {
        let mut name = self.name.clone();
        name.push(".parked");
        Self::new(&self.path.with_file_name(name))
    }
}

/// The two names, and what lay under the first at the beginning.
struct Pair {
    victim: Place,
    alternate: Place,
    parking: Place,
    original: (u64, u64),
    kind: SwapKind,
}

impl Pair {
    fn swap(&self) -> Result<(), Errno> {
        match self.kind {
            SwapKind::Exchange => self.victim.rename(&self.alternate, RenameFlags::EXCHANGE),
            SwapKind::Rotate => {
                self.victim.rename(&self.parking, RenameFlags::empty())?;
                self.alternate.rename(&self.victim, RenameFlags::empty())?;
                self.parking.rename(&self.alternate, RenameFlags::empty())
            }
        }
    }

    fn run(&self, stop: &AtomicBool, swaps: &AtomicU64) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            match self.swap() {
                Ok(()) => {
                    swaps.fetch_add(1, Ordering::Relaxed);
                }
                // The copier under test may have removed or replaced one of the two.
                Err(Errno::NOENT | Errno::EXIST | Errno::NOTEMPTY) => thread::yield_now(),
                Err(error) => {
                    return Err(error).with_context(|| self.victim.path.display().to_string());
                }
            }
        }
        let somewhere_else = self.alternate.inode() == Ok(self.original);
        if somewhere_else {
            self.swap().context("cannot put the original back")?;
        }
        Ok(())
    }
}

impl Swapper {
    /// Starts to exchange two existing names of one file system.
    pub fn start(victim: &Path, alternate: &Path, kind: SwapKind) -> Result<Self> {
        let (victim, alternate) = (Place::new(victim)?, Place::new(alternate)?);
        let parking = alternate.parking()?;
        let original = victim.inode().with_context(|| victim.path.display().to_string())?;
        alternate.inode().with_context(|| alternate.path.display().to_string())?;
        let pair = Pair { victim, alternate, parking, original, kind };
        let (stop, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = thread::Builder::new().name("swapper".to_owned()).spawn({
            let (stop, swaps) = (Arc::clone(&stop), Arc::clone(&swaps));
            move || pair.run(&stop, &swaps)
        })?;
        Ok(Self { stop, swaps, thread: Some(thread) })
    }

    /// How many swaps there have been so far.
    pub fn swaps(&self) -> u64 {
        self.swaps.load(Ordering::Relaxed)
    }

    /// Stops with the original under its own name again, and returns the number of swaps.
    pub fn stop(mut self) -> Result<u64> {
        self.join()?;
        Ok(self.swaps())
    }

    fn join(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => bail!("the swapper panicked"),
        }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.join().ok();
    }
}

/// Whether a file system can exchange names in one step, tried in a directory of it.
pub fn can_exchange(directory: &Path) -> Result<bool> {
    let scratch = tempfile::tempdir_in(directory)?;
    let (one, other) = (scratch.path().join("one"), scratch.path().join("other"));
    fs::write(&one, "")?;
    fs::write(&other, "")?;
    match rustix::fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn names_are_swapped_and_put_back() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for kind in [SwapKind::Exchange, SwapKind::Rotate] {
            if kind == SwapKind::Exchange && !can_exchange(directory.path()).unwrap() {
                crate::skip::skipped("names_are_swapped_and_put_back", "no RENAME_EXCHANGE");
                continue;
            }
            fs::create_dir_all(at("tree/victim")).unwrap();
            fs::create_dir_all(at("secret")).unwrap();
            fs::write(at("secret/key"), "key").unwrap();
            Decoy::SymlinkTo(Path::new("../secret")).create(&at("decoy")).unwrap();
            let swapper = Swapper::start(&at("tree/victim"), &at("decoy"), kind).unwrap();
            let (mut outside, mut inside) = (false, false);
            while !outside || !inside || swapper.swaps() < 100 {
                match fs::symlink_metadata(at("tree/victim")) {
                    Ok(data) if data.is_symlink() => outside = true,
                    Ok(_) => inside = true,
                    Err(_) => assert_eq!(kind, SwapKind::Rotate),
                }
            }
            assert!(swapper.stop().unwrap() >= 100);
            assert!(fs::symlink_metadata(at("tree/victim")).unwrap().is_dir());
            fs::remove_file(at("decoy")).unwrap();
        }
    }

    #[test]
    fn every_decoy_can_be_made_and_swapped_with_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("outside"), "outside").unwrap();
        fs::write(at("victim"), "victim").unwrap();
        let outside = at("outside");
        let decoys = [
            Decoy::SymlinkTo(&outside),
            Decoy::HardLinkTo(&outside),
            Decoy::Fifo,
            Decoy::Directory,
        ];
        for (position, decoy) in decoys.into_iter().enumerate() {
            let place = at(&position.to_string());
            decoy.create(&place).unwrap();
            let swapper = Swapper::start(&at("victim"), &place, SwapKind::Rotate).unwrap();
            while swapper.swaps() < 3 {}
            drop(swapper);
            assert_eq!(fs::read_to_string(at("victim")).unwrap(), "victim", "{decoy:?}");
        }
        assert!(Swapper::start(&at("missing"), &outside, SwapKind::Exchange).is_err());
    }
}
