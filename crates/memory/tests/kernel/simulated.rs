//! The same calls on the disk in memory.
use std::collections::BTreeMap;
use std::fmt::Write as _;

use dmover_memory::{
    Actor, Clock, Disk, Handle, Open, Profile, Result, SetTime, SimulatedTime, User, XattrMode,
};
use dmover_model::{EntryKind, Metadata, Timestamp};
use rustix::fs::FileType;

use crate::real::sum;
use crate::steps::{At, How, SLOTS, Step, Time, XATTRS};

/// A disk in memory, and open files.
pub struct Simulated {
    pub disk: Disk,
    base: Handle,
    pub slots: [Option<Handle>; SLOTS],
    /// How often blocks of an inode were reserved.
    reserved: BTreeMap<u64, u32>,
}

impl Simulated {
    /// As tmpfs.
    pub fn new(seed: u64) -> Self {
        let protects = std::fs::read_to_string("/proc/sys/fs/protected_hardlinks");
        let profile = Profile {
            protects_links: protects.is_ok_and(|text| text.trim() != "0"),
            ..Profile::default()
        };
        Self::with(profile, seed)
    }

    pub fn with(profile: Profile, seed: u64) -> Self {
        let clock = Clock::new(SimulatedTime::starting_at(1_700_000_000), 1000);
        let mut disk = Disk::new(profile, clock, seed);
        let root = Actor::root();
        let mut user = disk.as_user(&root);
        let above = user.root();
        user.make_directory(above, b"base", 0o755).unwrap();
        let base = user.reach((above, b"base")).unwrap();
        disk.settle();
        Self { disk, base, slots: [None; SLOTS], reserved: BTreeMap::new() }
    }

    /// Whether the answer depends only on what is modelled: not for devices, which have drivers, and not for names that
    /// exist in a sticky directory if the kernel protects these (`fs.protected_regular`). On tmpfs a block that is
    /// reserved twice becomes data.
    pub fn is_comparable(&mut self, step: &Step) -> bool {
        let (root, base) = (Actor::root(), self.base);
        let mut user = self.disk.as_user(&root);
        if let Step::Allocate { slot, .. } | Step::Data { slot, .. } | Step::Hole { slot, .. } =
            step
            && let Some(of) = self.slots[*slot].and_then(|slot| user.stat(slot).ok())
        {
            let count = self.reserved.entry(of.identity.inode).or_default();
            *count += u32::from(matches!(step, Step::Allocate { .. }));
            return *count < 2 || matches!(step, Step::Allocate { .. });
        }
        let Step::Open { at, how, .. } = step else { return true };
        let Ok(directory) = directory(&mut user, base, at) else { return true };
        let found = user.stat((directory, at.1.as_slice()));
        let above = user.stat(directory);
        let _ = user.close(directory);
        let is_device = found
            .as_ref()
            .is_ok_and(|of| matches!(of.kind, EntryKind::CharDevice | EntryKind::BlockDevice));
        let is_sticky = above.is_ok_and(|of| of.mode & 0o1000 != 0);
        !is_device && (!is_sticky || how.creates.is_none() || found.is_err())
    }

    /// Makes one call, and tells how it ended.
    pub fn run(&mut self, actor: &Actor, step: &Step) -> String {
        let (base, mut slots) = (self.base, self.slots);
        let mut user = self.disk.as_user(actor);
        let mut run = Run { user: &mut user, base, slots: &mut slots, used: Vec::new() };
        let result = run.step(step);
        let used = std::mem::take(&mut run.used);
        for handle in used {
            user.close(handle).unwrap();
        }
        self.slots = slots;
        result.unwrap_or_else(|errno| format!("{errno:?}"))
    }

    /// All entries with metadata, content and extended attributes.
    pub fn tree(&mut self) -> String {
        let mut text = String::new();
        let root = Actor::root();
        let base = self.base;
        let mut user = self.disk.as_user(&root);
        add_tree(&mut user, base, "", &mut text);
        text
    }
}

struct Run<'a, 'd> {
    user: &'a mut User<'d>,
    base: Handle,
    slots: &'a mut [Option<Handle>; SLOTS],
    /// Handles to close.
    used: Vec<Handle>,
}

impl Run<'_, '_> {
    fn directory(&mut self, at: &At) -> Result<Handle> {
        let handle = directory(self.user, self.base, at)?;
        self.used.push(handle);
        Ok(handle)
    }

    fn slot(&self, slot: usize) -> Result<Handle> {
        self.slots[slot].ok_or(dmover_memory::Errno::BADF)
    }

    fn put(&mut self, slot: usize, handle: Option<Handle>) {
        if let Some(old) = std::mem::replace(&mut self.slots[slot], handle) {
            self.user.close(old).unwrap();
        }
    }

