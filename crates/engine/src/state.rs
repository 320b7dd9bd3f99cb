//! The state of a job between runs: its lock, the interpretation of its destination, and lost attributes.
//!
//! All of it may be deleted at any time; then the same command only forgets whether the destination meant "inside" or
//! "as", and that entries which are equal now lack an attribute.
use dmover_model::{JobId, JobSpec, LossKind, Verb, percent_decode, percent_encode};
use dmover_plan::overlap::{FileSystemPath, parse_mountinfo};
use dmover_sys::{OwnedFd, file, mount, path};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::driver::JobList;
use crate::error::Fatal;
use crate::overlaps::place;
use crate::root::{Placement, canonical_paths};

mod claims;
mod destination;
mod failures;
mod files;
mod flushes;
mod labels;
mod marks;
mod open_files;
mod outliving;
mod partial;
mod volume;
mod written;
pub use destination::DestinationLock;
pub(crate) use failures::Failures;
pub use failures::{ErrorList, Listed, Unlisted};
pub use files::{Ask, JobFile, JobPhase, JobStatus};
pub use labels::{LabelHeld, LabelTurn};
pub(crate) use open_files::OpenFiles;
pub(crate) use outliving::Outliving;
pub(crate) use partial::{PartialFiles, Starts, Unneeded};
pub(crate) use written::Written;

/// Derives the id of a job from its verb, sources, destination, list, user, host and state directory, so that the same
/// command finds the leftovers and decisions of its earlier runs. The host is omitted if hosts share the state
/// directory.
///
/// # Errors
/// A path that cannot be resolved.
pub fn job_id(
    spec: &JobSpec,
    list: &JobList,
    state: Option<&StateDirectory>,
) -> Result<JobId, Fatal> {
    let mut hasher = blake3::Hasher::new();
    // Two runs that do not share a lock must not take each other's temporaries for leftovers.
    match state {
        Some(state) if state.is_shared() => hasher.update(b"any host"),
        _ => hasher.update(&dmover_sys::process::host_name()),
    };
    hasher.update(&dmover_sys::process::effective_uid().to_le_bytes());
    hasher.update(state.map_or(&b""[..], |s| s.path.as_os_str().as_bytes()));
    hasher.update(b"dmover job 1\0").update(spec.verb.word().as_bytes()).update(b"\0");
    for path in canonical_paths(spec)? {
        hasher.update(path.as_os_str().as_bytes());
        hasher.update(b"\0");
    }
    match list {
        JobList::None
        | JobList::Failed(_)
        | JobList::Changed(_)
        | JobList::Sums(_)
        | JobList::Records(_) => {}
        JobList::Paths(paths) => paths.iter().for_each(|p| {
            hasher.update(p.as_bytes()).update(b"\0");
        }),
        JobList::Pairs(pairs) => pairs.iter().for_each(|(source, destination, _)| {
            hasher.update(&source.0).update(b"\0").update(&destination.0).update(b"\0");
        }),
    }
    let id = JobId::of_hash(&hasher.finalize().to_hex());
    // Another file system in the place of the destination is another job's.
    Ok(match state {
        Some(state) => state.job_here(id, spec),
        None => id,
    })
}

/// A directory that keeps the state of jobs.
#[derive(Debug, Clone)]
pub struct StateDirectory {
    path: PathBuf,
    /// The job that each command is on the present file system of its destination.
    here: Arc<Mutex<volume::AllHere>>,
}

/// The file that marks a state directory as shared between hosts; locks must work across all of them.
const SHARED: &str = "shared";

/// How often, and at what interval, a lock is tried that another process is only testing.
const LOOKS: u32 = 10;
const LOOK: std::time::Duration = std::time::Duration::from_millis(10);

/// Distinguishes a directory from one that was later created in its place: inode numbers are reused, creation times are
/// not. It has no device number, because that changes with every mount of a network file system.
fn identity_of(metadata: &std::fs::Metadata) -> String {
    let born = metadata.created().ok();
    let since = born.and_then(|b| b.duration_since(std::time::UNIX_EPOCH).ok());
    format!("{}:{}", metadata.ino(), since.map_or(0, |s| s.as_nanos()))
}

/// Identifies a source, to detect another one in its place, even after a remount.
pub(crate) fn source_identity(path: &Path) -> String {
    let Ok(found) = std::fs::metadata(path) else { return String::new() };
    match found.created() {
        Ok(_) => identity_of(&found),
        Err(_) => format!("{}:{}", found.ino(), found.dev()),
    }
}

/// The path on its file system, independent of mounts.
pub(crate) fn on_storage(target: &Path) -> Option<FileSystemPath> {
    let mounts = parse_mountinfo(&mount::mountinfo());
    target.ancestors().find_map(|above| {
        let directory = path::open_directory(above).ok()?;
        let found = place(&directory, &mount::path_of(&directory)?, &mounts)?;
        let below = target.strip_prefix(above).ok()?;
        Some(FileSystemPath { path: found.path.join(below), ..found })
    })
}

