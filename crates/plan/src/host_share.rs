//! How requests are divided among several hosts that have the same tree.
//!
//! Each gets the next request when it owes least. So all of them always owe something, and a host that delivers a third of what another one
//! delivers gets about a third of the requests. Rates are not measured: what comes may be what the reader takes.

/// Mixes numbers (the golden ratio, as in multiplicative hashing).
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The host that owes the fewest bytes. `owed`: what each owes; `None`: it must not be asked. `turn`: how many requests there were before:
/// equal hosts are chosen in no order, because otherwise all readers of a file begin with one host, and then turn to the next one.
pub fn least_owing(owed: &[Option<u64>], turn: u64) -> Option<usize> {
    let first = (turn.wrapping_mul(MIX) >> 32) as usize;
    let numbers = (0..owed.len()).map(|number| (first + number) % owed.len());
    numbers.filter(|number| owed[*number].is_some()).min_by_key(|number| owed[*number])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts that deliver so many bytes a millisecond each, of which `readers` ask for blocks until they have `all` bytes; returns the
    /// bytes of each, and how long it took.
    fn delivered(rates: &[u64], (readers, block): (usize, u64), all: u64) -> (Vec<u64>, u64) {
        let mut owed: Vec<Vec<u64>> = vec![Vec::new(); rates.len()];
        let mut sums = vec![0; rates.len()];
        let (mut turn, mut asked) = (0, 0);
        for now in 0.. {
            while asked < all && owed.iter().map(Vec::len).sum::<usize>() < readers {
                turn += 1;
                let owing: Vec<_> = owed.iter().map(|owed| Some(owed.iter().sum())).collect();
                owed[least_owing(&owing, turn).unwrap()].push(block);
                asked += block;
            }
            if owed.iter().all(Vec::is_empty) {
                return (sums, now);
            }
            for host in 0..rates.len() {
                let each = rates[host] / (owed[host].len() as u64).max(1);
                for left in &mut owed[host] {
                    let bytes = each.min(*left);
                    *left -= bytes;
                    sums[host] += bytes;
                }
                owed[host].retain(|left| *left > 0);
            }
        }
        unreachable!()
    }

    const ALL: u64 = 2 << 30;
    const BLOCK: u64 = 4 << 20;

    #[test]
    fn equal_hosts_deliver_equal_shares() {
        let (sums, ms) = delivered(&[37_500; 3], (8, BLOCK), ALL);
        assert!(sums.iter().all(|sum| sum.abs_diff(ALL / 3) < ALL / 50), "{sums:?}");
        assert!(ms * 3 * 37_500 < ALL * 104 / 100, "{ms}");
    }

    #[test]
    fn a_slow_host_delivers_what_it_can() {
        for readers in [6, 8, 12, 16] {
            let rates = [37_500, 37_500, 12_500];
            let (sums, ms) = delivered(&rates, (readers, BLOCK), ALL);
            let best = ALL / rates.iter().sum::<u64>();
            assert!(ms * 100 < best * 110, "{readers}: {ms} ms instead of {best}: {sums:?}");
            assert!(sums[2] < sums[0] / 2, "{sums:?}");
        }
    }

    #[test]
    fn nobody_is_chosen_who_must_not_be_asked() {
        for turn in 0..9 {
            assert_eq!(least_owing(&[None, None, Some(9)], turn), Some(2));
            assert_eq!(least_owing(&[None; 3], turn), None);
        }
    }

    #[test]
    fn equal_hosts_are_chosen_in_no_order() {
        let chosen: Vec<usize> =
            (0..3000).map(|turn| least_owing(&[Some(0); 3], turn).unwrap()).collect();
        for host in 0..3 {
            let count = chosen.iter().filter(|chosen| **chosen == host).count();
            assert!((800..1200).contains(&count), "{host}: {count}");
        }
        assert!(chosen.windows(4).any(|four| four[0] == four[3] && four[1] != four[2]));
    }
}
