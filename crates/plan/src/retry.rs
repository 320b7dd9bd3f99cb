//! When an entry that failed is tried once more, and after how long.
use dmover_model::EntryError;

/// Attempts at one entry before it is reported.
pub const ATTEMPTS_MAX: u32 = 3;

/// Milliseconds to wait before the next attempt, or `None` if the error shall be reported.
///
/// Short waits: they bridge a server fail-over notice or a writer's burst, not an outage; the
/// breaker and the rerun are there for those.
pub fn delay_ms(error: &EntryError, attempt: u32) -> Option<u64> {
    (error.retryable() && attempt < ATTEMPTS_MAX).then(|| 10 * 4u64.pow(attempt.saturating_sub(1)))
}
