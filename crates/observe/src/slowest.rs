//! The slowest entries of a job.
use dmover_model::PathBytes;
use dmover_schedule::sync::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// One slow entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slow {
    /// Time that it took, in microseconds.
    pub elapsed_us: u64,
    /// Bytes copied or read.
    pub bytes: u64,
    /// Path at the source.
    pub path: PathBytes,
}

/// Keeps a small number of the slowest entries seen.
#[derive(Debug, Default)]
pub struct Slowest {
    entries: Mutex<Vec<Slow>>,
    /// The time of the fastest entry kept once the list is full, so that most calls take no lock.
    threshold_us: AtomicU64,
}

impl Slowest {
    const KEPT: usize = 10;

    /// Adds an entry if it is among the slowest; only then is the path built.
    pub fn note(&self, elapsed_us: u64, bytes: u64, path: impl FnOnce() -> PathBytes) {
        if elapsed_us <= self.threshold_us.load(Ordering::Relaxed) {
            return;
        }
        let mut entries = self.entries.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let at = entries.partition_point(|e| e.elapsed_us >= elapsed_us);
        entries.insert(at, Slow { elapsed_us, bytes, path: path() });
        entries.truncate(Self::KEPT);
        if entries.len() == Self::KEPT {
            self.threshold_us.store(entries[Self::KEPT - 1].elapsed_us, Ordering::Relaxed);
        }
    }

    /// The entries, slowest first.
    pub fn list(&self) -> Vec<Slow> {
        self.entries.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_slowest_in_order() {
        let slowest = Slowest::default();
        for us in [5, 900, 3, 77, 1, 8, 6, 4, 2, 10, 11, 12, 900] {
            slowest.note(us, 0, PathBytes::default);
        }
        let kept: Vec<u64> = slowest.list().iter().map(|s| s.elapsed_us).collect();
        assert_eq!(kept, [900, 900, 77, 12, 11, 10, 8, 6, 5, 4]);
    }
}
