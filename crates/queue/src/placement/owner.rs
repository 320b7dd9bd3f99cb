//! Marks directories below `placement/` as in use, and removes those of killed processes.
use dmover_schedule::thread;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The lock file in a directory in use; it contains the name of the host.
const MARK: &str = "running";
/// The prefix of directories that are about to be removed.
const GONE: &str = ".gone-";
/// A process that cleans up holds the lock only for a moment.
const ATTEMPTS: u32 = 10;
const AGAIN: Duration = Duration::from_millis(50);

/// A directory in use by this process.
pub(super) struct Owner {
    mark: PathBuf,
    _lock: File,
}

impl Owner {
    /// Marks a directory as in use. `None`: another process uses it, or its file system has no locks.
    pub fn take(directory: &Path) -> Option<Self> {
        let mark = directory.join(MARK);
        for _ in 0..ATTEMPTS {
            if let Some(mut lock) = lock_of(&mark, true) {
                // The host name lets only this host decide that the process is dead.
                let written =
                    lock.set_len(0).and_then(|()| lock.write_all(&dmover_host::name_bytes()));
                return written.ok().map(|()| Self { mark, _lock: lock });
            }
            thread::sleep(AGAIN);
        }
        None
    }

    /// Ends the use in order: files that remain are kept on purpose.
    pub fn leave(self) {
        if let Err(error) = std::fs::remove_file(&self.mark) {
            tracing::debug!(%error, "cannot remove the mark of a directory");
        }
    }
}

/// Locks a file, unless another process has locked it or the file was replaced.
fn lock_of(path: &Path, create: bool) -> Option<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).append(true).create(create).mode(0o600).open(path).ok()?;
    file.try_lock().ok()?;
    let (own, named) = (file.metadata().ok()?, std::fs::metadata(path).ok()?);
    (own.ino() == named.ino()).then_some(file)
}

/// Removes an unused directory. It is renamed first, so that another process creates a new one.
fn remove(directory: &Path) -> std::io::Result<()> {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let gone = directory.with_file_name(format!("{GONE}{name}-{}", std::process::id()));
    std::fs::rename(directory, &gone)?;
    std::fs::remove_dir_all(&gone)
}

/// Removes directories beside `own` that killed processes of this host have left. Directories in use, or kept on
/// purpose, stay.
pub(super) fn sweep(own: &Path) {
    let Some(entries) = own.parent().and_then(|all| std::fs::read_dir(all).ok()) else { return };
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path != own) {
        let is_half_gone = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(GONE));
        let removed =
            if is_half_gone { std::fs::remove_dir_all(&path) } else { remove_if_dead(&path) };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::debug!(%error, path = %path.display(), "cannot remove a directory");
            }
            _ => {}
        }
    }
}

fn remove_if_dead(directory: &Path) -> std::io::Result<()> {
    let Some(mut lock) = lock_of(&directory.join(MARK), false) else { return Ok(()) };
    let mut host = Vec::new();
    lock.read_to_end(&mut host)?;
    // Locks of another host may not be seen here.
    if host == dmover_host::name_bytes() { remove(directory) } else { Ok(()) }
}

/// Directories of brokers in a state directory that no process uses. They hold secrets.
pub fn unused_brokers(state: &Path) -> Vec<PathBuf> {
    let placed = std::fs::read_dir(state.join("placement"));
    let placed = placed.into_iter().flatten().flatten().map(|entry| entry.path());
    let is_unused = |directory: &PathBuf| {
        let is_free = |lock: &str| {
            let path = directory.join(lock);
            std::fs::metadata(&path).is_err() || lock_of(&path, false).is_some()
        };
        std::fs::metadata(directory).is_ok_and(|found| found.is_dir())
            && ["lock", "broker/lock", MARK].into_iter().all(is_free)
    };
    placed.chain([state.join("broker")]).filter(is_unused).collect()
}

/// Removes one of these directories.
///
/// # Errors
/// The error of the system.
pub fn remove_broker(directory: &Path) -> std::io::Result<()> {
    remove(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(all: &Path, name: &str, host: Option<&[u8]>) -> PathBuf {
        let directory = all.join(name);
        std::fs::create_dir_all(directory.join("broker")).unwrap();
        std::fs::write(directory.join("broker/user.nk"), "secret").unwrap();
        if let Some(host) = host {
            std::fs::write(directory.join(MARK), host).unwrap();
        }
        directory
    }

    #[test]
    fn only_what_killed_processes_of_this_host_left_is_removed() {
        let state = tempfile::tempdir().unwrap();
        let all = state.path().join("placement");
        let own = make(&all, "own", Some(&dmover_host::name_bytes()));
        let dead = make(&all, "dead", Some(&dmover_host::name_bytes()));
        let failed = make(&all, "failed", None);
        let elsewhere = make(&all, "elsewhere", Some(b"another-host"));
        let used = make(&all, "used", None);
        let owner = Owner::take(&used).unwrap();
        sweep(&own);
        let is_there = |path: &Path| std::fs::symlink_metadata(path).is_ok();
        assert!(!is_there(&dead));
        assert!([&own, &failed, &elsewhere, &used].into_iter().all(|path| is_there(path)));
        let mut unused = unused_brokers(state.path());
        unused.sort();
        assert_eq!(unused, [elsewhere.clone(), failed, own.clone()]);
        owner.leave();
        sweep(&own);
        assert!(is_there(&used), "it ended in order");
        assert!(unused_brokers(state.path()).contains(&used));
        remove_broker(&used).unwrap();
        assert!(!is_there(&used));
    }
}
