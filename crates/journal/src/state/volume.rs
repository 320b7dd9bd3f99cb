//! File systems that take turns at one path, such as backup disks: each has a state of its own.
//!
//! The first file system of DEST belongs to the job itself. On another one the same command is a job of its own.
use dmover_model::{Fatal, JobId, PathBytes};
use dmover_observe::lock;
use dmover_sys::file::wait_for_lock;
use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::StateDirectory;

/// For each command, by the id of its first job: which job belongs to which file system.
const DIRECTORY: &str = "file-systems";
/// Stands for a missing name of a file system.
const NONE: &str = "-";

/// Identifies a file system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Volume {
    uuid: Option<String>,
    /// When its root directory was created. Before Linux 6.9 the kernel does not report a UUID.
    born: Option<String>,
}

impl Volume {
    /// The file system of a directory. `uuid`: as the kernel reports it. `directory`: its canonical path, if that is known.
    pub fn of(uuid: Option<String>, directory: Option<&Path>) -> Self {
        Self { uuid, born: directory.and_then(born) }
    }

    /// Whether both are the same; `None` if this is unknown.
    fn is(&self, other: &Self) -> Option<bool> {
        let equal = |one: &Option<String>, other: &Option<String>| {
            one.as_ref().zip(other.as_ref()).map(|(one, other)| one == other)
        };
        equal(&self.uuid, &other.uuid).or_else(|| equal(&self.born, &other.born))
    }

    /// Whether it is certainly another one.
    pub(crate) fn differs(&self, other: &Self) -> bool {
        self.is(other) == Some(false)
    }

    /// Whether the state of one may be used for the other. One without a name never matches one with a name.
    fn counts_as(&self, other: &Self) -> bool {
        self.is(other).unwrap_or(*self == Self::default() && *other == Self::default())
    }

    /// The id of its job, if another file system has the first job. The id is computed once, because the kernel may
    /// report more names later.
    fn job(&self, first: &JobId) -> JobId {
        let name = self.uuid.as_deref().or(self.born.as_deref()).unwrap_or(NONE);
        let mut hasher = blake3::Hasher::new();
        hasher.update(first.0.as_bytes()).update(b"\0").update(name.as_bytes());
        JobId::of_hash(&hasher.finalize().to_hex())
    }
}

/// A job and its file system.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owned {
    job: JobId,
    volume: Volume,
}

impl Owned {
    /// Parses a line; an incomplete line is skipped.
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [job, uuid, born] = words[..] else { return None };
        let name = |word: &str| (word != NONE).then(|| word.to_owned());
        let volume = Volume { uuid: name(uuid), born: name(born) };
        Some(Self { job: JobId(job.to_owned()), volume })
    }

    fn line(&self) -> String {
        let name = |name: &Option<String>| name.as_deref().unwrap_or(NONE).to_owned();
        format!("{} {} {}\n", self.job.0, name(&self.volume.uuid), name(&self.volume.born))
    }
}

/// The content of a file. `None`: it does not exist. An unreadable line names no file system.
fn read(path: &Path) -> Option<Vec<Owned>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Some(text.lines().filter_map(Owned::parse).collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "cannot read the list of known file systems");
            Some(Vec::new())
        }
    }
}

/// The job that a command is in this process.
#[derive(Debug, Clone)]
pub(super) struct Here {
    job: JobId,
    volume: Volume,
}

/// By the id of the first job of a command.
pub(super) type AllHere = HashMap<String, Here>;

/// The inode and creation time of the root directory of the file system of a canonical path.
fn born(directory: &Path) -> Option<String> {
    let device = std::fs::metadata(directory).ok()?.dev();
    let is_on_it = |at: &&Path| std::fs::metadata(at).is_ok_and(|found| found.dev() == device);
    let top: PathBuf = directory.ancestors().take_while(is_on_it).last()?.to_path_buf();
    let found = std::fs::metadata(top).ok()?;
    let since = found.created().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(format!("{}:{}", found.ino(), since.as_nanos()))
}

/// The file systems that the jobs of a state directory have written to.
#[derive(Debug)]
pub struct Volumes<'a>(&'a StateDirectory);

impl StateDirectory {
    /// The file systems that its jobs have written to.
    pub fn volumes(&self) -> Volumes<'_> {
        Volumes(self)
    }
}

