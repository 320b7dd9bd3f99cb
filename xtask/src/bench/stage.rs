//! Where a case is played: a file system in memory, a source, a place for the destination.
use anyhow::{Context, Result, bail};
use dmover_testkit::faultfs::{Config, FaultFs, FaultFsHandle, Latency};
use dmover_testkit::image::{FileSystem, Image, ImageOptions, Mounted, base_directory};
use dmover_testkit::shapes::{Shape, generate};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

use super::cases::{Case, Place};

const MIB: u64 = 1 << 20;
/// Requests that the latency file system serves at one time, as a server does.
const SERVED: usize = 128;
const REQUEST_US: u64 = 1000;
/// The kernel asks it again for names and attributes after so long, the order of what NFS and Lustre do.
const REMEMBERED_MS: u64 = 3000;

/// Files of the tree on which system calls are counted: under strace each takes milliseconds.
const SAMPLE: u64 = 5000;

/// A source on a mounted file system, and where it goes.
pub struct Stage {
    pub source: PathBuf,
    pub destination: PathBuf,
    /// The same kind of tree with fewer files and their number, where calls can be counted.
    pub sample: Option<(PathBuf, u64)>,
    pub files: u64,
    pub bytes: u64,
    // Dropped in this order: the mount point of the first lies in the last.
    latency: Option<FaultFsHandle>,
    mounted: Mounted,
    directory: TempDir,
}

impl Stage {
    /// Makes the file system and the source.
    pub fn set(case: &Case, place: Place, scale: f64) -> Result<Self> {
        let shapes: Vec<Shape> = case.loads.iter().map(|load| scaled(load, scale)).collect();
        let files: u64 = shapes.iter().map(|shape| shape.count).sum();
        let bytes: u64 = shapes.iter().map(|shape| shape.total_bytes()).sum();
        let (file_system, mkfs_arguments) = match place {
            // One inode for 16 KiB, as mkfs makes by default, is too few for trees of small files.
            Place::Ext4 => (FileSystem::Ext4, vec!["-N".into(), (files * 4 + 10_000).to_string()]),
            Place::Xfs => (FileSystem::Xfs, Vec::new()),
            Place::Btrfs => (FileSystem::Btrfs, Vec::new()),
            _ => (FileSystem::Tmpfs, Vec::new()),
        };
        // Source, destination, and room for inodes, journals and what a file system sets aside.
        let size_bytes = bytes * 5 / 2 + files * 8192 + 1024 * MIB;
        let options = ImageOptions { size_bytes, mkfs_arguments, ..ImageOptions::default() };
        let mounted = Image::create_with(file_system, &options)?;
        let directory = tempfile::Builder::new().prefix("bench-").tempdir_in(base_directory()?)?;
        let source = mounted.path().join("source");
        fill(&source, &shapes)?;
        let sample = (files >= 1000 && !place.is_slow()).then(|| mounted.path().join("sample"));
        let sample = sample.map(|path| {
            let part = (SAMPLE as f64 / files as f64).min(1.0);
            let shapes: Vec<Shape> = shapes.iter().map(|shape| shape.scaled(part)).collect();
            fill(&path, &shapes)?;
            anyhow::Ok((path, shapes.iter().map(|shape| shape.count).sum()))
        });
        let slow = directory.path().join("slow");
        std::fs::create_dir(&slow)?;
        let latency = place.is_slow().then(|| FaultFs::mount(mounted.path(), &slow, served()));
        let latency = latency.transpose()?;
        let seen = |is_slow| if is_slow { &*slow } else { mounted.path() };
        let source = seen(matches!(place, Place::SlowSource | Place::SlowBoth)).join("source");
        let slow_destination = matches!(place, Place::SlowDestination | Place::SlowBoth);
        let destination = seen(slow_destination).join("destination");
        Ok(Self {
            source,
            destination,
            sample: sample.transpose()?,
            files,
            bytes,
            latency,
            mounted,
            directory,
        })
    }

    /// Removes the destination and leaves memory and the file system quiet.
    pub fn clear(&self) -> Result<()> {
        // Through the latency file system, or the kernel would remember what is gone; but at once.
        let fast = |us| self.latency.iter().for_each(|l| l.set_latency(Latency::of_us(us)));
        fast(0);
        let removed = std::fs::remove_dir_all(&self.destination);
        if self.is_slow() {
            drop_caches()?;
        }
        fast(REQUEST_US);
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let sync = Command::new("sync").arg("-f").arg(self.mounted.path()).status()?;
        if !sync.success() {
            bail!("sync failed");
        }
        touch_memory(self.bytes * 3 / 2 + self.files * 4096);
        Ok(())
    }

    /// A directory outside of what is measured.
    pub fn scratch(&self) -> &Path {
        self.directory.path()
    }

    /// What is read through the latency file system has to be asked anew.
    fn is_slow(&self) -> bool {
        self.latency.is_some()
    }

    /// A program that leaves something out has not done the work.
    pub fn check_destination(&self) -> Result<()> {
        let destination = self.mounted.path().join("destination");
        let (files, bytes) = count(&destination).context("look at the destination")?;
        if (files, bytes) != (self.files, self.bytes) {
            bail!("{files} of {} files and {bytes} of {} bytes arrived", self.files, self.bytes);
        }
        Ok(())
    }
}

fn fill(root: &Path, shapes: &[Shape]) -> Result<()> {
    std::fs::create_dir(root)?;
    for (number, shape) in shapes.iter().enumerate() {
        generate(&root.join(format!("part{number}")), *shape, 1.0, number as u64)?;
    }
    Ok(())
}

fn scaled(load: &super::cases::Load, scale: f64) -> Shape {
    let shape =
        Shape { count: load.files, size_bytes: load.bytes, per_directory: load.per_directory };
    shape.scaled(scale)
}

fn served() -> Config {
    Config {
        latency: Latency::of_us(REQUEST_US),
        threads: SERVED,
        ttl_ms: REMEMBERED_MS,
        // As a network file system is used.
        direct_io: false,
        copy_file_range: false,
        ..Config::default()
    }
}

/// The kernel forgets names and attributes, so that every run asks for them.
fn drop_caches() -> Result<()> {
    std::fs::write("/proc/sys/vm/drop_caches", "2").context("cannot drop the kernel's caches")
}

/// A virtual machine may have given free memory back to its host, and the first one to touch it again
/// would pay for it; so everybody starts with memory that was just in use.
fn touch_memory(bytes: u64) {
    let memory = vec![1u8; bytes as usize];
    std::hint::black_box(&memory);
}

fn count(directory: &Path) -> Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            let below = count(&entry.path())?;
            files += below.0;
            bytes += below.1;
        } else {
            files += 1;
            bytes += metadata.len();
        }
    }
    Ok((files, bytes))
}
