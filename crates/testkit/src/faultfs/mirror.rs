//! The mirror of the backing directory: what each request does, behind the gate.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fuser::{
    Errno as FuseErrno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, Request,
};
use rustix::fs::{AtFlags, RenameFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::backing::{self, Creation, DirectoryEntry};
use super::gate::{Effect, Gate};
use super::inodes::{Inode, Inodes};
use super::lock;
use super::op::Op;
use super::rule::Request as Question;

/// Inode numbers are never reused while the kernel knows them, so one generation is enough.
pub(crate) const GENERATION: Generation = Generation(0);

/// Switches of a session that do not change while it runs.
#[derive(Clone, Copy)]
pub(crate) struct Switches {
    pub(crate) ttl: Duration,
    pub(crate) direct_io: bool,
    pub(crate) readdirplus: bool,
    pub(crate) copy_file_range: bool,
    pub(crate) posix_acl: bool,
    pub(crate) fold_case: bool,
    pub(crate) threads: usize,
}

/// An open file or directory.
pub(crate) struct Handle {
    pub(crate) fd: OwnedFd,
    pub(crate) name: OsString,
    /// Directory handles have one position, which readers share.
    pub(crate) position: Mutex<()>,
}

/// The file system: a mirror of the backing directory behind a gate.
pub(crate) struct Mirror {
    pub(crate) inodes: Inodes,
    handles: Mutex<HashMap<u64, Arc<Handle>>>,
    next_handle: AtomicU64,
    pub(crate) gate: Arc<Gate>,
    pub(crate) switches: Switches,
}

pub(crate) fn fuse_errno(errno: Errno) -> FuseErrno {
    FuseErrno::from_i32(errno.raw_os_error())
}

pub(crate) fn reply_entry(reply: ReplyEntry, ttl: Duration, result: Result<FileAttr, Errno>) {
    match result {
        Ok(attr) => reply.entry(&ttl, &attr, GENERATION),
        Err(error) => reply.error(fuse_errno(error)),
    }
}

pub(crate) fn reply_attr(
    reply: ReplyAttr,
    ttl: Duration,
    number: INodeNo,
    result: Result<Stat, Errno>,
) {
    match result {
        Ok(stat) => reply.attr(&ttl, &backing::attr(number.0, &stat)),
        Err(error) => reply.error(fuse_errno(error)),
    }
}

pub(crate) fn reply_open(reply: ReplyOpen, flags: FopenFlags, result: Result<FileHandle, Errno>) {
    match result {
        Ok(handle) => reply.opened(handle, flags),
        Err(error) => reply.error(fuse_errno(error)),
    }
}

pub(crate) fn reply_empty(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(fuse_errno(error)),
    }
}

pub(crate) fn reply_xattr(reply: ReplyXattr, size: u32, result: Result<Vec<u8>, Errno>) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(FuseErrno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(fuse_errno(error)),
    }
}

pub(crate) fn question(op: Op, name: &OsStr) -> Question<'_> {
    Question { op, name, offset: 0, size: 0 }
}

/// The question that the gate is asked about a range of an open file.
pub(crate) fn asked(op: Op, handle: &Handle, offset: u64, size: u64) -> Question<'_> {
    Question { op, name: &handle.name, offset, size }
}

/// Who asks for a new entry.
pub(crate) fn creation(request: &Request, mode: u32, umask: u32) -> Creation {
    Creation { owner: request.uid(), group: request.gid(), mode, umask }
}

pub(crate) fn reply_written(reply: ReplyWrite, result: Result<u32, Errno>) {
    match result {
        Ok(bytes) => reply.written(bytes),
        Err(error) => reply.error(fuse_errno(error)),
    }
}

/// Reads a value of unknown length, again if it grew between asking its length and reading it.
pub(crate) fn sized(
    length: impl Fn() -> Result<usize, Errno>,
    read: impl Fn(&mut [u8]) -> Result<usize, Errno>,
) -> Result<Vec<u8>, Errno> {
    loop {
        let mut value = vec![0; length()?];
        if value.is_empty() {
            return Ok(value);
        }
        match read(&mut value) {
            Ok(size) => {
                value.truncate(size);
                return Ok(value);
            }
            Err(Errno::RANGE) => {}
            Err(error) => return Err(error),
        }
    }
}

impl Mirror {
    pub(crate) fn new(root: OwnedFd, stat: &Stat, gate: Arc<Gate>, switches: Switches) -> Self {
        Self {
            inodes: Inodes::new(root, stat),
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
            gate,
            switches,
        }
    }

