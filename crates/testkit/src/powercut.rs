//! Power cuts: what a file system on a disk still holds after the machine went dark.
//!
//! The cut stops the file system without letting it write anything more, and what had reached the image until then
//! is mounted again, which replays the journal. Dirty pages and metadata that no commit had written are lost.
//! The device has no volatile cache: a write that was sent to it survives even without a flush.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{Mode, OFlags};

use crate::faultfs::lock;
use crate::image::{FileSystem, Image, ImageOptions, Mounted, Unavailable};
use crate::skip::skipped;

/// Waits with the file system open, so that the cut itself takes no longer than one system call.
///
/// `FS_IOC_SHUTDOWN` is `_IOR('X', 125, u32)`; 2 means that the log is not flushed first.
const CUTTER: &str = "
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
sys.stdout.write('armed'); sys.stdout.flush()
if sys.stdin.read(1) == 'x':
    fcntl.ioctl(fd, 0x8004587d, struct.pack('I', 2))
";

/// A mounted file system on a device whose power can be cut.
#[derive(Debug)]
pub struct PowerCutDevice {
    cutter: Mutex<Option<Child>>,
    options: ImageOptions,
    snapshot: PathBuf,
    mounted: Mounted,
}

impl PowerCutDevice {
    /// Makes an ext4 or XFS file system of so many bytes.
    pub fn create(file_system: FileSystem, size_bytes: u64) -> Result<Self, Unavailable> {
        let options = ImageOptions { size_bytes, ..ImageOptions::default() };
        Self::create_with(file_system, options)
    }

    /// Makes an ext4 or XFS file system, for example with the mount option `commit=1`.
    pub fn create_with(
        file_system: FileSystem,
        mut options: ImageOptions,
    ) -> Result<Self, Unavailable> {
        let unavailable =
            |error: anyhow::Error| Unavailable { file_system, why: format!("{error:#}") };
        if !matches!(file_system, FileSystem::Ext4 | FileSystem::Xfs) {
            return Err(unavailable(anyhow::anyhow!("it cannot be shut down")));
        }
        if file_system == FileSystem::Ext4 {
            // Not every kernel mounts project ids, and nothing here needs them.
            options.mkfs_arguments.splice(0..0, ["-O".to_owned(), "^project".to_owned()]);
        }
        let mounted = Image::create_with(file_system, &options)?;
        // The empty file system itself must be there after a cut at any later time.
        flush(mounted.path()).map_err(unavailable)?;
        let snapshot = mounted.image().with_extension("after-cut");
        let cutter = arm(mounted.path()).map_err(unavailable)?;
        Ok(Self { cutter: Mutex::new(Some(cutter)), options, snapshot, mounted })
    }

    /// Makes a file system, or says loudly that `test` is skipped.
    pub fn create_or_skip(test: &str, file_system: FileSystem, size_bytes: u64) -> Option<Self> {
        Self::create(file_system, size_bytes).map_err(|why| skipped(test, &why.to_string())).ok()
    }

    /// The directory where the file system is mounted; the same before and after a cut.
    pub fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// The file system that was asked for.
    pub fn file_system(&self) -> FileSystem {
        self.mounted.file_system()
    }

    /// Cuts the power; from now on whoever uses the file system gets errors.
    ///
    /// May be called while other threads and processes write. [`Self::recover`] brings it up again.
    pub fn cut_power(&self) -> Result<()> {
        let mut cutter = lock(&self.cutter).take().context("the power is already cut")?;
        cutter.stdin.take().context("no way to the cutter")?.write_all(b"x")?;
        let output = cutter.wait_with_output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cannot shut down the file system: {error}");
        // Taken before anything unmounts: that would write back the block device's own cache.
        let copied = Command::new("cp")
            .args(["--sparse=always", "--reflink=auto"])
            .args([self.mounted.image(), &self.snapshot])
            .output()?;
        ensure!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        Ok(())
    }

    /// Mounts what the device held at the cut, which replays the journal.
    ///
    /// Processes that still hold files of the dead file system keep getting errors and disturb nobody.
    pub fn recover(self) -> Result<Self> {
        ensure!(lock(&self.cutter).is_none(), "the power was not cut");
        let path = self.path();
        if tool("umount", &[path.as_os_str()]).is_err() {
            tool("umount", &["-l".as_ref(), path.as_os_str()])?;
        }
        fs::rename(&self.snapshot, self.mounted.image())?;
        let mut options = self.options.mount_options.clone();
        options.push("loop".to_owned());
        if self.file_system() == FileSystem::Xfs {
            options.push("nouuid".to_owned()); // the dead one may linger, and has the same
        }
        let (image, options) = (self.mounted.image().as_os_str(), options.join(","));
        tool("mount", &["-o".as_ref(), options.as_ref(), image, path.as_os_str()])?;
        *lock(&self.cutter) = Some(arm(path)?);
        Ok(self)
    }

    /// Cuts the power and mounts what is left.
    pub fn cut(self) -> Result<Self> {
        self.cut_power()?;
        self.recover()
    }
}

impl Drop for PowerCutDevice {
    fn drop(&mut self) {
        // The cutter ends without cutting when its input ends; only then can be unmounted.
        if let Some(mut cutter) = lock(&self.cutter).take() {
            drop(cutter.stdin.take());
            cutter.wait().ok();
        }
    }
}

/// Writes back one file system; a global sync would also save what other devices are to lose.
fn flush(path: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(path, flags, Mode::empty())?;
    Ok(rustix::fs::syncfs(root)?)
}

fn arm(path: &Path) -> Result<Child> {
    let mut cutter = Command::new("python3")
        .args(["-c", CUTTER])
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run python3")?;
    let mut answer = [0; 5];
    let stdout = cutter.stdout.as_mut().context("no answer from the cutter")?;
    stdout.read_exact(&mut answer).context("the cutter could not start")?;
    Ok(cutter)
}

fn tool(program: &str, arguments: &[&std::ffi::OsStr]) -> Result<()> {
    let output = Command::new(program).args(arguments).output()?;
    if !output.status.success() {
        bail!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
