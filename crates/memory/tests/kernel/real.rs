//! The calls on a directory of the kernel.
use std::fmt::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};

use dmover_memory::{Device, Errno, Renaming};
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::fs::{Dir, Gid, Stat, Timespec, Timestamps, Uid};
use rustix::io::Result;

use crate::steps::{At, How, SLOTS, Step, Time, XATTRS};

/// A directory of the kernel, and open files.
pub struct Real {
    base: OwnedFd,
    slots: [Option<OwnedFd>; SLOTS],
}

impl Real {
    pub fn new(base: OwnedFd) -> Self {
        rustix::process::umask(Mode::from_raw_mode(0o022));
        Self { base, slots: [const { None }; SLOTS] }
    }

    /// Makes one call, and tells how it ended.
    pub fn run(&mut self, step: &Step) -> String {
        let result = match step {
            Step::Base { .. } | Step::Unnamed { .. } | Step::Open { .. } => self.run_open(step),
            Step::Close { .. } | Step::CloseAll => self.run_open(step),
            Step::Stat { .. } | Step::List { .. } | Step::ReadLink { .. } => self.run_look(step),
            Step::StatOpen { .. } | Step::GetXattr { .. } => self.run_look(step),
            Step::ListXattrs { .. } => self.run_look(step),
            Step::MakeDirectory { .. } | Step::Symlink { .. } => self.run_name(step),
            Step::MakeNode { .. } | Step::Link { .. } | Step::LinkOpen { .. } => {
                self.run_name(step)
            }
            Step::Rename { .. } | Step::Unlink { .. } => self.run_name(step),
            Step::RemoveDirectory { .. } => self.run_name(step),
            Step::SetMode { .. } | Step::SetOwner { .. } => self.run_attribute(step),
            Step::SetTimes { .. } | Step::SetXattr { .. } => self.run_attribute(step),
            Step::RemoveXattr { .. } => self.run_attribute(step),
            _ => self.run_content(step),
        };
        match result {
            Ok(text) => text,
            Err(errno) => format!("{:?}", Errno::new(errno.raw_os_error())),
        }
    }

    fn directory(&self, at: &At) -> Result<OwnedFd> {
        let path = if at.0.is_empty() { b"." } else { at.0.as_slice() };
        rustix::fs::openat(&self.base, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
    }

    fn entry(&self, at: &At) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(self.directory(at)?, &at.1, flags, Mode::empty())
    }

    fn slot(&self, slot: usize) -> Result<&OwnedFd> {
        self.slots[slot].as_ref().ok_or(rustix::io::Errno::BADF)
    }

