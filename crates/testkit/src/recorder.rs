//! A disk that records each write and each flush in the order in which they arrive, so that one run of a program can be
//! cut at any number of points.
//!
//! The disk is a FUSE file behind a loop device with direct I/O. A cut has everything that was written before the last
//! completed flush and, of what was written after it, nothing, a prefix or a random subset: a volatile cache may write
//! back in any order.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rustix::mount::UnmountFlags;
use tempfile::TempDir;

use crate::faultfs::lock;
use crate::image::{FileSystem, Image, ImageOptions, Mounted, Unavailable, base_directory};
use crate::skip::skipped;

mod disk;
use disk::{Disk, Event, NAME, Tape};

/// A file system on a disk that records. After [`Self::stop`] any cut of the recording can be mounted at the same path.
pub struct RecordedDevice {
    /// The place of the image of a cut, and where it is mounted.
    mounted: Mounted,
    /// What is mounted there is the recording disk.
    is_recording: bool,
    session: Option<fuser::BackgroundSession>,
    tape: Arc<Mutex<Tape>>,
    /// The disk with everything before the last flush of the latest cut.
    durable: File,
    applied: usize,
    directory: TempDir,
}

/// What a disk has written of what came after its last flush.
#[derive(Clone, Copy, Debug)]
enum Tail {
    Nothing,
    Prefix,
    Subset,
}

impl RecordedDevice {
    /// Makes a file system with default options and mounts it with default options.
    pub fn create(file_system: FileSystem, size_bytes: u64) -> Result<Self, Unavailable> {
        let unavailable =
            |error: anyhow::Error| Unavailable { file_system, why: format!("{error:#}") };
        let mut options = ImageOptions { size_bytes, ..ImageOptions::default() };
        if file_system == FileSystem::Ext4 {
            // The kernel would zero these in the background, which says nothing about the program.
            let words = ["-E", "lazy_itable_init=0,lazy_journal_init=0"];
            options.mkfs_arguments.extend(words.map(str::to_owned));
        }
        let mut mounted = Image::create_with(file_system, &options)?;
        mounted.unmount().map_err(unavailable)?;
        Self::record(mounted).map_err(unavailable)
    }

    /// The same, or says loudly that `test` is skipped.
    pub fn create_or_skip(test: &str, file_system: FileSystem, size_bytes: u64) -> Option<Self> {
        Self::create(file_system, size_bytes).map_err(|why| skipped(test, &why.to_string())).ok()
    }

    fn record(mounted: Mounted) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("disk-").tempdir_in(base_directory()?)?;
        let at = |name: &str| directory.path().join(name);
        copy_sparse(mounted.image(), &at("now"))?;
        copy_sparse(mounted.image(), &at("durable"))?;
        std::fs::create_dir(at("fuse"))?;
        let open = |name: &str| File::options().read(true).write(true).open(at(name));
        let tape = Arc::new(Mutex::new(Tape::new(&at("tape"))?));
        let disk = Disk::new(open("now")?, Arc::clone(&tape))?;
        let mut config = fuser::Config::default();
        config.mount_options = vec![fuser::MountOption::FSName("dmover-disk".to_owned())];
        // One request after the other: their order is what is recorded.
        config.n_threads = Some(1);
        let session = fuser::spawn_mount(disk, at("fuse"), &config).context("mount the disk")?;
        let durable = open("durable")?;
        let (session, applied) = (Some(session), 0);
        let mut this =
            Self { mounted, is_recording: false, session, tape, durable, applied, directory };
        this.attach()?;
        Ok(this)
    }

    fn attach(&mut self) -> Result<()> {
        let disk = self.directory.path().join("fuse").join(NAME);
        let words = ["--direct-io=on", "--show", "-f"].map(Path::new);
        let device = tool("losetup", &[words[0], words[1], words[2], &disk])?;
        let device = PathBuf::from(device.trim());
        let file_system = self.mounted.file_system().name();
        let words = [Path::new("-t"), Path::new(file_system), &device, self.mounted.path()];
        let mounted = tool("mount", &words);
        // From here on it goes with its mount.
        tool("losetup", &[Path::new("-d"), &device])?;
        mounted?;
        self.is_recording = true;
        Ok(())
    }

    /// Where the file system is mounted: now the recording one, later that of a cut.
    pub fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// How many writes and flushes there were so far.
    pub fn events(&self) -> usize {
        lock(&self.tape).events.len()
    }

    /// Ends the recording and unmounts the file system. What that writes is recorded as well.
    pub fn stop(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.is_recording) {
            return Ok(());
        }
        let unmounted = unmount_patiently(self.mounted.path());
        if let Some(session) = self.session.take() {
            let fuse = self.directory.path().join("fuse");
            rustix::mount::unmount(&fuse, UnmountFlags::DETACH).ok();
            if unmounted.is_ok() {
                session.join().context("session of the disk")?;
            }
        }
        unmounted
    }

    /// Mounts what a cut after so many events leaves. Cuts have to be taken in the order of their events.
    pub fn mount_cut(&mut self, events: usize, rng: &mut ChaCha8Rng) -> Result<()> {
        let tape = Arc::clone(&self.tape);
        let tape = lock(&tape);
        let is_flush = |event: &Event| matches!(event, Event::Flush);
        let flushed = tape.events[..events].iter().rposition(is_flush).unwrap_or(0);
        if flushed < self.applied {
            bail!("cuts have to be taken in order");
        }
        for event in &tape.events[self.applied..flushed] {
            tape.replay(event, &self.durable)?;
        }
        self.applied = flushed;
        copy_sparse(&self.directory.path().join("durable"), self.mounted.image())?;
        let image = File::options().write(true).open(self.mounted.image())?;
        let tail = &tape.events[flushed..events];
        let how = [Tail::Nothing, Tail::Prefix, Tail::Subset][rng.random_range(0..3)];
        let prefix = rng.random_range(0..=tail.len());
        let share = rng.random_range(0.05..0.95);
        for (number, event) in tail.iter().enumerate() {
            let written = match how {
                Tail::Nothing => false,
                Tail::Prefix => number < prefix,
                Tail::Subset => rng.random_bool(share),
            };
            if written {
                tape.replay(event, &image)?;
            }
        }
        drop((tape, image));
        self.mounted.mount()
    }

    /// Unmounts a cut.
    pub fn unmount_cut(&mut self) -> Result<()> {
        self.mounted.unmount()
    }
}

impl Drop for RecordedDevice {
    fn drop(&mut self) {
        // What still uses it keeps its own descriptors; nothing more can be done here.
        self.stop().ok();
    }
}

fn unmount_patiently(path: &Path) -> Result<()> {
    const ATTEMPTS: u32 = 100;
    let mut result = Ok(());
    for _ in 0..ATTEMPTS {
        result = rustix::mount::unmount(path, UnmountFlags::empty());
        if result.is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    result.with_context(|| format!("unmount {}", path.display()))
}

fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    let words = ["--sparse=always", "--reflink=auto"].map(Path::new);
    tool("cp", &[words[0], words[1], from, to]).map(|_| ())
}

fn tool(program: &str, arguments: &[&Path]) -> Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    if !output.status.success() {
        bail!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
