//! File systems that a job writes to, held open so that they can be flushed and no failure is missed.
//!
//! The kernel reports each failure to write back once to every descriptor that is open at that time, and once to a descriptor
//! that is opened later (syncfs(2)). A run therefore holds a descriptor of each file system until it ends. A failure that is
//! reported to one job may concern the data of any job, so it is passed on to be noted for all of them.
use dmover_model::{EntryError, Operation, PathBytes, Side};
use dmover_plan::overlap::parse_mountinfo;
use dmover_schedule::sync::mpsc::{RecvTimeoutError, channel};
use dmover_schedule::thread;
use dmover_sys::{Errno, OwnedFd, file, mount, path, stat};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::entry_error;

/// How often to check during a flush whether the job must end.
const LOOK: Duration = Duration::from_millis(20);

/// Receives the device numbers of file systems whose flush has failed.
type NoteFailed = Box<dyn Fn(&[u64]) + Send + Sync>;

/// The file systems that a job writes to.
pub struct HeldFileSystems {
    held: Vec<(u64, OwnedFd)>,
    note_failed: NoteFailed,
}

/// A directory that is written to, where a power cut may lose data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldPlace {
    /// The directory.
    pub path: PathBytes,
    /// The device number of its file system.
    pub device: u64,
    /// The number of its mount, which no other mount gets until the next boot. `None`: not known here.
    pub mount: Option<u64>,
}

/// What was written may not be on storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotFlushed(Errno);

impl NotFlushed {
    /// Whether nothing has failed, but the job was stopped.
    pub fn is_stopped(self) -> bool {
        self.0 == Errno::INTR
    }

    /// The error of the destination.
    pub fn at(self, destination: PathBytes) -> EntryError {
        entry_error(Side::Destination, Operation::Sync, destination, self.0)
    }
}

impl From<NotFlushed> for std::io::Error {
    fn from(NotFlushed(error): NotFlushed) -> Self {
        error.into()
    }
}

impl std::fmt::Debug for HeldFileSystems {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldFileSystems").field("held", &self.held).finish_non_exhaustive()
    }
}

impl HeldFileSystems {
    /// None yet.
    pub fn new(note_failed: NoteFailed) -> Self {
        Self { held: Vec::new(), note_failed }
    }

    /// Adds the file systems of directories that are written to, and those mounted below them, as far as a power cut may
    /// lose data there.
    ///
    /// # Errors
    /// The file system of a directory cannot be read, so a later run could not know what a power cut took there.
    pub fn hold(&mut self, targets: &[PathBuf]) -> Result<Vec<HeldPlace>, EntryError> {
        // Several sources go into one directory.
        let above: BTreeSet<&Path> = match targets {
            [one] => BTreeSet::from([one.as_path()]),
            many => many.iter().filter_map(|target| target.parent()).collect(),
        };
        let mounts = parse_mountinfo(&mount::mountinfo());
        let mut places = Vec::new();
        for path in &above {
            places.extend(self.hold_patiently(path)?);
        }
        for line in mounts {
            let point = &line.mount_point;
            let is_below = above.iter().any(|path| point.starts_with(path) && point != path);
            if is_below && may_lose(&line.file_system) {
                places.extend(self.hold_patiently(point)?);
            }
        }
        Ok(places)
    }

    /// A server that does not answer once is asked again.
    fn hold_patiently(&mut self, target: &Path) -> Result<Option<HeldPlace>, EntryError> {
        const ATTEMPTS: u32 = 3;
        let mut held = self.hold_one(target);
        for _ in 1..ATTEMPTS {
            if held.is_err() {
                thread::sleep(LOOK);
                held = self.hold_one(target);
            }
        }
        let shown = PathBytes::from(target.as_os_str());
        held.map_err(|error| entry_error(Side::Destination, Operation::Open, shown, error))
    }

    fn hold_one(&mut self, target: &Path) -> Result<Option<HeldPlace>, Errno> {
        let mut found = None;
        for above in target.ancestors() {
            match path::open_directory(above) {
                Ok(directory) => found = Some(directory),
                Err(e) if is_no_directory_for_us(e) => continue,
                Err(error) => return Err(error),
            }
            break;
        }
        let Some(directory) = found else { return Ok(None) };
        let magic = stat::file_system(&directory)?.magic;
        let known = stat::file_system_name(magic);
        if stat::is_pseudo(known) || !known.is_none_or(may_lose) {
            return Ok(None);
        }
        let device = stat::stat_fd(&directory)?.device;
        let mount = stat::mount_number(&directory);
        if !self.held.iter().any(|(known, _)| *known == device) {
            self.held.push((device, directory));
        }
        Ok(Some(HeldPlace { path: PathBytes::from(target.as_os_str()), device, mount }))
    }

    /// Returns when everything written before is on storage.
    ///
    /// # Errors
    /// The last of the failures. Each file system is tried.
    pub fn flush(&self) -> Result<(), NotFlushed> {
        let mut failed = Vec::new();
        let mut result = Ok(());
        for (device, directory) in &self.held {
            if let Err(error) = file::sync_file_system(directory) {
                failed.push(*device);
                result = Err(NotFlushed(error));
            }
        }
        (self.note_failed)(&failed);
        result
    }

    /// Flushes until the job is stopped: then the flush continues in the background and does not count. A disk that hangs
    /// does not block a job that must end.
    ///
    /// # Errors
    /// A flush has failed, or the job was stopped.
    pub fn flush_unless_stopped(
        self: &Arc<Self>,
        is_stopping: &dyn Fn() -> bool,
    ) -> Result<(), NotFlushed> {
        let (sender, receiver) = channel();
        let held = Arc::clone(self);
        let work = move || {
            // After a stop there is no receiver.
            let _ = sender.send(held.flush());
        };
        if thread::Builder::new().name("flush".into()).spawn(work).is_err() {
            return self.flush();
        }
        loop {
            match receiver.recv_timeout(LOOK) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(NotFlushed(Errno::IO)),
                Err(RecvTimeoutError::Timeout) if is_stopping() => {
                    return Err(NotFlushed(Errno::INTR));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// Whether a path leads to no directory that this user may open: it does not exist yet, or this user may only write below it.
fn is_no_directory_for_us(error: Errno) -> bool {
    use Errno as E;
    matches!(error, E::NOENT | E::NOTDIR | E::ACCESS | E::LOOP | E::NAMETOOLONG | E::INVAL)
}

/// Whether data of a file system may stay in the memory of this host for a while. After close(2), a file server is
/// responsible for its data.
pub(crate) fn may_lose(file_system: &str) -> bool {
    let remote = ["nfs", "fuse", "cifs", "smb", "lustre", "gpfs", "ceph", "9p", "virtiofs", "afs"];
    let fleeting = ["tmpfs", "ramfs", "proc", "sysfs", "devtmpfs", "cgroup", "autofs", "bpf"];
    !remote.iter().chain(&fleeting).any(|name| file_system.starts_with(name))
}
