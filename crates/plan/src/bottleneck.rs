//! Finds what limits the speed of a job, from a sampled profile of its movers.
use dmover_model::{Bottleneck, Limit};
use serde::{Deserialize, Serialize};

use crate::line_limit::{LineFacts, LineLimit, line_limit};

/// Samples of what movers were doing, and the load of the host during that time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Profile {
    /// Waiting for a task.
    pub idle: u64,
    /// Reading names and attributes of the source.
    pub source_names: u64,
    /// Reading content.
    pub source_data: u64,
    /// Reading or setting names and attributes of the destination.
    pub target_names: u64,
    /// Writing or flushing content.
    pub target_data: u64,
    /// Copying inside the kernel, where reading and writing cannot be distinguished.
    pub kernel_copy: u64,
    /// Waiting for a limit that the user set.
    pub capped: u64,
    /// The share of CPU time that all processes of the host used, from 0 to 1; `None` if unknown.
    pub processors_busy: Option<f64>,
    /// As many movers run as are allowed, and the last increase made the job faster.
    pub bounded: bool,
}

/// With fewer samples, the limit is unknown.
const SAMPLES_MIN: u64 = 10;
/// Processors with more than this share of busy time are saturated.
const SATURATED: f64 = 0.9;

impl Profile {
    fn at_work(&self) -> u64 {
        let names = self.source_names + self.target_names;
        let data = self.source_data + self.target_data + self.kernel_copy;
        names + data + self.capped
    }

    /// Adds the samples of another period; the load of the host is taken from `other`.
    pub fn add(&mut self, other: &Self) {
        self.idle += other.idle;
        self.source_names += other.source_names;
        self.source_data += other.source_data;
        self.target_names += other.target_names;
        self.target_data += other.target_data;
        self.kernel_copy += other.kernel_copy;
        self.capped += other.capped;
        self.processors_busy = other.processors_busy;
        self.bounded = other.bounded;
    }

    /// The limit, with its evidence.
    pub fn limit(&self) -> Limit {
        let at_work = self.at_work();
        if at_work < SAMPLES_MIN {
            return Limit {
                what: Bottleneck::Unknown,
                evidence: "the job is too short to measure".into(),
            };
        }
        let busy = self.processors_busy.map_or(String::new(), |busy| {
            format!("; the host's CPUs are {:.0} % busy", busy * 100.0)
        });
        let say = |what, words: String| Limit { what, evidence: words + &busy };
        if self.capped * 2 >= at_work {
            return say(Bottleneck::Cap, self.where_most(at_work));
        }
        if self.processors_busy.is_some_and(|busy| busy >= SATURATED) {
            return say(Bottleneck::Cpu, self.where_most(at_work));
        }
        if self.bounded && self.idle < at_work / 4 {
            return say(
                Bottleneck::Cap,
                format!(
                    "the number of movers is at its limit (-j or the default); {}",
                    self.where_most(at_work)
                ),
            );
        }
        let names = self.source_names + self.target_names;
        let kernel = self.kernel_copy;
        let most = [
            (names, Bottleneck::Metadata),
            (self.source_data, Bottleneck::Source),
            (self.target_data + kernel, Bottleneck::Destination),
        ];
        let what = most.into_iter().max_by_key(|(samples, _)| *samples).map(|(_, what)| what);
        say(what.unwrap_or(Bottleneck::Unknown), self.where_most(at_work))
    }

    /// The limit of a job whose SOURCE is on other hosts. `line`: what is known of the connections to them.
    pub fn limit_over(&self, line: &LineFacts) -> Limit {
        let limit = self.limit();
        if !matches!(limit.what, Bottleneck::Source | Bottleneck::Metadata) {
            return limit;
        }
        let what = match line_limit(line) {
            LineLimit::Window => Bottleneck::Window,
            LineLimit::Loss => Bottleneck::Loss,
            _ if line.has_queue() => Bottleneck::Line,
            // The line has room: the other host does not send faster, or is not asked faster.
            _ => limit.what,
        };
        Limit { what, evidence: format!("{}; {}", limit.evidence, line.words()) }
    }

