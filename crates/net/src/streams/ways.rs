//! The ways to the other side: which one the next stream takes. No clock, no I/O.
use std::net::{IpAddr, SocketAddr};

/// How long a way rests after the first failure, and at most. After an outage the next attempt comes soon.
const PAUSE_MIN_MS: u64 = 200;
const PAUSE_MAX_MS: u64 = 2_000;
/// The same for connections of ssh: a server may lock out who fails to log in again and again.
const LOGIN_PAUSE_MIN_MS: u64 = 5_000;
const LOGIN_PAUSE_MAX_MS: u64 = 300_000;
/// The same after a stream that ended soon after it was opened, as where packets of full size do not arrive.
const EARLY_PAUSE_MIN_MS: u64 = 5_000;
const EARLY_PAUSE_MAX_MS: u64 = 320_000;

/// A way to the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Way {
    /// A connection of TCP.
    Tcp(TcpWay),
    /// A connection of ssh.
    Ssh,
}

/// The addresses at both ends of a connection, and what relays on the way read first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TcpWay {
    pub to: SocketAddr,
    /// `None`: the kernel's choice.
    pub from: Option<IpAddr>,
    pub preface: Vec<u8>,
}

/// All ways that streams share, in groups: the ways of a group are alternatives, of which one is used.
#[derive(Debug)]
pub(super) struct Ways(Vec<Group>);

#[derive(Debug)]
struct Group {
    /// At least one.
    alternatives: Vec<Way>,
    /// The one that is used.
    at: usize,
    has_worked: bool,
    /// An alternative was accepted.
    was_accepted: bool,
    /// It is not tried before this time.
    rests_until_ms: u64,
    pause_ms: u64,
    early_pause_ms: u64,
}

/// How long a way rests after the first failure, and at most.
fn pauses(way: &Way) -> (u64, u64) {
    match way {
        Way::Tcp(_) => (PAUSE_MIN_MS, PAUSE_MAX_MS),
        Way::Ssh => (LOGIN_PAUSE_MIN_MS, LOGIN_PAUSE_MAX_MS),
    }
}

impl Ways {
    /// A way that two groups have belongs to the first one.
    pub fn new(groups: impl IntoIterator<Item = Vec<Way>>) -> Self {
        let mut known: Vec<Way> = Vec::new();
        let new = |mut alternatives: Vec<Way>| {
            alternatives.retain(|way| !known.contains(way));
            known.extend(alternatives.iter().cloned());
            alternatives
        };
        let groups = groups.into_iter().map(new);
        let group = |alternatives: Vec<Way>| Group {
            pause_ms: pauses(&alternatives[0]).0,
            alternatives,
            at: 0,
            has_worked: false,
            was_accepted: false,
            rests_until_ms: 0,
            early_pause_ms: EARLY_PAUSE_MIN_MS,
        };
        let groups = groups.filter(|alternatives| !alternatives.is_empty());
        Self(groups.map(group).collect())
    }

    /// The ways of each group.
    pub fn groups(&self) -> impl Iterator<Item = &[Way]> {
        self.0.iter().map(|group| &group.alternatives[..])
    }

    /// Whether ssh carries all streams.
    pub fn are_of_ssh(&self) -> bool {
        self.0.iter().all(|group| group.alternatives == [Way::Ssh])
    }

    /// The way for the next stream; `None`: no stream is needed, or all ways rest. `used`: how many streams a way has,
    /// also those that are being opened; `wanted`: how many there should be in all.
    ///
    /// A group that works again gets its share, also if the others have as many as are wanted by then.
    pub fn next(&self, used: impl Fn(&Way) -> usize, wanted: usize, now_ms: u64) -> Option<&Way> {
        let used_by = |group: &Group| group.alternatives.iter().map(&used).sum::<usize>();
        let used: Vec<usize> = self.0.iter().map(used_by).collect();
        let (all, share) = (used.iter().sum::<usize>(), wanted / self.0.len().max(1));
        let ready = self.0.iter().zip(used).filter(|(group, _)| group.rests_until_ms <= now_ms);
        let (group, used) = ready.min_by_key(|(_, used)| *used)?;
        (all < wanted || used < share).then(|| &group.alternatives[group.at])
    }

    /// The group of a way, and which of its alternatives that is.
    fn group(&mut self, way: &Way) -> Option<(&mut Group, usize)> {
        self.0.iter_mut().find_map(|group| {
            let at = group.alternatives.iter().position(|known| known == way)?;
            Some((group, at))
        })
    }

    /// Whether a way is the alternative that is used.
    pub fn are_using(&self, way: &Way) -> bool {
        self.0.iter().any(|group| group.alternatives[group.at] == *way)
    }

    /// A connection was accepted. This alternative is the one that is used for now if no other one of its group was accepted before;
    /// then the answer is the number of the group.
    pub fn accepted(&mut self, way: &Way) -> Option<usize> {
        let number = self.0.iter().position(|group| group.alternatives.contains(way))?;
        let (group, at) = self.group(way)?;
        if group.has_worked || std::mem::replace(&mut group.was_accepted, true) {
            return None;
        }
        group.at = at;
        Some(number)
    }

    /// A stream was opened.
    pub fn worked(&mut self, way: &Way) {
        let Some((group, at)) = self.group(way) else { return };
        if !std::mem::replace(&mut group.has_worked, true) {
            group.at = at;
        }
        // A login that works says nothing about the next one, of which a server may accept only so many.
        if !matches!(way, Way::Ssh) {
            group.pause_ms = PAUSE_MIN_MS;
        }
    }

