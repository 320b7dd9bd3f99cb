//! What the standard library has.

/// Locks, and what threads tell each other.
pub mod sync {
    pub use std::sync::mpsc;
    pub use std::sync::{
        Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard,
    };
}

/// Threads.
pub mod thread {
    pub use std::thread::{Builder, JoinHandle, scope, sleep, spawn};
}

/// Time.
pub mod time {
    use std::time::{Duration, SystemTime};

    pub use std::time::Instant;

    /// Time since 1970, by the clock of this host; 0 if the clock shows less.
    pub fn since_1970() -> Duration {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }
}
