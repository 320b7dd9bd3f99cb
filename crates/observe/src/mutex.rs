//! Locks of state that threads share.
use dmover_schedule::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;

/// Locks a mutex, also after a thread has panicked while it held the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
