//! Whether streams deliver what they take, and whether they are alive. No clock, no I/O.
use std::sync::atomic::Ordering::Relaxed;

use super::outgoing::StreamNumber;
use super::shared::Stream;

/// A stream says that it is alive after so long without a word.
pub(super) const BEAT_MS: u64 = 1_000;
/// A stream from which nothing was heard for so long is closed. Whoever has opened it opens another one, which works sooner
/// after an outage than TCP, whose pauses between attempts grow with the outage.
const SILENT_MS: u64 = 10_000;
/// If the other side waits for a chunk for so long, and its stream delivers nothing meanwhile while others are alive, they
/// send it, too.
const OVERDUE_MS: u64 = 2_000;

/// What is known of a stream. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Health {
    pub number: StreamNumber,
    pub is_spare: bool,
    /// When something was heard.
    pub heard_ms: u64,
    /// When the other side has acknowledged bytes; `None`: there is no kernel to ask.
    pub delivered_ms: Option<u64>,
    /// Since when it gets nothing because it seems to deliver nothing.
    pub doubted_ms: Option<u64>,
}

impl Health {
    pub fn of(stream: &Stream) -> Self {
        let doubted = stream.doubted_ms.load(Relaxed);
        Self {
            number: stream.number,
            is_spare: stream.is_spare,
            heard_ms: stream.heard_ms.load(Relaxed),
            delivered_ms: stream.socket.as_ref().map(|_| stream.delivered_ms.load(Relaxed)),
            doubted_ms: (doubted != 0).then_some(doubted),
        }
    }

    /// Whether it delivers again after it was doubted.
    pub fn has_recovered(&self) -> bool {
        let progress = self.delivered_ms.unwrap_or(self.heard_ms);
        self.doubted_ms.is_some_and(|since| progress > since)
    }

    /// Whether nothing was heard of it, or nothing was delivered by it, for too long. A spare stream is never replaced, so it
    /// may be silent for as long as the whole pool may be.
    pub fn is_silent(&self, now: u64) -> bool {
        let is_long = |since: u64| now.saturating_sub(since) >= SILENT_MS;
        !self.is_spare && (is_long(self.heard_ms) || self.doubted_ms.is_some_and(is_long))
    }

    /// Whether the kernel there takes bytes of it, however slowly.
    fn delivers(&self, now: u64) -> bool {
        self.delivered_ms.is_some_and(|at| now.saturating_sub(at) < OVERDUE_MS)
    }
}

