//! Whether chunks are compressed: measured while they are sent. No clock, no I/O.
use dmover_wire::streams::Compression;
use std::time::Duration;

/// Shorter chunks are sent as they are: they are requests and small answers.
const SHORT: usize = 4 << 10;
/// After so many bytes in the better way, the other one is tried again.
const TRIED_EVERY: usize = 8 << 20;
/// By how much compressing has to be faster: it costs time of processors that others may need.
const WORTH: f64 = 0.9;
/// How much the last measurement counts.
const NEWEST: f64 = 0.2;

/// What is measured of both ways to send chunks: how long a byte of content takes, in nanoseconds. Where the line is the
/// limit, fewer bytes take less time; where it is not, compressing only takes more.
#[derive(Debug)]
pub(super) struct Packing {
    how: Compression,
    plain: Option<f64>,
    packed: Option<f64>,
    /// The length of what was compressed last, as a share of its content.
    ratio: f64,
    since_trial: usize,
}

impl Packing {
    pub fn new(how: Compression) -> Self {
        Self { how, plain: None, packed: None, ratio: 1.0, since_trial: 0 }
    }

    fn is_better(&self) -> bool {
        match (self.plain, self.packed) {
            (Some(plain), Some(packed)) => packed < plain * WORTH && self.ratio < WORTH,
            // The first chunks are sent as they are.
            (plain, None) => plain.is_some(),
            (None, Some(_)) => false,
        }
    }

    /// Whether to compress the next chunks, of so many bytes together.
    pub fn compresses(&mut self, length: usize) -> bool {
        match self.how {
            Compression::Never => false,
            Compression::Always => true,
            Compression::Auto if length < SHORT => false,
            Compression::Auto => {
                self.since_trial += length;
                let is_trial = self.since_trial >= TRIED_EVERY;
                if is_trial {
                    self.since_trial = 0;
                }
                self.is_better() != is_trial
            }
        }
    }

    /// So many bytes of content were sent in this time, in one of both ways. `line`: as how many bytes.
    pub fn sent(&mut self, is_packed: bool, (length, line): (usize, usize), took: Duration) {
        if length < SHORT {
            return;
        }
        if is_packed {
            self.ratio = line as f64 / length as f64;
        }
        let now = took.as_nanos() as f64 / length as f64;
        let known = if is_packed { &mut self.packed } else { &mut self.plain };
        *known = Some(known.map_or(now, |before| before + NEWEST * (now - before)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 128 << 10;

    /// The share of bytes that are compressed of what is sent after a while.
    fn share(how: Compression, plain_ns: u64, packed_ns: u64) -> f64 {
        let mut packing = Packing::new(how);
        let mut counts = [0, 0];
        for round in 0..2000 {
            let is_packed = packing.compresses(CHUNK);
            let took = if is_packed { packed_ns } else { plain_ns };
            packing.sent(is_packed, (CHUNK, CHUNK / 2), Duration::from_nanos(took * CHUNK as u64));
            if round >= 200 {
                counts[usize::from(is_packed)] += 1;
            }
        }
        f64::from(counts[1]) / f64::from(counts[0] + counts[1])
    }

    #[test]
    fn the_faster_way_is_used_and_the_other_one_is_tried_now_and_then() {
        let (faster, slower) = (share(Compression::Auto, 8, 4), share(Compression::Auto, 4, 8));
        assert!(faster > 0.95 && faster < 1.0, "{faster}");
        assert!(slower < 0.05 && slower > 0.0, "{slower}");
        assert!(share(Compression::Auto, 100, 95) < 0.05, "it has to be worth it");
        assert_eq!(share(Compression::Always, 4, 8).to_bits(), 1f64.to_bits());
        assert_eq!(share(Compression::Never, 8, 4).to_bits(), 0f64.to_bits());
    }

    #[test]
    fn what_changes_is_noticed() {
        let mut packing = Packing::new(Compression::Auto);
        let mut last = [false; 2];
        for (phase, packed_ns) in [4, 40].into_iter().enumerate() {
            for _ in 0..500 {
                let is_packed = packing.compresses(CHUNK);
                let took = if is_packed { packed_ns } else { 8 };
                packing.sent(
                    is_packed,
                    (CHUNK, CHUNK / 2),
                    Duration::from_nanos(took * CHUNK as u64),
                );
            }
            last[phase] = packing.is_better();
        }
        assert_eq!(last, [true, false]);
    }

    #[test]
    fn short_chunks_are_not_compressed_and_say_nothing() {
        let mut packing = Packing::new(Compression::Auto);
        packing.sent(false, (100, 100), Duration::from_secs(1));
        packing.sent(true, (100, 10), Duration::from_nanos(1));
        assert!(!packing.compresses(100) && !packing.is_better());
    }

    #[test]
    fn what_does_not_become_shorter_is_not_compressed_whatever_the_times_are() {
        let mut packing = Packing::new(Compression::Auto);
        packing.sent(false, (CHUNK, CHUNK), Duration::from_millis(10));
        packing.sent(true, (CHUNK, CHUNK), Duration::from_millis(1));
        assert!(!packing.is_better());
    }
}
