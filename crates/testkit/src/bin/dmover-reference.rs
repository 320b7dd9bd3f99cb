//! The yardstick for trees of small files: a loop that makes the system calls that a faithful copy needs, and
//! nothing else. No retries, no checks of its answers beyond success, no report, no bound on memory.
//!
//! It gives what `dmover copy` gives for plain files and directories: content, owner, mode, times,
//! extended attributes, inode flags and project ids looked for, names confined to their directories, and
//! a second look at the version of the source. It cannot do anything else.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use clap::Parser;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RawDir, Statx, StatxFlags, Timespec, Uid};

/// Names that one thread takes at a time.
const BATCH: usize = 128;

/// Copy a tree of plain files with as few system calls as a faithful copy can have.
#[derive(Parser)]
struct Args {
    source: PathBuf,
    /// Must not be there yet.
    destination: PathBuf,
    /// Threads (default: one for each core).
    #[arg(long)]
    threads: Option<usize>,
}

/// A directory on both sides; it gets its metadata when nobody needs it any more.
struct Pair {
    source: OwnedFd,
    destination: OwnedFd,
    metadata: Statx,
    _above: Option<Arc<Pair>>,
}

impl Drop for Pair {
    fn drop(&mut self) {
        // The thread that let go of it last ends with this, and so does the program.
        dress(&self.source, &self.destination, &self.metadata, 0o700)
            .expect("a finished directory");
    }
}

enum Job {
    Directory(Arc<Pair>, CString),
    Files(Arc<Pair>, Vec<CString>),
}

#[derive(Default)]
struct Jobs {
    waiting: Vec<Job>,
    busy: usize,
}

#[derive(Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

fn main() -> Result<()> {
    let args = Args::parse();
    rustix::process::umask(Mode::empty());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let shared = Shared::default();
    let here = rustix::fs::CWD;
    let source = rustix::fs::openat(here, &args.source, DIRECTORY, Mode::empty())?;
    rustix::fs::mkdirat(here, &args.destination, Mode::RWXU)?;
    let destination = rustix::fs::openat(here, &args.destination, DIRECTORY, Mode::empty())?;
    let metadata = stat(&source)?;
    let top = Arc::new(Pair { source, destination, metadata, _above: None });
    let mut buffer = vec![MaybeUninit::uninit(); 128 << 10];
    read(&shared, &top, &mut buffer)?;
    drop(top);
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..args.threads.unwrap_or(cores)).map(|_| scope.spawn(|| work(&shared))).collect();
        for thread in threads {
            match thread.join() {
                Ok(result) => result?,
                Err(_) => bail!("a thread panicked"),
            }
        }
        Ok(())
    })
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn work(shared: &Shared) -> Result<()> {
    let mut names = vec![MaybeUninit::uninit(); 128 << 10];
    let mut content = vec![0; 128 << 10];
    loop {
        let mut jobs = shared.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let job = loop {
            if let Some(job) = jobs.waiting.pop() {
                break job;
            }
            if jobs.busy == 0 {
                return Ok(());
            }
            jobs = shared.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        };
        jobs.busy += 1;
        drop(jobs);
        match job {
            Job::Directory(above, name) => {
                read(shared, &Arc::new(enter(above, &name)?), &mut names)?;
            }
            Job::Files(pair, files) => {
                for name in files {
                    copy(&pair, &name, &mut content).with_context(|| format!("{name:?}"))?;
                }
            }
        }
        let mut jobs = shared.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.busy -= 1;
        if jobs.busy == 0 {
            shared.more.notify_all();
        }
    }
}

fn enter(above: Arc<Pair>, name: &CStr) -> Result<Pair> {
    let source = rustix::fs::openat(&above.source, name, DIRECTORY, Mode::empty())?;
    let metadata = stat(&source)?;
    rustix::fs::mkdirat(&above.destination, name, Mode::RWXU)?;
    let destination = rustix::fs::openat(&above.destination, name, DIRECTORY, Mode::empty())?;
    Ok(Pair { source, destination, metadata, _above: Some(above) })
}

fn read(shared: &Shared, pair: &Arc<Pair>, buffer: &mut [MaybeUninit<u8>]) -> Result<()> {
    let mut files = Vec::with_capacity(BATCH);
    let put = |job| {
        shared.jobs.lock().unwrap_or_else(PoisonError::into_inner).waiting.push(job);
        shared.more.notify_one();
    };
    let mut reader = RawDir::new(&pair.source, buffer);
    while let Some(entry) = reader.next() {
        let entry = entry?;
        let name = entry.file_name();
        match entry.file_type() {
            FileType::Directory if matches!(name.to_bytes(), b"." | b"..") => {}
            FileType::Directory => put(Job::Directory(Arc::clone(pair), name.to_owned())),
            FileType::RegularFile => files.push(name.to_owned()),
            other => bail!("{name:?} is a {other:?}"),
        }
        if files.len() == BATCH {
            put(Job::Files(Arc::clone(pair), std::mem::take(&mut files)));
        }
    }
    put(Job::Files(Arc::clone(pair), files));
    Ok(())
}

fn copy(pair: &Pair, name: &CStr, buffer: &mut [u8]) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOATIME;
    let source = rustix::fs::openat(&pair.source, name, flags, Mode::empty())?;
    let before = stat(&source)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = u32::from(before.stx_mode) & 0o777;
    let destination =
        rustix::fs::openat(&pair.destination, name, flags, Mode::from_raw_mode(mode))?;
    let mut at = 0;
    while at < before.stx_size {
        let most = buffer.len().min((before.stx_size - at) as usize);
        let got = rustix::io::pread(&source, &mut buffer[..most], at)?;
        if got == 0 || rustix::io::pwrite(&destination, &buffer[..got], at)? != got {
            bail!("short");
        }
        at += got as u64;
    }
    let after = stat(&source)?;
    let version = |s: &Statx| (s.stx_size, s.stx_ctime.tv_sec, s.stx_ctime.tv_nsec);
    if version(&after) != version(&before) {
        bail!("changed");
    }
    dress(&source, &destination, &before, mode)
}

/// Everything but content; `has` is the mode at present. The process owns what it makes.
fn dress(source: &OwnedFd, destination: &OwnedFd, metadata: &Statx, has: u32) -> Result<()> {
    let mut names = [0u8; 1024];
    if rustix::fs::flistxattr(source, &mut names[..])? != 0 {
        bail!("extended attributes");
    }
    // Flags are asked for as dmover asks; a project id would need a second such call.
    for _ in 0..2 {
        rustix::fs::ioctl_getflags(source)?;
    }
    if (metadata.stx_uid, metadata.stx_gid) != (0, 0) {
        let (uid, gid) = (Uid::from_raw(metadata.stx_uid), Gid::from_raw(metadata.stx_gid));
        rustix::fs::fchown(destination, Some(uid), Some(gid))?;
    }
    let mode = u32::from(metadata.stx_mode) & 0o7777;
    if mode != has {
        rustix::fs::fchmod(destination, Mode::from_raw_mode(mode))?;
    }
    let spec = |time: rustix::fs::StatxTimestamp| Timespec {
        tv_sec: time.tv_sec,
        tv_nsec: time.tv_nsec.into(),
    };
    let times = rustix::fs::Timestamps {
        last_access: spec(metadata.stx_atime),
        last_modification: spec(metadata.stx_mtime),
    };
    Ok(rustix::fs::futimens(destination, &times)?)
}

fn stat(file: &OwnedFd) -> Result<Statx> {
    Ok(rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?)
}
