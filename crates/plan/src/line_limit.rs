//! What limits a connection to another host, from what is known after a measurement.
use dmover_model::units;

/// What is known. Sizes in bytes, rates in bytes a second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LineFacts {
    /// How fast bytes moved.
    pub rate: f64,
    /// The share of all processors of this host that was busy, and the share that this process has used.
    pub busy: (f64, f64),
    /// The smoothed and the shortest round trip in seconds.
    pub round_trips: Option<(f64, f64)>,
    /// How many streams there are.
    pub streams: u32,
    /// The buffer of a stream at this side.
    pub buffer: Option<u64>,
    /// Segments that the side with the content has sent, and those of them that it has sent again.
    pub segments: (u64, u64),
    /// Segments that have come, and those of them that came out of order.
    pub received: (u64, u64),
    /// The bytes were encrypted by this host.
    pub is_encrypted: bool,
}

impl LineFacts {
    /// Whether segments wait in a queue of the line, so that it is full.
    pub fn has_queue(&self) -> bool {
        self.is_loaded()
            && self.round_trips.is_some_and(|(round_trip, shortest)| {
                shortest >= LONG_LEAST_S
                    && round_trip > QUEUE_NONE * shortest
                    && round_trip - shortest >= QUEUE_LEAST_S
            })
    }

    /// Whether so much is on the way that the line can be what limits.
    fn is_loaded(&self) -> bool {
        self.round_trips.is_some_and(|(round_trip, _)| self.rate * round_trip >= LOAD_LEAST_BYTES)
    }

    /// The evidence, in words.
    pub fn words(&self) -> String {
        let rate = format!("{}/s", units::format_iec(self.rate as u64));
        let Some((round_trip, least)) = self.round_trips else { return rate };
        let on_its_way = units::format_iec((self.rate * round_trip) as u64);
        let (all, disordered) = self.received;
        let lost = if disordered > 0 {
            format!(
                ", {:.2} % of segments out of order",
                100.0 * disordered as f64 / all.max(1) as f64
            )
        } else {
            String::new()
        };
        format!(
            "{} data streams carry {rate} at a round trip of {:.1} ms (least {:.1} ms), so {on_its_way} are on the way{lost}",
            self.streams,
            1e3 * round_trip,
            1e3 * least
        )
    }
}

/// The limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineLimit {
    /// Processors of this host, most of which this process uses, and encrypts.
    Cipher,
    /// The same without encryption.
    Cpu,
    /// Segments that were lost without a queue.
    Loss,
    /// What may be on its way.
    Window,
    /// Nothing of this host: the line, or the other host.
    Line,
    /// It cannot be told: processors are busy with other work, or nothing is known of what carries the bytes.
    Unknown,
}

impl LineLimit {
    /// One word for scripts.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cipher => "cipher",
            Self::Cpu => "cpu",
            Self::Loss => "loss",
            Self::Window => "window",
            Self::Line => "line",
            Self::Unknown => "unknown",
        }
    }
}

/// A processor counts as the limit from this share on.
const BUSY_LEAST: f64 = 0.9;
/// A lost segment lets many others come out of order; some networks do that without a loss.
const DISORDER_LEAST: f64 = 1e-3;
/// So many segments have to be lost...
const LOSS_LEAST: f64 = 1e-4;
/// ...while round trips are at most so many times the shortest one: then the line has no full queue. The same holds for windows.
const QUEUE_NONE: f64 = 1.3;
/// On shorter lines, busy hosts delay more than a queue does.
const LONG_LEAST_S: f64 = 1e-3;
/// A shorter delay is that of hosts, such as delayed acknowledgements and busy processors.
const QUEUE_LEAST_S: f64 = 2e-3;
/// With fewer bytes on the way nothing waits in a queue or for a window, and a few segments in another order say nothing: a busy host
/// answers late.
const LOAD_LEAST_BYTES: f64 = 8192.0;
/// Half of a buffer is for the kernel's own notes (tcp(7)), so windows are at most as large as the other half. They count as the limit
/// if so much of them is on its way.
const WINDOW_SHARE: f64 = 0.8;

