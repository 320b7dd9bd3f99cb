//! The directory for the state of a simulated job. It is a real one.
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A directory that has the same path in each run of a seed: the path is in the id of the job, the id in the names of its
/// temporaries, and names decide in which order a directory lists them.
#[derive(Debug)]
pub(super) struct SeedDirectory {
    path: PathBuf,
    /// Bound as long as the directory is used: another process may play the same seed.
    _taken: UnixListener,
}

impl SeedDirectory {
    /// An empty directory, in memory if it can be: the journal flushes often.
    pub(super) fn of(seed: u64) -> Self {
        let memory = Path::new("/dev/shm");
        let above = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let name = format!("dmover-simulated-{}-{seed}", dmover_host::user::effective_uid());
        let taken = take(&name);
        let path = above.join(name);
        // A process that was killed may have left it.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("a directory for state");
        Self { path, _taken: taken }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SeedDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Binds a name that only one process can have, and that the kernel frees when it ends (unix(7), abstract names).
fn take(name: &str) -> UnixListener {
    let address = SocketAddr::from_abstract_name(name).expect("a short name");
    loop {
        match UnixListener::bind_addr(&address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                // Nothing tells when the other one ends: poll.
                std::thread::sleep(Duration::from_millis(50));
            }
            taken => return taken.expect("a name in memory"),
        }
    }
}
