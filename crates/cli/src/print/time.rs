//! Formats of times: local dates with the offset from UTC for people, RFC 3339 in UTC for JSON.
use dmover_model::Timestamp;
use jiff::tz::TimeZone;

/// `2026-01-31 12:00:00 +0100`, as ls(1) and stat(1) show it.
const FORM: &str = "%Y-%m-%d %H:%M:%S%.f %z";

/// A time in milliseconds since 1970, to the second.
pub(crate) fn local(ms: i64) -> String {
    let time = jiff::Timestamp::from_millisecond(ms - ms.rem_euclid(1000)).unwrap_or_default();
    time.to_zoned(TimeZone::system()).strftime(FORM).to_string()
}

/// The time of a file in the same form, with all digits of its second.
pub(crate) fn local_exact(time: Timestamp) -> String {
    shown(time, |time| time.to_zoned(TimeZone::system()).strftime(FORM).to_string())
}

/// The time of a file as one word, for columns: `2026-01-31T12:00:00+01:00`.
pub(crate) fn local_word(time: Timestamp) -> String {
    let form = "%Y-%m-%dT%H:%M:%S%.f%:z";
    shown(time, |time| time.to_zoned(TimeZone::system()).strftime(form).to_string())
}

/// The time of a file in RFC 3339 and UTC, for programs.
pub(crate) fn utc_exact(time: Timestamp) -> String {
    shown(time, |time| time.to_string())
}

/// A time in milliseconds since 1970 as RFC 3339 in UTC, for programs.
pub(crate) fn utc(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).unwrap_or_default().to_string()
}

/// Times of files may lie after the year 9999, where calendars end; those are shown as `@SECONDS`, which date(1) and touch(1)
/// read.
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
