//! Decides which snapshots to keep: the newest ones, and the newest of each hour, day, week, month and year.

/// How many snapshots to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// The newest ones.
    pub last: u64,
    /// For each kind of period, how many periods keep their newest snapshot.
    pub periods: [u64; PERIODS],
    /// All snapshots up to this age, in milliseconds.
    pub within_ms: Option<u64>,
}

/// Kinds of periods: hours, days, weeks, months and years.
pub const PERIODS: usize = 5;

/// The facts about a snapshot that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dated {
    /// When it was started, in milliseconds since 1970.
    pub begun_ms: i64,
    /// Numbers of the hour, day, week, month and year in which it was started; an equal number means the same period.
    pub period: [i64; PERIODS],
    /// It is complete.
    pub whole: bool,
}

impl Retention {
    /// Whether it keeps nothing by itself.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns for each of `snapshots`, oldest first, whether to keep it.
    ///
    /// An incomplete snapshot never causes the removal of another one: it does not count for any number, and is kept
    /// until a later one is complete. The newest complete snapshot is always kept.
    pub fn keeps(&self, snapshots: &[Dated], now_ms: i64) -> Vec<bool> {
        let mut left = self.last;
        let mut periods = self.periods.map(|left| (left, None));
        let mut newest = true;
        let mut keeps = Vec::with_capacity(snapshots.len());
        for snapshot in snapshots.iter().rev() {
            let young = self.within_ms.is_some_and(|within| {
                now_ms.saturating_sub(snapshot.begun_ms)
                    <= i64::try_from(within).unwrap_or(i64::MAX)
            });
            if !snapshot.whole {
                keeps.push(young || newest);
                continue;
            }
            let mut stays = std::mem::take(&mut newest);
            stays |= young || left > 0;
            left = left.saturating_sub(1);
            for (number, (left, seen)) in snapshot.period.iter().zip(&mut periods) {
                // Later ones of the same period have been dealt with.
                if *seen != Some(*number) {
                    *seen = Some(*number);
                    stays |= *left > 0;
                    *left = left.saturating_sub(1);
                }
            }
            keeps.push(stays);
        }
        keeps.reverse();
        keeps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR_MS: i64 = 3_600_000;

    fn at(hour: i64) -> Dated {
        let day = hour.div_euclid(24);
        let period = [hour, day, day.div_euclid(7), day.div_euclid(30), day.div_euclid(365)];
        Dated { begun_ms: hour * HOUR_MS, period, whole: true }
    }

    fn kept(retention: Retention, hours: &[i64], now: i64) -> Vec<i64> {
        let all: Vec<Dated> = hours.iter().map(|hour| at(*hour)).collect();
        let keeps = retention.keeps(&all, now * HOUR_MS);
        hours.iter().zip(keeps).filter(|(_, keeps)| *keeps).map(|(hour, _)| *hour).collect()
    }

    #[test]
    fn the_newest_of_each_period_stays() {
        let hours: Vec<i64> = (0..72).collect();
        let daily = Retention { periods: [0, 2, 0, 0, 0], ..Retention::default() };
        assert_eq!(kept(daily, &hours, 72), [47, 71]);
        let mixed = Retention { last: 2, periods: [0, 3, 0, 0, 0], ..Retention::default() };
        assert_eq!(kept(mixed, &hours, 72), [23, 47, 70, 71]);
        let gaps = Retention { periods: [0, 3, 0, 0, 0], ..Retention::default() };
        assert_eq!(
            kept(gaps, &[1, 2, 100, 500], 501),
            [2, 100, 500],
            "days without one do not count"
        );
        let within = Retention { within_ms: Some(3 * HOUR_MS as u64), ..Retention::default() };
        assert_eq!(kept(within, &[1, 2, 97, 98, 99], 100), [97, 98, 99]);
    }

    #[test]
    fn the_newest_stays_in_any_case() {
        assert_eq!(kept(Retention::default(), &[1, 2, 3], 1000), [3]);
    }

    #[test]
    fn what_is_not_whole_never_takes_the_place_of_what_is() {
        let mut all: Vec<Dated> = (0..4).map(at).collect();
        for broken in [2, 3] {
            all[broken].whole = false;
        }
        let last = Retention { last: 1, ..Retention::default() };
        assert_eq!(last.keeps(&all, 5 * HOUR_MS), [false, true, true, true]);
        all[3].whole = true;
        assert_eq!(last.keeps(&all, 5 * HOUR_MS), [false, false, false, true]);
    }

    proptest! {
        #[test]
        fn more_is_kept_if_more_is_asked_for(
            gaps in prop::collection::vec(1i64..40, 0..60),
            last in 0u64..5,
            periods in prop::array::uniform5(0u64..5),
            whole in prop::collection::vec(any::<bool>(), 60),
        ) {
            let mut hour = 0;
            let all: Vec<Dated> = gaps
                .iter()
                .zip(whole)
                .map(|(gap, whole)| {
                    hour += gap;
                    Dated { whole, ..at(hour) }
                })
                .collect();
            let small = Retention { last, periods, within_ms: None };
            let large = Retention {
                last: last + 1,
                periods: periods.map(|n| n + 1),
                within_ms: Some(10 * HOUR_MS as u64),
            };
            let now = (hour + 5) * HOUR_MS;
            let (few, many) = (small.keeps(&all, now), large.keeps(&all, now));
            prop_assert!(few.iter().zip(&many).all(|(few, many)| *many || !*few));
            // The last whole one, and whatever came after it.
            if let Some(newest) = all.iter().rposition(|snapshot| snapshot.whole) {
                prop_assert!(few[newest..].iter().all(|keeps| *keeps));
            } else {
                prop_assert!(few.iter().all(|keeps| *keeps));
            }
            let count = few.iter().zip(&all).filter(|(keeps, one)| **keeps && one.whole).count() as u64;
            prop_assert!(count <= (last + periods.iter().sum::<u64>()).max(1));
        }
    }
}
