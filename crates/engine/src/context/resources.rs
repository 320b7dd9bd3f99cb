//! What the movers of one process may use.
use dmover_model::{CopyEngine, JobSpec};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limits::RateLimits;

/// What the movers of one process may use.
pub(crate) struct Resources {
    /// Bytes and operations per second.
    pub limits: RateLimits,
    /// The greatest possible number of movers.
    pub movers_max: usize,
    /// How many movers may run now.
    movers: AtomicUsize,
    pub buffer_bytes: usize,
    /// The size of all buffers of a mover's ring.
    pub ring_bytes: usize,
    /// The most open levels of directories; deeper directories become tasks of their own.
    pub depth_max: usize,
    /// How many directories movers hold open for delayed renames, and the limit.
    held_for_later: AtomicUsize,
    held_for_later_max: usize,
}

impl Resources {
    /// `open_files_max`: the most files that may be open besides the roots.
    pub fn new(spec: &JobSpec, limits: RateLimits, movers_max: usize, open_files_max: u64) -> Self {
        let (buffer_bytes, ring_bytes) = buffers(spec, memory_bytes(spec) / 2 / movers_max);
        Self {
            limits,
            movers_max,
            movers: AtomicUsize::new(1),
            buffer_bytes,
            ring_bytes,
            depth_max: depth_max(open_files_max, movers_max),
            held_for_later: AtomicUsize::new(0),
            held_for_later_max: held_for_later_max(open_files_max),
        }
    }

    /// How many movers may run now.
    pub fn movers(&self) -> usize {
        self.movers.load(Ordering::Relaxed)
    }

    pub fn set_movers(&self, movers: usize) {
        self.movers.store(movers, Ordering::Relaxed);
    }

    /// Counts a directory that is held open for delayed renames.
    pub fn hold_for_later(&self) {
        self.held_for_later.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts directories that are no longer held open for delayed renames.
    pub fn release_held(&self, directories: usize) {
        self.held_for_later.fetch_sub(directories, Ordering::Relaxed);
    }

    /// Whether no further directory may be held open for delayed renames.
    pub fn holds_enough(&self) -> bool {
        self.held_for_later.load(Ordering::Relaxed) >= self.held_for_later_max
    }
}

/// The memory for buffers and queues of a job: half for buffers, a quarter for the ledger, the rest for tasks in
/// progress.
pub(crate) fn memory_bytes(spec: &JobSpec) -> usize {
    spec.limits.memory_bytes.max(8 << 20) as usize
}

/// The sizes of a mover's buffer and ring buffers, from its share of the memory.
fn buffers(spec: &JobSpec, share: usize) -> (usize, usize) {
    // A ring has buffers of its own.
    let ringed = spec.policy.engine == CopyEngine::Uring;
    let each = if ringed { share / 2 } else { share };
    let asked = spec.policy.buffer_bytes.map(|b| (b as usize).min(each));
    (asked.unwrap_or(each.min(1 << 20)).max(64 << 10), share - each)
}

/// The depth that a task may descend to: each level holds two directories open, and a quarter of the files is reserved
/// for other uses.
fn depth_max(open_files_max: u64, threads: usize) -> usize {
    let each = open_files_max.saturating_sub(32) * 3 / 4 / (2 * threads as u64);
    (each as usize).clamp(2, 100)
}

/// How many directories may be held for delayed renames: half of the quarter that levels do not use, with two
/// descriptors each.
fn held_for_later_max(open_files: u64) -> usize {
    (open_files / 16).max(1) as usize
}
