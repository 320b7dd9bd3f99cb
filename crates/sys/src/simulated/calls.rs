//! The calls of rustix, for descriptors of both kinds.
#![allow(clippy::redundant_closure_for_method_calls, reason = "methods bind another lifetime")]
use std::ffi::CString;

use dmover_memory::{
    Device, Errno as Number, Handle, Open, Place, Renaming, SetTime, User, XattrMode,
};
use dmover_model::{EntryKind, Timestamp};
use rustix::fs::{
    Access, Advice, AtFlags, FallocateFlags, FileType, FlockOperation, Gid, IFlags, Mode, OFlags,
    RenameFlags, ResolveFlags, SeekFrom, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::mount::OpenTreeFlags;
use rustix::path::Arg;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use super::{Kind, Lock, Machine, Opened, OwnedFd, Volume, errno, find, lock, machine};
use crate::{AsFd, BorrowedFd, Errno, Result};

/// How long to wait for a lock before the next attempt.
const WAIT: std::time::Duration = std::time::Duration::from_millis(1);

/// The bytes of a path.
fn bytes(path: impl Arg) -> Result<Vec<u8>> {
    Ok(path.into_c_str()?.to_bytes().to_vec())
}

/// The descriptor that a path in /proc stands for.
fn find_by_path(path: impl Arg + Copy) -> Option<(std::sync::Arc<Machine>, Opened)> {
    let path = bytes(path).ok()?;
    let number = path.strip_prefix(b"/proc/self/fd/")?;
    let number: i32 = std::str::from_utf8(number).ok()?.parse().ok()?;
    let machine = machine()?;
    let opened = lock(&machine.open).get(&number).cloned()?;
    Some((machine, opened))
}

/// The path of an entry of a directory.
fn below(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match (directory, name) {
        (at, b"." | b"") => at.to_vec(),
        (b"", name) => name.to_vec(),
        (at, name) => [at, b"/", name].concat(),
    }
}

/// Two directories of one disk; `XDEV` if they are of two.
fn both(
    old: BorrowedFd<'_>,
    new: BorrowedFd<'_>,
) -> Option<Result<(std::sync::Arc<Machine>, Opened, Opened)>> {
    match (find(old), find(new)) {
        (None, None) => None,
        (Some((machine, old)), Some((_, new))) if old.volume.number == new.volume.number => {
            Some(Ok((machine, old, new)))
        }
        _ => Some(Err(Errno::XDEV)),
    }
}

pub fn openat(base: impl AsFd, path: impl Arg, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    open_at(base.as_fd(), path, flags, mode, true)
}

pub fn openat2(
    base: impl AsFd,
    path: impl Arg,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd> {
    if find(base.as_fd()).is_none() {
        return rustix::fs::openat2(base, path, flags, mode, resolve).map(Into::into);
    }
    open_at(base.as_fd(), path, flags, mode, !resolve.contains(ResolveFlags::NO_SYMLINKS))
}

fn open_at(
    base: BorrowedFd<'_>,
    path: impl Arg,
    flags: OFlags,
    mode: Mode,
    follows_on_the_way: bool,
) -> Result<OwnedFd> {
    let path = bytes(path)?;
    let machine = machine();
    let volume = machine.as_ref().and_then(|machine| machine.volume_of(&path));
    let (machine, volume, from, at, rest) = match (machine, volume, find(base)) {
        (Some(machine), Some((volume, rest)), _) => {
            let rest = if rest.is_empty() { b".".to_vec() } else { rest.to_vec() };
            (machine, volume, None, Vec::new(), rest)
        }
        (_, _, Some((machine, opened))) => {
            (machine, opened.volume, Some(opened.handle), opened.path, path)
        }
        _ => return rustix::fs::openat(base, &*path, flags, mode).map(Into::into),
    };
    let opened = machine.call(|machine| {
        let mut disk = lock(&volume.disk);
        let mut user = disk.as_user(&machine.actor);
        let (from, is_own) = match from {
            Some(from) => (from, false),
            None => (user.root(), true),
        };
        let opened = open_below(&mut user, from, &rest, flags, mode, follows_on_the_way);
        if is_own {
            let _ = user.close(from);
        }
        opened.map_err(errno)
    })?;
    Ok(machine.add(&volume, opened, flags, below(&at, &rest)))
}

fn open_below(
    user: &mut User<'_>,
    from: Handle,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    follows_on_the_way: bool,
) -> dmover_memory::Result<Handle> {
    if flags.contains(OFlags::TMPFILE) {
        return user.create_unnamed(from, mode.as_raw_mode());
    }
    let writes = flags.contains(OFlags::RDWR) || flags.contains(OFlags::WRONLY);
    let how = Open {
        reads: !flags.contains(OFlags::WRONLY),
        writes,
        appends: flags.contains(OFlags::APPEND),
        creates: flags.contains(OFlags::CREATE).then_some(mode.as_raw_mode()),
        is_exclusive: flags.contains(OFlags::EXCL),
        truncates: flags.contains(OFlags::TRUNC),
        is_directory: flags.contains(OFlags::DIRECTORY),
        keeps_atime: flags.contains(OFlags::NOATIME),
    };
    if how.creates.is_some() {
        return user.open(from, path, how);
    }
    let reached = reach(user, from, path, !flags.contains(OFlags::NOFOLLOW), follows_on_the_way)?;
    if flags.contains(OFlags::PATH) {
        let kind = user.stat(reached)?.kind;
        if how.is_directory && kind != EntryKind::Directory {
            let _ = user.close(reached);
            return Err(Number::NOTDIR);
        }
        return Ok(reached);
    }
    let opened = user.reopen(reached, how);
    let _ = user.close(reached);
    opened
}

/// A handle of what a path leads to, without access to its content.
fn reach(
    user: &mut User<'_>,
    from: Handle,
    path: &[u8],
    follows_last: bool,
    follows_on_the_way: bool,
) -> dmover_memory::Result<Handle> {
    if follows_on_the_way {
        return user.walk(from, path, follows_last);
    }
    let mut current = user.reach(from)?;
    for part in path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")) {
        let next = user.reach((current, part));
        let _ = user.close(current);
        current = next?;
        if user.stat(current)?.kind == EntryKind::Symlink && !path.ends_with(part) {
            let _ = user.close(current);
            return Err(Number::LOOP);
        }
    }
    Ok(current)
}

pub fn fcntl_dupfd_cloexec(fd: impl AsFd, min: i32) -> Result<OwnedFd> {
    let fd = fd.as_fd();
    let Some((machine, opened)) = find(fd) else {
        return rustix::io::fcntl_dupfd_cloexec(fd, min).map(Into::into);
    };
    let handle = machine.with(&opened, |user, handle| user.duplicate(handle))?;
    Ok(machine.add(&opened.volume, handle, opened.flags, opened.path.clone()))
}

/// close(2).
pub fn close(mut file: OwnedFd) -> Result<()> {
    let closed = match find(file.as_fd()) {
        None => None,
        Some((machine, opened)) => {
            lock(&machine.open).remove(&file.as_fd().as_raw_fd());
            let owner = machine.lock_owner(&opened);
            lock(&opened.volume.locks).retain(|lock| lock.of != owner);
            Some(machine.with(&opened, |user, handle| user.close(handle)))
        }
    };
    match (closed, file.0.take()) {
        (Some(result), _) => result,
        (None, Some(fd)) => crate::process::close(fd),
        (None, None) => Ok(()),
    }
}

/// Declares calls that take one descriptor and mean the same handle.
macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $real:path, |$user:ident, $handle:ident| $body:expr;)+) => {
        $(pub fn $name(fd: impl AsFd, $($argument: $type),*) -> Result<$result> {
            match find(fd.as_fd()) {
                None => $real(fd, $($argument),*),
                Some((machine, opened)) => machine.with(&opened, |$user, $handle| $body),
            }
        })+
    };
}

