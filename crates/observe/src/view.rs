//! The state of a job and its movers for outside observers: the status file, the metrics endpoint, a terminal.
use dmover_model::{ConnectionReport, PathBytes};
use dmover_schedule::sync::{Mutex, MutexGuard};
use dmover_schedule::time::Instant;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::PoisonError;

use crate::counters::Snapshot;

/// The state of one mover process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MoverView {
    /// The host on which it runs.
    pub host: String,
    /// Its process id on that host.
    pub pid: u32,
    /// Distinguishes mover processes of one host, counting from 1. A new mover reuses the number of one that has left.
    #[serde(default)]
    pub slot: u32,
    /// Labels that the user gave it.
    pub labels: Vec<(String, String)>,
    /// The version of its program.
    #[serde(default)]
    pub version: String,
    /// Processors that it may use.
    #[serde(default)]
    pub cores: u32,
    /// Memory that it may use for buffers.
    #[serde(default)]
    pub memory_bytes: u64,
    /// File systems of its host.
    #[serde(default)]
    pub mounts: Vec<MountView>,
    /// Network interfaces of its host.
    #[serde(default)]
    pub nics: Vec<NicView>,
    /// Tasks in progress.
    pub tasks: u64,
    /// Bytes of content that it has copied or read for this job.
    pub bytes: u64,
    /// Entries that it has completed for this job.
    pub entries: u64,
    /// Bytes per second at present.
    pub bytes_per_s: f64,
    /// Entries per second at present.
    pub entries_per_s: f64,
    /// Seconds since its last message.
    pub silent_s: f64,
    /// What limits its speed.
    pub limit: Option<String>,
    /// How it is slower than the other movers, if it is.
    pub slow: Option<String>,
    /// It gets no tasks for now, because its entries fail on that host.
    #[serde(default)]
    pub left_out: bool,
}

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MountView {
    /// The mount point.
    pub at: String,
    /// The file system type.
    pub kind: String,
    /// The mounted device or export.
    pub from: String,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NicView {
    /// Its name.
    pub name: String,
    /// The link speed, if known.
    pub mbit_per_s: Option<u64>,
    /// Bytes received since the interface came up.
    pub received_bytes: u64,
    /// Bytes sent since the interface came up.
    pub sent_bytes: u64,
}

impl MoverView {
    /// The name of the mover in messages: its host and process id.
    pub fn name(&self) -> String {
        format!("{}/{}", self.host, self.pid)
    }

    /// A name that the next mover on the same host reuses, so that metric series continue and do not multiply with each
    /// restart.
    pub fn place(&self) -> String {
        if self.slot > 1 { format!("{}/{}", self.host, self.slot) } else { self.host.clone() }
    }

    /// Problems of this mover, in words; empty if there are none.
    pub fn remarks(&self) -> Vec<String> {
        let left_out = self.left_out.then(|| "gets no tasks, because its tasks fail".to_owned());
        left_out.into_iter().chain(self.slow.clone()).collect()
    }
}

/// The state of a running job.
#[derive(Debug, Clone)]
pub struct JobView {
    /// Its id.
    pub job: String,
    /// Its verb.
    pub verb: String,
    /// A user has paused it.
    pub paused: bool,
    /// Start time in milliseconds since 1970.
    pub begun_ms: i64,
    /// Tasks that are known and not done.
    pub tasks_left: u64,
    /// The counters so far.
    pub counters: Snapshot,
    /// Errors by class.
    pub errors: BTreeMap<&'static str, u64>,
    /// What limits its speed, in one word.
    pub limit: Option<&'static str>,
    /// The connections to the hosts of its sources, with the SOURCE of each.
    pub connections: Vec<(PathBytes, ConnectionReport)>,
    /// The movers of the job; `None`: threads of this process.
    pub movers: Option<Vec<MoverView>>,
}

/// A job for which a mover process works.
#[derive(Debug, Clone)]
pub struct SessionView {
    /// The id of the job.
    pub job: String,
    /// What this process has counted so far.
    pub counters: Snapshot,
    /// Tasks in progress.
    pub tasks: u64,
    /// Tasks that may be in progress at the same time.
    pub places: u64,
    /// When the process left the job; its counts are still exported for a while.
    pub left: Option<Instant>,
}

/// A shared value that one side updates and others read.
#[derive(Debug)]
pub struct Board<T>(Mutex<T>);

impl<T: Default> Default for Board<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Board<T> {
    fn content(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the value.
    pub fn put(&self, what: T) {
        *self.content() = what;
    }

    /// Changes the value in place.
    pub fn change(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.content());
    }

    /// A copy of the value.
    pub fn get(&self) -> T {
        self.content().clone()
    }
}

/// The process that exports the metrics.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProcessView {
    /// The version of the program.
    pub version: &'static str,
    /// CPU time used, in seconds.
    pub cpu_s: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Number of open files.
    pub open_files: u64,
}