    pub(crate) fn keep(&self, fd: OwnedFd, name: &OsStr) -> FileHandle {
        let number = self.next_handle.fetch_add(1, Ordering::SeqCst);
        let handle = Handle { fd, name: name.to_owned(), position: Mutex::default() };
        lock(&self.handles).insert(number, Arc::new(handle));
        FileHandle(number)
    }

    pub(crate) fn handle(&self, number: FileHandle) -> Result<Arc<Handle>, Errno> {
        lock(&self.handles).get(&number.0).cloned().ok_or(Errno::BADF)
    }

    /// The name that an entry has in the backing directory.
    pub(crate) fn stored(&self, parent: INodeNo, name: &OsStr) -> OsString {
        let fold = |name: &OsStr| name.to_string_lossy().to_lowercase();
        let find = || -> Option<OsString> {
            let directory = self.inodes.get(parent.0).ok()?;
            let mut names = std::fs::read_dir(directory.proc_path()).ok()?.flatten();
            names
                .find(|known| fold(&known.file_name()) == fold(name))
                .map(|known| known.file_name())
        };
        let known = self.switches.fold_case.then(find).flatten();
        known.unwrap_or_else(|| name.to_owned())
    }

    /// Serves a request about one entry of a directory.
    pub(crate) fn in_directory<T>(
        &self,
        op: Op,
        parent: INodeNo,
        name: &OsStr,
        serve: impl FnOnce(&Inode) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.gate.pass(question(op, name), || serve(&*self.inodes.get(parent.0)?))
    }

    /// Serves a request that makes or finds an entry, and tells the kernel about it.
    pub(crate) fn entry(
        &self,
        op: Op,
        parent: INodeNo,
        name: &OsStr,
        serve: impl FnOnce(&Inode) -> Result<(OwnedFd, Stat), Errno>,
    ) -> Result<FileAttr, Errno> {
        let (fd, stat) = self.in_directory(op, parent, name, serve)?;
        let number = self.inodes.remember(fd, &stat, name);
        Ok(backing::attr(number, &stat))
    }

    /// Serves a request that creates an entry by name.
    pub(crate) fn make(
        &self,
        op: Op,
        (parent, name): (INodeNo, &OsStr),
        creation: Creation,
        call: impl FnOnce(&Inode) -> Result<(), Errno>,
    ) -> Result<FileAttr, Errno> {
        self.entry(op, parent, name, |directory| {
            call(directory)?;
            let (fd, _) = backing::lookup(directory, name)?;
            let stat = creation.finish(directory, &fd)?;
            Ok((fd, stat))
        })
    }

    /// Serves a request about an inode.
    pub(crate) fn on_inode<T>(
        &self,
        op: Op,
        number: INodeNo,
        serve: impl FnOnce(&Inode) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let inode = self.inodes.get(number.0)?;
        self.gate.pass(question(op, &inode.name()), || serve(&inode))
    }

    /// Serves a request about an open file.
    pub(crate) fn on_handle<T>(
        &self,
        op: Op,
        number: FileHandle,
        serve: impl FnOnce(&Handle) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let handle = self.handle(number)?;
        self.gate.pass(question(op, &handle.name), || serve(&handle))
    }

    pub(crate) fn open_inode(
        &self,
        op: Op,
        number: INodeNo,
        flags: i32,
    ) -> Result<FileHandle, Errno> {
        let inode = self.inodes.get(number.0)?;
        let name = inode.name();
        let fd = self.gate.pass(question(op, &name), || backing::open(&inode, flags))?;
        Ok(self.keep(fd, &name))
    }

    pub(crate) fn open_flags(&self) -> FopenFlags {
        if self.switches.direct_io {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        } else {
            FopenFlags::empty()
        }
    }

    pub(crate) fn close(&self, op: Op, number: FileHandle) -> Result<(), Errno> {
        let result = self.on_handle(op, number, |_| Ok(()));
        lock(&self.handles).remove(&number.0); // even a failed close closes
        result
    }

    pub(crate) fn copy(
        &self,
        (from, to): (FileHandle, FileHandle),
        (offset_in, offset_out): (u64, u64),
        length: u64,
    ) -> Result<u32, Errno> {
        let (source, destination) = (self.handle(from)?, self.handle(to)?);
        let asked = asked(Op::CopyFileRange, &destination, offset_out, length);
        self.gate.pass_data(asked, |effect| {
            // The answer is a 32-bit number.
            let length = effect.clip(length).min(1 << 30) as usize;
            let (mut at_in, mut at_out) = (offset_in, offset_out);
            let (input, output) = (Some(&mut at_in), Some(&mut at_out));
            let copied =
                rustix::fs::copy_file_range(&source.fd, input, &destination.fd, output, length)?;
            if let Some(position) = effect.damaged_byte(copied as u64) {
                let mut byte = [0];
                rustix::io::pread(&source.fd, &mut byte[..], offset_in + position)?;
                Effect::Flip(0).damage(&mut byte);
                rustix::io::pwrite(&destination.fd, &byte, offset_out + position)?;
            }
            Ok((copied as u32, copied as u64))
        })
    }

