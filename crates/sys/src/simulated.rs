//! Disks in memory in the place of the kernel's, for tests of whole jobs.
//!
//! A thread of a [`simulation`] whose process was given a [`Machine`] sees the disks of the machine at their paths; all
//! other paths are those of the real system. A descriptor of a disk in memory is a real one, which leads to nothing, so that
//! its number is nobody else's; the machine knows what it stands for. Not there: io_uring, the places of data on a device
//! (FIEMAP), the state of the page cache, projects, ACLs, notifications.
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dmover_memory::{Actor, Disk, Handle, User};
use dmover_schedule::simulation;
use rustix::fs::OFlags;

use crate::answers::Mark;
use crate::{AsFd, BorrowedFd, Errno, Result};

pub(crate) mod calls;
pub(crate) mod look;

/// A disk, as all machines see it that have mounted it.
#[derive(Debug)]
pub struct Volume {
    path: PathBuf,
    number: u32,
    disk: Mutex<Disk>,
    locks: Mutex<Vec<Lock>>,
    /// Of the first disk of a host: marks of objects that lie on no disk, with their descriptors.
    apart: Mutex<Vec<(u64, Mark)>>,
}

/// A lock of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lock {
    inode: u64,
    /// The descriptor that has it.
    of: u64,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// flock(2).
    Whole { is_exclusive: bool },
    /// A mark at a position, see [`crate::lock`].
    Mark { at: u64 },
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Volume {
    /// A disk that is mounted at a path.
    pub fn new(path: impl Into<PathBuf>, number: u32, disk: Disk) -> Arc<Self> {
        let (disk, locks, apart) = (Mutex::new(disk), Mutex::default(), Mutex::default());
        Arc::new(Self { path: path.into(), number, disk, locks, apart })
    }

    /// The disk itself.
    pub fn disk(&self) -> MutexGuard<'_, Disk> {
        lock(&self.disk)
    }
}

/// What happens at a call of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The call is made.
    Proceed,
    /// The process is killed before the call.
    Kill,
}

/// Decides at each system call whether it is made. Its argument is the number of earlier calls of the process.
pub type Judge = Box<dyn Fn(u64) -> Verdict + Send + Sync>;

/// What one process sees.
pub struct Machine {
    volumes: Vec<Arc<Volume>>,
    actor: Actor,
    boot: String,
    judge: Judge,
    calls: AtomicU64,
    open: Mutex<BTreeMap<RawFd, Opened>>,
    next: AtomicU64,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("calls", &self.calls).finish_non_exhaustive()
    }
}

/// What a descriptor stands for.
#[derive(Debug, Clone)]
struct Opened {
    volume: Arc<Volume>,
    handle: Handle,
    flags: OFlags,
    /// Not used again, as numbers of descriptors are.
    number: u64,
    path: Vec<u8>,
    /// Where read(2) goes on.
    position: Arc<AtomicU64>,
}

impl Machine {
    /// A process of a user that sees these disks, since a boot of its host.
    pub fn new(volumes: Vec<Arc<Volume>>, actor: Actor, boot: String, judge: Judge) -> Arc<Self> {
        Arc::new(Self {
            volumes,
            actor,
            boot,
            judge,
            calls: AtomicU64::new(0),
            open: Mutex::default(),
            next: AtomicU64::new(1),
        })
    }

    /// Number of calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// The process has ended: what it left open is closed.
    pub fn end(&self) {
        let left: Vec<RawFd> = lock(&self.open).keys().copied().collect();
        for fd in left {
            self.forget(fd);
        }
    }

    /// Closes what a descriptor stands for.
    fn forget(&self, fd: RawFd) {
        if let Some(apart) = self.apart() {
            lock(apart).retain(|(of, _)| *of != self.owner(fd.cast_unsigned().into()));
        }
        let Some(opened) = lock(&self.open).remove(&fd) else { return };
        lock(&opened.volume.locks).retain(|lock| lock.of != self.lock_owner(&opened));
        // An error of a close that nobody asks for is lost, as the kernel's.
        let _ = lock(&opened.volume.disk).as_user(&self.actor).close(opened.handle);
    }

    /// Who has a lock: descriptors of two machines have different numbers.
    fn lock_owner(&self, opened: &Opened) -> u64 {
        self.owner(opened.number)
    }

    fn owner(&self, number: u64) -> u64 {
        std::ptr::from_ref(self).addr() as u64 ^ (number << 48)
    }

    /// Marks of objects that lie on no disk.
    fn apart(&self) -> Option<&Mutex<Vec<(u64, Mark)>>> {
        self.volumes.first().map(|volume| &volume.apart)
    }