calls! {
    pread(buffer: &mut [u8], offset: u64) -> usize = rustix::io::pread,
        |user, file| user.read(file, offset, buffer);
    pwrite(buffer: &[u8], offset: u64) -> usize = rustix::io::pwrite,
        |user, file| user.write(file, offset, buffer);
    ftruncate(size: u64) -> () = rustix::fs::ftruncate, |user, file| user.truncate(file, size);
    fallocate(mode: FallocateFlags, offset: u64, length: u64) -> () = rustix::fs::fallocate,
        |user, file| if mode.contains(FallocateFlags::PUNCH_HOLE) {
            user.punch(file, offset, length)
        } else {
            user.allocate(file, offset, length, mode.contains(FallocateFlags::KEEP_SIZE))
        };
    seek(to: SeekFrom) -> u64 = rustix::fs::seek, |user, file| match to {
        SeekFrom::Data(offset) => user.next_data(file, offset),
        SeekFrom::Hole(offset) => user.next_hole(file, offset),
        _ => Err(Number::INVAL),
    };
    fdatasync() -> () = rustix::fs::fdatasync, |user, file| user.sync_data(file);
    fsync() -> () = rustix::fs::fsync, |user, object| user.sync(object);
    syncfs() -> () = rustix::fs::syncfs, |user, object| user.sync_all(object);
    fchmod(mode: Mode) -> () = rustix::fs::fchmod,
        |user, object| user.set_mode(object, mode.as_raw_mode());
    futimens(times: &Timestamps) -> () = rustix::fs::futimens,
        |user, object| user.set_times(object, time(times.last_access), time(times.last_modification));
    ioctl_getflags() -> IFlags = rustix::fs::ioctl_getflags, |user, object| get_flags(user, object);
    ioctl_setflags(flags: IFlags) -> () = rustix::fs::ioctl_setflags, |user, object| {
        let known = IFlags::IMMUTABLE | IFlags::APPEND;
        if !known.contains(flags) {
            return Err(Number::NOTSUP);
        }
        user.set_flags(object, flags.contains(IFlags::IMMUTABLE), flags.contains(IFlags::APPEND))
    };
    flistxattr(buffer: &mut [u8]) -> usize = rustix::fs::flistxattr,
        |user, object| list(user, object, buffer);
}