    pub(crate) fn read_at(
        &self,
        handle: FileHandle,
        offset: u64,
        size: u32,
    ) -> Result<Vec<u8>, Errno> {
        let handle = self.handle(handle)?;
        let size = u64::from(size);
        self.gate.pass_data(asked(Op::Read, &handle, offset, size), |effect| {
            let mut data = vec![0; effect.clip(size) as usize];
            let read = rustix::io::pread(&handle.fd, &mut data[..], offset)?;
            data.truncate(read);
            effect.damage(&mut data);
            Ok((data, read as u64))
        })
    }

    pub(crate) fn write_at(
        &self,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
    ) -> Result<u32, Errno> {
        let handle = self.handle(handle)?;
        let size = data.len() as u64;
        self.gate.pass_data(asked(Op::Write, &handle, offset, size), |effect| {
            let data = &data[..effect.clip(size) as usize];
            let written = if effect.damaged_byte(data.len() as u64).is_some() {
                let mut damaged = data.to_vec();
                effect.damage(&mut damaged);
                rustix::io::pwrite(&handle.fd, &damaged, offset)?
            } else {
                rustix::io::pwrite(&handle.fd, data, offset)?
            };
            Ok((written as u32, written as u64))
        })
    }

    pub(crate) fn seek(&self, handle: FileHandle, offset: i64, whence: i32) -> Result<u64, Errno> {
        self.on_handle(Op::Lseek, handle, |handle| {
            let from = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
            let target = match whence {
                libc::SEEK_DATA => SeekFrom::Data(from),
                libc::SEEK_HOLE => SeekFrom::Hole(from),
                _ => return Err(Errno::INVAL),
            };
            rustix::fs::seek(&handle.fd, target)
        })
    }

    pub(crate) fn move_entry(
        &self,
        (parent, name): (INodeNo, &OsStr),
        (new_parent, new_name): (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        self.in_directory(Op::Rename, parent, name, |from| {
            let to = self.inodes.get(new_parent.0)?;
            rustix::fs::renameat_with(&from.fd, name, &to.fd, new_name, flags)?;
            if let Ok((_, stat)) = backing::lookup(&to, new_name) {
                self.inodes.rename(&stat, new_name);
            }
            if flags.contains(RenameFlags::EXCHANGE)
                && let Ok((_, stat)) = backing::lookup(from, name)
            {
                self.inodes.rename(&stat, name);
            }
            Ok(())
        })
    }

    pub(crate) fn link_entry(
        &self,
        number: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
    ) -> Result<FileAttr, Errno> {
        self.entry(Op::Link, new_parent, new_name, |directory| {
            let inode = self.inodes.get(number.0)?;
            let flags = AtFlags::EMPTY_PATH;
            rustix::fs::linkat(&inode.fd, "", &directory.fd, new_name, flags)?;
            backing::lookup(directory, new_name)
        })
    }

    pub(crate) fn read_with_attributes(
        &self,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<(), Errno> {
        self.on_handle(Op::Readdir, handle, |handle| {
            let directory = self.inodes.get(number.0)?;
            let _position = lock(&handle.position);
            backing::read_directory(&handle.fd, offset, |entry| {
                self.add_with_attributes(&directory, entry, reply)
            })
        })
    }

    /// Adds an entry to an answer and counts it as looked up; true if it no longer fits.
    fn add_with_attributes(
        &self,
        directory: &Inode,
        entry: &DirectoryEntry<'_>,
        reply: &mut ReplyDirectoryPlus,
    ) -> bool {
        let ttl = &self.switches.ttl;
        if entry.name == "." || entry.name == ".." {
            // The kernel takes no attributes and counts no lookup for these two.
            let Ok(stat) = rustix::fs::fstat(&directory.fd) else {
                return false;
            };
            let attr = backing::attr(entry.number, &stat);
            return reply.add(attr.ino, entry.next, entry.name, ttl, &attr, GENERATION);
        }
        let Ok((fd, stat)) = backing::lookup(directory, entry.name) else {
            return false; // it vanished
        };
        let number = self.inodes.remember(fd, &stat, entry.name);
        let attr = backing::attr(number, &stat);
        let full = reply.add(attr.ino, entry.next, entry.name, ttl, &attr, GENERATION);
        if full {
            self.inodes.forget(number, 1);
        }
        full
    }
}
