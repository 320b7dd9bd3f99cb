//! How requests are divided among several hosts that have the same tree.
//!
//! Each request goes to the host that will have answered it first. Who reads a file waits for its pieces in their order, so a slow host may
//! owe only as much less as it is slower, or everybody waits for it.
use std::collections::VecDeque;

/// Mixes numbers (the golden ratio, as in multiplicative hashing).
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
/// A rate is measured over at least so many milliseconds, and counts for so many.
const SAMPLE_MS: u64 = 250;
const COUNTS_MS: u64 = 30_000;
/// A host counts as at most so many times slower than the fastest one, so that it is asked now and then.
const SLOWEST: f64 = 16.0;

/// How fast a host delivers: the most that was seen of late. What comes may be less than what could, when nobody reads it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delivery {
    /// Bytes a millisecond, and when that was measured.
    rates: VecDeque<(u64, f64)>,
    /// When the measurement that is under way began, and what had come by then.
    began: Option<(u64, u64)>,
    /// The rate that was last known.
    last: Option<f64>,
}

impl Delivery {
    /// So many bytes have come since the connection began. Times are in milliseconds of any clock that does not jump.
    pub fn received(&mut self, bytes: u64, now_ms: u64) {
        let (began, before) = *self.began.get_or_insert((now_ms, bytes));
        let passed = now_ms.saturating_sub(began);
        if passed < SAMPLE_MS {
            return;
        }
        self.began = Some((now_ms, bytes));
        let rate = bytes.saturating_sub(before) as f64 / passed as f64;
        // Of a long time without a call, only the average is known.
        if rate > 0.0 {
            self.rates.push_back((now_ms, rate));
        }
        while self.rates.front().is_some_and(|(at, _)| now_ms.saturating_sub(*at) > COUNTS_MS) {
            self.rates.pop_front();
        }
        self.last = self.rate().or(self.last);
    }

    fn rate(&self) -> Option<f64> {
        self.rates.iter().map(|(_, rate)| *rate).max_by(f64::total_cmp)
    }
}

/// A host that may be asked.
#[derive(Debug, Clone, Copy)]
pub struct Able<'a> {
    /// The bytes that it owes.
    pub owes: u64,
    /// How fast it delivers.
    pub delivery: &'a Delivery,
}