    fn step(&mut self, step: &Step) -> Result<String> {
        match step {
            Step::Base { uid, gid, mode } => {
                self.user.set_owner(self.base, Some(*uid), Some(*gid))?;
                self.user.set_mode(self.base, *mode)?;
            }
            Step::Open { slot, at, how } => {
                let directory = self.directory(at)?;
                let made = self.user.open(directory, &at.1, open(*how))?;
                self.put(*slot, Some(made));
            }
            Step::Unnamed { slot, directory } => {
                let directory = self.directory(directory)?;
                let made = self.user.create_unnamed(directory, 0o640)?;
                self.put(*slot, Some(made));
            }
            Step::Close { slot } => self.put(*slot, None),
            Step::CloseAll => (0..SLOTS).for_each(|slot| self.put(slot, None)),
            Step::MakeDirectory { at, mode } => {
                let directory = self.directory(at)?;
                self.user.make_directory(directory, &at.1, *mode)?;
            }
            Step::Symlink { target, at } => {
                let directory = self.directory(at)?;
                self.user.symlink(target, directory, &at.1)?;
            }
            Step::MakeNode { at, device, mode } => {
                let directory = self.directory(at)?;
                self.user.make_node(directory, &at.1, *device, *mode)?;
            }
            Step::Link { from, to } => {
                let (old, new) = (self.directory(from)?, self.directory(to)?);
                self.user.link((old, from.1.as_slice()), new, &to.1)?;
            }
            Step::LinkOpen { slot, to } => {
                let of = self.slot(*slot)?;
                let new = self.directory(to)?;
                self.user.link(of, new, &to.1)?;
            }
            Step::Rename { from, to, how } => {
                let (old, new) = (self.directory(from)?, self.directory(to)?);
                self.user.rename((old, &from.1), (new, &to.1), *how)?;
            }
            Step::Unlink { at } => {
                let directory = self.directory(at)?;
                self.user.unlink(directory, &at.1)?;
            }
            Step::RemoveDirectory { at } => {
                let directory = self.directory(at)?;
                self.user.remove_directory(directory, &at.1)?;
            }
            other => return self.step_in_entry(other),
        }
        Ok("ok".to_owned())
    }

    fn step_in_entry(&mut self, step: &Step) -> Result<String> {
        match step {
            Step::Stat { at } => {
                let directory = self.directory(at)?;
                return self.user.stat((directory, at.1.as_slice())).map(|of| show(&of));
            }
            Step::List { at } => {
                let directory = self.directory(at)?;
                let listed = self.user.open(directory, &at.1, Open::DIRECTORY)?;
                self.used.push(listed);
                return Ok(format!("{:?}", names(self.user, listed)));
            }
            Step::ReadLink { at } => {
                let directory = self.directory(at)?;
                let target = self.user.read_link((directory, at.1.as_slice()))?;
                return Ok(format!("{:?}", std::ffi::CString::new(target).unwrap()));
            }
            Step::SetMode { at, mode } => {
                let directory = self.directory(at)?;
                self.user.set_mode((directory, at.1.as_slice()), *mode)?;
            }
            Step::SetOwner { at, uid, gid } => {
                let directory = self.directory(at)?;
                self.user.set_owner((directory, at.1.as_slice()), *uid, *gid)?;
            }
            Step::SetTimes { at, atime, mtime } => {
                let directory = self.directory(at)?;
                let place = (directory, at.1.as_slice());
                self.user.set_times(place, set_time(*atime), set_time(*mtime))?;
                let mtime = match (self.user.stat(place), mtime) {
                    (Ok(of), Time::To(..)) => {
                        format!("{}.{}", of.mtime.seconds, of.mtime.nanoseconds)
                    }
                    _ => String::new(),
                };
                return Ok(format!("ok {mtime}"));
            }
            Step::SetXattr { at, name, value, mode } => {
                let mode = [XattrMode::Set, XattrMode::Create, XattrMode::Replace][*mode as usize];
                let directory = self.directory(at)?;
                let place = (directory, at.1.as_slice());
                self.user.set_xattr(place, name.as_bytes(), value, mode)?;
            }
            Step::GetXattr { at, name } => {
                let directory = self.directory(at)?;
                let value = self.user.xattr((directory, at.1.as_slice()), name.as_bytes())?;
                return Ok(format!("{value:?}"));
            }
            Step::ListXattrs { at } => {
                let directory = self.directory(at)?;
                return xattr_names(self.user, directory, &at.1);
            }
            Step::RemoveXattr { at, name } => {
                let directory = self.directory(at)?;
                self.user.remove_xattr((directory, at.1.as_slice()), name.as_bytes())?;
            }
            other => return self.step_in_content(other),
        }
        Ok("ok".to_owned())
    }

