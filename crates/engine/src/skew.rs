//! How much later a change may have happened than its time says.
use dmover_model::Timestamp;
use std::time::Duration;

/// How far clocks of two servers may differ.
pub(crate) const SKEW: Duration = Duration::from_hours(1);
/// The coarsest time resolution of file systems, that of FAT, plus one second.
pub(crate) const COARSE: Duration = Duration::from_secs(3);

pub(crate) fn later(time: Timestamp, by: Duration) -> Timestamp {
    const SECOND: u32 = 1_000_000_000;
    let nanoseconds = time.nanoseconds + by.subsec_nanos();
    let seconds = by.as_secs() + u64::from(nanoseconds / SECOND);
    let seconds = time.seconds.saturating_add_unsigned(seconds);
    Timestamp { seconds, nanoseconds: nanoseconds % SECOND }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_are_carried_into_seconds() {
        let time = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
        assert_eq!(later(time(1, 999_000_000), Duration::from_millis(12)), time(2, 11_000_000));
        assert_eq!(later(time(-1, 0), Duration::from_millis(2_500)), time(1, 500_000_000));
        assert_eq!(later(time(5, 7), COARSE), time(8, 7));
    }
}
