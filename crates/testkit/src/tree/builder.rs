//! The operations that the groups of cases are made of.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::fs::{
    AtFlags, FileType, Gid, IFlags, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::{Features, TreeOptions, TreeReport, walk};

/// Random bytes that file contents are cut from; none is zero, so that no hole arises by accident.
const POOL_BYTES: usize = 1 << 20;

/// An open directory of the tree and its path below the root.
#[derive(Clone, Debug)]
pub struct Place {
    pub fd: Rc<OwnedFd>,
    pub path: PathBuf,
}

impl Place {
    /// A path below this place.
    pub fn join(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// A short path to an entry, for calls and helpers that know no directory descriptor.
    pub fn through_proc(&self, name: &OsStr) -> OsString {
        let mut path =
            OsString::from(format!("/proc/{}/fd/{}/", std::process::id(), self.fd.as_raw_fd()));
        path.push(name);
        path
    }

    pub fn mode(&self, name: impl AsRef<OsStr>, mode: u32) -> Result<()> {
        let name = name.as_ref();
        rustix::fs::chmodat(&self.fd, name, Mode::from_raw_mode(mode), AtFlags::empty())
            .with_context(|| format!("chmod {:?}", self.join(name)))
    }

    pub fn owner(&self, name: impl AsRef<OsStr>, owner: (u32, u32)) -> Result<()> {
        let name = name.as_ref();
        let (user, group) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(&self.fd, name, Some(user), Some(group), flags)
            .with_context(|| format!("chown {:?}", self.join(name)))
    }

    /// Sets an extended attribute of the entry itself; the name may be any bytes.
    pub fn xattr(
        &self,
        name: impl AsRef<OsStr>,
        attribute: impl AsRef<[u8]>,
        value: &[u8],
    ) -> Result<()> {
        let attribute = OsStr::from_bytes(attribute.as_ref());
        let path = self.through_proc(name.as_ref());
        rustix::fs::lsetxattr(&path, attribute, value, XattrFlags::empty())
            .with_context(|| format!("set {attribute:?} of {:?}", self.join(name.as_ref())))
    }

    /// Sets access and modification time of the entry itself.
    pub fn times(&self, name: &OsStr, times: &Timestamps) -> Result<()> {
        rustix::fs::utimensat(&self.fd, name, times, AtFlags::SYMLINK_NOFOLLOW)
            .with_context(|| format!("set times of {:?}", self.join(name)))
    }
}

/// What a directory gets after everything below it is done.
#[derive(Clone, Debug)]
struct DirectoryEnd {
    mode: u32,
    times: Timestamps,
}

/// The state of one generation.
pub struct Builder {
    pub rng: ChaCha8Rng,
    pub features: Features,
    pub entries: u64,
    root: OwnedFd,
    report: TreeReport,
    ends: BTreeMap<PathBuf, DirectoryEnd>,
    flags: Vec<(PathBuf, IFlags)>,
    pool: Vec<u8>,
    scratch: Vec<u8>,
    salt: u64,
    files: u64,
}

impl Builder {
    pub fn new(root: &Path, seed: u64, options: &TreeOptions) -> Result<Self> {
        let root = rustix::fs::open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut pool = vec![0; POOL_BYTES];
        rng.fill_bytes(&mut pool);
        pool.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = 0xA5);
        Ok(Self {
            rng,
            features: options.features.clone(),
            entries: options.entries,
            root,
            report: TreeReport { seed, ..TreeReport::default() },
            ends: BTreeMap::new(),
            flags: Vec::new(),
            pool,
            scratch: Vec::new(),
            salt: 0,
            files: 0,
        })
    }