    /// The activity in which movers spent most of their time.
    fn where_most(&self, at_work: u64) -> String {
        let places = [
            (self.source_names, "on source metadata"),
            (self.source_data, "reading"),
            (self.target_names, "on destination metadata"),
            (self.target_data, "writing"),
            (self.kernel_copy, "copying in the kernel"),
            (self.capped, "waiting for --bwlimit or --ops-limit"),
        ];
        let (samples, place) = places.into_iter().max_by_key(|p| p.0).unwrap_or((0, "nowhere"));
        format!("movers spend {} % of their time {place}", samples * 100 / at_work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(profile: Profile) -> Bottleneck {
        profile.limit().what
    }

    #[test]
    fn the_largest_part_is_named() {
        let idle = Some(0.4);
        let busy = |profile| Profile { processors_busy: idle, ..profile };
        let none = Profile::default();
        assert_eq!(
            what(busy(Profile { source_data: 60, target_data: 40, ..none })),
            Bottleneck::Source
        );
        assert_eq!(
            what(busy(Profile { source_data: 30, target_data: 20, kernel_copy: 20, ..none })),
            Bottleneck::Destination
        );
        assert_eq!(
            what(busy(Profile { source_names: 30, target_names: 20, target_data: 40, ..none })),
            Bottleneck::Metadata
        );
    }

    #[test]
    fn caps_and_processors_come_first() {
        let profile =
            Profile { target_data: 100, processors_busy: Some(0.97), ..Profile::default() };
        assert_eq!(what(profile), Bottleneck::Cpu);
        assert_eq!(what(Profile { capped: 100, ..profile }), Bottleneck::Cap);
        let free = Profile { processors_busy: Some(0.2), bounded: true, ..profile };
        assert_eq!(what(free), Bottleneck::Cap);
        assert_eq!(what(Profile { idle: 50, ..free }), Bottleneck::Destination);
    }

    #[test]
    fn the_line_is_named_if_reading_waits_for_it() {
        let reads = Profile { source_data: 90, target_data: 10, ..Profile::default() };
        // 100 MB/s over 50 ms.
        let free = LineFacts {
            rate: 1e8,
            round_trips: Some((0.05, 0.05)),
            streams: 8,
            buffer: Some(6 << 20),
            ..LineFacts::default()
        };
        let window = LineFacts { buffer: Some(1 << 20), ..free };
        let loss = LineFacts { received: (100_000, 1000), ..free };
        let queue = LineFacts { round_trips: Some((0.08, 0.05)), ..loss };
        for (line, what) in [
            (free, Bottleneck::Source),
            (window, Bottleneck::Window),
            (loss, Bottleneck::Loss),
            (queue, Bottleneck::Line),
        ] {
            assert_eq!(reads.limit_over(&line).what, what, "{line:?}");
        }
        let writes = Profile { source_data: 10, target_data: 90, ..Profile::default() };
        assert_eq!(writes.limit_over(&window), writes.limit());
        let said = reads.limit_over(&loss).evidence;
        let line = "8 data streams carry 95.4 MiB/s at a round trip of 50.0 ms (least 50.0 ms), so \
            4.77 MiB are on the way, 1.00 % of segments out of order";
        assert_eq!(said, format!("movers spend 90 % of their time reading; {line}"));
    }

    #[test]
    fn a_few_samples_say_nothing() {
        assert_eq!(what(Profile { source_data: 9, ..Profile::default() }), Bottleneck::Unknown);
    }

    #[test]
    fn the_evidence_has_numbers() {
        let profile = Profile { source_data: 75, target_data: 25, ..Profile::default() };
        let said = Profile { processors_busy: Some(0.5), ..profile }.limit().evidence;
        assert_eq!(said, "movers spend 75 % of their time reading; the host's CPUs are 50 % busy");
    }
}
