//! What cannot be asked with the types of rustix, which nobody else can make: looking at entries and file systems, listing,
//! and marks.
#![allow(clippy::redundant_closure_for_method_calls, reason = "methods bind another lifetime")]
use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use dmover_model::Metadata;
use rustix::fs::{AtFlags, Mode, OFlags};

use super::{Kind, Lock, Opened, Volume, find, lock, machine, mount_id};
use crate::answers::{ATTRIBUTE_APPEND, ATTRIBUTE_IMMUTABLE, FileSystem, Mark, Stat, TypeHint};
use crate::{AsFd, BorrowedFd, Errno, Result};

fn device(volume: &Volume) -> u64 {
    rustix::fs::makedev(253, volume.number)
}

/// Metadata of an entry, with the time of its birth.
type Born = (Stat, Option<(i64, u32)>);

/// statx(2), if the descriptor is one of a disk in memory.
pub(crate) fn stat(base: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> Option<Result<Born>> {
    if name.starts_with(b"/") {
        // A path of its own, wherever the base is.
        let (volume, rest) = machine()?.volume_of(name)?;
        let top = super::calls::openat(base, volume.path.as_path(), OFlags::PATH, Mode::empty());
        let rest = if rest.is_empty() { b"." } else { rest };
        return Some(
            top.and_then(|top| stat(top.as_fd(), rest, flags).unwrap_or(Err(Errno::BADF))),
        );
    }
    let (machine, opened) = find(base)?;
    let follows = !flags.contains(AtFlags::SYMLINK_NOFOLLOW);
    Some(machine.with(&opened, |user, at| {
        let (reached, is_own) = match name {
            b"" | b"." => (at, false),
            name => (user.walk(at, name, follows)?, true),
        };
        let found = user.stat(reached);
        let birth = user.stat_attributes(reached).map(|attributes| attributes.birth);
        if is_own {
            let _ = user.close(reached);
        }
        Ok((as_stat(&found?, &opened.volume), birth.ok().map(|it| (it.seconds, it.nanoseconds))))
    }))
}

fn as_stat(found: &Metadata, volume: &Volume) -> Stat {
    use dmover_model::EntryKind as E;
    let kind = match found.kind {
        E::File => libc::S_IFREG,
        E::Directory => libc::S_IFDIR,
        E::Symlink => libc::S_IFLNK,
        E::Fifo => libc::S_IFIFO,
        E::Socket => libc::S_IFSOCK,
        E::CharDevice => libc::S_IFCHR,
        E::BlockDevice => libc::S_IFBLK,
    };
    let time = |time: dmover_model::Timestamp| (time.seconds, time.nanoseconds);
    let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
    Stat {
        device: device(volume),
        inode: found.identity.inode,
        mode: found.mode | kind,
        links: found.links,
        uid: found.uid,
        gid: found.gid,
        size: found.size,
        blocks: found.blocks,
        node_device: found.device,
        atime: time(found.atime),
        mtime: time(found.mtime),
        ctime: time(found.ctime),
        attributes: flag(found.immutable, ATTRIBUTE_IMMUTABLE)
            | flag(found.append_only, ATTRIBUTE_APPEND),
    }
}

/// The number of a mount.
pub(crate) fn mount(object: BorrowedFd<'_>) -> Option<u64> {
    find(object).map(|(_, opened)| mount_id(&opened.volume))
}

/// Whether a descriptor is one of a disk in memory.
pub(crate) fn is_simulated(object: BorrowedFd<'_>) -> bool {
    find(object).is_some()
}

/// fstatfs(2).
pub(crate) fn file_system(object: BorrowedFd<'_>) -> Option<Result<FileSystem>> {
    let (machine, opened) = find(object)?;
    Some(machine.call(|_| {
        let disk = lock(&opened.volume.disk);
        let (usage, profile) = (disk.usage(), disk.profile());
        let used = usage.blocks * u64::from(profile.block_bytes);
        Ok(FileSystem {
            magic: 0xef53,
            available_bytes: profile.capacity_bytes.saturating_sub(used),
            size_bytes: profile.capacity_bytes,
            free_inodes: profile.capacity_inodes.saturating_sub(usage.inodes),
            name_max: profile.name_bytes_max as u64,
            read_only: false,
        })
    }))
}

/// A name, what it may lead to, and the number of the inode.
type Listed = (Vec<u8>, TypeHint, u64);

/// getdents64(2), whole.
pub(crate) fn names(directory: BorrowedFd<'_>) -> Option<Result<Vec<Listed>>> {
    const PART: usize = 64;
    let (machine, opened) = find(directory)?;
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let part = machine.with(&opened, |user, at| user.list(at, after.as_ref(), PART));
        let (part, next) = match part {
            Ok(part) => part,
            Err(error) => return Some(Err(error)),
        };
        all.extend(part.into_iter().map(|entry| {
            let hint = match entry.kind {
                dmover_model::EntryKind::Directory => TypeHint::Directory,
                dmover_model::EntryKind::File => TypeHint::File,
                _ => TypeHint::Other,
            };
            (entry.name, hint, entry.inode)
        }));
        match next {
            Some(next) => after = Some(next),
            None => return Some(Ok(all)),
        }
    }
}