impl Volumes<'_> {
    fn known_disks(&self, first: &str) -> PathBuf {
        self.0.path.join(DIRECTORY).join(first)
    }

    /// The job of a command on the present file system of DEST, which `volume` looks up. This process keeps its first
    /// answer.
    pub fn job_here(&self, id: JobId, volume: impl FnOnce() -> Volume) -> JobId {
        let mut known = lock(&self.0.here);
        let here = known.entry(id.0.clone()).or_insert_with(|| {
            let volume = volume();
            let job = match read(&self.known_disks(&id.0)) {
                None => id,
                Some(known) => {
                    let own = known.into_iter().find(|own| own.volume.counts_as(&volume));
                    own.map_or_else(|| volume.job(&id), |own| own.job)
                }
            };
            Here { job, volume }
        });
        here.job.clone()
    }

    /// Records the file system of a job before anything is written there. The record is on storage, because another
    /// disk would be taken for this one without it.
    pub fn note(
        &self,
        id: &JobId,
        destination: &PathBytes,
        volume: impl FnOnce() -> Volume,
    ) -> Result<(), Fatal> {
        let found = lock(&self.0.here)
            .iter()
            .find(|(_, here)| here.job == *id)
            .map(|(first, here)| (first.clone(), here.volume.clone()));
        let Some((first, then)) = found else { return Ok(()) };
        let now = volume();
        if !now.counts_as(&then) {
            let shown = destination.to_path();
            let message = format!(
                "'{}' is on another file system than when this command started",
                shown.display()
            );
            return Err(Fatal::refused(
                message,
                "mount the first file system again, or run the same command again",
            ));
        }
        let path = self.known_disks(&first);
        self.add_disk(&path, Owned { job: id.clone(), volume: now })
            .map_err(|error| Fatal::Ledger { path, reason: error.to_string() })
    }

    fn add_disk(&self, path: &Path, own: Owned) -> std::io::Result<()> {
        let _turn = self.turn()?;
        let mut known = read(path).unwrap_or_default();
        match known.iter_mut().find(|known| known.job == own.job) {
            Some(known) if known.volume == own.volume => return Ok(()),
            Some(known) => {
                let Volume { uuid, born } = own.volume;
                let before = &mut known.volume;
                *before =
                    Volume { uuid: uuid.or(before.uuid.take()), born: born.or(before.born.take()) };
            }
            None => known.push(own),
        }
        let directory = self.0.path.join(DIRECTORY);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let temporary = path.with_extension("new");
        let mut written = File::create(&temporary)?;
        written.write_all(known.iter().map(Owned::line).collect::<String>().as_bytes())?;
        written.sync_all()?;
        std::fs::rename(temporary, path)?;
        File::open(&directory)?.sync_all()?;
        File::open(&self.0.path)?.sync_all()
    }

    /// Waits until no other process writes the records of file systems.
    fn turn(&self) -> std::io::Result<File> {
        let mut options = std::fs::OpenOptions::new();
        let turn =
            options.create(true).append(true).mode(0o600).open(self.0.path.join("claims"))?;
        wait_for_lock(&turn)?;
        Ok(turn)
    }

    /// The file systems of all jobs.
    pub(crate) fn of_all_jobs(&self) -> HashMap<JobId, Volume> {
        let files = std::fs::read_dir(self.0.path.join(DIRECTORY)).into_iter().flatten().flatten();
        let known = files.filter_map(|file| read(&file.path())).flatten();
        known.map(|own| (own.job, own.volume)).collect()
    }

    /// Removes records after a job was removed. The file system stays recorded while another file system of the same
    /// command has a job.
    pub(super) fn forget_those_without_jobs(&self) -> std::io::Result<()> {
        let _turn = self.turn()?;
        let files = std::fs::read_dir(self.0.path.join(DIRECTORY)).into_iter().flatten().flatten();
        for file in files.map(|file| file.path()) {
            let has_job = |own: &Owned| std::fs::metadata(self.0.of_job(&own.job)).is_ok();
            if !read(&file).is_some_and(|known| known.iter().any(has_job)) {
                std::fs::remove_file(file)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(uuid: Option<&str>, born: Option<&str>) -> Volume {
        Volume { uuid: uuid.map(Into::into), born: born.map(Into::into) }
    }

    #[test]
    fn a_file_system_is_another_one_only_if_that_is_known() {
        let both = volume(Some("a"), Some("2:1"));
        assert!(both.differs(&volume(Some("b"), Some("2:1"))));
        assert!(!both.differs(&volume(Some("a"), Some("2:2"))), "the UUID decides");
        assert!(both.differs(&volume(None, Some("2:2"))), "an older kernel");
        assert!(!both.differs(&volume(None, Some("2:1"))));
        assert!(!both.differs(&volume(None, None)));
    }

    #[test]
    fn one_without_a_name_is_not_one_that_has_a_name() {
        let (named, nameless) = (volume(Some("a"), Some("2:1")), Volume::default());
        assert!(named.counts_as(&volume(None, Some("2:1"))));
        assert!(nameless.counts_as(&nameless));
        assert!(!named.counts_as(&nameless) && !nameless.counts_as(&named));
        assert!(!volume(Some("a"), None).counts_as(&volume(None, Some("2:1"))));
    }

    #[test]
    fn what_is_known_is_read_as_it_was_written_and_names_added() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::new(directory.path());
        let disks = state.volumes();
        let path = disks.known_disks("first");
        assert_eq!(read(&path), None);
        let own = |job: &str, volume| Owned { job: JobId(job.into()), volume };
        disks.add_disk(&path, own("first", volume(None, Some("2:1")))).unwrap();
        disks.add_disk(&path, own("second", Volume::default())).unwrap();
        disks.add_disk(&path, own("first", volume(Some("a"), None))).unwrap();
        let all = [own("first", volume(Some("a"), Some("2:1"))), own("second", Volume::default())];
        assert_eq!(read(&path).unwrap(), all);
        std::fs::write(&path, "first a").unwrap();
        assert_eq!(read(&path).unwrap(), [], "a line that is not whole");
    }
}