fn get_flags(user: &mut User<'_>, object: Handle) -> dmover_memory::Result<IFlags> {
    let attributes = user.stat_attributes(object)?;
    let mut flags = IFlags::empty();
    flags.set(IFlags::IMMUTABLE, attributes.immutable);
    flags.set(IFlags::APPEND, attributes.append_only);
    Ok(flags)
}

fn time(time: rustix::fs::Timespec) -> SetTime {
    match time.tv_nsec {
        UTIME_OMIT => SetTime::Omit,
        UTIME_NOW => SetTime::Now,
        nanoseconds => {
            let nanoseconds = nanoseconds as u32;
            SetTime::To(Timestamp { seconds: time.tv_sec, nanoseconds })
        }
    }
}

fn put(value: &[u8], buffer: &mut [u8]) -> dmover_memory::Result<usize> {
    buffer.get_mut(..value.len()).ok_or(Number::RANGE)?.copy_from_slice(value);
    Ok(value.len())
}

fn list(user: &mut User<'_>, object: Handle, buffer: &mut [u8]) -> dmover_memory::Result<usize> {
    let names = user.list_xattrs(object)?;
    let joined: Vec<u8> = names.into_iter().flat_map(|name| [name, vec![0]].concat()).collect();
    put(&joined, buffer)
}

fn get(
    user: &mut User<'_>,
    object: Handle,
    name: &[u8],
    buffer: &mut [u8],
) -> dmover_memory::Result<usize> {
    put(&user.xattr(object, name)?, buffer)
}

pub fn fgetxattr(fd: impl AsFd, name: impl Arg, buffer: &mut [u8]) -> Result<usize> {
    let Some((machine, opened)) = find(fd.as_fd()) else {
        return rustix::fs::fgetxattr(fd, name, buffer);
    };
    let name = bytes(name)?;
    machine.with(&opened, |user, object| get(user, object, &name, buffer))
}

pub fn fsetxattr(fd: impl AsFd, name: impl Arg, value: &[u8], flags: XattrFlags) -> Result<()> {
    let Some((machine, opened)) = find(fd.as_fd()) else {
        return rustix::fs::fsetxattr(fd, name, value, flags);
    };
    let name = bytes(name)?;
    machine.with(&opened, |user, object| user.set_xattr(object, &name, value, XattrMode::Set))
}

pub fn fremovexattr(fd: impl AsFd, name: impl Arg) -> Result<()> {
    let Some((machine, opened)) = find(fd.as_fd()) else {
        return rustix::fs::fremovexattr(fd, name);
    };
    let name = bytes(name)?;
    machine.with(&opened, |user, object| user.remove_xattr(object, &name))
}

pub fn listxattr(path: impl Arg + Copy, buffer: &mut [u8]) -> Result<usize> {
    match find_by_path(path) {
        None => rustix::fs::listxattr(path, buffer),
        Some((machine, opened)) => machine.with(&opened, |user, it| list(user, it, buffer)),
    }
}