    fn run_open(&mut self, step: &Step) -> Result<String> {
        match step {
            Step::Base { uid, gid, mode } => {
                let path = proc_path(&self.base);
                rustix::fs::chown(&path, Some(Uid::from_raw(*uid)), Some(Gid::from_raw(*gid)))?;
                rustix::fs::chmod(&path, Mode::from_raw_mode(*mode))?;
            }
            Step::Open { slot, at, how } => {
                let mode = Mode::from_raw_mode(how.creates.unwrap_or(0));
                let made = rustix::fs::openat(self.directory(at)?, &at.1, flags(*how), mode)?;
                let kind = FileType::from_raw_mode(rustix::fs::fstat(&made)?.st_mode);
                if !matches!(kind, FileType::RegularFile | FileType::Directory) {
                    return Err(rustix::io::Errno::NXIO);
                }
                self.slots[*slot] = Some(made);
            }
            Step::Unnamed { slot, directory } => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let directory = self.directory(directory)?;
                let mode = Mode::from_raw_mode(0o640);
                self.slots[*slot] = Some(rustix::fs::openat(directory, ".", flags, mode)?);
            }
            Step::Close { slot } => self.slots[*slot] = None,
            Step::CloseAll => self.slots = [const { None }; SLOTS],
            other => panic!("{other:?}"),
        }
        Ok("ok".to_owned())
    }

    fn run_content(&mut self, step: &Step) -> Result<String> {
        match step {
            Step::Read { slot, offset, length } => {
                let mut buffer = vec![0; *length];
                let read = rustix::io::pread(self.slot(*slot)?, &mut buffer, *offset)?;
                return Ok(format!("{read} {}", sum(&buffer[..read])));
            }
            Step::Write { slot, offset, length, byte } => {
                let bytes = vec![*byte; *length];
                return rustix::io::pwrite(self.slot(*slot)?, &bytes, *offset)
                    .map(|n| n.to_string());
            }
            Step::Truncate { slot, size } => rustix::fs::ftruncate(self.slot(*slot)?, *size)?,
            Step::Allocate { slot, offset, length, keeps_size } => {
                let flags = match keeps_size {
                    true => FallocateFlags::KEEP_SIZE,
                    false => FallocateFlags::empty(),
                };
                rustix::fs::fallocate(self.slot(*slot)?, flags, *offset, *length)?;
            }
            Step::Punch { slot, offset, length } => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(self.slot(*slot)?, flags, *offset, *length)?;
            }
            Step::Data { slot, offset } => {
                let to = rustix::fs::SeekFrom::Data(*offset);
                return rustix::fs::seek(self.slot(*slot)?, to).map(|at| at.to_string());
            }
            Step::Hole { slot, offset } => {
                let to = rustix::fs::SeekFrom::Hole(*offset);
                return rustix::fs::seek(self.slot(*slot)?, to).map(|at| at.to_string());
            }
            other => panic!("{other:?}"),
        }
        Ok("ok".to_owned())
    }

    fn run_look(&self, step: &Step) -> Result<String> {
        match step {
            Step::StatOpen { slot } => Ok(show(&rustix::fs::fstat(self.slot(*slot)?)?)),
            Step::Stat { at } => {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                let stat = rustix::fs::statat(self.directory(at)?, &at.1, flags)?;
                Ok(show(&stat))
            }
            Step::List { at } => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let at = rustix::fs::openat(self.directory(at)?, &at.1, flags, Mode::empty())?;
                Ok(format!("{:?}", names(&at)))
            }
            Step::ReadLink { at } => {
                let target = rustix::fs::readlinkat(self.directory(at)?, &at.1, Vec::new())?;
                Ok(format!("{target:?}"))
            }
            Step::GetXattr { at, name } => {
                let mut value = [0; 100];
                let directory = self.directory(at)?;
                let path = [proc_path(&directory).as_bytes(), b"/", &at.1].concat();
                let length = rustix::fs::lgetxattr(path, *name, &mut value)?;
                Ok(format!("{:?}", &value[..length]))
            }
            Step::ListXattrs { at } => {
                let directory = self.directory(at)?;
                let path = [proc_path(&directory).as_bytes(), b"/", &at.1].concat();
                xattr_names(&path)
            }
            other => panic!("{other:?}"),
        }
    }

    fn run_name(&self, step: &Step) -> Result<String> {
        match step {
            Step::MakeDirectory { at, mode } => {
                rustix::fs::mkdirat(self.directory(at)?, &at.1, Mode::from_raw_mode(*mode))?;
            }
            Step::Symlink { target, at } => {
                rustix::fs::symlinkat(target, self.directory(at)?, &at.1)?;
            }
            Step::MakeNode { at, device, mode } => {
                let (kind, number) = match device {
                    Device::Fifo => (FileType::Fifo, 0),
                    Device::Socket => (FileType::Socket, 0),
                    Device::Char(major, minor) => {
                        (FileType::CharacterDevice, rustix::fs::makedev(*major, *minor))
                    }
                    Device::Block(major, minor) => {
                        (FileType::BlockDevice, rustix::fs::makedev(*major, *minor))
                    }
                };
                let mode = Mode::from_raw_mode(*mode);
                rustix::fs::mknodat(self.directory(at)?, &at.1, kind, mode, number)?;
            }
            Step::Link { from, to } => {
                let (old, new) = (self.directory(from)?, self.directory(to)?);
                rustix::fs::linkat(old, &from.1, new, &to.1, AtFlags::empty())?;
            }
            Step::LinkOpen { slot, to } => {
                let path = proc_path(self.slot(*slot)?);
                let new = self.directory(to)?;
                let flags = AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(rustix::fs::CWD, path, new, &to.1, flags)?;
            }
            Step::Rename { from, to, how } => {
                let (old, new) = (self.directory(from)?, self.directory(to)?);
                let flags = match how {
                    Renaming::Replace => RenameFlags::empty(),
                    Renaming::New => RenameFlags::NOREPLACE,
                    Renaming::Exchange => RenameFlags::EXCHANGE,
                };
                rustix::fs::renameat_with(old, &from.1, new, &to.1, flags)?;
            }
            Step::Unlink { at } => {
                rustix::fs::unlinkat(self.directory(at)?, &at.1, AtFlags::empty())?;
            }
            Step::RemoveDirectory { at } => {
                rustix::fs::unlinkat(self.directory(at)?, &at.1, AtFlags::REMOVEDIR)?;
            }
            other => panic!("{other:?}"),
        }
        Ok("ok".to_owned())
    }

    fn run_attribute(&self, step: &Step) -> Result<String> {
        match step {
            Step::SetMode { at, mode } => {
                let mode = Mode::from_raw_mode(*mode);
                rustix::fs::chmod(proc_path(&self.entry(at)?), mode)?;
            }
            Step::SetOwner { at, uid, gid } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(self.directory(at)?, &at.1, uid, gid, flags)?;
            }
            Step::SetTimes { at, atime, mtime } => {
                let times = Timestamps {
                    last_access: timespec(*atime),
                    last_modification: timespec(*mtime),
                };
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                let directory = self.directory(at)?;
                rustix::fs::utimensat(&directory, &at.1, &times, flags)?;
                let stat = rustix::fs::statat(&directory, &at.1, flags);
                let mtime = match (stat, mtime) {
                    (Ok(stat), Time::To(..)) => format!("{}.{}", stat.st_mtime, stat.st_mtime_nsec),
                    _ => String::new(),
                };
                return Ok(format!("ok {mtime}"));
            }
            Step::SetXattr { at, name, value, mode } => {
                let directory = self.directory(at)?;
                let path = [proc_path(&directory).as_bytes(), b"/", &at.1].concat();
                let flags = XattrFlags::from_bits_retain(*mode);
                rustix::fs::lsetxattr(path, *name, value, flags)?;
            }
            Step::RemoveXattr { at, name } => {
                let directory = self.directory(at)?;
                let path = [proc_path(&directory).as_bytes(), b"/", &at.1].concat();
                rustix::fs::lremovexattr(path, *name)?;
            }
            other => panic!("{other:?}"),
        }
        Ok("ok".to_owned())
    }

    /// All entries with metadata, content and extended attributes.
    pub fn tree(&self) -> String {
        let mut text = String::new();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let base = rustix::fs::openat(&self.base, ".", flags, Mode::empty()).unwrap();
        add_tree(&base, "", &mut text);
        text
    }
}

