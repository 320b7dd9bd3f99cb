//! How content is divided among several hosts that have the same tree: each is asked for as much as it delivers.

/// A host is asked for at least this part of what the fastest one is asked for, or nobody would see that it has become faster.
const LEAST: f64 = 1.0 / 16.0;
/// A host that owes nothing is asked although another one would have delivered in this part of the time: it would be idle.
const IDLE: f64 = 0.25;
/// A rate is measured over at least so many milliseconds.
const SAMPLE_MS: u64 = 250;
/// How much the latest measurement counts.
const LATEST: f64 = 0.4;

/// What a host delivers, and what it was asked for. Times in milliseconds of any clock that does not jump.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostShare {
    /// Bytes that it was asked for and has not delivered.
    waiting: u64,
    /// Bytes a millisecond; `None`: not measured yet.
    rate: Option<f64>,
    since_ms: u64,
    delivered: u64,
}

impl HostShare {
    /// It was asked for about so many bytes.
    pub fn asked(&mut self, bytes: u64, now_ms: u64) {
        if self.waiting == 0 {
            (self.since_ms, self.delivered) = (now_ms, 0);
        }
        self.waiting += bytes;
    }

    /// So many bytes have come.
    pub fn delivered(&mut self, bytes: u64, now_ms: u64) {
        self.delivered += bytes;
        let passed = now_ms.saturating_sub(self.since_ms);
        if passed < SAMPLE_MS {
            return;
        }
        let latest = self.delivered as f64 / passed as f64;
        self.rate = Some(self.rate.map_or(latest, |rate| rate + LATEST * (latest - rate)));
        (self.since_ms, self.delivered) = (now_ms, 0);
    }

    /// It owes so many bytes less: they have come, or nobody wants them any more.
    pub fn settled(&mut self, bytes: u64) {
        self.waiting = self.waiting.saturating_sub(bytes);
    }

    /// It was lost, and knows nothing of what it was asked for.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}

/// The host that will have delivered so many bytes first, of those that `may` be asked.
pub fn first_to_deliver(hosts: &[HostShare], may: &[bool], bytes: u64) -> Option<usize> {
    let rates = hosts.iter().zip(may).filter(|(_, may)| **may).filter_map(|(host, _)| host.rate);
    let best = rates.fold(0.0, f64::max);
    // Before anything has come, all are equal.
    let best = if best > 0.0 { best } else { 1.0 };
    let needs = |host: &HostShare| {
        // Who was not measured yet may be the fastest one. A rate of zero is a host that was asked for little.
        let rate = host.rate.unwrap_or(best).max(best * LEAST);
        let idle = if host.waiting == 0 { IDLE } else { 1.0 };
        (host.waiting + bytes.max(1)) as f64 / rate * idle
    };
    let asked = hosts.iter().zip(may).enumerate().filter(|(_, (_, may))| **may);
    let first = asked.min_by(|(_, (a, _)), (_, (b, _))| needs(a).total_cmp(&needs(b)));
    first.map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts that deliver so many bytes a millisecond each, of which `readers` ask for blocks at the same time; returns the bytes of each
    /// after this time.
    fn delivered(rates: &[u64], (readers, block): (usize, u64), ms: u64) -> Vec<u64> {
        let mut shares = vec![HostShare::default(); rates.len()];
        let mut owed: Vec<Vec<u64>> = vec![Vec::new(); rates.len()];
        let mut sums = vec![0; rates.len()];
        for now in 0..ms {
            while owed.iter().map(Vec::len).sum::<usize>() < readers {
                let chosen = first_to_deliver(&shares, &vec![true; rates.len()], block).unwrap();
                shares[chosen].asked(block, now);
                owed[chosen].push(block);
            }
            for host in 0..rates.len() {
                let each = rates[host] / (owed[host].len() as u64).max(1);
                for left in &mut owed[host] {
                    let bytes = each.min(*left);
                    *left -= bytes;
                    sums[host] += bytes;
                    shares[host].delivered(bytes, now);
                    shares[host].settled(bytes);
                }
                owed[host].retain(|left| *left > 0);
            }
        }
        sums
    }

    #[test]
    fn equal_hosts_deliver_equal_shares() {
        let sums = delivered(&[40_000; 3], (8, 8 << 20), 20_000);
        for sum in &sums {
            assert!(*sum > 90 * 20_000 * 40_000 / 100, "{sums:?}");
        }
    }

    #[test]
    fn a_slow_host_delivers_what_it_can_and_keeps_nobody_waiting() {
        let sums = delivered(&[40_000, 40_000, 13_000], (8, 8 << 20), 20_000);
        let all = 20_000 * (40_000 + 40_000 + 13_000);
        assert!(sums.iter().sum::<u64>() > all * 9 / 10, "{sums:?}");
        assert!(sums[2] < sums[0] / 2, "{sums:?}");
    }

    #[test]
    fn nobody_is_chosen_who_must_not_be_asked() {
        let hosts = vec![HostShare::default(); 3];
        assert_eq!(first_to_deliver(&hosts, &[false, false, true], 1), Some(2));
        assert_eq!(first_to_deliver(&hosts, &[false; 3], 1), None);
    }

    #[test]
    fn a_host_that_has_delivered_little_is_asked_again() {
        let mut hosts = vec![HostShare::default(); 2];
        for host in &mut hosts {
            host.asked(1 << 20, 0);
        }
        hosts[0].delivered(1 << 20, 1000);
        hosts[1].delivered(1, 1000);
        let mut chosen = Vec::new();
        for _ in 0..64 {
            let next = first_to_deliver(&hosts, &[true; 2], 1 << 20).unwrap();
            hosts[next].asked(1 << 20, 1000);
            chosen.push(next);
        }
        assert!((1..8).contains(&chosen.iter().filter(|host| **host == 1).count()), "{chosen:?}");
    }
}
