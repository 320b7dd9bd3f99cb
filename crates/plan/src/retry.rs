//! Decides when a failed entry is retried, and after what delay.
use dmover_model::EntryError;

/// Attempts at one entry before it is reported.
pub const ATTEMPTS_MAX: u32 = 3;

/// Milliseconds to wait before the next attempt; `None`: report the error.
///
/// The waits are short: they bridge a server fail-over or a burst of a writer, not an outage. The breaker and a rerun
/// of the command handle outages.
pub fn delay_ms(error: &EntryError, attempt: u32) -> Option<u64> {
    (error.retryable() && attempt < ATTEMPTS_MAX).then(|| 10 * 4u64.pow(attempt.saturating_sub(1)))
}