/// Whether a path equals a recorded one, or is inside or above it.
fn meet_on_storage(own: &FileSystemPath, line: &[u8]) -> bool {
    let mut parts = line.splitn(2, |byte| *byte == b' ');
    let device = parts.next().and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    let path = PathBuf::from(std::ffi::OsString::from_vec(percent_decode(
        parts.next().unwrap_or_default(),
    )));
    device == Some(own.device) && (own.path.starts_with(&path) || path.starts_with(&own.path))
}

/// Whether a process holds a lock, or this is unknown. The test takes a shared lock, which is possible on a file opened
/// for reading (NFS refuses an exclusive one), and two processes that test do not disturb each other.
fn is_held(path: &Path) -> bool {
    match std::fs::File::open(path) {
        Ok(file) => !file::try_lock_shared(&file).unwrap_or(false),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// The lock of one job, held until this is dropped.
#[derive(Debug)]
pub struct JobLock {
    file: OwnedFd,
    path: PathBuf,
}

impl StateDirectory {
    /// The canonical path. `None`: it does not exist.
    pub(crate) fn real_path(&self) -> Option<PathBuf> {
        mount::path_of(path::open_directory(&self.path).ok()?)
    }

    /// Uses `path`, which is created when needed.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), here: Arc::default() }
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory.
    ///
    /// # Errors
    /// It cannot be created or written to.
    pub fn is_usable(&self) -> std::io::Result<()> {
        let jobs = self.path.join("jobs");
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&jobs)?;
        // A directory on a read-only file system, or of another user, exists but is useless.
        let fd = path::open_directory(&jobs)?;
        if dmover_sys::directory::is_writable(&fd) {
            return Ok(());
        }
        let words = format!("cannot write to {}", jobs.display());
        Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, words))
    }

    /// Whether several hosts share it.
    pub fn is_shared(&self) -> bool {
        std::fs::metadata(self.path.join(SHARED)).is_ok()
    }

    /// Makes jobs independent of the host: a job that stopped on one host can be resumed on another.
    ///
    /// # Errors
    /// It cannot be written to, or has jobs already, which would not be found again.
    pub fn share(&self) -> std::io::Result<()> {
        if self.is_shared() {
            return Ok(());
        }
        self.is_usable()?;
        let has_jobs = std::fs::read_dir(self.path.join("jobs"))?.next().is_some();
        if has_jobs {
            return Err(std::io::Error::other("it already has jobs that belong to one host"));
        }
        let mut options = std::fs::OpenOptions::new();
        options.create(true).append(true).mode(0o600).open(self.path.join(SHARED)).map(|_| ())
    }

    /// The directory of one job.
    pub(crate) fn of_job(&self, job: &JobId) -> PathBuf {
        self.job(job)
    }

    fn job(&self, job: &JobId) -> PathBuf {
        self.path.join("jobs").join(&job.0)
    }

    /// Takes the lock of a job, and creates its directory.
    ///
    /// # Errors
    /// Another process holds the lock, or it cannot be created.
    pub fn lock(&self, job: &JobId) -> Result<JobLock, Fatal> {
        let directory = self.job(job);
        let fail = |error: &std::io::Error| {
            Fatal::refused(
                format!("cannot use the state directory {}: {error}", self.path.display()),
                "choose another one with --state-dir or $DMOVER_STATE_DIR",
            )
        };
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&directory).map_err(|e| fail(&e))?;
        let path = directory.join(files::LOCK);
        let mut options = std::fs::OpenOptions::new();
        let lock = options.create(true).append(true).mode(0o600).open(&path);
        let lock = OwnedFd::from(lock.map_err(|e| fail(&e))?);
        // A process that tests the lock holds it for a moment.
        let mut taken = file::try_lock(&lock);
        for _ in 0..LOOKS {
            if taken != Ok(false) {
                break;
            }
            std::thread::sleep(LOOK);
            taken = file::try_lock(&lock);
        }
        match taken {
            Ok(true) => {
                // What was asked of an earlier run is no matter of this one.
                self.withdraw(job);
                Ok(JobLock { file: lock, path })
            }
            Ok(false) => Err(Fatal::Locked { lock: path }),
            Err(error) => Err(fail(&error.into())),
        }
    }

    /// Takes the role of the process that waits to take over a job, as long as the returned value exists. `None`: another
    /// process has it.
    ///
    /// # Errors
    /// The job's directory cannot be written to.
    pub fn stand_by(&self, job: &str) -> std::io::Result<Option<OwnedFd>> {
        let mut options = std::fs::OpenOptions::new();
        let path = self.directory(job).join(files::STANDBY);
        let turn = OwnedFd::from(options.create(true).append(true).mode(0o600).open(path)?);
        if !file::try_lock(&turn)? {
            return Ok(None);
        }
        Ok(Some(turn))
    }

    /// Records the destination of a job, unless a running job makes the same tree, or one inside or above it, match
    /// another source. Copies may overlap, because they only add entries.
    pub(crate) fn claim(
        &self,
        lock: &JobLock,
        verb: Verb,
        targets: &[PathBuf],
    ) -> Result<(), Fatal> {
        let fail = |error: std::io::Error| {
            Fatal::refused(
                format!("cannot use the state directory {}: {error}", self.path.display()),
                "choose another one with --state-dir or $DMOVER_STATE_DIR",
            )
        };
        let jobs = self.path.join("jobs");
        let mut options = std::fs::OpenOptions::new();
        let turn = options.create(true).append(true).mode(0o600).open(self.path.join("claims"));
        // One after the other: two that begin together must see each other.
        let turn = turn.map_err(fail)?;
        file::wait_for_lock(&turn).map_err(|e| fail(e.into()))?;
        let objects: Vec<FileSystemPath> =
            targets.iter().filter_map(|target| on_storage(target)).collect();
        for entry in std::fs::read_dir(&jobs).map_err(fail)? {
            let other = entry.map_err(fail)?.path().join("lock");
            if other == lock.path || !is_held(&other) {
                continue;
            }
            let text = std::fs::read(&other).unwrap_or_default();
            let mut lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let syncs = lines.next() == Some(Verb::Sync.word().as_bytes()) || verb == Verb::Sync;
            let meets = lines.any(|line| {
                if let Some(theirs) = line.strip_prefix(b"=") {
                    return objects.iter().any(|own| meet_on_storage(own, theirs));
                }
                let theirs = PathBuf::from(std::ffi::OsString::from_vec(percent_decode(line)));
                targets.iter().any(|own| own.starts_with(&theirs) || theirs.starts_with(own))
            });
            if syncs && meets {
                return Err(Fatal::Locked { lock: other });
            }
        }
        let names = targets.iter().map(|target| percent_encode(target.as_os_str().as_bytes()));
        let objects = objects.iter().map(|object| {
            let path = percent_encode(object.path.as_os_str().as_bytes());
            format!("={} {path}", object.device)
        });
        let lines = std::iter::once(verb.word().to_owned()).chain(names).chain(objects);
        let text: String = lines.map(|line| line + "\n").collect();
        file::set_size(&lock.file, 0).map_err(|e| fail(e.into()))?;
        file::write_all_at(&lock.file, text.as_bytes(), 0).map_err(|e| fail(e.into()))
    }

    /// The interpretation of the destination by an earlier run, if it is still valid.
    ///
    /// The destination must be the directory that the earlier run created; another one is a new situation.
    pub(crate) fn placement(&self, job: &JobId, destination: &Path) -> Option<Placement> {
        let text = std::fs::read_to_string(self.job(job).join("placement")).ok()?;
        // The second line is for people.
        let mut words = text.lines().next()?.split_whitespace();
        let (word, identity) = (words.next()?, words.next());
        let now = std::fs::metadata(destination).ok();
        let same = match (identity, now) {
            (Some(was), Some(now)) => was == identity_of(&now),
            _ => true,
        };
        // If the directory is gone, "inside" has no meaning any more.
        let is_there = std::fs::symlink_metadata(destination).is_ok();
        match word {
            "as" if same => Some(Placement::As),
            "inside" if same && is_there => Some(Placement::Inside),
            _ => None,
        }
    }

    /// Attributes that earlier runs lost on entries that this run skips as equal, by kind.
    ///
    /// They only count if the destination is the one that those runs wrote.
    pub(crate) fn losses(&self, job: &JobId, destination: &Path) -> BTreeMap<LossKind, u64> {
        let text = std::fs::read_to_string(self.job(job).join("losses")).unwrap_or_default();
        let mut lines = text.lines();
        let now = std::fs::metadata(destination).map(|m| identity_of(&m)).unwrap_or_default();
        if lines.next() != Some(&now) {
            return BTreeMap::new();
        }
        let pairs = lines.filter_map(|line| line.split_once(' '));
        pairs.filter_map(|(kind, n)| Some((LossKind::parse(kind)?, n.parse().ok()?))).collect()
    }

    /// Records losses for the next run.
    pub(crate) fn remember_losses(
        &self,
        job: &JobId,
        destination: &Path,
        losses: &BTreeMap<LossKind, u64>,
    ) -> std::io::Result<()> {
        let path = self.job(job).join("losses");
        if losses.is_empty() {
            return match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let mut text = std::fs::metadata(destination).map(|m| identity_of(&m)).unwrap_or_default();
        for (kind, count) in losses {
            text.extend(["\n", kind.word(), " ", &count.to_string()]);
        }
        let temporary = path.with_extension("new");
        std::fs::write(&temporary, text)?;
        std::fs::rename(temporary, path)
    }

    /// Records the decision; called again at the end, when the destination exists.
    pub(crate) fn remember(
        &self,
        job: &JobId,
        placement: Placement,
        destination: &Path,
    ) -> std::io::Result<()> {
        let word = if placement == Placement::As { "as" } else { "inside" };
        let identity = std::fs::metadata(destination).map(|m| identity_of(&m)).unwrap_or_default();
        let name = percent_encode(destination.as_os_str().as_bytes());
        let directory = self.job(job);
        let temporary = directory.join("placement.new");
        let mut file = std::fs::File::create(&temporary)?;
        writeln!(file, "{word} {identity}\n# {name}")?;
        std::fs::rename(temporary, directory.join("placement"))
    }
}
