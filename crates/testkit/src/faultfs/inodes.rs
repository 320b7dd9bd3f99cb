//! The inodes the kernel knows of, each pinned by an `O_PATH` descriptor of its backing inode.
//!
//! Where the process may not hold that many descriptors, the oldest are parked: closed, and opened again by the
//! path they had, if it still leads to the same inode.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use super::lock;

/// Number of the root, fixed by the protocol.
pub(crate) const ROOT: u64 = 1;

/// One backing inode that the kernel may ask about by number.
pub(crate) struct Inode {
    /// `O_PATH` descriptor; pins the backing inode, so that its number is not given to another one.
    pub(crate) fd: OwnedFd,
    name: Mutex<OsString>,
}

impl Inode {
    /// The name it was last seen under.
    pub(crate) fn name(&self) -> OsString {
        lock(&self.name).clone()
    }

    /// A path that leads to the inode, whatever its type; only descriptors that were opened for I/O
    /// can be used directly, and `O_PATH` was not.
    pub(crate) fn proc_path(&self) -> String {
        proc_path(&self.fd)
    }
}

/// The path of a descriptor of this process.
pub(crate) fn proc_path(fd: &impl std::os::fd::AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

struct Known {
    hold: Hold,
    lookups: u64,
}

enum Hold {
    Pinned(Arc<Inode>),
    /// The path it had, with device and number to recognise it by.
    Parked {
        path: PathBuf,
        identity: (u64, u64),
        name: OsString,
    },
}

impl Known {
    /// The inode, opened again if it was parked.
    fn inode(&mut self) -> Result<Arc<Inode>, Errno> {
        match &self.hold {
            Hold::Pinned(inode) => Ok(Arc::clone(inode)),
            Hold::Parked { path, identity, name } => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let fd = rustix::fs::open(path, flags, Mode::empty())?;
                let found = rustix::fs::fstat(&fd)?;
                if (found.st_dev, found.st_ino) != *identity {
                    return Err(Errno::STALE);
                }
                let inode = Arc::new(Inode { fd, name: Mutex::new(name.clone()) });
                self.hold = Hold::Pinned(Arc::clone(&inode));
                Ok(inode)
            }
        }
    }

    fn set_name(&mut self, new: &OsStr) {
        match &mut self.hold {
            Hold::Pinned(inode) => new.clone_into(&mut lock(&inode.name)),
            Hold::Parked { path, name, .. } => {
                path.set_file_name(new);
                new.clone_into(name);
            }
        }
    }

    /// Gives its descriptor back, unless it is in use or has no path any more.
    fn park(&mut self) -> bool {
        let Hold::Pinned(inode) = &self.hold else { return true };
        let path = rustix::fs::readlink(inode.proc_path(), Vec::new());
        let (Ok(path), Ok(found)) = (path, rustix::fs::fstat(&inode.fd)) else { return false };
        if Arc::strong_count(inode) > 1 || found.st_nlink == 0 {
            return false;
        }
        let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
        let identity = (found.st_dev, found.st_ino);
        self.hold = Hold::Parked { path, identity, name: inode.name() };
        true
    }
}

#[derive(Default)]
struct Tables {
    by_number: HashMap<u64, Known>,
    /// Numbers of inodes whose own number cannot be used: other devices below the backing directory.
    foreign: HashMap<(u64, u64), u64>,
    next_foreign: u64,
    /// Numbers in the order in which they were pinned.
    pinned: VecDeque<u64>,
}

impl Tables {
    /// The inode of a number, which is pinned from now on.
    fn pin(&mut self, number: u64, most: usize) -> Result<Arc<Inode>, Errno> {
        let known = self.by_number.get_mut(&number).ok_or(Errno::STALE)?;
        let was_parked = matches!(known.hold, Hold::Parked { .. });
        let inode = known.inode()?;
        if was_parked {
            self.note_pinned(number, most);
        }
        Ok(inode)
    }

    fn note_pinned(&mut self, number: u64, most: usize) {
        self.pinned.push_back(number);
        for _ in 0..self.pinned.len() {
            if self.pinned.len() <= most {
                return;
            }
            let Some(oldest) = self.pinned.pop_front() else { return };
            let stays = self.by_number.get_mut(&oldest).is_some_and(|known| !known.park());
            if stays {
                self.pinned.push_back(oldest);
            }
        }
    }
}

/// Table of inodes by number.
pub(crate) struct Inodes {
    device: u64,
    /// So many descriptors may be held.
    most: usize,
    tables: Mutex<Tables>,
}

impl Inodes {
    /// A table that holds the root only.
    pub(crate) fn new(root: OwnedFd, stat: &Stat) -> Self {
        let inode = Inode { fd: root, name: Mutex::default() };
        let mut tables = Tables::default();
        tables.foreign.insert((stat.st_dev, stat.st_ino), ROOT);
        let lookups = u64::MAX / 2; // the root is never forgotten
        tables.by_number.insert(ROOT, Known { hold: Hold::Pinned(Arc::new(inode)), lookups });
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = limit.map_or(usize::MAX, |limit| limit as usize / 2);
        Self { device: stat.st_dev, most, tables: Mutex::new(tables) }
    }

    /// The inode of a number that the kernel sent.
    pub(crate) fn get(&self, number: u64) -> Result<Arc<Inode>, Errno> {
        lock(&self.tables).pin(number, self.most)
    }

    /// Counts one more lookup of an inode and returns its number.
    ///
    /// Numbers are those of the backing file system, so that they stay the same over
    /// remounts; only what lies on another device gets a number of our own.
    pub(crate) fn remember(&self, fd: OwnedFd, stat: &Stat, name: &OsStr) -> u64 {
        let mut tables = lock(&self.tables);
        let number = self.number(&mut tables, stat);
        let mut new = false;
        let known = tables.by_number.entry(number).or_insert_with(|| {
            new = true;
            let inode = Inode { fd, name: Mutex::default() };
            Known { hold: Hold::Pinned(Arc::new(inode)), lookups: 0 }
        });
        known.lookups += 1;
        known.set_name(name);
        if new {
            tables.note_pinned(number, self.most);
        }
        number
    }

    /// Changes the name of an inode after a rename, if the kernel knows it.
    pub(crate) fn rename(&self, stat: &Stat, name: &OsStr) {
        let mut tables = lock(&self.tables);
        let number = self.number(&mut tables, stat);
        if let Some(known) = tables.by_number.get_mut(&number) {
            known.set_name(name);
        }
    }

    /// Takes back lookups that the kernel has forgotten.
    pub(crate) fn forget(&self, number: u64, lookups: u64) {
        let mut tables = lock(&self.tables);
        let Some(known) = tables.by_number.get_mut(&number) else {
            return;
        };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0 {
            tables.by_number.remove(&number);
        }
    }

    fn number(&self, tables: &mut Tables, stat: &Stat) -> u64 {
        const OWN: u64 = 1 << 62;
        let usable = stat.st_dev == self.device && stat.st_ino > ROOT && stat.st_ino < OWN;
        let key = (stat.st_dev, stat.st_ino);
        if let Some(number) = tables.foreign.get(&key) {
            return *number;
        }
        if usable {
            return stat.st_ino;
        }
        let number = OWN + tables.next_foreign;
        tables.next_foreign += 1;
        tables.foreign.insert(key, number);
        number
    }
}
