//! Clocks of different hosts. Leases use monotonic clocks. The time of day matters only where it is compared with times
//! of files, which file servers set.
use dmover_schedule::time::since_1970;
use std::time::Duration;

/// A larger difference is reported, because it also makes times in logs misleading.
const NOTED: Duration = Duration::from_secs(10);
/// A larger difference is refused. The clocks of file servers may differ by an hour from either host.
const ALLOWED: Duration = Duration::from_mins(30);

/// The time of day in milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    let since = since_1970();
    since.as_millis() as i64
}

/// The difference between two clocks, in words that continue with the other clock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Distance {
    Small,
    Noted(String),
    TooLarge(String),
}

impl Distance {
    /// The difference between a reported clock and our own.
    pub fn between(theirs_ms: i64, own_ms: i64) -> Self {
        let ahead_ms = theirs_ms.saturating_sub(own_ms);
        let apart = Duration::from_millis(ahead_ms.unsigned_abs());
        if apart <= NOTED {
            return Self::Small;
        }
        let way = if ahead_ms > 0 { "ahead of" } else { "behind" };
        let words = match apart.as_secs() {
            seconds @ ..120 => format!("{seconds} s {way}"),
            seconds => format!("{} min {way}", (seconds + 30) / 60),
        };
        if apart > ALLOWED { Self::TooLarge(words) } else { Self::Noted(words) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_told_either_way_and_large_ones_are_refused() {
        let now = 1_800_000_000_000;
        let of = |ahead_s: i64| Distance::between(now + ahead_s * 1000, now);
        assert_eq!(of(10), Distance::Small);
        assert_eq!(of(-10), Distance::Small);
        assert_eq!(of(11), Distance::Noted("11 s ahead of".into()));
        assert_eq!(of(-300), Distance::Noted("5 min behind".into()));
        assert_eq!(of(1800), Distance::Noted("30 min ahead of".into()));
        assert_eq!(of(-3600), Distance::TooLarge("60 min behind".into()));
        assert_eq!(Distance::between(i64::MIN, i64::MAX), Distance::between(0, i64::MAX));
    }
}
