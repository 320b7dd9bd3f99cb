//! Time, as in [`std::time`].
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::core::{Me, me};

/// As [`std::time::Instant`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

/// What lies before the first instant, so that one can subtract.
const BEFORE: Duration = Duration::from_secs(1 << 32);

impl Instant {
    /// This moment.
    pub fn now() -> Self {
        static FIRST: OnceLock<std::time::Instant> = OnceLock::new();
        match me() {
            Some(me) => Self(Duration::from_nanos(now_ns(&me).cast_unsigned())),
            None => Self(FIRST.get_or_init(std::time::Instant::now).elapsed() + BEFORE),
        }
    }

    /// The time since then.
    pub fn elapsed(&self) -> Duration {
        Self::now().duration_since(*self)
    }

    /// The time since an earlier moment, or 0.
    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The same.
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }

    /// The time since a moment, if it was not later.
    pub fn checked_duration_since(&self, earlier: Self) -> Option<Duration> {
        self.0.checked_sub(earlier.0)
    }

    /// A later moment.
    pub fn checked_add(&self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Self)
    }

    /// An earlier moment.
    pub fn checked_sub(&self, time: Duration) -> Option<Self> {
        self.0.checked_sub(time).map(Self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        self.0 += time;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.checked_sub(time).expect("a moment after the beginning of time"))
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, time: Duration) {
        self.0 -= time;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }
}

/// Time since 1970, by the clock of this host; 0 if the clock shows less.
pub fn since_1970() -> Duration {
    match me() {
        Some(me) => Duration::from_nanos(now_ns(&me).max(0).cast_unsigned()),
        None => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
    }
}

fn now_ns(me: &Me) -> i64 {
    me.core.time.load(Ordering::Relaxed)
}

/// The moment after so much time.
pub(crate) fn deadline(me: &Me, time: Duration) -> Option<i64> {
    let ns = i64::try_from(time.as_nanos()).ok()?;
    now_ns(me).checked_add(ns)
}
