//! The directory for the state of a simulated job. It is a real one.
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::time::Duration;

/// A directory that has the same path in each run of a seed: the path is in the id of the job, the id in the names of its
/// temporaries, and names decide in which order a directory lists them.
#[derive(Debug)]
pub(super) struct SeedDirectory {
    directory: tempfile::TempDir,
    /// Bound as long as the directory is used: another process may play the same seed.
    _taken: UnixListener,
}

impl SeedDirectory {
    /// An empty directory, in memory if it can be: the journal flushes often.
    pub(super) fn of(seed: u64) -> Self {
        let name = format!("dmover-simulated-{}-{seed}", dmover_host::user::effective_uid());
        let taken = take(&name);
        // A process that was killed may have left the first one; then the path is another one once.
        let mut names =
            (0..).map(|number| if number == 0 { name.clone() } else { format!("{name}-{number}") });
        let directory = names.find_map(|name| make(&name)).expect("a free name");
        Self { directory, _taken: taken }
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Makes a directory; `None`: it is there.
fn make(name: &str) -> Option<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    let made = builder.prefix(name).rand_bytes(0);
    match made.tempdir_in("/dev/shm").or_else(|error| match error.kind() {
        ErrorKind::AlreadyExists => Err(error),
        _ => made.tempdir(),
    }) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => None,
        made => Some(made.expect("a directory for state")),
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
