//! How a job and its movers stand, for whoever looks from outside: a status file, a metrics endpoint, a terminal.
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::counters::Snapshot;

/// A process with movers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MoverView {
    /// Where it runs.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// Tells it from others of its host, from 1 on. The next mover gets the number of one that has gone.
    #[serde(default)]
    pub slot: u32,
    /// What was said of it.
    pub labels: Vec<(String, String)>,
    /// Its program.
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
    /// Tasks in hand.
    pub tasks: u64,
    /// Bytes of content that it has moved or read for this job, and entries that it has ended.
    pub bytes: u64,
    /// See `bytes`.
    pub entries: u64,
    /// The same in a second, lately.
    pub bytes_per_s: f64,
    /// See `bytes_per_s`.
    pub entries_per_s: f64,
    /// Seconds since it was heard of.
    pub silent_s: f64,
    /// What keeps it from being faster.
    pub limit: Option<String>,
    /// How it is slower than the others, if it is.
    pub slow: Option<String>,
    /// It gets no tasks for now, because what it tries fails there.
    #[serde(default)]
    pub left_out: bool,
}

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MountView {
    /// Where it is mounted.
    pub at: String,
    /// Its type.
    pub kind: String,
    /// What was mounted.
    pub from: String,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NicView {
    /// Its name.
    pub name: String,
    /// Its speed, if that is known.
    pub mbit_per_s: Option<u64>,
    /// Bytes that it has received since it is up.
    pub received_bytes: u64,
    /// Bytes that it has sent since it is up.
    pub sent_bytes: u64,
}

impl MoverView {
    /// By what it is known.
    pub fn name(&self) -> String {
        format!("{}/{}", self.host, self.pid)
    }

    /// A name that the next mover on its host has as well: series of metrics go on, and there are not more of them with each restart.
    pub fn place(&self) -> String {
        if self.slot > 1 { format!("{}/{}", self.host, self.slot) } else { self.host.clone() }
    }

    /// What is wrong with it, if anything is.
    pub fn remarks(&self) -> Vec<String> {
        let left_out = self.left_out.then(|| "gets no tasks, because its tasks fail".to_owned());
        left_out.into_iter().chain(self.slow.clone()).collect()
    }
}

/// A job while it runs.
#[derive(Debug, Clone)]
pub struct JobView {
    /// Its id.
    pub job: String,
    /// What it does.
    pub verb: String,
    /// Somebody holds it.
    pub paused: bool,
    /// When it began, in milliseconds since 1970.
    pub begun_ms: i64,
    /// Tasks that are known and not done.
    pub tasks_left: u64,
    /// What was counted so far.
    pub counters: Snapshot,
    /// Errors by class.
    pub errors: BTreeMap<&'static str, u64>,
    /// What limits it, in one word.
    pub limit: Option<&'static str>,
    /// Who works for it; `None`: threads of its own process.
    pub movers: Option<Vec<MoverView>>,
}

/// A job that a process with movers works for.
#[derive(Debug, Clone)]
pub struct SessionView {
    /// The job.
    pub job: String,
    /// What was counted here so far.
    pub counters: Snapshot,
    /// Tasks in hand.
    pub tasks: u64,
    /// Tasks that may be in hand at a time.
    pub places: u64,
    /// When it was left, if it was: its counts are still told for a while.
    pub left: Option<Instant>,
}

/// Where one puts what others look at.
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

    /// Puts something else there.
    pub fn put(&self, what: T) {
        *self.content() = what;
    }

    /// Changes what is there.
    pub fn change(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.content());
    }

    /// What is there.
    pub fn get(&self) -> T {
        self.content().clone()
    }
}

/// The process that tells.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProcessView {
    /// The version of the program.
    pub version: &'static str,
    /// Seconds of the processors that it has used.
    pub cpu_s: f64,
    /// Memory in RAM.
    pub resident_bytes: u64,
    /// Open files.
    pub open_files: u64,
}
