//! Flushes to storage what movers have written, before they report it as done.
use dmover_model::MountId;
use dmover_observe::lock;
use dmover_schedule::sync::{Condvar, Mutex};
use dmover_sys::{AsFd, Errno, OwnedFd, file, path};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

/// The file systems that a job writes to.
///
/// One descriptor for each is held during the job, so that every write-back error of the kernel in that time is noticed
/// (syncfs(2) reports errors since the descriptor was opened, Linux 5.8).
#[derive(Debug, Default)]
pub struct Flusher(Mutex<HashMap<MountId, Result<Arc<Volume>, Errno>>>);

#[derive(Debug)]
struct Volume {
    fd: OwnedFd,
    state: Mutex<State>,
    turn: Condvar,
}

/// Flushes are numbered: a waiting thread is satisfied by any flush that begins after its call.
#[derive(Debug, Default)]
struct State {
    begun: u64,
    ended: u64,
    running: bool,
    /// Why a flush failed. The kernel reports an error only once, whichever data it concerns, so no later flush is
    /// trusted.
    failed: Option<Errno>,
}

impl Flusher {
    /// Adds the file system of a directory that will be written to.
    pub fn know(&self, mount: MountId, directory: impl AsFd) {
        let mut volumes = lock(&self.0);
        volumes.entry(mount).or_insert_with(|| {
            let fd = path::open_directory_at(directory, b".")?;
            let (state, turn) = (Mutex::default(), Condvar::new());
            Ok(Arc::new(Volume { fd, state, turn }))
        });
    }

    /// Returns when everything written there before is on storage.
    pub fn flush(&self, mount: MountId) -> Result<(), Errno> {
        let volume = lock(&self.0).get(&mount).cloned();
        volume.map_or(Ok(()), |volume| volume?.flush())
    }

    /// File systems on which a flush has failed.
    pub fn failed(&self) -> Vec<MountId> {
        let volumes = lock(&self.0);
        let has_failed = |volume: &Arc<Volume>| lock(&volume.state).failed.is_some();
        let failed = volumes.iter().filter(|(_, volume)| volume.as_ref().is_ok_and(has_failed));
        failed.map(|(mount, _)| *mount).collect()
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
                state.failed = Some(error);
            }
            self.turn.notify_all();
        }
        state.failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_to_everybody_who_asks_later() {
        let directory = tempfile::tempdir().unwrap();
        let flusher = Flusher::default();
        flusher.know(MountId(3), path::open_directory(directory.path()).unwrap());
        flusher.flush(MountId(3)).unwrap();
        let volume = lock(&flusher.0)[&MountId(3)].clone().unwrap();
        lock(&volume.state).failed = Some(Errno::IO);
        assert_eq!(flusher.flush(MountId(3)), Err(Errno::IO), "as another mover has heard it");
        assert_eq!(flusher.flush(MountId(3)), Err(Errno::IO));
        assert_eq!(flusher.failed(), [MountId(3)]);
        // What cannot be held cannot be flushed.
        let file = tempfile::tempfile().unwrap();
        flusher.know(MountId(4), &file);
        assert_eq!(flusher.flush(MountId(4)), Err(Errno::NOTDIR));
    }

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
        let state = lock(&volumes[&MountId(3)].as_ref().unwrap().state);
        assert!(state.begun == state.ended && (20..=320).contains(&state.ended), "{state:?}");
    }
}
