//! Figures as text: two lines that fit a terminal of any width, or one line for a log.
use dmover_model::units;
use dmover_observe::Total;

use super::figures::Figures;
use crate::print::{Sizes, counted, grouped};
use dmover_job::quote::quoted;

/// The widest and the narrowest bar.
const BAR: std::ops::RangeInclusive<usize> = 10..=40;
const GAP: &str = "  ";

/// Units and characters of the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    pub sizes: Sizes,
    /// The terminal shows more than ASCII.
    pub is_utf8: bool,
}

impl Form {
    /// Two lines that fit this many columns.
    pub fn lines(self, figures: &Figures, columns: usize) -> String {
        let room = columns.saturating_sub(1).max(1);
        let percent = figures.estimate.map(|estimate| percent(estimate.fraction));
        // Most important first: parts without room in the first line go to the second line.
        let weighted = [
            percent.clone(),
            eta(figures),
            Some(figures.doing.to_owned()),
            self.bytes(figures),
            self.rate(figures.rate_now).filter(|_| figures.is_main),
        ];
        let (mut first, mut left, mut width) = ([const { None }; 5], Vec::new(), 0);
        for (place, text) in weighted.into_iter().enumerate() {
            let Some(text) = text else { continue };
            let more = console::measure_text_width(&text) + if width > 0 { GAP.len() } else { 0 };
            if left.is_empty() && width + more <= room {
                width += more;
                first[place] = Some(text);
            } else {
                left.push(text);
            }
        }
        let bar_room = room.saturating_sub(width + 2 + GAP.len());
        let fits = left.is_empty() && bar_room >= *BAR.start();
        let bar = figures.estimate.filter(|_| fits);
        let bar = bar.map(|estimate| drawn(estimate.fraction, bar_room.min(*BAR.end())));
        let [percent, eta, doing, bytes, rate] = first;
        let first = joined([doing, percent, bar, bytes, rate, eta].into_iter().flatten(), room);
        let second = joined(left.into_iter().chain(self.details(figures)), room);
        if second.is_empty() { first } else { format!("{first}\n{second}") }
    }

    /// One line with all figures.
    pub fn line(self, figures: &Figures) -> String {
        let percent = figures.estimate.map(|estimate| percent(estimate.fraction));
        let doing = percent.map_or_else(
            || figures.doing.to_owned(),
            |percent| format!("{} {}", figures.doing, percent.trim_start()),
        );
        let parts = [
            Some(doing),
            self.bytes(figures),
            self.rate(figures.rate_now).filter(|_| figures.is_main).map(|rate| rate + " now"),
            eta(figures),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().chain(self.details(figures)).collect();
        parts.join(", ")
    }

    fn bytes(self, figures: &Figures) -> Option<String> {
        if !figures.is_main {
            return None;
        }
        let show = |bytes| self.sizes.show(bytes);
        let done = show(figures.done.bytes);
        Some(match figures.total {
            Total::About(total) => {
                format!("{} of {}", short(&done, &show(total.bytes)), show(total.bytes))
            }
            Total::AtLeast(total) => format!("{done} of {}{}", self.at_least(), show(total.bytes)),
            Total::Unknown => done,
        })
    }

    fn rate(self, rate: u64) -> Option<String> {
        (rate > 0).then(|| format!("{}/s", self.sizes.show(rate)))
    }

    fn at_least(self) -> &'static str {
        if self.is_utf8 { "\u{2265}" } else { ">=" }
    }

    fn entries(self, figures: &Figures) -> Option<String> {
        let done = grouped(figures.done.entries);
        match figures.total {
            Total::About(total) => Some(format!("{done} of {} entries", grouped(total.entries))),
            Total::AtLeast(total) => {
                Some(format!("{done} of {}{} entries", self.at_least(), grouped(total.entries)))
            }
            Total::Unknown => (figures.done.entries > 0)
                .then(|| counted(figures.done.entries, "entry", "entries")),
        }
    }

    fn details(self, figures: &Figures) -> impl Iterator<Item = String> {
        let some = |count: u64, one, many| (count > 0).then(|| counted(count, one, many));
        let oldest = figures.oldest.as_ref().map(|(path, age)| {
            format!("waiting {} for {}", units::format_duration(age.as_secs()), quoted(path))
        });
        let unchanged = (figures.unchanged > 0 && figures.is_main)
            .then(|| format!("{} unchanged", self.sizes.show(figures.unchanged)));
        let mean = self.rate(figures.rate_mean).filter(|_| figures.is_main);
        let limit = figures.limit.as_ref();
        [
            self.entries(figures),
            some(figures.errors, "error", "errors"),
            oldest,
            Some(format!("{} elapsed", units::format_duration(figures.elapsed.as_secs()))),
            mean.map(|mean| format!("mean {mean}")),
            unchanged,
            some(figures.retries, "retry", "retries"),
            limit.map(|limit| format!("limit: {} ({})", limit.what.word(), limit.evidence)),
        ]
        .into_iter()
        .flatten()
    }
}

/// Joins as many parts as fit, with gaps; the last part may be truncated.
fn joined(parts: impl Iterator<Item = String>, room: usize) -> String {
    let mut text = String::new();
    for part in parts {
        let gap = if text.is_empty() { "" } else { GAP };
        let width = console::measure_text_width(&text) + gap.len();
        let left = room.saturating_sub(width);
        if console::measure_text_width(&part) > left {
            // A truncated name is useful, a truncated number is not.
            if left >= 20 {
                text = text + gap + &console::truncate_str(&part, left, "...");
            }
            break;
        }
        text = text + gap + &part;
    }
    text
}

