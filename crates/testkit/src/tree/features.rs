//! What a file system can hold, found by trying.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{
    AtFlags, CWD, Gid, IFlags, Mode, SeekFrom, Timespec, Timestamps, Uid, XattrFlags,
};

use super::acl::{self, Acl};
use super::states::set_project;

/// An empty capability set of version 2: the smallest value that the kernel accepts.
pub(super) const CAPABILITY: &str = "security.capability";

/// Flags that a user may want to keep, and that [`Features::probe`] tries.
pub(super) const FLAGS: [(&str, IFlags); 9] = [
    ("immutable", IFlags::IMMUTABLE),
    ("append", IFlags::APPEND),
    ("nodump", IFlags::NODUMP),
    ("noatime", IFlags::NOATIME),
    ("sync", IFlags::SYNC),
    ("dirsync", IFlags::DIRSYNC),
    ("nocow", IFlags::NOCOW),
    ("compress", IFlags::COMPRESSED),
    ("nocompress", IFlags::from_bits_retain(0x400)),
];

/// What the file system below a directory can hold, for the user who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// Owners other than the caller.
    pub owners: bool,
    /// POSIX ACLs.
    pub acl: bool,
    /// Attributes of the `user` name space on files and directories.
    pub user_xattr: bool,
    /// Attributes of the `trusted` name space on files.
    pub trusted_xattr: bool,
    /// Attributes of the `trusted` name space on symlinks.
    pub symlink_xattr: bool,
    /// Largest attribute value in bytes, of those tried.
    pub xattr_bytes: usize,
    /// `security.capability`.
    pub capability: bool,
    /// Inode flags that stay when they are set.
    pub flags: IFlags,
    /// Project ids.
    pub project: bool,
    /// Character and block devices.
    pub specials: bool,
    /// More than one name for an inode.
    pub hardlinks: bool,
    /// Holes that `SEEK_HOLE` reports.
    pub holes: bool,
    /// Times by the nanosecond; by the second otherwise.
    pub nanoseconds: bool,
    /// Earliest and latest time in seconds.
    pub far_times: (i64, i64),
    /// Longest target of a symlink in bytes.
    pub symlink_bytes: usize,
}

impl Features {
    /// Tries everything in a temporary directory below `directory`.
    pub fn probe(directory: &Path) -> Result<Self> {
        let trial = tempfile::Builder::new()
            .prefix(".testkit-probe-")
            .tempdir_in(directory)
            .with_context(|| format!("probe {directory:?}"))?;
        let base = trial.path();
        let file = base.join("file");
        File::create(&file)?;
        let link = base.join("link");
        symlink("target", &link)?;
        Ok(Self {
            owners: rustix::fs::chown(
                &file,
                Some(Uid::from_raw(12345)),
                Some(Gid::from_raw(54321)),
            )
            .is_ok(),
            acl: acls(&file)?,
            user_xattr: holds(&file, "user.probe", b"1"),
            trusted_xattr: holds(&file, "trusted.probe", b"1"),
            symlink_xattr: holds(&link, "trusted.probe", b"1"),
            xattr_bytes: [65536, 60000, 16000, 3000, 1000, 100]
                .into_iter()
                .find(|length| holds_long(&file, "user.large", *length))
                .unwrap_or(0),
            capability: holds(&file, CAPABILITY, &capability(1 << 10)),
            flags: flags(base)?,
            project: set_project(7, &[&file]).is_ok(),
            specials: device(&base.join("device")),
            hardlinks: std::fs::hard_link(&file, base.join("second")).is_ok(),
            holes: holes(&base.join("sparse"))?,
            nanoseconds: kept_time(&file, 1_000_000_000, 123_456_789)?
                == (1_000_000_000, 123_456_789),
            far_times: (farthest_time(&file, -1), farthest_time(&file, 1)),
            symlink_bytes: [4095, 1023, 255]
                .into_iter()
                .find(|length| symlink("t".repeat(*length), base.join("long")).is_ok())
                .unwrap_or(60),
        })
    }
}

