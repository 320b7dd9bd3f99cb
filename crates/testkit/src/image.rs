//! Real file systems on image files in memory, mounted for the length of a test.
#![allow(clippy::unnecessary_debug_formatting, reason = "names hold control characters")]

mod zfs;

use std::fmt;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use rustix::fs::FlockOperation;
use tempfile::TempDir;

/// A file system that [`Image`] can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4 with 256-byte inodes, and with project ids if the kernel can.
    Ext4,
    /// XFS; never smaller than 300 MiB.
    Xfs,
    /// btrfs with one device.
    Btrfs,
    /// tmpfs; the size is a limit, nothing is set aside.
    Tmpfs,
    /// ZFS through FUSE: its own semantics, with times in whole seconds and no inode flags.
    ZfsFuse,
}

impl FileSystem {
    /// Every file system, for loops over all of them.
    pub const ALL: [Self; 5] = [Self::Ext4, Self::Xfs, Self::Btrfs, Self::Tmpfs, Self::ZfsFuse];

    /// The name on command lines and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Tmpfs => "tmpfs",
            Self::ZfsFuse => "zfs-fuse",
        }
    }

    /// The smallest size that its mkfs accepts.
    fn smallest(self) -> u64 {
        const MIB: u64 = 1 << 20;
        match self {
            Self::Ext4 => 8 * MIB,
            Self::Xfs => 300 * MIB,
            Self::Btrfs => 128 * MIB,
            Self::Tmpfs => MIB,
            Self::ZfsFuse => 64 * MIB,
        }
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FileSystem {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|fs| fs.name() == text);
        known.with_context(|| format!("unknown file system {text:?}"))
    }
}

/// How to make and mount an image.
#[derive(Clone, Debug, Default)]
pub struct ImageOptions {
    /// Size of the file system; raised to the least that its mkfs accepts.
    pub size_bytes: u64,
    /// Mount options such as `usrquota`, `prjquota` or `noatime`; not for zfs-fuse.
    pub mount_options: Vec<String>,
    /// Further arguments of mkfs, or of `zpool create`.
    pub mkfs_arguments: Vec<String>,
}

/// A file system that cannot be had here, and why; the test should be skipped loudly.
#[derive(Clone, Debug)]
pub struct Unavailable {
    /// The file system that was asked for.
    pub file_system: FileSystem,
    /// What failed.
    pub why: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {} here: {}", self.file_system, self.why)
    }
}

impl std::error::Error for Unavailable {}

/// Set when this kernel refuses to mount ext4 with project ids, for want of `CONFIG_QFMT_V2`.
static NO_EXT4_PROJECT: AtomicBool = AtomicBool::new(false);

fn wants_quota(options: &ImageOptions) -> bool {
    options.mount_options.iter().any(|option| option.contains("quota"))
}

/// Makes file systems in image files.
#[derive(Debug)]
pub struct Image;

impl Image {
    /// Makes and mounts a file system with default options.
    pub fn create(file_system: FileSystem, size_bytes: u64) -> Result<Mounted, Unavailable> {
        Self::create_with(file_system, &ImageOptions { size_bytes, ..ImageOptions::default() })
    }

    /// Makes and mounts a file system.
    pub fn create_with(
        file_system: FileSystem,
        options: &ImageOptions,
    ) -> Result<Mounted, Unavailable> {
        Mounted::new(file_system, options)
            .map_err(|error| Unavailable { file_system, why: format!("{error:#}") })
    }

    /// Makes and mounts a file system, or says loudly that `test` is skipped.
    pub fn create_or_skip(test: &str, file_system: FileSystem, size_bytes: u64) -> Option<Mounted> {
        match Self::create(file_system, size_bytes) {
            Ok(mounted) => Some(mounted),
            Err(unavailable) => {
                crate::skip::skipped(test, &unavailable.to_string());
                None
            }
        }
    }
}

/// A mounted file system; dropping it unmounts and deletes it.
#[derive(Debug)]
pub struct Mounted {
    file_system: FileSystem,
    mount_options: Vec<String>,
    image: PathBuf,
    mount_point: PathBuf,
    attached: bool,
    pool: Option<zfs::Pool>,
    // Dropped in this order: the lock last, since whoever gets it may delete the directory.
    _directory: TempDir,
    _lock: File,
}

impl Mounted {
    fn new(file_system: FileSystem, options: &ImageOptions) -> Result<Self> {
        let base = base_directory()?;
        let directory = tempfile::Builder::new().prefix("image-").tempdir_in(&base)?;
        let lock = File::create(directory.path().join("lock"))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        sweep(&base);
        let image = directory.path().join("image");
        let mount_point = directory.path().join("mount");
        std::fs::create_dir(&mount_point)?;
        let mut mounted = Self {
            file_system,
            mount_options: options.mount_options.clone(),
            image,
            mount_point,
            attached: false,
            pool: None,
            _directory: directory,
            _lock: lock,
        };
        let project = file_system == FileSystem::Ext4 && !NO_EXT4_PROJECT.load(Ordering::Relaxed);
        mounted.format(options, project)?;
        if let Err(error) = mounted.mount() {
            if !project || wants_quota(options) {
                return Err(error);
            }
            mounted.format(options, false)?;
            mounted.mount()?;
            NO_EXT4_PROJECT.store(true, Ordering::Relaxed);
        }
        std::fs::set_permissions(&mounted.mount_point, PermissionsExt::from_mode(0o755))?;
        Ok(mounted)
    }

