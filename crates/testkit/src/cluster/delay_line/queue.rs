//! What happens to packets on a line, as a function of time: no clock, no I/O.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Duration;

use super::LineOptions;

/// The most that is kept in memory, whatever the rate: more than a window of TCP.
const HELD_MAX: u64 = 256 << 20;
/// Segments that arrive together leave together if the line is busy with them for less than this: about 64 KiB at 1 Gbit/s. On a
/// slower line they would bring a window of TCP in few lumps.
const TOGETHER_MAX: Duration = Duration::from_millis(1);

/// The part of [`LineOptions`] that decides.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    delay: Duration,
    rate_bytes_per_s: Option<NonZeroU64>,
    loss: f64,
    queue_bytes: u64,
    outages: Vec<Range<Duration>>,
}

impl Rule {
    pub(super) fn of(options: &LineOptions) -> Self {
        Self {
            delay: options.delay,
            rate_bytes_per_s: options.rate_bytes_per_s,
            loss: options.loss,
            queue_bytes: options.queue_bytes,
            outages: options.outages.clone(),
        }
    }

    /// How much later than due a packet may leave, so that the thread wakes once for several packets. The 50 us that the kernel allows
    /// by default cost half as much processor time again, at 1 Gbit/s with eight streams.
    pub(super) fn slack(&self) -> Duration {
        (self.delay / 100).clamp(Duration::from_micros(50), Duration::from_micros(500))
    }

    fn is_outage(&self, now: Duration) -> bool {
        self.outages.iter().any(|outage| outage.contains(&now))
    }

    /// How long the line is busy with so many bytes.
    fn busy(&self, bytes: u64) -> Duration {
        let nanoseconds =
            |rate: NonZeroU64| u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
        Duration::from_nanos(self.rate_bytes_per_s.map_or(0, |rate| nanoseconds(rate) as u64))
    }
}

/// A segment that reaches the queue: all of a packet, or one of many that the kernel passes in one packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) bytes: u64,
    /// A random number from 0 to 1: lost if it is below the loss.
    pub(super) draw: f64,
}

/// What becomes of a segment that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// It leaves the line at this time.
    Held(Duration),
    /// It is lost on the way; the line is busy with it all the same.
    Lost,
    /// Too much is waiting already.
    Overflowed,
    /// The line drops everything.
    Silenced,
}

/// Segments of a packet that leave the line together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) segments: Range<usize>,
    bytes: u64,
    /// When the line has sent the first one, and the last one.
    due: [Duration; 2],
}

/// What becomes of the segments of a packet that arrives.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Admission {
    /// Those that the line passes.
    pub(super) spans: Vec<Span>,
    pub(super) lost: u64,
    pub(super) overflowed: u64,
    pub(super) silenced: u64,
}

impl Admission {
    fn add(&mut self, number: usize, bytes: u64, due: Duration) {
        match self.spans.last_mut() {
            Some(span) if span.segments.end == number && due < span.due[0] + TOGETHER_MAX => {
                span.segments.end += 1;
                span.bytes += bytes;
                span.due[1] = due;
            }
            _ => self.spans.push(Span { segments: number..number + 1, bytes, due: [due; 2] }),
        }
    }
}

/// What becomes of a packet that was held until it is due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Departure<P> {
    Delivered(P),
    /// The line drops everything.
    Silenced(P),
}

#[derive(Debug)]
struct Held<P> {
    due: Duration,
    bytes: u64,
    packet: P,
}

/// The packets that wait for the line or are on it, in the order in which they leave.
#[derive(Debug)]
pub(super) struct Queue<P> {
    rule: Rule,
    held: VecDeque<Held<P>>,
    held_bytes: u64,
    /// When the line has sent everything that waits for it.
    free_at: Duration,
}

impl<P> Queue<P> {
    pub(super) fn new(rule: Rule) -> Self {
        Self { rule, held: VecDeque::new(), held_bytes: 0, free_at: Duration::ZERO }
    }

    /// Decides about the segments of a packet. The caller has each span held. Times never decrease from call to call.
    pub(super) fn admit(
        &mut self,
        now: Duration,
        segments: impl Iterator<Item = Segment>,
        is_off: bool,
    ) -> Admission {
        let mut admission = Admission::default();
        for (number, segment) in segments.enumerate() {
            // A short last segment does not slip in where a longer one found no room.
            let decision = if admission.overflowed > 0 {
                Decision::Overflowed
            } else {
                self.decide(now, segment, is_off)
            };
            match decision {
                Decision::Held(due) => admission.add(number, segment.bytes, due),
                Decision::Lost => admission.lost += 1,
                Decision::Overflowed => admission.overflowed += 1,
                Decision::Silenced => admission.silenced += 1,
            }
        }
        admission
    }

