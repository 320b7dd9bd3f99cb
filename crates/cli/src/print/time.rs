//! Times as people read them: local dates with the offset from UTC. JSON has RFC 3339 in UTC.
use dmover_model::Timestamp;
use jiff::tz::TimeZone;

/// `2026-01-31 12:00:00 +0100`, as ls(1) and stat(1) show it.
const FORM: &str = "%Y-%m-%d %H:%M:%S%.f %z";

/// A time in milliseconds since 1970, to the second.
pub(crate) fn local(ms: i64) -> String {
    let time = jiff::Timestamp::from_millisecond(ms - ms.rem_euclid(1000)).unwrap_or_default();
    time.to_zoned(TimeZone::system()).strftime(FORM).to_string()
}

/// The same of a file's time, with as many digits of the second as it has.
pub(crate) fn local_exact(time: Timestamp) -> String {
    shown(time, |time| time.to_zoned(TimeZone::system()).strftime(FORM).to_string())
}

/// The same as one word, for columns: `2026-01-31T12:00:00+01:00`.
pub(crate) fn local_word(time: Timestamp) -> String {
    let form = "%Y-%m-%dT%H:%M:%S%.f%:z";
    shown(time, |time| time.to_zoned(TimeZone::system()).strftime(form).to_string())
}

/// A file's time for programs.
pub(crate) fn utc_exact(time: Timestamp) -> String {
    shown(time, |time| time.to_string())
}

/// A time in milliseconds since 1970 for programs.
pub(crate) fn utc(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).unwrap_or_default().to_string()
}

/// Calendars end with the year 9999, times of files do not; date(1) and touch(1) read the form with '@'.
fn shown(time: Timestamp, words: impl Fn(jiff::Timestamp) -> String) -> String {
    let known = jiff::Timestamp::new(time.seconds, time.nanoseconds as i32);
    known.map_or_else(|_| format!("@{}", time.seconds), words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_without_a_date_are_shown_as_date_reads_them() {
        let time = Timestamp { seconds: 1 << 40, nanoseconds: 5 };
        assert_eq!(local_exact(time), "@1099511627776");
        assert_eq!(utc_exact(time), "@1099511627776");
    }

    #[test]
    fn programs_get_utc() {
        assert_eq!(utc(1_500), "1970-01-01T00:00:01.5Z");
        assert_eq!(
            utc_exact(Timestamp { seconds: -1, nanoseconds: 5 }),
            "1969-12-31T23:59:59.000000005Z"
        );
    }
}
