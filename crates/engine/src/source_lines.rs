//! What the connections to the hosts of SOURCE carry, to name the limit of a job.
use dmover_model::{ConnectionReport, Protected};
use dmover_plan::line_limit::LineFacts;
use dmover_schedule::time::Instant;

use crate::context::Engine;

/// With fewer segments, shares of them are not known.
const SEGMENTS_LEAST: u64 = 1000;

/// What the connections had carried at some time.
#[derive(Debug, Clone, Copy)]
struct Carried {
    at: Instant,
    bytes: u64,
    received: (u64, u64),
    sent: (u64, u64),
}

impl Carried {
    fn nothing() -> Self {
        Self { at: Instant::now(), bytes: 0, received: (0, 0), sent: (0, 0) }
    }

    fn of(all: &[ConnectionReport]) -> Self {
        let sum = |of: fn(&ConnectionReport) -> u64| all.iter().map(of).sum();
        Self {
            at: Instant::now(),
            bytes: sum(|known| known.line_bytes),
            received: (
                sum(|known| known.received_segments),
                sum(|known| known.disordered_segments),
            ),
            // In a copy from there the other side sends.
            sent: (
                sum(|known| known.there.map_or(known.segments, |there| there.segments)),
                sum(|known| known.there.map_or(known.retransmits, |there| there.retransmits)),
            ),
        }
    }
}

/// The connections to the hosts of SOURCE.
#[derive(Debug)]
pub(crate) struct SourceLines {
    first: Carried,
    last: Carried,
}

impl SourceLines {
    /// From now on.
    pub fn now() -> Self {
        Self { first: Carried::nothing(), last: Carried::nothing() }
    }

    /// What is known since the last time; `None`: SOURCE is here, or data streams carry nothing.
    pub fn stretch(&mut self, engine: &Engine) -> Option<LineFacts> {
        let all = connections(engine)?;
        let now = Carried::of(&all);
        let before = std::mem::replace(&mut self.last, now);
        Some(facts(&all, before, now))
    }

    /// What is known since the start.
    pub fn whole(&self, engine: &Engine) -> Option<LineFacts> {
        let all = connections(engine)?;
        let now = Carried::of(&all);
        Some(facts(&all, self.first, now))
    }
}

fn connections(engine: &Engine) -> Option<Vec<ConnectionReport>> {
    if !engine.spec.sources_are_remote {
        return None;
    }
    let all = engine.connections().into_iter().map(|(_, known)| known);
    let all: Vec<_> = all.filter(|known| known.streams > 0).collect();
    (!all.is_empty()).then_some(all)
}

/// The facts of all connections together, as of one.
fn facts(all: &[ConnectionReport], before: Carried, now: Carried) -> LineFacts {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let bytes = now.bytes.saturating_sub(before.bytes);
    // Streams that have ended take their segments along, and a few segments say nothing.
    let since = |now: (u64, u64), before: (u64, u64)| {
        let both = now.0.checked_sub(before.0).zip(now.1.checked_sub(before.1));
        both.filter(|(all, _)| *all >= SEGMENTS_LEAST).unwrap_or_default()
    };
    let mean = |of: fn(&ConnectionReport) -> Option<u32>| {
        let known: Vec<f64> = all.iter().filter_map(of).map(|time| f64::from(time) / 1e6).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    let round_trips =
        mean(|known| known.round_trip_us).zip(mean(|known| known.least_round_trip_us));
    LineFacts {
        rate: if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 },
        busy: (0.0, 0.0),
        round_trips,
        streams: all.iter().map(|known| known.streams).sum(),
        buffer: all.iter().filter_map(|known| known.buffers).map(|(_, receives)| receives).min(),
        segments: since(now.sent, before.sent),
        received: since(now.received, before.received),
        is_encrypted: all.iter().any(|known| known.protected == Protected::Tls),
    }
}
