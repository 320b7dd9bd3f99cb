//! The inodes the kernel knows of, each pinned by an `O_PATH` descriptor of its backing inode.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::fs::Stat;
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
    inode: Arc<Inode>,
    lookups: u64,
}

#[derive(Default)]
struct Tables {
    by_number: HashMap<u64, Known>,
    /// Numbers of inodes whose own number cannot be used: other devices below the backing directory.
    foreign: HashMap<(u64, u64), u64>,
    next_foreign: u64,
}

/// Table of inodes by number.
pub(crate) struct Inodes {
    device: u64,
    tables: Mutex<Tables>,
}

impl Inodes {
    /// A table that holds the root only.
    pub(crate) fn new(root: OwnedFd, stat: &Stat) -> Self {
        let inode = Inode { fd: root, name: Mutex::default() };
        let mut tables = Tables::default();
        tables.foreign.insert((stat.st_dev, stat.st_ino), ROOT);
        let lookups = u64::MAX / 2; // the root is never forgotten
        tables.by_number.insert(ROOT, Known { inode: Arc::new(inode), lookups });
        Self { device: stat.st_dev, tables: Mutex::new(tables) }
    }

    /// The inode of a number that the kernel sent.
    pub(crate) fn get(&self, number: u64) -> Result<Arc<Inode>, Errno> {
        let tables = lock(&self.tables);
        let known = tables.by_number.get(&number).ok_or(Errno::STALE)?;
        Ok(Arc::clone(&known.inode))
    }

    /// Counts one more lookup of an inode and returns its number.
    ///
    /// Numbers are those of the backing file system, so that they stay the same over
    /// remounts; only what lies on another device gets a number of our own.
    pub(crate) fn remember(&self, fd: OwnedFd, stat: &Stat, name: &OsStr) -> u64 {
        let mut tables = lock(&self.tables);
        let number = self.number(&mut tables, stat);
        let known = tables.by_number.entry(number).or_insert_with(|| Known {
            inode: Arc::new(Inode { fd, name: Mutex::default() }),
            lookups: 0,
        });
        known.lookups += 1;
        name.clone_into(&mut lock(&known.inode.name));
        number
    }

    /// Changes the name of an inode after a rename, if the kernel knows it.
    pub(crate) fn rename(&self, stat: &Stat, name: &OsStr) {
        let mut tables = lock(&self.tables);
        let number = self.number(&mut tables, stat);
        if let Some(known) = tables.by_number.get(&number) {
            name.clone_into(&mut lock(&known.inode.name));
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
