//! The directory of a cluster, and the removal of what killed test runs have left.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, PidfdFlags, Signal};
use tempfile::TempDir;

use super::network;
use crate::image::base_directory;

const PREFIX: &str = "cluster-";

/// A directory with a lock that tells whether its process still lives.
#[derive(Debug)]
pub(super) struct Workplace {
    id: String,
    // Dropped in this order: who gets the lock may remove the directory.
    directory: TempDir,
    _lock: File,
}

impl Workplace {
    /// Makes a directory and an id that nothing else on this machine has, after a sweep.
    pub(super) fn create() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let base = base_directory()?;
        // Nobody sweeps while a directory has no lock yet.
        let quiet = File::open(&base).with_context(|| format!("open {base:?}"))?;
        rustix::fs::flock(&quiet, FlockOperation::LockExclusive)?;
        sweep(&base);
        // At most 15 bytes for the name of a link, so both numbers are in hexadecimal.
        let id = loop {
            let count = NEXT.fetch_add(1, Ordering::Relaxed);
            let id = format!("dm{:x}x{count:x}", std::process::id());
            if !network::is_taken(&id) {
                break id;
            }
        };
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&base)?;
        let lock = File::create(directory.path().join("lock"))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        std::fs::write(directory.path().join("id"), &id)?;
        Ok(Self { id, directory, _lock: lock })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes clusters whose process was killed: nobody holds their lock any more.
fn sweep(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        if let Err(error) = remove_abandoned(&entry.path()) {
            complain(&format!("cannot remove the abandoned {:?}: {error:#}", entry.path()));
        }
    }
}

fn remove_abandoned(directory: &Path) -> Result<()> {
    // Without a lock, its process is about to remove it or was killed while it did.
    let lock = File::open(directory.join("lock"));
    let free = |lock: &File| rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive);
    if lock.as_ref().is_ok_and(|lock| free(lock).is_err()) {
        return Ok(());
    }
    if let Ok(id) = std::fs::read_to_string(directory.join("id")) {
        // An empty file would stand for all namespaces of the machine.
        if id.starts_with("dm") && id.contains('x') {
            network::remove(&id)?;
        }
    }
    kill_recorded(directory);
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Where a server outside of all namespaces records its process.
pub(super) fn pid_file(directory: &Path) -> PathBuf {
    directory.join("pid")
}

/// Kills the server that the directory names, if it still is that server: the directory is among its
/// arguments, and no other process has heard of it.
fn kill_recorded(directory: &Path) {
    let Ok(text) = std::fs::read_to_string(pid_file(directory)) else { return };
    let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) else { return };
    let Ok(held) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
    let arguments = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
    let wanted = directory.as_os_str().as_encoded_bytes();
    let is_ours = |text: &Vec<u8>| text.windows(wanted.len()).any(|window| window == wanted);
    if arguments.as_ref().is_ok_and(is_ours) {
        let _ = rustix::process::pidfd_send_signal(&held, Signal::KILL);
    }
}

/// Says something on standard error, past the test harness.
pub(super) fn complain(what: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{what}");
}