    /// Starts the random sequence of a group.
    pub fn reseed(&mut self, seed: u64, group: &str) {
        let hash = |hash: u64, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte));
        self.salt = group.bytes().fold(0, hash);
        self.files = 0;
        self.rng = ChaCha8Rng::seed_from_u64(seed);
        self.rng.set_stream(self.salt);
    }

    pub fn top(&mut self) -> Result<Place> {
        let times = self.ordinary_times();
        self.ends.insert(PathBuf::new(), DirectoryEnd { mode: 0o755, times });
        let fd = walk::open_quietly(&self.root, OsStr::new("."), OFlags::DIRECTORY)?;
        Ok(Place { fd: Rc::new(fd), path: PathBuf::new() })
    }

    pub fn case(&mut self, case: &str, path: PathBuf) {
        self.report.cases.push((case.to_owned(), path));
    }

    pub fn skip(&mut self, case: &str, why: impl Into<String>) {
        self.report.skipped.push((case.to_owned(), why.into()));
    }

    /// Lists the case as made, or as skipped if the file system refuses such a thing on principle.
    pub fn optional(&mut self, case: &str, path: PathBuf, result: Result<()>) -> Result<()> {
        const REFUSALS: [Errno; 8] = [
            Errno::OPNOTSUPP,
            Errno::INVAL,
            Errno::NAMETOOLONG,
            Errno::PERM,
            Errno::NOSYS,
            Errno::ILSEQ,
            Errno::NOSPC,
            Errno::RANGE,
        ];
        let Err(error) = result else {
            self.case(case, path);
            return Ok(());
        };
        let errno = error.chain().find_map(|cause| cause.downcast_ref::<Errno>());
        if errno.is_some_and(|errno| REFUSALS.contains(errno)) {
            self.skip(case, format!("{error:#}"));
            return Ok(());
        }
        Err(error)
    }

    /// Makes a directory; its mode 0755 and its times come when the tree is finished.
    pub fn directory(&mut self, parent: &Place, name: impl AsRef<OsStr>) -> Result<Place> {
        let name = name.as_ref();
        let path = parent.join(name);
        rustix::fs::mkdirat(&parent.fd, name, Mode::from_raw_mode(0o700))
            .with_context(|| format!("mkdir {path:?}"))?;
        let fd = walk::open_quietly(&*parent.fd, name, OFlags::DIRECTORY)?;
        let times = self.ordinary_times();
        self.ends.insert(path.clone(), DirectoryEnd { mode: 0o755, times });
        self.report.entries += 1;
        Ok(Place { fd: Rc::new(fd), path })
    }

    /// The mode that a directory gets at the end.
    pub fn final_mode(&mut self, place: &Place, mode: u32) {
        self.ends.entry(place.path.clone()).and_modify(|end| end.mode = mode);
    }

    /// The times that a directory gets at the end.
    pub fn final_times(&mut self, path: &Path, times: Timestamps) {
        self.ends.entry(path.to_owned()).and_modify(|end| end.times = times);
    }

    /// The inode flags that an entry gets when everything else is done.
    pub fn final_flags(&mut self, path: PathBuf, flags: IFlags) {
        self.flags.push((path, flags));
    }

    /// Makes a file whose content is written by `fill`; mode 0644 and ordinary times.
    pub fn file_with(
        &mut self,
        parent: &Place,
        name: impl AsRef<OsStr>,
        fill: impl FnOnce(&mut Self, &OwnedFd) -> Result<()>,
    ) -> Result<()> {
        let name = name.as_ref();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let opened = rustix::fs::openat(&parent.fd, name, flags, mode)
            .with_context(|| format!("create {:?}", parent.join(name)))?;
        if let Err(error) = fill(self, &opened) {
            rustix::fs::unlinkat(&parent.fd, name, AtFlags::empty())?;
            return Err(error).with_context(|| format!("write {:?}", parent.join(name)));
        }
        self.report.entries += 1;
        rustix::fs::fchmod(&opened, Mode::from_raw_mode(0o644))?;
        drop(opened);
        self.stamp(parent, name)
    }

    /// Makes a file of random bytes.
    pub fn file(&mut self, parent: &Place, name: impl AsRef<OsStr>, size: u64) -> Result<()> {
        self.file_with(parent, name, |builder, file| builder.fill(file, 0, size))
    }

    /// Writes bytes that no other file and no other offset has, and none of which is zero.
    pub fn fill(&mut self, file: &OwnedFd, mut offset: u64, mut length: u64) -> Result<()> {
        self.files += 1;
        while length > 0 {
            let start = self.rng.random_range(0..self.pool.len() / 2);
            let piece = (self.pool.len() - start).min(length as usize);
            let stamp = format!("{:08x}{:08x}{offset:016x}", self.salt as u32, self.files);
            let stamped = stamp.len().min(piece);
            self.scratch.clear();
            self.scratch.extend(&stamp.as_bytes()[..stamped]);
            self.scratch.extend(&self.pool[start + stamped..start + piece]);
            write_all(file, &self.scratch, offset)?;
            offset += piece as u64;
            length -= piece as u64;
        }
        Ok(())
    }

    pub fn symlink(
        &mut self,
        parent: &Place,
        name: impl AsRef<OsStr>,
        target: &[u8],
    ) -> Result<()> {
        let name = name.as_ref();
        rustix::fs::symlinkat(target, &parent.fd, name)
            .with_context(|| format!("symlink {:?}", parent.join(name)))?;
        self.report.entries += 1;
        self.stamp(parent, name)
    }

    /// Gives an existing entry another name; a symlink is linked itself.
    pub fn link(
        &mut self,
        from: (&Place, &OsStr),
        to: &Place,
        name: impl AsRef<OsStr>,
    ) -> Result<()> {
        let name = name.as_ref();
        rustix::fs::linkat(&from.0.fd, from.1, &to.fd, name, AtFlags::empty())
            .with_context(|| format!("link {:?}", to.join(name)))?;
        self.report.entries += 1;
        Ok(())
    }

    /// Makes a FIFO, socket or device.
    pub fn node(
        &mut self,
        parent: &Place,
        name: impl AsRef<OsStr>,
        kind: FileType,
        number: (u32, u32),
    ) -> Result<()> {
        let name = name.as_ref();
        let device = rustix::fs::makedev(number.0, number.1);
        rustix::fs::mknodat(&parent.fd, name, kind, Mode::from_raw_mode(0o640), device)
            .with_context(|| format!("mknod {:?}", parent.join(name)))?;
        self.made(parent, name)
    }

    /// Counts an entry that was made by other means, and gives it ordinary times.
    pub fn made(&mut self, parent: &Place, name: &OsStr) -> Result<()> {
        self.report.entries += 1;
        self.stamp(parent, name)
    }

    fn stamp(&mut self, parent: &Place, name: &OsStr) -> Result<()> {
        let times = self.ordinary_times();
        parent.times(name, &times)
    }

    /// Random times between 2001 and 2023, with nanoseconds where they are kept.
    pub fn ordinary_times(&mut self) -> Timestamps {
        let modified = self.rng.random_range(1_000_000_000..1_700_000_000);
        // Accessed before it was modified: with relatime every careless read would show.
        let accessed = modified - self.rng.random_range(1..10_000_000);
        Timestamps {
            last_access: Timespec { tv_sec: accessed, tv_nsec: self.nanoseconds() },
            last_modification: Timespec { tv_sec: modified, tv_nsec: self.nanoseconds() },
        }
    }

    fn nanoseconds(&mut self) -> i64 {
        let drawn = self.rng.random_range(1..1_000_000_000);
        if self.features.nanoseconds { drawn } else { 0 }
    }

    /// Modes and times of directories, deepest first, then the flags that forbid further changes.
    pub fn finish(mut self) -> Result<TreeReport> {
        let mut ends: Vec<_> = std::mem::take(&mut self.ends).into_iter().collect();
        ends.sort_by_key(|(path, _)| std::cmp::Reverse(path.components().count()));
        for (path, end) in ends {
            let directory = walk::open_beneath(&self.root, &path)?;
            rustix::fs::fchmod(&directory, Mode::from_raw_mode(end.mode))?;
            rustix::fs::futimens(&directory, &end.times)?;
        }
        // Children before parents: a directory that is immutable still lets them change, but not
        // one that lost its search permission for this user.
        self.flags.sort_by_key(|(path, _)| std::cmp::Reverse(path.components().count()));
        for (path, flags) in &self.flags {
            let parent = walk::open_beneath(&self.root, path.parent().unwrap_or(Path::new("")))?;
            let entry =
                walk::open_quietly(&parent, path.file_name().unwrap_or_default(), OFlags::empty())?;
            let before = rustix::fs::ioctl_getflags(&entry)?;
            rustix::fs::ioctl_setflags(&entry, before | *flags)
                .with_context(|| format!("set flags of {path:?}"))?;
        }
        Ok(self.report)
    }
}

fn write_all(file: impl AsFd, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        let written = rustix::io::pwrite(&file, bytes, offset)?;
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}
