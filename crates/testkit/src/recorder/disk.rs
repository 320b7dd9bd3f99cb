//! The disk of the recorder: a FUSE file system with one file, and the tape that holds what was written to it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Result;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, WriteFlags,
};

use crate::faultfs::lock;

/// The only file.
pub(super) const NAME: &str = "disk";
const ROOT: INodeNo = INodeNo(1);
const FILE: INodeNo = INodeNo(2);
/// How long each write takes, and each byte of one: while data is on its way, a journal commits what it says of it.
const WRITE: Duration = Duration::from_micros(100);
const BYTE: Duration = Duration::from_nanos(8);
/// Nothing changes by itself.
const FOR_LONG: Duration = Duration::from_hours(1);

/// What arrived at the disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// Bytes, and where the tape has them.
    Write { offset: u64, length: u64, on_tape: u64 },
    /// Everything before this is on the medium.
    Flush,
}

/// Everything that arrived, in order; the bytes are in a file.
#[derive(Debug)]
pub(super) struct Tape {
    pub events: Vec<Event>,
    data: File,
    length: u64,
}

impl Tape {
    pub fn new(path: &Path) -> Result<Self> {
        let data = File::options().create_new(true).read(true).write(true).open(path)?;
        Ok(Self { events: Vec::new(), data, length: 0 })
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.data.write_all_at(bytes, self.length)?;
        let length = bytes.len() as u64;
        self.events.push(Event::Write { offset, length, on_tape: self.length });
        self.length += length;
        Ok(())
    }

    /// Does to an image what was done to the disk.
    pub fn replay(&self, event: &Event, image: &File) -> Result<()> {
        if let Event::Write { offset, length, on_tape } = *event {
            let mut bytes = vec![0; length as usize];
            self.data.read_exact_at(&mut bytes, on_tape)?;
            image.write_all_at(&bytes, offset)?;
        }
        Ok(())
    }
}

/// The server.
#[derive(Debug)]
pub(super) struct Disk {
    content: File,
    size: u64,
    tape: Arc<Mutex<Tape>>,
}

impl Disk {
    pub fn new(content: File, tape: Arc<Mutex<Tape>>) -> Result<Self> {
        let size = content.metadata()?.len();
        Ok(Self { content, size, tape })
    }

    fn attributes(&self, number: INodeNo) -> FileAttr {
        let (kind, perm, size) = match number {
            ROOT => (FileType::Directory, 0o755, 0),
            _ => (FileType::RegularFile, 0o600, self.size),
        };
        FileAttr {
            ino: number,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

fn failed(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

#[allow(clippy::too_many_arguments)] // the trait's signatures
impl Filesystem for Disk {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).ok(); // an old kernel does without
        config.set_max_write(1 << 20).ok();
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&FOR_LONG, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOR_LONG, &self.attributes(number));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; (self.size - offset.min(self.size)).min(size.into()) as usize];
        match self.content.read_exact_at(&mut bytes, offset) {
            Ok(()) => reply.data(&bytes),
            Err(error) => reply.error(failed(&error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        std::thread::sleep(WRITE + BYTE * data.len() as u32);
        let written = self.content.write_all_at(data, offset);
        match written.and_then(|()| lock(&self.tape).write(offset, data)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(failed(&error)),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        lock(&self.tape).events.push(Event::Flush);
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }
}