impl Features {
    /// What two file systems can both hold, for trees that are copied from one to the other.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        Self {
            owners: self.owners && other.owners,
            acl: self.acl && other.acl,
            user_xattr: self.user_xattr && other.user_xattr,
            trusted_xattr: self.trusted_xattr && other.trusted_xattr,
            symlink_xattr: self.symlink_xattr && other.symlink_xattr,
            xattr_bytes: self.xattr_bytes.min(other.xattr_bytes),
            capability: self.capability && other.capability,
            flags: self.flags & other.flags,
            project: self.project && other.project,
            specials: self.specials && other.specials,
            hardlinks: self.hardlinks && other.hardlinks,
            holes: self.holes && other.holes,
            nanoseconds: self.nanoseconds && other.nanoseconds,
            far_times: (
                self.far_times.0.max(other.far_times.0),
                self.far_times.1.min(other.far_times.1),
            ),
            symlink_bytes: self.symlink_bytes.min(other.symlink_bytes),
        }
    }
}

/// The value of `security.capability` that permits the capabilities of a bit mask.
pub(super) fn capability(permitted: u32) -> Vec<u8> {
    let revision_2_effective: u32 = 0x0200_0001;
    [revision_2_effective, permitted, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Whether a value arrives and can be read as Python does: with a small buffer first. A server that
/// answers that one wrongly cannot be judged.
fn holds_long(file: &Path, name: &str, length: usize) -> bool {
    let value = vec![b'x'; length];
    let read = |bytes: usize| {
        let mut buffer = vec![0; bytes];
        rustix::fs::getxattr(file, name, &mut buffer[..]).map(|length| {
            buffer.truncate(length);
            buffer
        })
    };
    holds(file, name, &value) && {
        let got = match read(128) {
            Err(rustix::io::Errno::RANGE) => read(65536),
            got => got,
        };
        got.is_ok_and(|got| got == value)
    }
}

fn holds(path: &Path, name: &str, value: &[u8]) -> bool {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).is_ok()
}

/// An ACL counts when it governs the mode: FUSE may store it as an attribute without meaning.
fn acls(path: &Path) -> Result<bool> {
    let acl = Acl { base: [7, 0, 1], mask: 5, users: vec![(1, 4)], groups: vec![] };
    let stored = holds(path, acl::ACCESS, &acl.encode());
    Ok(stored && rustix::fs::lstat(path)?.st_mode & 0o777 == 0o751)
}

fn device(path: &Path) -> bool {
    let number = rustix::fs::makedev(1, 3);
    let kind = rustix::fs::FileType::CharacterDevice;
    rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), number).is_ok()
}

/// A flag counts when it is there after it was set: some file systems accept and forget.
fn flags(base: &Path) -> Result<IFlags> {
    let mut kept = IFlags::empty();
    for (name, flag) in FLAGS {
        let path = base.join(name);
        std::fs::create_dir(&path)?;
        let opened = File::open(&path)?;
        let Ok(before) = rustix::fs::ioctl_getflags(&opened) else { continue };
        if rustix::fs::ioctl_setflags(&opened, before | flag).is_err() {
            continue;
        }
        if rustix::fs::ioctl_getflags(&opened)?.contains(flag) {
            kept |= flag;
        }
        rustix::fs::ioctl_setflags(&opened, before)?;
    }
    Ok(kept)
}

fn holes(path: &Path) -> Result<bool> {
    let file = File::create(path)?;
    rustix::io::pwrite(&file, b"end", 1 << 20)?;
    Ok(rustix::fs::seek(&file, SeekFrom::Hole(0)) == Ok(0))
}

/// The bound in one direction, to which the kernel moves what is beyond it, or else an error says no.
fn farthest_time(path: &Path, sign: i64) -> i64 {
    let tries = [1 << 36, 1 << 32, 1 << 31, (1 << 31) - 1].map(|seconds| sign * seconds);
    tries.into_iter().find_map(|seconds| Some(kept_time(path, seconds, 0).ok()?.0)).unwrap_or(0)
}

/// The modification time that a file has after it was given one.
fn kept_time(path: &Path, seconds: i64, nanoseconds: i64) -> Result<(i64, i64)> {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    let stat = rustix::fs::lstat(path)?;
    Ok((stat.st_mtime, stat.st_mtime_nsec as i64))
}