    /// Holds the packet of a span until it is due.
    pub(super) fn hold(&mut self, span: &Span, packet: P) {
        self.held.push_back(Held { due: span.due[1], bytes: span.bytes, packet });
    }

    fn decide(&mut self, now: Duration, segment: Segment, is_off: bool) -> Decision {
        let Segment { bytes, draw } = segment;
        if is_off || self.rule.is_outage(now) {
            return Decision::Silenced;
        }
        let waiting = self.waiting_bytes(now);
        // One packet always fits, however small the queue is.
        let is_full = waiting > 0 && waiting + bytes > self.rule.queue_bytes;
        if is_full || self.held_bytes + bytes > HELD_MAX {
            return Decision::Overflowed;
        }
        self.free_at = self.free_at.max(now) + self.rule.busy(bytes);
        if draw < self.rule.loss {
            return Decision::Lost;
        }
        let due = self.free_at + self.rule.delay;
        self.held_bytes += bytes;
        Decision::Held(due)
    }

    /// The next packet whose time has come.
    pub(super) fn leave(&mut self, now: Duration, is_off: bool) -> Option<Departure<P>> {
        if self.next_due()? > now {
            return None;
        }
        let Held { bytes, packet, .. } = self.held.pop_front()?;
        self.held_bytes -= bytes;
        let silenced = is_off || self.rule.is_outage(now);
        Some(if silenced { Departure::Silenced(packet) } else { Departure::Delivered(packet) })
    }