pub fn getxattr(path: impl Arg + Copy, name: impl Arg, buffer: &mut [u8]) -> Result<usize> {
    let Some((machine, opened)) = find_by_path(path) else {
        return rustix::fs::getxattr(path, name, buffer);
    };
    let name = bytes(name)?;
    machine.with(&opened, |user, object| get(user, object, &name, buffer))
}

pub fn setxattr(
    path: impl Arg + Copy,
    name: impl Arg,
    value: &[u8],
    flags: XattrFlags,
) -> Result<()> {
    let Some((machine, opened)) = find_by_path(path) else {
        return rustix::fs::setxattr(path, name, value, flags);
    };
    let name = bytes(name)?;
    machine.with(&opened, |user, object| user.set_xattr(object, &name, value, XattrMode::Set))
}

pub fn removexattr(path: impl Arg + Copy, name: impl Arg) -> Result<()> {
    let Some((machine, opened)) = find_by_path(path) else {
        return rustix::fs::removexattr(path, name);
    };
    let name = bytes(name)?;
    machine.with(&opened, |user, object| user.remove_xattr(object, &name))
}

pub fn chmod(path: impl Arg + Copy, mode: Mode) -> Result<()> {
    match find_by_path(path) {
        None => rustix::fs::chmod(path, mode),
        Some((machine, opened)) => {
            machine.with(&opened, |user, object| user.set_mode(object, mode.as_raw_mode()))
        }
    }
}

pub fn chownat(
    base: impl AsFd,
    path: impl Arg,
    owner: Option<Uid>,
    group: Option<Gid>,
    flags: AtFlags,
) -> Result<()> {
    let Some((machine, opened)) = find(base.as_fd()) else {
        return rustix::fs::chownat(base, path, owner, group, flags);
    };
    let name = bytes(path)?;
    let (uid, gid) = (owner.map(Uid::as_raw), group.map(Gid::as_raw));
    machine.with(&opened, |user, at| user.set_owner(place(at, &name), uid, gid))
}

/// A name in a directory, or the directory itself.
fn place(at: Handle, name: &[u8]) -> Place<'_> {
    if matches!(name, b"" | b".") { Place::Open(at) } else { Place::Entry(at, name) }
}

pub fn utimensat(
    base: impl AsFd,
    path: impl Arg,
    times: &Timestamps,
    flags: AtFlags,
) -> Result<()> {
    let Some((machine, opened)) = find(base.as_fd()) else {
        return rustix::fs::utimensat(base, path, times, flags);
    };
    let name = bytes(path)?;
    let (read, written) = (time(times.last_access), time(times.last_modification));
    machine.with(&opened, |user, at| user.set_times(place(at, &name), read, written))
}

pub fn mkdirat(base: impl AsFd, name: impl Arg, mode: Mode) -> Result<()> {
    let Some((machine, opened)) = find(base.as_fd()) else {
        return rustix::fs::mkdirat(base, name, mode);
    };
    let name = bytes(name)?;
    machine.with(&opened, |user, at| user.make_directory(at, &name, mode.as_raw_mode()))
}

pub fn symlinkat(content: impl Arg, base: impl AsFd, name: impl Arg) -> Result<()> {
    let Some((machine, opened)) = find(base.as_fd()) else {
        return rustix::fs::symlinkat(content, base, name);
    };
    let (content, name) = (bytes(content)?, bytes(name)?);
    machine.with(&opened, |user, at| user.symlink(&content, at, &name))
}

pub fn readlinkat(base: impl AsFd, name: impl Arg, reuse: Vec<u8>) -> Result<CString> {
    let Some((machine, opened)) = find(base.as_fd()) else {
        return rustix::fs::readlinkat(base, name, reuse);
    };
    let name = bytes(name)?;
    let content = machine.with(&opened, |user, at| user.read_link(place(at, &name)))?;
    CString::new(content).map_err(|_| Errno::INVAL)
}

pub fn mknodat(
    base: impl AsFd,
    name: impl Arg,
    node: FileType,
    mode: Mode,
    device: u64,
) -> Result<()> {
    let Some((machine, opened)) = find(base.as_fd()) else {
        return rustix::fs::mknodat(base, name, node, mode, device);
    };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let node = match node {
        FileType::Fifo => Device::Fifo,
        FileType::Socket => Device::Socket,
        FileType::CharacterDevice => Device::Char(major, minor),
        FileType::BlockDevice => Device::Block(major, minor),
        _ => return Err(Errno::INVAL),
    };
    let name = bytes(name)?;
    machine.with(&opened, |user, at| user.make_node(at, &name, node, mode.as_raw_mode()))
}

