//! What the change times of files of the destination show about them.
use dmover_journal::ticked;
use dmover_model::Timestamp;
use dmover_plan::history::{COARSE, later};
use serde::{Deserialize, Serialize};

/// What is known about files of the destination by their change times, in milliseconds since 1970.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Trust {
    /// The destination is on a file system of this host, where a power cut may lose unflushed data.
    pub may_lose: bool,
    /// Files changed before this are complete: an earlier run has checked them, and they were flushed.
    pub whole_before_ms: Option<i64>,
    /// Writes of runs after this may be incomplete and are compared.
    pub cut_since_ms: Option<i64>,
    /// The file system has been mounted since then, so later writes are there, in memory if not on storage.
    pub mounted_since_ms: Option<i64>,
}

/// What the change time of a file shows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Whole,
    CutOff,
    Nothing,
}

impl Trust {
    /// What the change time of a file shows.
    pub fn of(&self, ctime: Timestamp) -> Known {
        let is_before = |ms: &i64| ctime < ticked(*ms);
        if !self.may_lose || self.whole_before_ms.as_ref().is_some_and(is_before) {
            return Known::Whole;
        }
        if self.cut_since_ms.is_some_and(|since| later(ctime, COARSE) >= ticked(since)) {
            return Known::CutOff;
        }
        let mounted = self.mounted_since_ms;
        // A file system with whole seconds has cut the time off.
        let is_since =
            |ms| ctime >= ticked(ms) || (ctime.nanoseconds == 0 && ctime.seconds >= ms / 1000);
        if mounted.is_some_and(is_since) { Known::Whole } else { Known::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        let nanoseconds = (ms % 1000 * 1_000_000) as u32;
        Timestamp { seconds: ms / 1000, nanoseconds }
    }

    #[test]
    fn change_times_say_what_a_power_cut_may_have_taken() {
        let none = Trust { may_lose: true, ..Trust::default() };
        assert_eq!(none.of(at(5_000_000)), Known::Nothing);
        let mounted = Trust { mounted_since_ms: Some(5_000_000), ..none.clone() };
        assert_eq!(mounted.of(at(5_000_500)), Known::Whole, "the page cache has it");
        assert_eq!(mounted.of(at(4_999_000)), Known::Nothing);
        let whole = Trust { whole_before_ms: Some(4_000_000), ..mounted.clone() };
        assert_eq!(whole.of(at(3_999_000)), Known::Whole);
        assert_eq!(whole.of(at(4_000_000)), Known::Nothing, "within a tick of the flush");
        let cut = Trust { cut_since_ms: Some(4_500_000), ..whole };
        assert_eq!(
            cut.of(at(3_999_000)),
            Known::Whole,
            "looked at before the run that was cut off"
        );
        assert_eq!(cut.of(at(4_498_000)), Known::CutOff, "clocks of file systems are coarse");
        assert_eq!(cut.of(at(5_000_500)), Known::CutOff, "also if it was written since");
        assert_eq!(cut.of(at(4_100_000)), Known::Nothing);
        let network = Trust { may_lose: false, ..cut };
        assert_eq!(network.of(at(4_600_000)), Known::Whole);
    }

    #[test]
    fn whole_seconds_are_not_taken_for_earlier() {
        let trust = Trust { may_lose: true, mounted_since_ms: Some(5_000_700), ..Trust::default() };
        assert_eq!(trust.of(at(5_000_000)), Known::Whole);
        assert_eq!(trust.of(at(5_000_600)), Known::Nothing);
    }
}
