//! Forcing to storage what movers have written, before they say that it is done.
use dmover_model::MountId;
use dmover_sys::{AsFd, Errno, OwnedFd, file, path};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::context::lock;

/// The file systems that a job writes to.
///
/// One descriptor each is held as long as the job runs, so that an error of writing back that the kernel met at any time
/// is heard (syncfs(2) tells those since the descriptor was opened, Linux 5.8).
#[derive(Debug, Default)]
pub(crate) struct Flusher(Mutex<HashMap<MountId, Arc<Volume>>>);

#[derive(Debug)]
struct Volume {
    fd: OwnedFd,
    state: Mutex<State>,
    turn: Condvar,
}

/// Flushes are numbered: whoever waits is served by any that begins after it came.
#[derive(Debug, Default)]
struct State {
    begun: u64,
    ended: u64,
    running: bool,
    /// The last flush that failed.
    failed: Option<(u64, Errno)>,
}

impl Flusher {
    /// Takes note of a directory that will be written to.
    pub fn know(&self, mount: MountId, directory: impl AsFd) {
        let mut volumes = lock(&self.0);
        if !volumes.contains_key(&mount)
            && let Ok(fd) = path::open_directory_at(directory, b".")
        {
            let (state, turn) = (Mutex::default(), Condvar::new());
            volumes.insert(mount, Arc::new(Volume { fd, state, turn }));
        }
    }

    /// Returns when everything that was written there before is on storage.
    pub fn flush(&self, mount: MountId) -> Result<(), Errno> {
        let volume = lock(&self.0).get(&mount).map(Arc::clone);
        volume.map_or(Ok(()), |volume| volume.flush())
    }
}

impl Volume {
    fn flush(&self) -> Result<(), Errno> {
        let mut state = lock(&self.state);
        let wanted = state.begun + 1;
        while state.ended < wanted {
            if state.running {
                state = self.turn.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.running = true;
            state.begun += 1;
            let number = state.begun;
            drop(state);
            let flushed = file::sync_file_system(&self.fd);
            state = lock(&self.state);
            state.running = false;
            state.ended = number;
            if let Err(error) = flushed {
                state.failed = Some((number, error));
            }
            self.turn.notify_all();
        }
        match state.failed {
            // Whatever failed later may be what was to be flushed here.
            Some((number, error)) if number >= wanted => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_is_served_by_a_flush_that_began_after_they_came() {
        let directory = tempfile::tempdir().unwrap();
        let flusher = Flusher::default();
        flusher.know(MountId(3), path::open_directory(directory.path()).unwrap());
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| (0..20).for_each(|_| flusher.flush(MountId(3)).unwrap()));
            }
        });
        let volumes = lock(&flusher.0);
        let state = lock(&volumes[&MountId(3)].state);
        assert!(state.begun == state.ended && (20..=320).contains(&state.ended), "{state:?}");
    }
}