/// Whether another descriptor has a file open for writing.
pub(crate) fn is_open_for_writing(file: BorrowedFd<'_>) -> Option<Result<bool>> {
    let (machine, opened) = find(file)?;
    let inode =
        |of: &Opened| machine.with(of, |user, it| user.stat(it)).map(|it| it.identity.inode);
    let own = match inode(&opened) {
        Ok(inode) => inode,
        Err(error) => return Some(Err(error)),
    };
    let others: Vec<Opened> = lock(&machine.open).values().cloned().collect();
    let writes = |of: &Opened| of.flags.intersects(OFlags::WRONLY | OFlags::RDWR);
    let mut others = others.into_iter().filter(|of| {
        of.number != opened.number && of.volume.number == opened.volume.number && writes(of)
    });
    Some(Ok(others.any(|of| inode(&of) == Ok(own))))
}

fn inode_of(object: BorrowedFd<'_>) -> Result<u64> {
    let found = stat(object, b"", AtFlags::EMPTY_PATH).unwrap_or(Err(Errno::BADF));
    found.map(|(stat, _)| stat.inode)
}

/// Sets a mark, see [`crate::lock::mark`].
pub(crate) fn mark(object: BorrowedFd<'_>, at: u64) -> Option<Result<()>> {
    let Some((machine, opened)) = find(object) else {
        let machine = machine()?;
        let of = machine.owner(object.as_raw_fd().cast_unsigned().into());
        let found = rustix::fs::fstat(object);
        return Some(found.map(|found| {
            let device = (rustix::fs::major(found.st_dev), rustix::fs::minor(found.st_dev));
            if let Some(apart) = machine.apart() {
                lock(apart).push((of, Mark { device, inode: found.st_ino, at }));
            }
        }));
    };
    let of = machine.lock_owner(&opened);
    let added = inode_of(object).map(|inode| {
        lock(&opened.volume.locks).push(Lock { inode, of, kind: Kind::Mark { at } });
    });
    Some(added)
}

/// Removes all marks of a descriptor.
pub(crate) fn unmark(object: BorrowedFd<'_>) -> Option<Result<()>> {
    let Some((machine, opened)) = find(object) else {
        let machine = machine()?;
        let of = machine.owner(object.as_raw_fd().cast_unsigned().into());
        lock(machine.apart()?).retain(|(it, _)| *it != of);
        return Some(Ok(()));
    };
    let of = machine.lock_owner(&opened);
    let is_mark = |lock: &Lock| matches!(lock.kind, Kind::Mark { .. });
    lock(&opened.volume.locks).retain(|lock| lock.of != of || !is_mark(lock));
    Some(Ok(()))
}

/// The mark of another descriptor in a range.
pub(crate) fn marked(object: BorrowedFd<'_>, range: &Range<u64>) -> Option<Result<Option<u64>>> {
    let (machine, opened) = find(object)?;
    let of = machine.lock_owner(&opened);
    let found = |inode| {
        lock(&opened.volume.locks).iter().find_map(|lock| match lock.kind {
            Kind::Mark { at } if lock.inode == inode && lock.of != of && range.contains(&at) => {
                Some(at)
            }
            _ => None,
        })
    };
    Some(inode_of(object).map(found))
}

/// The marks on all disks, and those of objects that lie on none.
pub(crate) fn all_marks() -> Option<HashSet<Mark>> {
    let machine = machine()?;
    let of = |volume: &Arc<Volume>| {
        let of = device(volume);
        let device = (rustix::fs::major(of), rustix::fs::minor(of));
        let locks = lock(&volume.locks);
        let mark = |lock: &Lock| match lock.kind {
            Kind::Mark { at } => Some(Mark { device, inode: lock.inode, at }),
            Kind::Whole { .. } => None,
        };
        locks.iter().filter_map(mark).collect::<Vec<_>>()
    };
    let mut all: HashSet<Mark> = machine.volumes.iter().flat_map(of).collect();
    all.extend(lock(machine.apart()?).iter().map(|(_, mark)| *mark));
    Some(all)
}

/// An error for what disks in memory do not have.
pub(crate) fn refuse<T>(object: BorrowedFd<'_>) -> Option<Result<T>> {
    is_simulated(object).then_some(Err(Errno::NOTTY))
}