    fn step_in_content(&mut self, step: &Step) -> Result<String> {
        match step {
            Step::Read { slot, offset, length } => {
                let mut buffer = vec![0; *length];
                let read = self.user.read(self.slot(*slot)?, *offset, &mut buffer)?;
                return Ok(format!("{read} {}", sum(&buffer[..read])));
            }
            Step::Write { slot, offset, length, byte } => {
                let bytes = vec![*byte; *length];
                let written = self.user.write(self.slot(*slot)?, *offset, &bytes);
                return written.map(|length| length.to_string());
            }
            Step::Truncate { slot, size } => self.user.truncate(self.slot(*slot)?, *size)?,
            Step::Allocate { slot, offset, length, keeps_size } => {
                self.user.allocate(self.slot(*slot)?, *offset, *length, *keeps_size)?;
            }
            Step::Punch { slot, offset, length } => {
                self.user.punch(self.slot(*slot)?, *offset, *length)?;
            }
            Step::Data { slot, offset } => {
                return self.user.next_data(self.slot(*slot)?, *offset).map(|at| at.to_string());
            }
            Step::Hole { slot, offset } => {
                return self.user.next_hole(self.slot(*slot)?, *offset).map(|at| at.to_string());
            }
            Step::StatOpen { slot } => {
                return self.user.stat(self.slot(*slot)?).map(|of| show(&of));
            }
            Step::Sync { slot } => self.user.sync(self.slot(*slot)?)?,
            Step::SyncAll => {
                let base = self.user.reopen(self.base, Open::DIRECTORY)?;
                self.used.push(base);
                self.user.sync_all(base)?;
            }
            other => panic!("{other:?}"),
        }
        Ok("ok".to_owned())
    }
}

fn directory(user: &mut User<'_>, base: Handle, at: &At) -> Result<Handle> {
    let path = if at.0.is_empty() { b"." } else { at.0.as_slice() };
    user.walk(base, path, true)
}

fn add_tree(user: &mut User<'_>, directory: Handle, above: &str, text: &mut String) {
    let listed = user.reopen(directory, Open::DIRECTORY).unwrap();
    for name in names(user, listed) {
        let of = user.stat((listed, name.as_slice())).unwrap();
        let path = format!("{above}/{}", name.escape_ascii());
        let xattrs = xattr_names(user, listed, &name).unwrap();
        let _ = write!(text, "{path}: {} {xattrs}", show(&of));
        match of.kind {
            EntryKind::File => {
                let file = user.open(listed, &name, Open::READ).unwrap();
                let mut buffer = vec![0; of.size as usize];
                let read = user.read(file, 0, &mut buffer).unwrap();
                user.close(file).unwrap();
                let _ = writeln!(text, " {read} {}", sum(&buffer));
            }
            EntryKind::Symlink => {
                let target = user.read_link((listed, name.as_slice())).unwrap();
                let _ = writeln!(text, " {:?}", std::ffi::CString::new(target).unwrap());
            }
            EntryKind::Directory => {
                text.push('\n');
                let below = user.open(listed, &name, Open::DIRECTORY).unwrap();
                add_tree(user, below, &path, text);
                user.close(below).unwrap();
            }
            _ => text.push('\n'),
        }
    }
    user.close(listed).unwrap();
}

/// All names, sorted; read in small parts.
fn names(user: &mut User<'_>, directory: Handle) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut cursor = None;
    loop {
        let (listed, next) = user.list(directory, cursor.as_ref(), 2).unwrap();
        names.extend(listed.into_iter().map(|entry| entry.name));
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    names.sort();
    names
}

fn xattr_names(user: &mut User<'_>, directory: Handle, name: &[u8]) -> Result<String> {
    let mut names = user.list_xattrs((directory, name))?;
    names.retain(|name| XATTRS.iter().any(|used| used.as_bytes() == *name));
    Ok(format!("{names:?}"))
}

/// As `real::show`.
fn show(of: &Metadata) -> String {
    let kind = match of.kind {
        EntryKind::File => FileType::RegularFile,
        EntryKind::Directory => FileType::Directory,
        EntryKind::Symlink => FileType::Symlink,
        EntryKind::Fifo => FileType::Fifo,
        EntryKind::Socket => FileType::Socket,
        EntryKind::CharDevice => FileType::CharacterDevice,
        EntryKind::BlockDevice => FileType::BlockDevice,
    };
    let size = if of.kind == EntryKind::Directory { 0 } else { of.size };
    let blocks = if of.kind == EntryKind::File { of.blocks } else { 0 };
    let Metadata { mode, uid, gid, links, device, .. } = of;
    format!("{} {mode:o} {uid} {gid} {links} {size} {blocks} {device:?}", letter(kind))
}

/// As `ls -l` begins a line.
pub fn letter(kind: FileType) -> char {
    match kind {
        FileType::RegularFile => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Unknown => '?',
    }
}

fn set_time(time: Time) -> SetTime {
    match time {
        Time::Omit => SetTime::Omit,
        Time::Now => SetTime::Now,
        Time::To(seconds, nanoseconds) => SetTime::To(Timestamp { seconds, nanoseconds }),
    }
}

fn open(how: How) -> Open {
    Open {
        reads: how.reads,
        writes: how.writes,
        appends: how.appends,
        creates: how.creates,
        is_exclusive: how.is_exclusive,
        truncates: how.truncates,
        is_directory: how.is_directory,
        keeps_atime: how.keeps_atime,
    }
}