    /// A stream has ended soon after it was opened, which may happen to several at once. The only way does not rest.
    pub fn ended_early(&mut self, way: &Way, now_ms: u64) {
        if self.0.len() < 2 {
            return;
        }
        let Some((group, _)) = self.group(way) else { return };
        if group.rests_until_ms <= now_ms {
            group.rests_until_ms = now_ms + group.early_pause_ms;
            group.early_pause_ms = (2 * group.early_pause_ms).min(EARLY_PAUSE_MAX_MS);
        }
    }

    /// A stream could not be opened.
    pub fn failed(&mut self, way: &Way, now_ms: u64) {
        let Some((group, at)) = self.group(way) else { return };
        if at != group.at {
            return;
        }
        if !group.has_worked {
            group.at = (at + 1) % group.alternatives.len();
            if group.at != 0 {
                return;
            }
        }
        group.rests_until_ms = group.rests_until_ms.max(now_ms + group.pause_ms);
        group.pause_ms = (2 * group.pause_ms).min(pauses(way).1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(last: u8) -> Way {
        Way::Tcp(TcpWay { to: ([192, 0, 2, last], 1).into(), from: None, preface: Vec::new() })
    }

    /// Groups of one way each.
    fn alone<const COUNT: usize>(ways: [u8; COUNT]) -> Ways {
        Ways::new(ways.map(|number| vec![way(number)]))
    }

    /// Opens streams as long as one is needed.
    fn open(ways: &Ways, used: &mut [usize], wanted: usize, now_ms: u64) {
        while let Some(way) = ways.next(|way| used[number(way)], wanted, now_ms) {
            used[number(way)] += 1;
        }
    }

    fn number(way: &Way) -> usize {
        let Way::Tcp(TcpWay { to: SocketAddr::V4(to), .. }) = way else { unreachable!() };
        to.ip().octets()[3].into()
    }

    #[test]
    fn all_ways_get_equally_many() {
        let ways = alone([0, 1, 2]);
        let mut used = [0; 3];
        open(&ways, &mut used, 6, 0);
        assert_eq!(used, [2, 2, 2]);
        open(&ways, &mut used, 8, 0);
        assert_eq!(used.iter().sum::<usize>(), 8);
    }

    #[test]
    fn a_dead_way_is_skipped_and_gets_its_share_when_it_works_again() {
        let mut ways = alone([0, 1]);
        ways.worked(&way(1));
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
        let mut ways = alone([0]);
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
    fn logins_that_fail_are_repeated_ever_more_rarely() {
        let mut ways = Ways::new([vec![Way::Ssh]]);
        ways.worked(&Way::Ssh);
        for pause in [5_000, 10_000, 20_000] {
            ways.failed(&Way::Ssh, 0);
            assert_eq!(ways.next(|_| 1, 8, pause - 1), None);
            assert_eq!(ways.next(|_| 1, 8, pause), Some(&Way::Ssh));
            ways.0[0].rests_until_ms = 0;
            ways.worked(&Way::Ssh);
        }
        for _ in 0..10 {
            ways.failed(&Way::Ssh, 0);
        }
        assert_eq!(ways.0[0].pause_ms, LOGIN_PAUSE_MAX_MS);
    }

    #[test]
    fn of_alternatives_the_first_that_works_gets_all() {
        let mut ways = Ways::new([vec![way(0), way(1), way(2)], vec![way(3)]]);
        ways.failed(&way(0), 0);
        assert_eq!(ways.next(|_| 0, 8, 0), Some(&way(1)), "none has worked");
        ways.worked(&way(2));
        ways.worked(&way(1));
        let mut used = [0; 4];
        open(&ways, &mut used, 8, 0);
        assert_eq!(used, [0, 0, 4, 4]);
        ways.failed(&way(1), 0);
        let mut used = [0; 4];
        open(&ways, &mut used, 8, 0);
        assert_eq!(used, [0, 0, 4, 4]);
    }

    #[test]
    fn the_first_alternative_that_is_accepted_leads() {
        let mut ways = Ways::new([vec![way(0)], vec![way(1), way(2)]]);
        assert_eq!(ways.accepted(&way(2)), Some(1));
        assert_eq!(ways.accepted(&way(1)), None, "another one was before");
        assert_eq!(ways.next(|used| usize::from(*used == way(0)), 8, 0), Some(&way(2)));
        assert_eq!(ways.accepted(&way(0)), Some(0));
        assert!(ways.are_using(&way(0)) && ways.are_using(&way(2)) && !ways.are_using(&way(1)));
        // It was somebody else.
        ways.failed(&way(2), 0);
        ways.worked(&way(1));
        assert_eq!(ways.next(|used| usize::from(*used == way(0)), 8, 1000), Some(&way(1)));
        assert_eq!(ways.accepted(&way(2)), None, "one has worked");
    }

    #[test]
    fn a_way_on_which_streams_do_not_last_rests_longer_each_time() {
        let mut ways = alone([0, 1]);
        let next = |ways: &Ways, now| {
            ways.next(|way| 8 * usize::from(*way == self::way(0)), 8, now).cloned()
        };
        for (begin, pause) in [(0, 5_000), (100_000, 10_000), (200_000, 20_000)] {
            ways.worked(&way(1));
            // All streams of the way end at once.
            for _ in 0..4 {
                ways.ended_early(&way(1), begin);
            }
            assert_eq!(next(&ways, begin + pause - 1), None);
            assert_eq!(next(&ways, begin + pause), Some(way(1)));
        }
        let mut only = alone([0]);
        only.ended_early(&way(0), 0);
        assert!(only.next(|_| 0, 1, 0).is_some());
    }

    #[test]
    fn a_way_that_is_named_twice_is_one() {
        let ways = Ways::new([vec![way(0), way(1)], vec![way(1)]]);
        let mut used = [0; 2];
        open(&ways, &mut used, 8, 0);
        assert_eq!(used, [8, 0]);
    }
}
