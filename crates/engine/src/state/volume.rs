//! File systems that take turns in one place, such as backup disks: what is known of one says nothing of another.
//!
//! The first file system that DEST lies on belongs to the job as such. On another one the same command is a job of its own.
use dmover_model::{JobId, JobSpec};
use dmover_sys::{Errno, mount, path, stat};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::StateDirectory;
use super::written::may_lose;
use crate::error::Fatal;

/// Its name in the directory of the job.
const FILE: &str = "file-system";
/// These have an identity of their own in each container or boot, whatever is in them.
const PASSING: [&str; 2] = ["overlay", "ecryptfs"];

/// What tells a file system from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Volume {
    uuid: Option<String>,
    /// When its first directory was made. Before Linux 6.9 the kernel does not tell a UUID.
    born: Option<String>,
}

impl Volume {
    /// The one that DEST of a job lies on. `None`: it is not on a disk of this host, or has no name.
    fn of(spec: &JobSpec) -> Option<Self> {
        if !spec.verb.fills() || spec.destination.0.is_empty() {
            return None;
        }
        let destination = std::path::absolute(spec.destination.to_path()).ok()?;
        let opened = destination.ancestors().map(path::open_directory);
        let is_above = |error: &Errno| matches!(*error, Errno::NOENT | Errno::NOTDIR);
        let there = opened.into_iter().find(|opened| !opened.as_ref().is_err_and(is_above));
        // What cannot be opened may lie on another file system than what is above it.
        let directory = there?.ok()?;
        let name = stat::file_system_name(stat::file_system(&directory).ok()?.magic);
        if stat::is_pseudo(name)
            || name.is_some_and(|name| !may_lose(name) || PASSING.contains(&name))
        {
            return None;
        }
        let uuid = mount::file_system_uuid(&directory);
        let born = mount::path_of(&directory).and_then(|path| born(&path));
        (uuid.is_some() || born.is_some()).then_some(Self { uuid, born })
    }

    /// The one that was written down.
    pub(super) fn read(directory: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(directory.join(FILE)).ok()?;
        let line = |word: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
            line.map(ToOwned::to_owned)
        };
        Some(Self { uuid: line("uuid"), born: line("born") })
    }

    /// Whether it is surely another one.
    pub(super) fn differs(&self, other: &Self) -> bool {
        let differ = |one: &Option<String>, other: &Option<String>| {
            one.as_ref().zip(other.as_ref()).map(|(one, other)| one != other)
        };
        let by_uuid = differ(&self.uuid, &other.uuid);
        by_uuid.or_else(|| differ(&self.born, &other.born)).unwrap_or(false)
    }

    fn text(&self) -> String {
        let line = |word: &str, value: &Option<String>| {
            value.as_ref().map(|value| format!("{word} {value}\n")).unwrap_or_default()
        };
        line("uuid", &self.uuid) + &line("born", &self.born)
    }
}

/// The inode and the birth of the first directory of the file system that a directory without links in its path lies on.
fn born(directory: &Path) -> Option<String> {
    let device = std::fs::metadata(directory).ok()?.dev();
    let is_on_it = |at: &&Path| std::fs::metadata(at).is_ok_and(|found| found.dev() == device);
    let top: PathBuf = directory.ancestors().take_while(is_on_it).last()?.to_path_buf();
    let found = std::fs::metadata(top).ok()?;
    let since = found.created().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(format!("{}:{}", found.ino(), since.as_nanos()))
}

impl StateDirectory {
    /// The job that a command is on the file system that DEST lies on now. This process keeps to its first answer.
    pub(super) fn job_here(&self, id: JobId, spec: &JobSpec) -> JobId {
        let mut known = crate::context::lock(&self.here);
        let here = known.entry(id.0.clone()).or_insert_with(|| {
            let volumes = Volume::read(&self.of_job(&id)).zip(Volume::of(spec));
            let Some((_, now)) = volumes.filter(|(first, now)| first.differs(now)) else {
                return id;
            };
            let name = now.uuid.as_ref().or(now.born.as_ref()).cloned().unwrap_or_default();
            let mut hasher = blake3::Hasher::new();
            hasher.update(id.0.as_bytes()).update(b"\0").update(name.as_bytes());
            JobId(hasher.finalize().to_hex().as_str()[..12].to_owned())
        });
        here.clone()
    }

    /// Writes down which file system a job belongs to.
    pub(crate) fn note_volume(&self, id: &JobId, spec: &JobSpec) -> Result<(), Fatal> {
        let directory = self.of_job(id);
        if Volume::read(&directory).is_some() {
            return Ok(());
        }
        let Some(volume) = Volume::of(spec) else { return Ok(()) };
        let (path, temporary) = (directory.join(FILE), directory.join("file-system.new"));
        std::fs::write(&temporary, volume.text())
            .and_then(|()| std::fs::rename(temporary, &path))
            .map_err(|error| Fatal::Ledger { path, reason: error.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_another_one_only_if_that_is_known() {
        let volume = |uuid: Option<&str>, born: Option<&str>| Volume {
            uuid: uuid.map(Into::into),
            born: born.map(Into::into),
        };
        let both = volume(Some("a"), Some("2:1"));
        assert!(both.differs(&volume(Some("b"), Some("2:1"))));
        assert!(!both.differs(&volume(Some("a"), Some("2:2"))), "the UUID decides");
        assert!(both.differs(&volume(None, Some("2:2"))), "an older kernel");
        assert!(!both.differs(&volume(None, Some("2:1"))));
        assert!(!both.differs(&volume(None, None)));
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Volume::read(directory.path()), None);
        std::fs::write(directory.path().join(FILE), both.text()).unwrap();
        assert_eq!(Volume::read(directory.path()), Some(both));
    }
}
