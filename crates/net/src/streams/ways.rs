//! The ways to the other side: which one the next stream takes. No clock, no I/O.
use std::net::{IpAddr, SocketAddr};

/// How long a way rests after the first failure, and at most. After an outage the next attempt comes soon.
const PAUSE_MIN_MS: u64 = 200;
const PAUSE_MAX_MS: u64 = 2_000;

/// A way: the addresses at both of its ends, and what relays on it read first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Way {
    pub to: SocketAddr,
    /// `None`: the kernel's choice.
    pub from: Option<IpAddr>,
    pub preface: Vec<u8>,
}

/// All ways that streams share.
#[derive(Debug)]
pub(super) struct Ways(Vec<Known>);

#[derive(Debug)]
struct Known {
    way: Way,
    /// It is not tried before this time.
    rests_until_ms: u64,
    pause_ms: u64,
}

impl Ways {
    pub fn new(all: impl IntoIterator<Item = Way>) -> Self {
        let known = |way| Known { way, rests_until_ms: 0, pause_ms: PAUSE_MIN_MS };
        Self(all.into_iter().map(known).collect())
    }

    /// The way for the next stream; `None`: no stream is needed, or all ways rest. `used`: how many streams a way has,
    /// also those that are being opened; `wanted`: how many there should be in all.
    ///
    /// A way that works again gets its share, also if the others have as many as are wanted by then.
    pub fn next(&self, used: impl Fn(&Way) -> usize, wanted: usize, now_ms: u64) -> Option<&Way> {
        let used: Vec<usize> = self.0.iter().map(|known| used(&known.way)).collect();
        let (all, share) = (used.iter().sum::<usize>(), wanted.div_ceil(self.0.len().max(1)));
        let ready = self.0.iter().zip(used).filter(|(known, _)| known.rests_until_ms <= now_ms);
        let (known, used) = ready.min_by_key(|(_, used)| *used)?;
        (all < wanted || used < share).then_some(&known.way)
    }

    /// A stream was opened.
    pub fn worked(&mut self, way: &Way) {
        for known in self.0.iter_mut().filter(|known| known.way == *way) {
            (known.rests_until_ms, known.pause_ms) = (0, PAUSE_MIN_MS);
        }
    }

    /// A stream could not be opened.
    pub fn failed(&mut self, way: &Way, now_ms: u64) {
        for known in self.0.iter_mut().filter(|known| known.way == *way) {
            known.rests_until_ms = now_ms + known.pause_ms;
            known.pause_ms = (2 * known.pause_ms).min(PAUSE_MAX_MS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(last: u8) -> Way {
        Way { to: ([192, 0, 2, last], 1).into(), from: None, preface: Vec::new() }
    }

    /// Opens streams as long as one is needed.
    fn open(ways: &Ways, used: &mut [usize], wanted: usize, now_ms: u64) {
        while let Some(way) = ways.next(|way| used[number(way)], wanted, now_ms) {
            used[number(way)] += 1;
        }
    }

    fn number(way: &Way) -> usize {
        let SocketAddr::V4(to) = way.to else { unreachable!() };
        to.ip().octets()[3].into()
    }

    #[test]
    fn all_ways_get_equally_many() {
        let ways = Ways::new([0, 1, 2].map(way));
        let mut used = [0; 3];
        open(&ways, &mut used, 6, 0);
        assert_eq!(used, [2, 2, 2]);
        open(&ways, &mut used, 8, 0);
        assert_eq!(used.iter().sum::<usize>(), 9, "the share is rounded up");
    }

    #[test]
    fn a_dead_way_is_skipped_and_gets_its_share_when_it_works_again() {
        let mut ways = Ways::new([0, 1].map(way));
        ways.failed(&way(1), 1000);
        let mut used = [0; 2];
        open(&ways, &mut used, 8, 1100);
        assert_eq!(used, [8, 0]);
        open(&ways, &mut used, 8, 1000 + PAUSE_MIN_MS);
        assert_eq!(used, [8, 4]);
        ways.worked(&way(1));
        open(&ways, &mut used, 8, 5000);
        assert_eq!(used, [8, 4], "there are enough");
    }

    #[test]
    fn pauses_become_longer_and_end_with_the_first_success() {
        let mut ways = Ways::new([way(0)]);
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..6 {
            ways.failed(&way(0), now);
            let begin = now;
            while ways.next(|_| 0, 1, now).is_none() {
                now += 100;
            }
            pauses.push(now - begin);
        }
        assert_eq!(pauses, [200, 400, 800, 1600, 2000, 2000]);
        ways.worked(&way(0));
        ways.failed(&way(0), now);
        assert!(ways.next(|_| 0, 1, now + 200).is_some());
    }

    #[test]
    fn one_way_gets_all() {
        let ways = Ways::new([way(0)]);
        let mut used = [0];
        open(&ways, &mut used, 8, 0);
        assert_eq!(used, [8]);
    }
}