pub fn linkat(
    old: impl AsFd,
    old_name: impl Arg,
    new: impl AsFd,
    new_name: impl Arg,
    flags: AtFlags,
) -> Result<()> {
    match both(old.as_fd(), new.as_fd()) {
        None => rustix::fs::linkat(old, old_name, new, new_name, flags),
        Some(both) => {
            let (machine, from, to) = both?;
            let (old_name, new_name) = (bytes(old_name)?, bytes(new_name)?);
            machine.with(&to, |user, at| user.link(place(from.handle, &old_name), at, &new_name))
        }
    }
}

pub fn renameat(
    old: impl AsFd,
    old_name: impl Arg,
    new: impl AsFd,
    new_name: impl Arg,
) -> Result<()> {
    match both(old.as_fd(), new.as_fd()) {
        None => rustix::fs::renameat(old, old_name, new, new_name),
        Some(_) => renameat_with(old, old_name, new, new_name, RenameFlags::empty()),
    }
}

pub fn renameat_with(
    old: impl AsFd,
    old_name: impl Arg,
    new: impl AsFd,
    new_name: impl Arg,
    flags: RenameFlags,
) -> Result<()> {
    let Some(both) = both(old.as_fd(), new.as_fd()) else {
        return rustix::fs::renameat_with(old, old_name, new, new_name, flags);
    };
    let (machine, from, to) = both?;
    let (old_name, new_name) = (bytes(old_name)?, bytes(new_name)?);
    let how = match flags {
        RenameFlags::NOREPLACE => Renaming::New,
        RenameFlags::EXCHANGE => Renaming::Exchange,
        _ => Renaming::Replace,
    };
    machine.with(&to, |user, at| user.rename((from.handle, &old_name), (at, &new_name), how))
}

pub fn unlinkat(base: impl AsFd, name: impl Arg, flags: AtFlags) -> Result<()> {
    let Some((machine, opened)) = find(base.as_fd()) else {
        return rustix::fs::unlinkat(base, name, flags);
    };
    let name = bytes(name)?;
    machine.with(&opened, |user, at| {
        if flags.contains(AtFlags::REMOVEDIR) {
            user.remove_directory(at, &name)
        } else {
            user.unlink(at, &name)
        }
    })
}

pub fn accessat(base: impl AsFd, path: impl Arg, access: Access, flags: AtFlags) -> Result<()> {
    let Some((machine, opened)) = find(base.as_fd()) else {
        return rustix::fs::accessat(base, path, access, flags);
    };
    let name = bytes(path)?;
    machine.with(&opened, |user, at| user.may(place(at, &name), access.bits()))
}

/// read(2). A duplicate of a descriptor has a position of its own, which the kernel's has not.
pub fn read(fd: impl AsFd, buffer: &mut [u8]) -> Result<usize> {
    let Some((machine, opened)) = find(fd.as_fd()) else {
        return rustix::io::read(fd, buffer);
    };
    let at = opened.position.load(Ordering::Relaxed);
    let read = machine.with(&opened, |user, file| user.read(file, at, buffer))?;
    opened.position.fetch_add(read as u64, Ordering::Relaxed);
    Ok(read)
}

pub fn copy_file_range(
    source: impl AsFd,
    source_offset: Option<&mut u64>,
    destination: impl AsFd,
    destination_offset: Option<&mut u64>,
    length: usize,
) -> Result<usize> {
    let (source, destination) = (source.as_fd(), destination.as_fd());
    let Some(both) = both(source, destination) else {
        return rustix::fs::copy_file_range(
            source,
            source_offset,
            destination,
            destination_offset,
            length,
        );
    };
    let (_, from, to) = both?;
    let at = |offset: Option<&mut u64>| offset.map_or(0, |offset| *offset);
    let mut buffer = vec![0; length.min(64 << 10)];
    if from.handle == to.handle {
        return Err(Errno::INVAL);
    }
    let read = pread(source, &mut buffer, at(source_offset))?;
    if read == 0 { Ok(0) } else { pwrite(destination, &buffer[..read], at(destination_offset)) }
}