/// Drops the unit if the total has the same one: `8.0` for `8.0 GiB`.
fn short<'a>(done: &'a str, total: &str) -> &'a str {
    match (done.rsplit_once(' '), total.rsplit_once(' ')) {
        (Some((number, unit)), Some((_, same))) if unit == same => number,
        _ => done,
    }
}

/// Never 100 before the end.
fn percent(fraction: f64) -> String {
    format!("{:>2} %", ((fraction * 100.0) as u64).min(99))
}

fn drawn(fraction: f64, width: usize) -> String {
    let full = ((fraction * width as f64) as usize).min(width);
    format!("[{}{}]", "#".repeat(full), "-".repeat(width - full))
}

/// A range of times in one unit: `ETA 12-15 min`.
fn eta(figures: &Figures) -> Option<String> {
    let (low, high) = figures.estimate?.left_s?;
    let (unit, seconds, digits) = match high {
        ..90.0 => ("s", 1.0, 0),
        ..600.0 => ("min", 60.0, 1),
        ..5400.0 => ("min", 60.0, 0),
        ..36_000.0 => ("h", 3600.0, 1),
        ..172_800.0 => ("h", 3600.0, 0),
        _ => ("days", 86_400.0, 1),
    };
    let [low, high] = [low, high].map(|time| format!("{:.digits$}", time / seconds));
    Some(if low == high { format!("ETA {low} {unit}") } else { format!("ETA {low}-{high} {unit}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmover_model::{Bottleneck, Limit};
    use dmover_observe::Amount;
    use dmover_plan::eta::Estimate;
    use std::time::Duration;

    fn figures() -> Figures {
        Figures {
            doing: "copying",
            is_main: true,
            done: Amount { entries: 3_107, bytes: 8 << 30 },
            total: Total::About(Amount { entries: 6_900, bytes: 18 << 30 }),
            estimate: Some(Estimate { fraction: 0.4567, left_s: Some((660.0, 840.0)) }),
            whole: Total::Unknown,
            rate_now: 867 << 20,
            rate_mean: 840 << 20,
            unchanged: 0,
            errors: 12,
            retries: 0,
            elapsed: Duration::from_secs(601),
            limit: Some(Limit {
                what: Bottleneck::Destination,
                evidence: "61 % of the time".into(),
            }),
            oldest: None,
        }
    }

    const FORM: Form = Form { sizes: Sizes::Iec, is_utf8: true };

    #[test]
    fn lines_say_what_matters_most_at_every_width() {
        let at = |columns| FORM.lines(&figures(), columns);
        assert_eq!(at(30), "copying  45 %  ETA 11-14 min\n8.00 of 18.0 GiB  867 MiB/s");
        assert_eq!(
            at(80),
            "copying  45 %  [########----------]  8.00 of 18.0 GiB  867 MiB/s  ETA 11-14 min\n\
             3,107 of 6,900 entries  12 errors  10:01 elapsed  mean 840 MiB/s"
        );
        assert_eq!(
            at(200),
            "copying  45 %  [##################----------------------]  8.00 of 18.0 GiB  867 MiB/s  ETA 11-14 min\n\
             3,107 of 6,900 entries  12 errors  10:01 elapsed  mean 840 MiB/s  limit: destination (61 % of the time)"
        );
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let wide = "\u{6f22}\u{5b57}".repeat(40).into_bytes();
        for columns in 1..250 {
            for total in [Total::Unknown, figures().total, Total::AtLeast(Amount::default())] {
                let oldest = Some((wide.clone(), Duration::from_secs(75)));
                let figures = Figures { total, oldest, ..figures() };
                for line in FORM.lines(&figures, columns).lines() {
                    let width = console::measure_text_width(line);
                    assert!(width < columns.max(2), "{columns}: {width}: {line}");
                }
            }
        }
    }

    #[test]
    fn a_total_that_grows_has_no_percentage() {
        let total = Total::AtLeast(Amount { entries: 9_000, bytes: 20 << 30 });
        let figures = Figures { total, estimate: None, errors: 0, ..figures() };
        let plain = Form { is_utf8: false, ..FORM };
        assert_eq!(
            plain.line(&figures),
            "copying, 8.00 GiB of >=20.0 GiB, 867 MiB/s now, 3,107 of >=9,000 entries, 10:01 elapsed, mean 840 MiB/s, \
             limit: destination (61 % of the time)"
        );
    }

    #[test]
    fn a_step_at_the_end_counts_its_own() {
        let done = Amount { entries: 1_204, bytes: 0 };
        let figures = Figures {
            doing: "deleting",
            is_main: false,
            done,
            total: Total::Unknown,
            estimate: None,
            errors: 0,
            limit: None,
            ..figures()
        };
        assert_eq!(FORM.lines(&figures, 80), "deleting\n1,204 entries  10:01 elapsed");
    }

    #[test]
    fn what_stands_still_is_named() {
        let oldest = Some((b"/scratch/a b".to_vec(), Duration::from_secs(75)));
        let figures = Figures { oldest, errors: 0, limit: None, ..figures() };
        let second = "3,107 of 6,900 entries  waiting 1:15 for '/scratch/a b'  10:01 elapsed";
        assert!(FORM.lines(&figures, 80).ends_with(second), "{}", FORM.lines(&figures, 80));
    }
}