fn add_tree(directory: &OwnedFd, above: &str, text: &mut String) {
    for name in names(directory) {
        let stat = rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let path = format!("{above}/{}", name.escape_ascii());
        let at = [proc_path(directory).as_bytes(), b"/", &name].concat();
        let _ = write!(text, "{path}: {} {}", show(&stat), xattr_names(&at).unwrap());
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(directory, &name, flags, Mode::empty()).unwrap();
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let mut buffer = vec![0; stat.st_size as usize];
                let read = rustix::io::pread(open(), &mut buffer, 0).unwrap();
                let _ = writeln!(text, " {read} {}", sum(&buffer));
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(directory, &name, Vec::new()).unwrap();
                let _ = writeln!(text, " {target:?}");
            }
            FileType::Directory => {
                text.push('\n');
                add_tree(&open(), &path, text);
            }
            _ => text.push('\n'),
        }
    }
}

fn names(directory: &OwnedFd) -> Vec<Vec<u8>> {
    // Not `read_from`, which searches the directory.
    let entries =
        Dir::new(rustix::io::dup(directory).unwrap()).unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<Vec<u8>> =
        entries.map(|entry| entry.file_name().to_bytes().to_vec()).collect();
    names.retain(|name| name != b"." && name != b"..");
    names.sort();
    names
}

fn xattr_names(path: &[u8]) -> Result<String> {
    let mut buffer = [0_u8; 4096];
    let length = rustix::fs::llistxattr(path, &mut buffer)?;
    let mut names: Vec<&[u8]> = buffer[..length].split(|byte| *byte == 0).collect();
    names.retain(|name| XATTRS.iter().any(|used| used.as_bytes() == *name));
    names.sort_unstable();
    Ok(format!("{names:?}"))
}

/// What both sides have, the same way: sizes of directories and block counts depend on the file system.
fn show(stat: &Stat) -> String {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let size = if kind == FileType::Directory { 0 } else { stat.st_size };
    let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let blocks = if kind == FileType::RegularFile { stat.st_blocks } else { 0 };
    let mode = stat.st_mode & 0o7777;
    let (links, uid, gid) = (stat.st_nlink, stat.st_uid, stat.st_gid);
    format!(
        "{} {mode:o} {uid} {gid} {links} {size} {blocks} {device:?}",
        crate::simulated::letter(kind)
    )
}

/// A number that differs for other bytes.
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}

fn proc_path(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn timespec(time: Time) -> Timespec {
    match time {
        Time::Omit => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Time::Now => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Time::To(tv_sec, nanoseconds) => Timespec { tv_sec, tv_nsec: i64::from(nanoseconds) },
    }
}

fn flags(how: How) -> OFlags {
    let mut flags = match (how.reads, how.writes) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    for (flag, is_set) in [
        (OFlags::APPEND, how.appends),
        (OFlags::CREATE, how.creates.is_some()),
        (OFlags::EXCL, how.creates.is_some() && how.is_exclusive),
        (OFlags::TRUNC, how.truncates),
        (OFlags::DIRECTORY, how.is_directory),
        (OFlags::NOATIME, how.keeps_atime),
    ] {
        flags.set(flag, is_set);
    }
    flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK
}