    /// When the next packet leaves.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.held.front().map(|held| held.due)
    }

    /// Bytes that the line has not sent yet.
    fn waiting_bytes(&self, now: Duration) -> u64 {
        let Some(rate) = self.rule.rate_bytes_per_s else { return 0 };
        let left = self.free_at.saturating_sub(now).as_nanos();
        (left * u128::from(rate.get())).div_ceil(1_000_000_000) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn queue(options: &LineOptions) -> Queue<u32> {
        Queue::new(Rule::of(options))
    }

    /// A packet of one segment.
    #[derive(Clone, Copy)]
    struct Arrival {
        packet: u32,
        bytes: u64,
        draw: f64,
    }

    fn packet(number: u32, bytes: u64) -> Arrival {
        Arrival { packet: number, bytes, draw: 0.5 }
    }

    impl Queue<u32> {
        fn arrive(&mut self, now: Duration, arrival: Arrival, is_off: bool) -> Decision {
            let Arrival { packet, bytes, draw } = arrival;
            let segment = Segment { bytes, draw };
            match self.admit(now, std::iter::once(segment), is_off) {
                Admission { lost: 1, .. } => Decision::Lost,
                Admission { overflowed: 1, .. } => Decision::Overflowed,
                Admission { silenced: 1, .. } => Decision::Silenced,
                Admission { spans, .. } => {
                    self.hold(&spans[0], packet);
                    Decision::Held(spans[0].due[1])
                }
            }
        }
    }

    /// Segments of these lengths.
    fn segments(bytes: &[u64]) -> impl Iterator<Item = Segment> {
        bytes.iter().map(|bytes| Segment { bytes: *bytes, draw: 0.5 })
    }

    fn span(segments: Range<usize>, bytes: u64, due: [Duration; 2]) -> Span {
        Span { segments, bytes, due }
    }

    /// All packets with the time at which each leaves.
    fn departures(queue: &mut Queue<u32>) -> Vec<(Duration, Departure<u32>)> {
        let mut all = Vec::new();
        while let Some(due) = queue.next_due() {
            all.push((due, queue.leave(due, false).unwrap()));
        }
        all
    }

    #[test]
    fn packets_leave_after_the_delay_and_not_before() {
        let mut queue = queue(&LineOptions { delay: 25 * MS, ..LineOptions::default() });
        assert_eq!(queue.next_due(), None);
        assert_eq!(queue.arrive(10 * MS, packet(1, 1500), false), Decision::Held(35 * MS));
        assert_eq!(queue.arrive(11 * MS, packet(2, 40), false), Decision::Held(36 * MS));
        assert_eq!(queue.leave(Duration::from_micros(34_999), false), None);
        assert_eq!(queue.leave(35 * MS, false), Some(Departure::Delivered(1)));
        assert_eq!(queue.leave(35 * MS, false), None);
        assert_eq!(queue.leave(90 * MS, false), Some(Departure::Delivered(2)));
        assert_eq!(queue.held_bytes, 0);
    }

    #[test]
    fn a_rate_sends_one_packet_after_the_other() {
        let rate_bytes_per_s = NonZeroU64::new(1_000_000);
        let options = LineOptions { delay: 10 * MS, rate_bytes_per_s, ..LineOptions::default() };
        let mut queue = queue(&options);
        // 1000 bytes take a millisecond.
        for number in 0..3 {
            queue.arrive(Duration::ZERO, packet(number, 1000), false);
        }
        queue.arrive(20 * MS, packet(3, 500), false);
        let times: Vec<Duration> = departures(&mut queue).into_iter().map(|(due, _)| due).collect();
        assert_eq!(times, [11 * MS, 12 * MS, 13 * MS, 30 * MS + MS / 2]);
    }

    #[test]
    fn a_full_queue_drops_what_comes_last_and_takes_more_when_it_has_room() {
        let rate_bytes_per_s = NonZeroU64::new(1_000_000);
        let options = LineOptions { rate_bytes_per_s, queue_bytes: 2500, ..LineOptions::default() };
        let mut queue = queue(&options);
        assert_eq!(queue.arrive(Duration::ZERO, packet(1, 1000), false), Decision::Held(MS));
        assert_eq!(queue.arrive(Duration::ZERO, packet(2, 1000), false), Decision::Held(2 * MS));
        assert_eq!(queue.arrive(Duration::ZERO, packet(3, 1000), false), Decision::Overflowed);
        assert_eq!(queue.arrive(MS / 2, packet(4, 1000), false), Decision::Held(3 * MS));
        let left = departures(&mut queue).into_iter().map(|(_, departure)| departure);
        assert_eq!(left.collect::<Vec<_>>(), [1, 2, 4].map(Departure::Delivered));
    }

    #[test]
    fn a_packet_larger_than_the_queue_passes_alone() {
        let rate_bytes_per_s = NonZeroU64::new(1_000_000);
        let options = LineOptions { rate_bytes_per_s, queue_bytes: 100, ..LineOptions::default() };
        let mut queue = queue(&options);
        assert_eq!(queue.arrive(Duration::ZERO, packet(1, 1000), false), Decision::Held(MS));
        assert_eq!(queue.arrive(Duration::ZERO, packet(2, 1), false), Decision::Overflowed);
        assert_eq!(queue.arrive(MS, packet(3, 1000), false), Decision::Held(2 * MS));
    }

    #[test]
    fn memory_is_bounded_without_a_rate() {
        let mut queue = queue(&LineOptions { delay: 10 * MS, ..LineOptions::default() });
        for number in 0..4 {
            queue.arrive(Duration::ZERO, packet(number, HELD_MAX / 4), false);
        }
        assert_eq!(queue.arrive(Duration::ZERO, packet(4, 1), false), Decision::Overflowed);
        assert!(queue.leave(10 * MS, false).is_some());
        assert_eq!(queue.arrive(10 * MS, packet(5, 1), false), Decision::Held(20 * MS));
    }

    #[test]
    fn draws_below_the_loss_are_lost_and_keep_the_line_busy() {
        let rate_bytes_per_s = NonZeroU64::new(1_000_000);
        let options = LineOptions { loss: 0.01, rate_bytes_per_s, ..LineOptions::default() };
        let mut queue = queue(&options);
        let lost = Arrival { draw: 0.009, ..packet(1, 1000) };
        assert_eq!(queue.arrive(Duration::ZERO, lost, false), Decision::Lost);
        let kept = Arrival { draw: 0.01, ..packet(2, 1000) };
        assert_eq!(queue.arrive(Duration::ZERO, kept, false), Decision::Held(2 * MS));
    }

    #[test]
    fn an_outage_drops_what_arrives_and_what_is_due() {
        let outages = vec![100 * MS..200 * MS, 300 * MS..400 * MS];
        let mut queue = queue(&LineOptions { delay: 25 * MS, outages, ..LineOptions::default() });
        assert_eq!(queue.arrive(90 * MS, packet(1, 100), false), Decision::Held(115 * MS));
        assert_eq!(queue.arrive(100 * MS, packet(2, 100), false), Decision::Silenced);
        assert_eq!(queue.leave(115 * MS, false), Some(Departure::Silenced(1)));
        assert_eq!(queue.arrive(200 * MS, packet(3, 100), false), Decision::Held(225 * MS));
        assert_eq!(queue.leave(225 * MS, false), Some(Departure::Delivered(3)));
        assert_eq!(queue.arrive(350 * MS, packet(4, 100), false), Decision::Silenced);
    }

    #[test]
    fn a_line_that_is_off_drops_everything() {
        let mut queue = queue(&LineOptions { delay: 25 * MS, ..LineOptions::default() });
        assert_eq!(queue.arrive(Duration::ZERO, packet(1, 100), true), Decision::Silenced);
        queue.arrive(MS, packet(2, 100), false);
        assert_eq!(queue.leave(26 * MS, true), Some(Departure::Silenced(2)));
        queue.arrive(30 * MS, packet(3, 100), false);
        assert_eq!(queue.leave(55 * MS, false), Some(Departure::Delivered(3)));
    }

    #[test]
    fn segments_leave_together_when_the_line_has_sent_the_last_one() {
        let rate_bytes_per_s = NonZeroU64::new(100_000_000);
        let options = LineOptions { delay: 10 * MS, rate_bytes_per_s, ..LineOptions::default() };
        let mut queue = queue(&options);
        let us = Duration::from_micros(1);
        let admission = queue.admit(MS, segments(&[1000, 1000, 500]), false);
        let only = span(0..3, 2500, [11 * MS + 10 * us, 11 * MS + 25 * us]);
        assert_eq!(admission, Admission { spans: vec![only.clone()], ..Admission::default() });
        queue.hold(&only, 1);
        assert_eq!(queue.leave(11 * MS + 24 * us, false), None);
        assert_eq!(queue.leave(11 * MS + 25 * us, false), Some(Departure::Delivered(1)));
        assert_eq!(queue.held_bytes, 0);
    }

    #[test]
    fn a_slow_line_passes_segments_in_small_runs() {
        // 1000 bytes take 0.4 ms, so that three of them are due within a millisecond.
        let rate_bytes_per_s = NonZeroU64::new(2_500_000);
        let mut queue = queue(&LineOptions { rate_bytes_per_s, ..LineOptions::default() });
        let admission = queue.admit(Duration::ZERO, segments(&[1000; 7]), false);
        let ranges: Vec<_> = admission.spans.iter().map(|span| span.segments.clone()).collect();
        assert_eq!(ranges, [0..3, 3..6, 6..7]);
        assert_eq!(admission.spans[1].due, [MS * 8 / 5, MS * 12 / 5]);
    }

    #[test]
    fn a_lost_segment_parts_those_around_it() {
        let rate_bytes_per_s = NonZeroU64::new(10_000_000);
        let options = LineOptions { loss: 0.01, rate_bytes_per_s, ..LineOptions::default() };
        let mut queue = queue(&options);
        let draws = [0.5, 0.5, 0.001, 0.5, 0.001].map(|draw| Segment { bytes: 1000, draw });
        let Admission { spans, lost, .. } = queue.admit(Duration::ZERO, draws.into_iter(), false);
        assert_eq!(lost, 2);
        let before = span(0..2, 2000, [MS / 10, MS / 5]);
        assert_eq!(spans, [before, span(3..4, 1000, [MS * 2 / 5; 2])]);
        // The line was busy with the lost ones.
        assert_eq!(queue.free_at, MS / 2);
        assert_eq!(queue.held_bytes, 3000);
    }

    #[test]
    fn an_overflow_drops_all_that_follows_in_the_packet() {
        let rate_bytes_per_s = NonZeroU64::new(10_000_000);
        let options = LineOptions { rate_bytes_per_s, queue_bytes: 2500, ..LineOptions::default() };
        let mut queue = queue(&options);
        let admission = queue.admit(Duration::ZERO, segments(&[1000, 1000, 1000, 100]), false);
        let spans = vec![span(0..2, 2000, [MS / 10, MS / 5])];
        assert_eq!(admission, Admission { spans, overflowed: 2, ..Admission::default() });
        let admission = queue.admit(Duration::ZERO, segments(&[100]), false);
        assert_eq!(admission.spans, [span(0..1, 100, [MS * 21 / 100; 2])]);
    }

    #[test]
    fn a_silent_line_drops_every_segment() {
        let mut queue = queue(&LineOptions::default());
        let admission = queue.admit(Duration::ZERO, segments(&[1000; 3]), true);
        assert_eq!(admission, Admission { silenced: 3, ..Admission::default() });
    }
}
