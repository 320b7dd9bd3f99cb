//! A connection to a disk of another host, and what goes wrong with it. Each request is a step of the simulation, so that other
//! threads run in between.
use dmover_memory::{Actor, Disk, Result as Called, User};
use dmover_model::{EntryError, ErrorClass, Fatal, Operation, PathBytes, Side, Timestamp};
use dmover_schedule::simulation;
use dmover_sys::simulated::Volume;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What happens to the disk before a request is served.
pub type Change = Box<dyn FnOnce(&mut Disk) + Send>;

/// The connection of one process to a disk of another host.
pub struct Line {
    /// The disk, which others may change.
    pub volume: Arc<Volume>,
    /// The most by which its clock differs from that of the process.
    pub skew: Option<Duration>,
    /// The connection is lost before this request; the first is 1.
    pub lost_at: Option<u64>,
    /// A change before this request.
    pub change: Mutex<Option<(u64, Change)>>,
    /// Number of requests so far.
    pub requests: AtomicU64,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("requests", &self.requests).finish_non_exhaustive()
    }
}

impl Line {
    /// Whether the connection was lost.
    pub fn lost(&self) -> Option<Fatal> {
        let is_lost = self.lost_at.is_some_and(|at| self.requests.load(Relaxed) >= at);
        is_lost.then(|| Fatal::unavailable("the connection to the memory was lost", "try again"))
    }

    /// The last stamp of changes that has passed by the clock of the other host, and how long until the next one.
    pub fn tick(&self) -> (Timestamp, Duration) {
        let disk = self.volume.disk();
        let step_ns = disk.profile().stamp_step_ns;
        (disk.clock().now().truncated(step_ns), Duration::from_nanos(step_ns.into()))
    }

    /// One request. `about`: what an error says of it.
    pub fn ask<T>(
        &self,
        (operation, path): (Operation, &PathBytes),
        body: impl FnOnce(&mut User<'_>) -> Called<T>,
    ) -> Result<T, EntryError> {
        simulation::step();
        let number = self.requests.fetch_add(1, Relaxed) + 1;
        if let Some(lost) = self.lost() {
            let (class, words) = (ErrorClass::Cancelled, lost.to_string());
            return Err(EntryError::plain(Side::Source, operation, class, path.clone(), words));
        }
        let mut disk = self.volume.disk();
        let mut change = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, change)) = change.take_if(|(at, _)| number >= *at) {
            change(&mut disk);
        }
        body(&mut disk.as_user(&Actor::root())).map_err(|error| {
            let (side, path, errno) = (Side::Source, path.clone(), error.number());
            let class = ErrorClass::from_errno(errno, side);
            EntryError { side, operation, path, class, errno, detail: String::new(), attempt: 1 }
        })
    }
}