pub fn ioctl_ficlone(destination: impl AsFd, source: impl AsFd) -> Result<()> {
    let Some(both) = both(source.as_fd(), destination.as_fd()) else {
        return rustix::fs::ioctl_ficlone(destination, source);
    };
    let (machine, from, to) = both?;
    machine.with(&to, |user, into| {
        let size = user.stat(from.handle)?.size;
        user.clone_range((from.handle, 0), (into, 0), size)
    })
}

/// There are no mounts of one's own.
pub fn open_tree(base: impl AsFd, path: impl Arg, flags: OpenTreeFlags) -> Result<OwnedFd> {
    match find(base.as_fd()) {
        None => rustix::mount::open_tree(base, path, flags).map(Into::into),
        Some(_) => Err(Errno::NOSYS),
    }
}

/// Only the advice to forget changes anything.
pub fn fadvise(
    file: impl AsFd,
    offset: u64,
    length: Option<NonZeroU64>,
    advice: Advice,
) -> Result<()> {
    match find(file.as_fd()) {
        None => rustix::fs::fadvise(file, offset, length, advice),
        Some((machine, opened)) if advice == Advice::DontNeed => {
            let length = length.map_or(0, NonZeroU64::get);
            machine.with(&opened, |user, file| user.forget(file, offset, length))
        }
        Some(_) => Ok(()),
    }
}

pub fn fcntl_getfl(fd: impl AsFd) -> Result<OFlags> {
    match find(fd.as_fd()) {
        None => rustix::fs::fcntl_getfl(fd),
        Some((_, opened)) => Ok(opened.flags),
    }
}

/// There is no direct I/O.
pub fn fcntl_setfl(fd: impl AsFd, flags: OFlags) -> Result<()> {
    let fd = fd.as_fd();
    let Some((machine, _)) = find(fd) else {
        return rustix::fs::fcntl_setfl(fd, flags);
    };
    if flags.contains(OFlags::DIRECT) {
        return Err(Errno::INVAL);
    }
    if let Some(opened) = lock(&machine.open).get_mut(&fd.as_raw_fd()) {
        opened.flags = flags;
    }
    Ok(())
}

pub fn flock(fd: impl AsFd, operation: FlockOperation) -> Result<()> {
    let Some((machine, opened)) = find(fd.as_fd()) else {
        return flock_real(fd.as_fd(), operation);
    };
    let inode = machine.with(&opened, |user, object| user.stat(object))?.identity.inode;
    let of = machine.lock_owner(&opened);
    let (is_exclusive, waits) = match operation {
        FlockOperation::LockShared => (false, true),
        FlockOperation::LockExclusive => (true, true),
        FlockOperation::NonBlockingLockShared => (false, false),
        FlockOperation::NonBlockingLockExclusive => (true, false),
        _ => {
            lock(&opened.volume.locks).retain(|lock| lock.of != of || !is_whole(lock));
            return Ok(());
        }
    };
    while !take(&opened.volume, inode, of, is_exclusive) {
        if !waits {
            return Err(Errno::WOULDBLOCK);
        }
        dmover_schedule::thread::sleep(WAIT);
    }
    Ok(())
}

/// A lock of a real file: whoever waits for it lets others run.
fn flock_real(fd: BorrowedFd<'_>, operation: FlockOperation) -> Result<()> {
    let at_once = match operation {
        FlockOperation::LockShared => FlockOperation::NonBlockingLockShared,
        FlockOperation::LockExclusive => FlockOperation::NonBlockingLockExclusive,
        other => other,
    };
    if machine().is_none() || at_once == operation {
        return rustix::fs::flock(fd, operation);
    }
    loop {
        match rustix::fs::flock(fd, at_once) {
            Err(Errno::WOULDBLOCK) => dmover_schedule::thread::sleep(WAIT),
            result => return result,
        }
    }
}

fn is_whole(lock: &Lock) -> bool {
    matches!(lock.kind, Kind::Whole { .. })
}

fn take(volume: &Volume, inode: u64, of: u64, is_exclusive: bool) -> bool {
    let mut locks = lock(&volume.locks);
    let collides = |lock: &Lock| match lock.kind {
        Kind::Whole { is_exclusive: theirs } => {
            lock.inode == inode && lock.of != of && (is_exclusive || theirs)
        }
        Kind::Mark { .. } => false,
    };
    if locks.iter().any(collides) {
        return false;
    }
    locks.retain(|lock| lock.of != of || !is_whole(lock));
    locks.push(Lock { inode, of, kind: Kind::Whole { is_exclusive } });
    true
}