    fn format(&mut self, options: &ImageOptions, project: bool) -> Result<()> {
        let size = options.size_bytes.max(self.file_system.smallest());
        if self.file_system == FileSystem::Tmpfs {
            self.mount_options.push(format!("size={size}"));
            return Ok(());
        }
        File::create(&self.image)?.set_len(size)?;
        let mut mkfs = match self.file_system {
            FileSystem::Ext4 => {
                // Small images would get smaller blocks and inodes than any real file system.
                let mut mkfs = tool(&["mkfs.ext4", "-q", "-F", "-I", "256", "-b", "4096"]);
                if wants_quota(options) {
                    mkfs.args(["-O", "project,quota"]);
                } else if project {
                    mkfs.args(["-O", "project"]);
                }
                mkfs
            }
            FileSystem::Xfs => tool(&["mkfs.xfs", "-q", "-f"]),
            FileSystem::Btrfs => tool(&["mkfs.btrfs", "-q", "-f"]),
            FileSystem::Tmpfs | FileSystem::ZfsFuse => {
                let pool = zfs::Pool::create(&self.image, &self.mount_point, options)?;
                self.pool = Some(pool);
                return Ok(());
            }
        };
        run(mkfs.args(&options.mkfs_arguments).arg(&self.image))
    }

    /// The directory where the file system is mounted.
    pub fn path(&self) -> &Path {
        &self.mount_point
    }

    /// The file system that was asked for.
    pub fn file_system(&self) -> FileSystem {
        self.file_system
    }

    /// The file that holds the file system; not there for tmpfs.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Mounts the file system again after [`Self::unmount`].
    pub fn mount(&mut self) -> Result<()> {
        if self.attached {
            return Ok(());
        }
        if let Some(pool) = &self.pool {
            pool.mount()?;
        } else {
            let mut mount = tool(&["mount", "-t", self.file_system.name()]);
            let mut options = self.mount_options.clone();
            if self.file_system == FileSystem::Tmpfs {
                mount.args(["-o", &options.join(","), "dmover-test"]);
            } else {
                options.insert(0, "loop".to_owned());
                mount.args(["-o", &options.join(",")]).arg(&self.image);
            }
            run(mount.arg(&self.mount_point))?;
        }
        self.attached = true;
        Ok(())
    }

    /// Unmounts, so that a later [`Self::mount`] sees only what reached the image; tmpfs forgets all.
    pub fn unmount(&mut self) -> Result<()> {
        if !self.attached {
            return Ok(());
        }
        if let Some(pool) = &self.pool {
            pool.unmount()?;
        } else {
            unmount(&self.mount_point)?;
        }
        self.attached = false;
        Ok(())
    }

    /// Has XFS give back what it has reserved around blocks that were shared. Until then, which takes up to five minutes, it counts as
    /// allocated, also in holes.
    pub fn free_reserved(&self) -> Result<()> {
        if self.file_system != FileSystem::Xfs {
            return Ok(());
        }
        // It keeps what belongs to pages that are not written yet.
        run(tool(&["sync", "-f"]).arg(self.path()))?;
        run(tool(&["xfs_spaceman", "-c", "prealloc -s"]).arg(self.path()))
    }

    /// Changes mount options such as `ro` or `rw` in place; not for zfs-fuse.
    pub fn remount(&self, options: &str) -> Result<()> {
        if self.pool.is_some() {
            bail!("zfs-fuse cannot be remounted");
        }
        run(tool(&["mount", "-o", &format!("remount,{options}")]).arg(&self.mount_point))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The pool unmounts and destroys itself. Errors are of no use here: a lazy unmount was the
        // last resort, and the next sweep removes what is left.
        drop(self.pool.take());
        if self.attached {
            let _ = unmount(&self.mount_point);
        }
    }
}

/// The directory for images: memory, so that tests cost no disk writes.
pub fn base_directory() -> Result<PathBuf> {
    let base = std::env::var_os("DMOVER_TEST_DIR")
        .map_or_else(|| PathBuf::from("/dev/shm/dmover-test"), PathBuf::from);
    std::fs::create_dir_all(&base).with_context(|| format!("create {base:?}"))?;
    Ok(base.canonicalize()?)
}

/// Removes images whose process was killed: nobody holds their lock any more.
fn sweep(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let is_image = entry.file_name().as_encoded_bytes().starts_with(b"image-");
        // A young directory may not have its lock yet.
        let old = entry.metadata().and_then(|data| data.modified()).is_ok_and(|modified| {
            SystemTime::now().duration_since(modified).unwrap_or_default() > Duration::from_mins(1)
        });
        if is_image && old && remove_abandoned(&entry.path()).is_err() {
            // Another sweep is at it, or it is still in use.
        }
    }
}

fn remove_abandoned(directory: &Path) -> Result<()> {
    let lock = File::create(directory.join("lock"))?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    zfs::destroy_abandoned(directory);
    let mount_point = directory.join("mount");
    if is_mounted(&mount_point) {
        unmount(&mount_point)?;
    }
    Ok(std::fs::remove_dir_all(directory)?)
}

/// Whether something is mounted exactly there.
fn is_mounted(path: &Path) -> bool {
    let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else { return false };
    let path = path.to_string_lossy();
    table.lines().any(|line| line.split(' ').nth(4) == Some(&*path))
}

/// Unmounts patiently, since a process that was just killed may still hold the file system.
fn unmount(mount_point: &Path) -> Result<()> {
    for _ in 0..50 {
        if run(tool(&["umount"]).arg(mount_point)).is_ok() || !is_mounted(mount_point) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    run(tool(&["umount", "-l"]).arg(mount_point))?;
    bail!("{mount_point:?} stayed busy and was detached")
}

/// A command that is ended after a minute, whatever a file system does to it.
fn tool(words: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60"]).args(words).env("LC_ALL", "C");
    command
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} ended with {}: {}", output.status, stderr.trim());
    }
    Ok(())
}
