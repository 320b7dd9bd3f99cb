//! Translation between the kernel's requests and the mirror.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno as FuseErrno, FileHandle, Filesystem, FopenFlags,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{
    AtFlags, FallocateFlags, FileType as BackingType, RenameFlags as BackingRename, XattrFlags,
};

use super::backing::{self, Changes};
use super::lock;
use super::mirror::{
    GENERATION, Handle, Mirror, asked, creation, fuse_errno, reply_attr, reply_empty, reply_entry,
    reply_open, reply_written, reply_xattr, sized,
};
use super::op::Op;

#[allow(clippy::too_many_arguments)] // the trait's signatures
impl Filesystem for Mirror {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without DONT_MASK the kernel applies the umask even where a default ACL overrides it.
        let mut wanted = vec![
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_ASYNC_DIO,
        ];
        if self.switches.posix_acl {
            wanted.push(InitFlags::FUSE_POSIX_ACL);
        }
        if self.switches.readdirplus {
            wanted.push(InitFlags::FUSE_DO_READDIRPLUS);
        }
        for capability in wanted {
            config.add_capabilities(capability).ok(); // an old kernel does without
        }
        config.set_max_write(1 << 20).ok();
        let background = u16::try_from(self.switches.threads.max(16)).unwrap_or(u16::MAX);
        config.set_max_background(background).ok();
        config.set_congestion_threshold(background).ok();
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = &*self.stored(parent, name);
        let found =
            self.entry(Op::Lookup, parent, name, |directory| backing::lookup(directory, name));
        reply_entry(reply, self.switches.ttl, found);
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.inodes.forget(number.0, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let stat = self.on_inode(Op::Getattr, number, |inode| rustix::fs::fstat(&inode.fd));
        reply_attr(reply, self.switches.ttl, number, stat);
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        owner: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes { mode, owner, group, size, atime, mtime };
        let open = handle.and_then(|handle| self.handle(handle).ok());
        let stat = self.on_inode(Op::Setattr, number, |inode| {
            backing::set_attributes(inode, open.as_ref().map(|open| &open.fd), &changes)
        });
        reply_attr(reply, self.switches.ttl, number, stat);
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        let target = self.on_inode(Op::Readlink, number, |inode| {
            rustix::fs::readlinkat(&inode.fd, "", Vec::new())
        });
        match target {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(fuse_errno(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let name = &*self.stored(parent, name);
        let creation = creation(request, mode, umask);
        let created = self.make(Op::Mknod, (parent, name), creation, |directory| {
            let permissions = creation.backing_mode(directory);
            let file_type = BackingType::from_raw_mode(mode);
            let device = backing::decode_device(rdev);
            rustix::fs::mknodat(&directory.fd, name, file_type, permissions, device)
        });
        reply_entry(reply, self.switches.ttl, created);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let name = &*self.stored(parent, name);
        let creation = creation(request, mode, umask);
        let created = self.make(Op::Mkdir, (parent, name), creation, |directory| {
            rustix::fs::mkdirat(&directory.fd, name, creation.backing_mode(directory))
        });
        reply_entry(reply, self.switches.ttl, created);
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        // FS_IOC_GETFLAGS and FS_CASEFOLD_FL of linux/fs.h.
        if self.switches.fold_case && command == 0x8008_6601 {
            return reply.ioctl(0, &0x4000_0000_u32.to_ne_bytes());
        }
        reply.error(FuseErrno::ENOTTY);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = &*self.stored(parent, name);
        let removed = self.in_directory(Op::Unlink, parent, name, |directory| {
            rustix::fs::unlinkat(&directory.fd, name, AtFlags::empty())
        });
        reply_empty(reply, removed);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = &*self.stored(parent, name);
        let removed = self.in_directory(Op::Rmdir, parent, name, |directory| {
            rustix::fs::unlinkat(&directory.fd, name, AtFlags::REMOVEDIR)
        });
        reply_empty(reply, removed);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let name = &*self.stored(parent, name);
        let creation = creation(request, 0, 0);
        let created = self.make(Op::Symlink, (parent, name), creation, |directory| {
            rustix::fs::symlinkat(target, &directory.fd, name)
        });
        reply_entry(reply, self.switches.ttl, created);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let name = &*self.stored(parent, name);
        // One that only changes its case is another name of itself.
        let known = self.stored(new_parent, new_name);
        let itself = parent == new_parent && known == name;
        let new_name = if itself { new_name } else { &*known };
        let how = BackingRename::from_bits_retain(flags.bits());
        let renamed = self.move_entry((parent, name), (new_parent, new_name), how);
        reply_empty(reply, renamed);
    }

    fn link(
        &self,
        _: &Request,
        number: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let new_name = &*self.stored(new_parent, new_name);
        let created = self.link_entry(number, new_parent, new_name);
        reply_entry(reply, self.switches.ttl, created);
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.open_inode(Op::Open, number, flags.0);
        reply_open(reply, self.open_flags(), opened);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let name = &*self.stored(parent, name);
        let creation = creation(request, mode, umask);
        let created = self.in_directory(Op::Create, parent, name, |directory| {
            backing::create(directory, name, flags, creation)
        });
        match created {
            Ok((fd, opened, stat)) => {
                let number = self.inodes.remember(fd, &stat, name);
                let attr = backing::attr(number, &stat);
                let handle = self.keep(opened, name);
                reply.created(&self.switches.ttl, &attr, GENERATION, handle, self.open_flags());
            }
            Err(error) => reply.error(fuse_errno(error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.read_at(handle, offset, size) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(fuse_errno(error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply_written(reply, self.write_at(handle, offset, data));
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        from: FileHandle,
        offset_in: u64,
        _: INodeNo,
        to: FileHandle,
        offset_out: u64,
        length: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if !self.switches.copy_file_range {
            reply.error(FuseErrno::ENOSYS); // the kernel then copies through reads and writes
            return;
        }
        reply_written(reply, self.copy((from, to), (offset_in, offset_out), length));
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let done = self.handle(handle).and_then(|handle| {
            let asked = asked(Op::Fallocate, &handle, offset, length);
            let serve = || rustix::fs::fallocate(&handle.fd, mode, offset, length);
            self.gate.pass(asked, serve)
        });
        reply_empty(reply, done);
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.seek(handle, offset, whence) {
            Ok(position) => reply.offset(position.cast_signed()),
            Err(error) => reply.error(fuse_errno(error)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, handle: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply_empty(reply, self.on_handle(Op::Flush, handle, |_| Ok(())));
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.close(Op::Release, handle));
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, data: bool, reply: ReplyEmpty) {
        let done = self.on_handle(Op::Fsync, handle, |handle| {
            if data { rustix::fs::fdatasync(&handle.fd) } else { rustix::fs::fsync(&handle.fd) }
        });
        reply_empty(reply, done);
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let opened = self.open_inode(Op::Opendir, number, libc::O_RDONLY | libc::O_DIRECTORY);
        reply_open(reply, FopenFlags::empty(), opened);
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let read = self.on_handle(Op::Readdir, handle, |handle| {
            let _position = lock(&handle.position);
            backing::read_directory(&handle.fd, offset, |entry| {
                let kind = backing::kind(entry.file_type);
                reply.add(INodeNo(entry.number), entry.next, kind, entry.name)
            })
        });
        match read {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(fuse_errno(error)),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        match self.read_with_attributes(number, handle, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(fuse_errno(error)),
        }
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        reply_empty(reply, self.close(Op::Releasedir, handle));
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let serve = |handle: &Handle| rustix::fs::fsync(&handle.fd);
        reply_empty(reply, self.on_handle(Op::Fsyncdir, handle, serve));
    }

    fn statfs(&self, _: &Request, number: INodeNo, reply: ReplyStatfs) {
        let found = self.on_inode(Op::Statfs, number, |inode| rustix::fs::fstatvfs(&inode.fd));
        match found {
            Ok(fs) => reply.statfs(
                fs.f_blocks,
                fs.f_bfree,
                fs.f_bavail,
                fs.f_files,
                fs.f_ffree,
                fs.f_bsize as u32,
                fs.f_namemax as u32,
                fs.f_frsize as u32,
            ),
            Err(error) => reply.error(fuse_errno(error)),
        }
    }

    fn setxattr(
        &self,
        _: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let flags = XattrFlags::from_bits_retain(flags.cast_unsigned());
        let done = self.on_inode(Op::Setxattr, number, |inode| {
            rustix::fs::setxattr(inode.proc_path(), name, value, flags)
        });
        reply_empty(reply, done);
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = self.on_inode(Op::Getxattr, number, |inode| {
            let path = inode.proc_path();
            sized(
                || rustix::fs::getxattr_query(&path, name),
                |buffer| rustix::fs::getxattr(&path, name, buffer),
            )
        });
        reply_xattr(reply, size, value);
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.on_inode(Op::Listxattr, number, |inode| {
            let path = inode.proc_path();
            sized(
                || rustix::fs::listxattr_query(&path),
                |buffer| rustix::fs::listxattr(&path, buffer),
            )
        });
        reply_xattr(reply, size, names);
    }

    fn removexattr(&self, _: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.on_inode(Op::Removexattr, number, |inode| {
            rustix::fs::removexattr(inode.proc_path(), name)
        });
        reply_empty(reply, done);
    }
}
