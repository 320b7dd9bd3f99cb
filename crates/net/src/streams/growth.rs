//! How many streams a line should have. No clock, no I/O.
use dmover_host::tcp::TcpInfo;
use dmover_wire::streams::StreamSettings;

use super::STREAMS_GROWN;

/// More streams are wanted if the share of segments that are lost is at least this, in so many segments, twice in a row: when
/// streams begin they send too much once, and lose some of it...
const LOSS_LEAST: f64 = 1e-5;
const SEGMENTS_LEAST: u64 = 20_000;
/// ...and the round trip is no longer than this many times the shortest one: then no queue on the way is full, which more
/// streams would only fill sooner.
const QUEUED: f64 = 1.2;

/// What was counted when it was last decided how many streams are wanted.
#[derive(Debug, Default)]
pub(super) struct Counted {
    streams: usize,
    segments: u64,
    retransmits: u64,
    /// More were wanted when enough segments had been counted before.
    was_lossy: bool,
}

impl Counted {
    /// How many streams would carry more than these. One that loses packets by chance carries little, and several share the
    /// losses.
    pub fn wanted(&mut self, known: &[TcpInfo]) -> Option<u64> {
        let segments = known.iter().map(|info| u64::from(info.segments)).sum();
        let retransmits = known.iter().map(|info| u64::from(info.retransmits)).sum();
        let now = Self { streams: known.len(), segments, retransmits, was_lossy: false };
        let before = std::mem::replace(self, now);
        if before.streams != known.len() || segments < before.segments {
            return None;
        }
        if segments - before.segments < SEGMENTS_LEAST {
            *self = before;
            return None;
        }
        let lost = retransmits.saturating_sub(before.retransmits) as f64;
        let is_lossy = lost / (segments - before.segments) as f64 >= LOSS_LEAST;
        let sum = |of: fn(&TcpInfo) -> u32| known.iter().map(of).map(f64::from).sum::<f64>();
        let is_queued =
            sum(|info| info.round_trip_us) > QUEUED * sum(|info| info.least_round_trip_us);
        self.was_lossy = is_lossy && !is_queued;
        (before.was_lossy && self.was_lossy).then_some(2 * known.len() as u64)
    }
}

/// How many streams the side that connects keeps open. `wanted`: what either side wants; zero: as many as there are.
pub(super) fn kept(settings: &StreamSettings, wanted: u32) -> usize {
    let more = if settings.grows { wanted.min(STREAMS_GROWN) } else { 0 };
    settings.count.max(more) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAMS: u32 = 8;

    /// Streams that have sent so many segments in all, at this multiple of the shortest round trip.
    fn line(segments: u32, retransmits: u32, queued: f64) -> Vec<TcpInfo> {
        let info = |place| TcpInfo {
            round_trip_us: (50_000.0 * queued) as u32,
            least_round_trip_us: 50_000,
            retransmits: if place == 0 { retransmits } else { 0 },
            segments: segments / STREAMS,
            acknowledged_bytes: 0,
            received_bytes: 0,
            ..TcpInfo::default()
        };
        (0..STREAMS).map(info).collect()
    }

    /// Of streams that lost packets when they began.
    fn counted() -> Counted {
        let mut counted = Counted::default();
        assert_eq!(counted.wanted(&line(0, 0, 1.0)), None, "the number of streams was another one");
        counted.was_lossy = true;
        counted
    }

    #[test]
    fn losses_count_if_they_do_not_end_with_the_begin() {
        let mut counted = Counted { was_lossy: false, ..counted() };
        assert_eq!(counted.wanted(&line(200_000, 5_000, 1.0)), None, "the first time");
        assert_eq!(counted.wanted(&line(400_000, 5_000, 1.0)), None, "they have ended");
        assert_eq!(counted.wanted(&line(600_000, 5_010, 1.0)), None, "the first time again");
        assert_eq!(counted.wanted(&line(800_000, 5_020, 1.0)), Some(16));
    }

    #[test]
    fn a_line_that_loses_segments_without_a_queue_gets_twice_as_many_streams() {
        for (segments, retransmits, queued, wanted) in [
            (200_000, 2, 1.0, Some(16)),
            (200_000, 2, 1.2, Some(16)),
            (200_000, 1, 1.0, None),
            (200_000, 0, 1.0, None),
            (200_000, 2, 1.21, None),
            (200_000, 2_000, 2.0, None),
            (20_000, 1, 1.0, Some(16)),
            (19_992, 1, 1.0, None),
        ] {
            let found = counted().wanted(&line(segments, retransmits, queued));
            assert_eq!(found, wanted, "{retransmits} of {segments} at {queued}");
        }
    }

    #[test]
    fn segments_are_counted_until_there_are_enough() {
        let mut counted = counted();
        assert_eq!(counted.wanted(&line(16_000, 1, 1.0)), None);
        assert_eq!(counted.wanted(&line(20_000, 1, 1.0)), Some(16), "the first ones count, too");
        assert_eq!(counted.wanted(&line(220_000, 1, 1.0)), None, "the loss counts once");
        assert_eq!(counted.wanted(&line(420_000, 3, 1.0)), None, "the first time again");
        assert_eq!(counted.wanted(&line(620_000, 5, 1.0)), Some(16));
    }

    #[test]
    fn it_is_not_decided_while_streams_come_and_go() {
        let mut counted = counted();
        let many = line(200_000, 200, 1.0);
        assert_eq!(counted.wanted(&many[..7]), None, "one has ended");
        assert_eq!(counted.wanted(&many[..7]), None, "nothing was sent since");
        // One was replaced by another one, which begins at zero.
        assert_eq!(counted.wanted(&line(8_000, 1, 1.0)[..7]), None);
        assert_eq!(counted.wanted(&line(200_000, 200, 1.0)[..7]), None, "the first time");
        assert_eq!(counted.wanted(&line(400_000, 400, 1.0)[..7]), Some(14));
    }

    #[test]
    fn a_line_grows_to_32_streams_and_only_if_no_number_was_given() {
        let options =
            |count, grows| StreamSettings { count, grows, ..crate::StreamOptions::none().settings };
        for (count, grows, wanted, open) in [
            (8, true, 0, 8),
            (8, true, 16, 16),
            (8, true, 32, 32),
            (8, true, 64, 32),
            (8, true, u32::MAX, 32),
            (8, true, 4, 8),
            (8, false, 16, 8),
            (40, false, 80, 40),
        ] {
            assert_eq!(kept(&options(count, grows), wanted), open, "{count} {grows} {wanted}");
        }
    }
}
