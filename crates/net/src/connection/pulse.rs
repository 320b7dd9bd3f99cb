//! When to act on silence: a function of times, without a clock.
use std::time::Duration;

/// What to do now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The last event is too long ago.
    Act,
    /// Look again after this time.
    Wait(Duration),
}

/// `last_ms`: when the last event was, on the clock that has `now_ms`.
pub(super) fn next(after: Duration, now_ms: u64, last_ms: u64) -> Next {
    let quiet = Duration::from_millis(now_ms.saturating_sub(last_ms));
    match after.checked_sub(quiet) {
        None | Some(Duration::ZERO) => Next::Act,
        Some(rest) => Next::Wait(rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_counted_from_the_last_event() {
        let minute = Duration::from_mins(1);
        assert_eq!(next(minute, 0, 0), Next::Wait(minute));
        assert_eq!(next(minute, 59_999, 0), Next::Wait(Duration::from_millis(1)));
        assert_eq!(next(minute, 60_000, 0), Next::Act);
        assert_eq!(next(minute, 1_000_000, 0), Next::Act);
        assert_eq!(next(minute, 60_000, 59_000), Next::Wait(Duration::from_secs(59)));
        assert_eq!(next(minute, 5, 7), Next::Wait(minute), "two threads read the clock");
    }

    #[test]
    fn a_link_that_carries_one_heartbeat_in_four_lives() {
        // One side sends every quarter; three in a row are lost, for a day of simulated time.
        let (silence, mut heard, mut now) = (Duration::from_mins(1), 0, 0);
        while now < 86_400_000 {
            for beat in 1..=4 {
                now += 15_000 - u64::from(beat == 4);
                if beat == 4 {
                    heard = now;
                }
                assert_ne!(next(silence, now, heard), Next::Act, "{now}");
            }
        }
    }
}
