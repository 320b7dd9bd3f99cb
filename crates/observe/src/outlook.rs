//! The progress of a job: what it is doing, how much work there is, and which entries are in progress.
use dmover_schedule::sync::Mutex;
use dmover_schedule::time::Instant;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::lock;

/// The stage of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Reads directories and copies, compares or hashes what is in them.
    Transfer,
    /// Repeats renames of the source at the destination.
    Rename,
    /// Creates the additional names of files with several hard links.
    Link,
    /// Deletes entries that only the destination has.
    Delete,
    /// Sets times and modes of directories whose content is complete.
    Seal,
    /// Writes the catalog that the next pass reads.
    Record,
    /// Flushes the file systems to storage.
    Flush,
}

impl Stage {
    const ALL: [Self; 7] = [
        Self::Transfer,
        Self::Rename,
        Self::Link,
        Self::Delete,
        Self::Seal,
        Self::Record,
        Self::Flush,
    ];

    /// The word in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Transfer => "transfer",
            Self::Rename => "rename",
            Self::Link => "link",
            Self::Delete => "delete",
            Self::Seal => "seal",
            Self::Record => "record",
            Self::Flush => "flush",
        }
    }
}

/// Entries and bytes of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Entries of any type.
    pub entries: u64,
    /// Bytes of content of regular files.
    pub bytes: u64,
}

/// How much work there is, and how exactly it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Total {
    /// Only the entries found so far are known.
    #[default]
    Unknown,
    /// A separate count is in progress and has found this much so far.
    AtLeast(Amount),
    /// The whole tree, from a completed count or from the last run.
    About(Amount),
}

impl Total {
    /// The total, corrected by what was found: if more entries were found than the total says, the total is only a
    /// minimum. Bytes found do not correct it, because they count a file with several names once for each name.
    #[must_use]
    pub fn corrected(self, found: Amount, settled: Amount) -> Self {
        match self {
            Self::About(total) if total.entries >= found.entries => {
                Self::About(Amount { bytes: total.bytes.max(settled.bytes), ..total })
            }
            Self::About(at_least) | Self::AtLeast(at_least) => Self::AtLeast(Amount {
                entries: at_least.entries.max(found.entries),
                bytes: at_least.bytes.max(found.bytes),
            }),
            Self::Unknown => Self::Unknown,
        }
    }
}

/// The progress of a job. The job writes it, and displays read it.
#[derive(Debug)]
pub struct Outlook {
    stage: AtomicU8,
    total: Mutex<Total>,
    /// 0 for no limit.
    bytes_per_s_max: AtomicU64,
    slots: Mutex<Vec<Weak<Slot>>>,
    begun: Instant,
}

impl Default for Outlook {
    fn default() -> Self {
        Self {
            stage: AtomicU8::new(Stage::Transfer as u8),
            total: Mutex::default(),
            bytes_per_s_max: AtomicU64::new(0),
            slots: Mutex::default(),
            begun: Instant::now(),
        }
    }
}

impl Outlook {
    /// Sets the present stage.
    pub fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// The present stage.
    pub fn stage(&self) -> Stage {
        let stage = usize::from(self.stage.load(Ordering::Relaxed));
        Stage::ALL[stage.min(Stage::ALL.len() - 1)]
    }

    /// Sets how much work there is.
    pub fn expect(&self, total: Total) {
        *lock(&self.total) = total;
    }

    /// How much work there is.
    pub fn total(&self) -> Total {
        *lock(&self.total)
    }

    /// Sets the rate that the job may not exceed (`--bwlimit`), in bytes per second.
    pub fn limit_bytes(&self, per_s: Option<u64>) {
        self.bytes_per_s_max.store(per_s.unwrap_or(0), Ordering::Relaxed);
    }

    /// The rate that the job may not exceed, in bytes per second.
    pub fn bytes_per_s_max(&self) -> Option<u64> {
        Some(self.bytes_per_s_max.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
    }

    /// A slot in which one thread records its entry in progress. Dropping it removes it.
    pub fn slot(&self) -> Arc<Slot> {
        let slot = Arc::new(Slot {
            since_us: AtomicU64::new(IDLE),
            path: Mutex::default(),
            epoch: self.begun,
        });
        let mut slots = lock(&self.slots);
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(&slot));
        slot
    }

    /// The entry that has been in progress for the longest time, and for how long.
    pub fn oldest(&self) -> Option<(Vec<u8>, Duration)> {
        let slots: Vec<Arc<Slot>> = lock(&self.slots).iter().filter_map(Weak::upgrade).collect();
        let since = |slot: &Arc<Slot>| slot.since_us.load(Ordering::Relaxed);
        let slot = slots.iter().min_by_key(|slot| since(slot))?;
        let since = Some(since(slot)).filter(|since| *since != IDLE)?;
        let age = self.begun.elapsed().saturating_sub(Duration::from_micros(since));
        Some((lock(&slot.path).clone(), age))
    }
}

const IDLE: u64 = u64::MAX;

/// The entry in progress of one thread.
#[derive(Debug)]
pub struct Slot {
    /// When the entry was begun, in microseconds since the start of the job.
    since_us: AtomicU64,
    path: Mutex<Vec<u8>>,
    epoch: Instant,
}

impl Slot {
    /// Records that the thread begins an entry. The path comes in parts, so that it is built only if someone reads it.
    pub fn begin(&self, at: Instant, parts: [&[u8]; 3]) {
        let mut path = lock(&self.path);
        path.clear();
        for part in parts {
            if !(part.is_empty() || path.is_empty() || path.ends_with(b"/")) {
                path.push(b'/');
            }
            path.extend_from_slice(part);
        }
        drop(path);
        let since = at.saturating_duration_since(self.epoch).as_micros() as u64;
        self.since_us.store(since, Ordering::Relaxed);
    }

    /// Records that the thread has finished its entry.
    pub fn end(&self) {
        self.since_us.store(IDLE, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entry_is_the_one_that_began_first() {
        let outlook = Outlook::default();
        assert_eq!(outlook.oldest(), None);
        let (first, second) = (outlook.slot(), outlook.slot());
        assert_eq!(outlook.oldest(), None, "nobody works");
        let now = Instant::now();
        second.begin(now, [b"/src", b"", b"b"]);
        first.begin(now + Duration::from_secs(1), [b"/src", b"d", b"a"]);
        assert_eq!(outlook.oldest().map(|(path, _)| path), Some(b"/src/b".to_vec()));
        second.end();
        assert_eq!(outlook.oldest().map(|(path, _)| path), Some(b"/src/d/a".to_vec()));
        drop(first);
        assert_eq!(outlook.oldest(), None);
    }
}