/// The stream whose chunks others should send, too. `oldest`: the stream with the chunk that the other side waits for, and when
/// it took that chunk.
pub(super) fn stuck(
    streams: &[Health],
    oldest: Option<(StreamNumber, u64)>,
    now: u64,
) -> Option<StreamNumber> {
    let (by, at) = oldest?;
    if now.saturating_sub(at) < OVERDUE_MS {
        return None;
    }
    let late = streams.iter().find(|stream| stream.number == by)?;
    // If no other one was heard since, the line is down, and the others would deliver nothing either.
    let could_carry = |other: &Health| {
        other.number != by && other.doubted_ms.is_none() && other.heard_ms > at + BEAT_MS
    };
    (!late.delivers(now) && streams.iter().any(could_carry)).then_some(by)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 100_000;
    /// When stream 1 has taken the chunk that the other side waits for.
    const TAKEN: u64 = NOW - 5_000;

    fn healthy(number: StreamNumber) -> Health {
        let (heard_ms, delivered_ms) = (NOW - 100, Some(NOW - 100));
        Health { number, is_spare: false, heard_ms, delivered_ms, doubted_ms: None }
    }

    fn late() -> Health {
        Health { delivered_ms: Some(TAKEN), ..healthy(1) }
    }

    fn doubts(streams: &[Health], taken: u64) -> bool {
        let found = stuck(streams, Some((1, taken)), NOW);
        assert!(found.is_none_or(|number| number == 1), "another stream is doubted");
        found.is_some()
    }

    #[test]
    fn a_stream_that_delivers_nothing_is_doubted_after_two_seconds() {
        let streams = [late(), healthy(2)];
        assert!(doubts(&streams, TAKEN));
        assert!(doubts(&streams, NOW - OVERDUE_MS));
        assert!(!doubts(&streams, NOW - OVERDUE_MS + 1));
        assert_eq!(stuck(&streams, None, NOW), None, "the other side waits for nothing");
    }

    #[test]
    fn a_slow_stream_whose_bytes_are_acknowledged_is_not_doubted() {
        for taken in [TAKEN, NOW - 60_000, 0] {
            assert!(!doubts(&[healthy(1), healthy(2)], taken), "{taken}");
            let ago = |ms| Health { delivered_ms: Some(NOW - ms), ..healthy(1) };
            assert!(!doubts(&[ago(OVERDUE_MS - 1), healthy(2)], taken), "{taken}");
            assert!(doubts(&[ago(OVERDUE_MS), healthy(2)], taken), "{taken}");
        }
    }

    #[test]
    fn a_stream_that_is_heard_and_delivers_nothing_is_doubted() {
        assert!(doubts(&[Health { heard_ms: NOW, ..late() }, healthy(2)], TAKEN));
    }

    #[test]
    fn a_stream_without_a_kernel_to_ask_is_doubted_by_time_alone() {
        assert!(doubts(&[Health { delivered_ms: None, ..healthy(1) }, healthy(2)], TAKEN));
    }

    #[test]
    fn a_stream_is_doubted_only_if_another_one_can_carry_its_chunks() {
        assert!(!doubts(&[late()], TAKEN), "there is no other one");
        assert!(!doubts(&[healthy(2), healthy(3)], TAKEN), "it has ended");
        let doubted = Health { doubted_ms: Some(NOW - 1), ..healthy(2) };
        assert!(!doubts(&[late(), doubted], TAKEN), "the other one is doubted");
        let other = |heard_ms| Health { heard_ms, ..healthy(2) };
        // What was heard soon after the chunk was taken may have been sent before an outage.
        assert!(!doubts(&[late(), other(TAKEN + BEAT_MS)], TAKEN), "the line is down");
        assert!(doubts(&[late(), other(TAKEN + BEAT_MS + 1)], TAKEN));
        let spare = Health { is_spare: true, delivered_ms: None, ..healthy(2) };
        assert!(doubts(&[late(), spare], TAKEN));
    }

    #[test]
    fn a_doubted_stream_that_delivers_again_is_used_again() {
        let doubted = |delivered_ms, heard_ms| Health {
            delivered_ms,
            heard_ms,
            doubted_ms: Some(TAKEN),
            ..healthy(1)
        };
        assert!(doubted(Some(TAKEN + 1), 0).has_recovered());
        assert!(!doubted(Some(TAKEN), NOW).has_recovered(), "only heard");
        assert!(doubted(None, TAKEN + 1).has_recovered());
        assert!(!doubted(None, TAKEN).has_recovered());
        assert!(!healthy(1).has_recovered(), "it was never doubted");
    }

    #[test]
    fn a_stream_is_silent_after_ten_seconds_without_a_word_or_a_delivery() {
        let heard = |ms| Health { heard_ms: NOW - ms, ..healthy(1) };
        assert!(!heard(SILENT_MS - 1).is_silent(NOW));
        assert!(heard(SILENT_MS).is_silent(NOW));
        assert!(!Health { is_spare: true, ..heard(SILENT_MS) }.is_silent(NOW));
        let doubted = |ms| Health { doubted_ms: Some(NOW - ms), ..healthy(1) };
        assert!(!doubted(SILENT_MS - 1).is_silent(NOW));
        assert!(doubted(SILENT_MS).is_silent(NOW));
        // Another thread may have noted a later time than this one has.
        assert!(!heard(0).is_silent(NOW - 5));
    }
}
