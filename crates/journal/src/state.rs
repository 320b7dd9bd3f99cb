//! The state of a job between runs: its lock, the interpretation of its destination, and lost attributes.
//!
//! All of it may be deleted at any time; then the same command only forgets whether the destination meant "inside" or
//! "as", and that entries which are equal now lack an attribute.
use dmover_model::{Fatal, JobId, LossKind, Placement, Verb, percent_decode, percent_encode};
use dmover_plan::overlap::FileSystemPath;
use dmover_schedule::sync::Mutex;
use dmover_schedule::thread;
use dmover_sys::file as lock;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod failures;
mod files;
mod labels;
mod volume;

pub use failures::{ErrorList, Failures, Listed, Unlisted};
pub use files::{Ask, JobFile, JobPhase, JobStatus};
pub use labels::{LabelHeld, LabelTurn};
pub use volume::Volume;

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
pub fn source_identity(path: &Path) -> String {
    let Ok(found) = std::fs::metadata(path) else { return String::new() };
    match found.created() {
        Ok(_) => identity_of(&found),
        Err(_) => format!("{}:{}", found.ino(), found.dev()),
    }
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
    match File::open(path) {
        Ok(file) => !lock::try_lock_shared(&file).unwrap_or(false),
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

/// The lock of one job, held until this is dropped.
#[derive(Debug)]
pub struct JobLock {
    file: File,
    path: PathBuf,
}

/// The role of the process that waits to take over a job, held until this is dropped.
#[derive(Debug)]
pub struct StandbyTurn(#[allow(dead_code, reason = "it holds the lock")] File);

impl StateDirectory {
    /// The canonical path. `None`: it does not exist.
    pub fn real_path(&self) -> Option<PathBuf> {
        std::fs::canonicalize(&self.path).ok()
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
        if dmover_sys::directory::is_writable(File::open(&jobs)?) {
            return Ok(());
        }
        let words = format!("cannot write to {}", jobs.display());
        Err(std::io::Error::new(ErrorKind::PermissionDenied, words))
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
    pub fn of_job(&self, job: &JobId) -> PathBuf {
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
        let lock = lock.map_err(|e| fail(&e))?;
        // A process that tests the lock holds it for a moment.
        let mut taken = lock::try_lock(&lock);
        for _ in 0..LOOKS {
            if taken != Ok(false) {
                break;
            }
            thread::sleep(LOOK);
            taken = lock::try_lock(&lock);
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
    pub fn stand_by(&self, job: &str) -> std::io::Result<Option<StandbyTurn>> {
        let mut options = std::fs::OpenOptions::new();
        let path = self.directory(job).join(files::STANDBY);
        let turn = options.create(true).append(true).mode(0o600).open(path)?;
        Ok(lock::try_lock(&turn)?.then_some(StandbyTurn(turn)))
    }

    /// Records the destination of a job, unless a running job makes the same tree, or one inside or above it, match
    /// another source. Copies may overlap, because they only add entries. `objects`: the targets on their file systems, as
    /// far as that is known.
    pub fn claim(
        &self,
        lock: &JobLock,
        verb: Verb,
        (targets, objects): (&[PathBuf], &[FileSystemPath]),
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
        lock::wait_for_lock(&turn).map_err(|e| fail(e.into()))?;
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
        lock.file.set_len(0).map_err(fail)?;
        lock.file.write_all_at(text.as_bytes(), 0).map_err(fail)
    }

    /// The interpretation of the destination by an earlier run, if it is still valid.
    ///
    /// The destination must be the directory that the earlier run created; another one is a new situation.
    pub fn placement(&self, job: &JobId, destination: &Path) -> Option<Placement> {
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
    pub fn losses(&self, job: &JobId, destination: &Path) -> BTreeMap<LossKind, u64> {
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
    pub fn remember_losses(
        &self,
        job: &JobId,
        destination: &Path,
        losses: &BTreeMap<LossKind, u64>,
    ) -> std::io::Result<()> {
        let path = self.job(job).join("losses");
        if losses.is_empty() {
            return match std::fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
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
    pub fn remember(
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
        let mut file = File::create(&temporary)?;
        writeln!(file, "{word} {identity}\n# {name}")?;
        std::fs::rename(temporary, directory.join("placement"))
    }
}