    /// The disk of a path, and the rest of the path.
    fn volume_of<'p>(&self, path: &'p [u8]) -> Option<(Arc<Volume>, &'p [u8])> {
        use std::os::unix::ffi::OsStrExt;
        self.volumes.iter().find_map(|volume| {
            let rest = path.strip_prefix(volume.path.as_os_str().as_bytes())?;
            let is_below = rest.is_empty() || rest.starts_with(b"/");
            is_below.then(|| (Arc::clone(volume), rest.strip_prefix(b"/").unwrap_or(rest)))
        })
    }

    /// The lines of mountinfo (proc_pid_mountinfo(5)) about the disks.
    fn mountinfo(&self) -> Vec<u8> {
        let line = |volume: &Arc<Volume>| {
            let (number, path) = (volume.number, volume.path.display());
            let id = mount_id(volume);
            format!("{id} 1 253:{number} / {path} rw,relatime - ext4 /dev/memory{number} rw\n")
        };
        self.volumes.iter().map(line).collect::<String>().into_bytes()
    }

    /// One call: others may run before it, and the process may end.
    fn call<T>(&self, call: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        if simulation::is_dead() && std::thread::panicking() {
            return Err(Errno::IO);
        }
        if (self.judge)(self.calls.fetch_add(1, Ordering::Relaxed)) == Verdict::Kill {
            simulation::kill_own_process();
        }
        simulation::step();
        call(self)
    }

    /// Something with the disk of a descriptor.
    fn with<T>(
        &self,
        opened: &Opened,
        body: impl FnOnce(&mut User<'_>, Handle) -> dmover_memory::Result<T>,
    ) -> Result<T> {
        self.call(|machine| {
            let mut disk = lock(&opened.volume.disk);
            body(&mut disk.as_user(&machine.actor), opened.handle).map_err(errno)
        })
    }

    /// A descriptor for a handle.
    fn add(&self, volume: &Arc<Volume>, handle: Handle, flags: OFlags, path: Vec<u8>) -> OwnedFd {
        let fd = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty())
            .expect("a descriptor of the root directory");
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let volume = Arc::clone(volume);
        let opened = Opened { volume, handle, flags, number, path, position: Arc::default() };
        lock(&self.open).insert(fd.as_raw_fd(), opened);
        OwnedFd(Some(fd))
    }
}

/// Numbers of mounts, apart from those of the kernel.
fn mount_id(volume: &Volume) -> u64 {
    (1 << 24) + u64::from(volume.number)
}

/// The machine of the calling process.
pub(crate) fn machine() -> Option<Arc<Machine>> {
    simulation::host()
}

/// The boot of the host of the calling process.
pub fn boot_id() -> Option<String> {
    machine().map(|machine| machine.boot.clone())
}

/// The table of mounts of the calling process, if it has disks in memory.
pub(crate) fn mountinfo() -> Option<Vec<u8>> {
    machine().map(|machine| machine.mountinfo())
}

/// What a descriptor stands for, if it is one of a disk in memory.
fn find(fd: BorrowedFd<'_>) -> Option<(Arc<Machine>, Opened)> {
    let machine = machine()?;
    let opened = lock(&machine.open).get(&fd.as_raw_fd()).cloned()?;
    Some((machine, opened))
}

fn errno(error: dmover_memory::Errno) -> Errno {
    Errno::from_raw_os_error(error.number())
}

/// A descriptor: of the kernel, or of a disk in memory.
#[derive(Debug)]
pub struct OwnedFd(Option<rustix::fd::OwnedFd>);

impl AsFd for OwnedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("open until the end").as_fd()
    }
}

impl From<rustix::fd::OwnedFd> for OwnedFd {
    fn from(fd: rustix::fd::OwnedFd) -> Self {
        Self(Some(fd))
    }
}

impl From<std::fs::File> for OwnedFd {
    fn from(file: std::fs::File) -> Self {
        Self(Some(file.into()))
    }
}

impl Drop for OwnedFd {
    fn drop(&mut self) {
        if let (Some(fd), Some(machine)) = (&self.0, machine()) {
            machine.forget(fd.as_raw_fd());
        }
    }
}

/// The path of a descriptor of a disk in memory, as /proc/self/fd shows it.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let (_, opened) = find(fd)?;
    let below = Path::new(std::ffi::OsStr::from_bytes(&opened.path));
    Some(if opened.path.is_empty() {
        opened.volume.path.clone()
    } else {
        opened.volume.path.join(below)
    })
}