/// The host that will first have delivered so many more bytes. `hosts`: `None` for those that must not be asked. `turn`: how many requests
/// there were before: equal hosts are chosen in no order, because otherwise all readers of a file begin with one host, and then turn to the
/// next one.
pub fn first_to_deliver(hosts: &[Option<Able<'_>>], bytes: u64, turn: u64) -> Option<usize> {
    // Also of a host that has delivered nothing of late: it may have been waited for another one.
    let best = hosts.iter().flatten().filter_map(|host| host.delivery.last).max_by(f64::total_cmp);
    let needs = |host: &Able<'_>| {
        // Who was not measured of late may be the fastest one.
        let slower = match (best, host.delivery.rate()) {
            (Some(best), Some(rate)) => (best / rate).min(SLOWEST),
            _ => 1.0,
        };
        (host.owes + bytes.max(1)) as f64 * slower
    };
    let first = (turn.wrapping_mul(MIX) >> 32) as usize;
    let numbers = (0..hosts.len()).map(|number| (first + number) % hosts.len());
    let able = numbers.filter_map(|number| Some((number, needs(hosts[number].as_ref()?))));
    able.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts that deliver so many bytes a millisecond each. `readers` read chunks of eight pieces, each in the order of the pieces, and ask for
    /// two pieces ahead. Returns the bytes of each host, and how long it took to read so many bytes.
    fn delivered(rates: &[u64], readers: usize, all: u64) -> (Vec<u64>, u64) {
        struct Reader {
            /// The pieces that were asked for, in order: the host, and what it owes.
            pieces: VecDeque<(usize, u64)>,
            left: u32,
        }
        let mut deliveries = vec![Delivery::default(); rates.len()];
        let mut sums = vec![0; rates.len()];
        let mut all_readers: Vec<Reader> =
            (0..readers).map(|_| Reader { pieces: VecDeque::new(), left: 0 }).collect();
        let (mut turn, mut begun) = (0, 0);
        for now in 0.. {
            for reader in 0..readers {
                while all_readers[reader].pieces.front().is_some_and(|(_, owed)| *owed == 0) {
                    all_readers[reader].pieces.pop_front();
                }
                loop {
                    let this = &mut all_readers[reader];
                    if this.left == 0 && begun < all && this.pieces.is_empty() {
                        this.left = 8;
                    }
                    if this.left == 0 || this.pieces.len() >= 3 || begun >= all {
                        break;
                    }
                    this.left -= 1;
                    (turn, begun) = (turn + 1, begun + PIECE);
                    let owes = |host: usize| -> u64 {
                        let pieces = all_readers.iter().flat_map(|reader| &reader.pieces);
                        pieces.filter(|(of, _)| *of == host).map(|(_, owed)| owed).sum()
                    };
                    let hosts: Vec<_> = deliveries
                        .iter()
                        .enumerate()
                        .map(|(host, delivery)| Some(Able { owes: owes(host), delivery }))
                        .collect();
                    let chosen = first_to_deliver(&hosts, PIECE, turn).unwrap();
                    all_readers[reader].pieces.push_back((chosen, PIECE));
                }
            }
            if all_readers.iter().all(|reader| reader.pieces.is_empty()) {
                return (sums, now);
            }
            for host in 0..rates.len() {
                let mine = || all_readers.iter().flat_map(|reader| &reader.pieces);
                let open = mine().filter(|(of, owed)| *of == host && *owed > 0).count() as u64;
                let each = rates[host] / open.max(1);
                for reader in &mut all_readers {
                    for (_, owed) in reader.pieces.iter_mut().filter(|(of, _)| *of == host) {
                        let bytes = each.min(*owed);
                        *owed -= bytes;
                        sums[host] += bytes;
                    }
                }
                deliveries[host].received(sums[host], now);
            }
        }
        unreachable!()
    }

    const ALL: u64 = 2 << 30;
    const PIECE: u64 = 4 << 20;

    #[test]
    fn equal_hosts_deliver_equal_shares() {
        // One reader waits for the last piece of a chunk before it begins the next one.
        for (readers, percent) in [(1, 115), (4, 108), (8, 108)] {
            let (sums, ms) = delivered(&[37_500; 3], readers, ALL);
            let is_even = |sum: &u64| sum.abs_diff(ALL / 3) < ALL / 30;
            assert!(readers == 1 || sums.iter().all(is_even), "{sums:?}");
            assert!(ms * 3 * 37_500 < ALL * percent / 100, "{readers}: {ms}");
        }
    }

    #[test]
    fn a_slow_host_delivers_what_it_can_and_keeps_nobody_waiting() {
        for readers in [4, 8, 12] {
            let rates = [37_500, 37_500, 12_500];
            let (sums, ms) = delivered(&rates, readers, ALL);
            let best = ALL / rates.iter().sum::<u64>();
            assert!(ms * 100 < best * 111, "{readers}: {ms} ms instead of {best}: {sums:?}");
            assert!(sums[2] < sums[0] / 2, "{sums:?}");
        }
    }

    #[test]
    fn one_reader_does_not_wait_for_a_host_that_hardly_delivers() {
        let rates = [37_500, 375];
        let (sums, ms) = delivered(&rates, 1, ALL);
        let best = ALL / rates.iter().sum::<u64>();
        assert!(ms < 2 * best, "{ms} ms instead of {best}: {sums:?}");
    }

    #[test]
    fn nobody_is_chosen_who_must_not_be_asked() {
        let delivery = &Delivery::default();
        for turn in 0..9 {
            let only = [None, None, Some(Able { owes: 9, delivery })];
            assert_eq!(first_to_deliver(&only, 1, turn), Some(2));
            assert_eq!(first_to_deliver(&[None; 3], 1, turn), None);
        }
    }

    #[test]
    fn equal_hosts_are_chosen_in_no_order() {
        let delivery = &Delivery::default();
        let hosts = [Some(Able { owes: 0, delivery }); 3];
        let chosen: Vec<usize> =
            (0..3000).map(|turn| first_to_deliver(&hosts, 1, turn).unwrap()).collect();
        for host in 0..3 {
            let count = chosen.iter().filter(|chosen| **chosen == host).count();
            assert!((800..1200).contains(&count), "{host}: {count}");
        }
        assert!(chosen.windows(4).any(|four| four[0] == four[3] && four[1] != four[2]));
    }

    #[test]
    fn the_fastest_time_of_late_counts() {
        let mut delivery = Delivery::default();
        for (now, bytes) in [(0, 0), (250, 25_000), (500, 26_000), (600, 27_000), (750, 27_000)] {
            delivery.received(bytes, now);
        }
        assert_eq!(delivery.rate(), Some(100.0));
        delivery.received(27_000 + 31_000, 31_750);
        assert_eq!(
            delivery.rate(),
            Some(1.0),
            "it was measured again, and the old rate is forgotten"
        );
    }
}