/// Names the limit.
pub fn line_limit(facts: &LineFacts) -> LineLimit {
    // Processors may be busy with other work, so what the kernel says of the streams comes first.
    if let Some((round_trip, _)) = facts.round_trips.filter(|_| facts.is_loaded()) {
        // A full queue is the line's own.
        let has_queue = facts.has_queue();
        let windows = facts.buffer.map(|buffer| f64::from(facts.streams) * buffer as f64 / 2.0);
        let fills = |windows| facts.rate * round_trip >= WINDOW_SHARE * windows;
        if !has_queue && windows.is_some_and(fills) {
            return LineLimit::Window;
        }
        let (sent, again) = facts.segments;
        let share = again as f64 / sent.max(1) as f64;
        let (come, disordered) = facts.received;
        let disorder = disordered as f64 / come.max(1) as f64;
        if !has_queue && (share >= LOSS_LEAST || disorder >= DISORDER_LEAST) {
            return LineLimit::Loss;
        }
    }
    match facts.busy {
        (all, own) if all >= BUSY_LEAST && own >= all / 2.0 => {
            if facts.is_encrypted {
                LineLimit::Cipher
            } else {
                LineLimit::Cpu
            }
        }
        (all, _) if all >= BUSY_LEAST => LineLimit::Unknown,
        _ if facts.round_trips.is_none() => LineLimit::Unknown,
        _ => LineLimit::Line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 MB/s over 50 ms: 5 MB are on their way.
    fn facts() -> LineFacts {
        LineFacts {
            rate: 1e8,
            busy: (0.4, 0.3),
            round_trips: Some((0.05, 0.05)),
            streams: 8,
            buffer: Some(6 << 20),
            segments: (1_000_000, 10),
            received: (1_000_000, 10),
            is_encrypted: true,
        }
    }

    #[test]
    fn the_limit_is_what_is_used_up() {
        for (facts, limit) in [
            (facts(), LineLimit::Line),
            (LineFacts { busy: (0.95, 0.6), ..facts() }, LineLimit::Cipher),
            (LineFacts { busy: (0.95, 0.6), is_encrypted: false, ..facts() }, LineLimit::Cpu),
            // Others are busy.
            (LineFacts { busy: (0.95, 0.1), ..facts() }, LineLimit::Unknown),
            (LineFacts { busy: (1.0, 0.6), buffer: Some(1 << 20), ..facts() }, LineLimit::Window),
            (LineFacts { segments: (1_000_000, 1000), ..facts() }, LineLimit::Loss),
            (LineFacts { received: (1_000_000, 5000), ..facts() }, LineLimit::Loss),
            (LineFacts { buffer: Some(1 << 20), ..facts() }, LineLimit::Window),
            (LineFacts { buffer: None, ..facts() }, LineLimit::Line),
            (LineFacts { round_trips: None, ..facts() }, LineLimit::Unknown),
        ] {
            assert_eq!(line_limit(&facts), limit, "{facts:?}");
        }
        // Lost because a queue was full: the line is.
        let full =
            LineFacts { segments: (1_000_000, 1000), round_trips: Some((0.1, 0.05)), ..facts() };
        assert_eq!(line_limit(&full), LineLimit::Line);
        let full = LineFacts { buffer: Some(1 << 20), ..full };
        assert_eq!(line_limit(&full), LineLimit::Line);
        assert!(full.has_queue());
        // Hardly anything is on the way: whoever answers late is busy.
        let idle = LineFacts { rate: 7e3, segments: (1000, 0), received: (5000, 6), ..full };
        assert!(!idle.has_queue());
        assert_eq!(line_limit(&idle), LineLimit::Line);
        assert_eq!(line_limit(&LineFacts { buffer: Some(16), ..idle }), LineLimit::Line);
        // Loopback, and a short delay on a long line.
        for round_trips in [(3e-3, 1e-5), (0.051, 0.05), (2.5e-3, 1.5e-3)] {
            assert!(!LineFacts { round_trips: Some(round_trips), ..full }.has_queue());
        }
    }
}
