//! Waiting for changes of other hosts: a client of a network file system caches absent names (nfs(5), lookupcache) and
//! stale handles for a while.
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The first wait for an entry that another host has created; each further wait is twice as long. The second value
/// limits it.
const SEEN_AGAIN: Duration = Duration::from_millis(20);
const SEEN_WITHIN: Duration = Duration::from_secs(5);
/// After an entry has not become visible, no further entry is waited for while such cases are more frequent than this.
const UNSEEN_FOR: Duration = Duration::from_secs(10);

/// When the movers of this process wait for entries that another host has created.
pub(crate) struct Visibility {
    since: Instant,
    /// Until when no entry is waited for that is not yet visible, in milliseconds since `since`.
    unseen_until_ms: AtomicU64,
}

impl Default for Visibility {
    fn default() -> Self {
        Self { since: Instant::now(), unseen_until_ms: AtomicU64::new(0) }
    }
}

/// The wait for one entry.
pub(crate) struct Wait {
    begun: Instant,
    next: Duration,
}

impl Default for Wait {
    fn default() -> Self {
        Self { begun: Instant::now(), next: SEEN_AGAIN }
    }
}

impl Visibility {
    /// Whether to try again: then this call has waited.
    pub fn wait(&self, wait: &mut Wait) -> bool {
        // If a directory is gone for good, so are many of its entries: they are not all waited for.
        let now_ms = self.since.elapsed().as_millis() as u64;
        let given_up = self.unseen_until_ms.load(Ordering::Relaxed);
        if now_ms < given_up || wait.begun.elapsed() >= SEEN_WITHIN {
            let until = now_ms + UNSEEN_FOR.as_millis() as u64;
            self.unseen_until_ms.fetch_max(until, Ordering::Relaxed);
            return false;
        }
        thread::sleep(wait.next);
        wait.next *= 2;
        true
    }
}
