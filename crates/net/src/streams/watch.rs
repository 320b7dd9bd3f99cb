//! The thread that sees whether streams are alive.
use dmover_host::tcp::{self, TcpInfo};
use dmover_observe::lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::shared::{End, Lost, Shared, State, Stream};
use crate::connection::SILENCE;

/// More streams are wanted if the share of segments that are lost is at least this, in so many segments...
const LOSS_LEAST: f64 = 1e-5;
const SEGMENTS_LEAST: u64 = 20_000;
/// ...and the round trip is no longer than this many times the shortest one: then no queue on the way is full, which more
/// streams would only fill sooner.
const QUEUED: f64 = 1.3;
/// How often it looks.
const TICK: Duration = Duration::from_millis(250);
/// A stream says that it is alive after so long without a word.
const BEAT_MS: u64 = 1_000;
/// A stream from which nothing was heard for so long is closed. Whoever has opened it opens another one, which works sooner
/// after an outage than TCP, whose pauses between attempts grow with the outage.
const SILENT_MS: u64 = 10_000;
/// If the other side waits for a chunk for so long, and its stream delivers nothing meanwhile while others are alive, they
/// send it, too.
const OVERDUE_MS: u64 = 2_000;
/// The other side has ended if it has closed the streams, and opened none for so long.
const GONE_MS: u64 = 2_000;
/// The same if streams do not exist any more for somebody, who may be a firewall that has begun anew.
const RESET_MS: u64 = 20_000;

/// Looks until the pool is over. `patience`: how long the other side may be unreachable once there was a stream besides the spare one.
pub(super) fn run(shared: &Arc<Shared>, patience: Duration) {
    shared.heard_ms.store(shared.now_ms(), Relaxed);
    let mut counted = Counted::default();
    loop {
        let state = lock(&shared.state);
        if shared.over().is_some() {
            return;
        }
        let waited = shared.changed.wait_timeout(state, TICK);
        let mut state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        let now = shared.now_ms();
        count(shared, &state, now);
        beat(&state, now);
        // The stream that carried it may have ended.
        state.tell_wanted |= shared.wants_more();
        doubt(&mut state, now);
        let silent: Vec<Arc<Stream>> =
            state.streams.iter().filter(|stream| is_silent(stream, now)).cloned().collect();
        let end = end_of(&state, now, shared.heard_ms.load(Relaxed), patience);
        let wanted = counted.wanted(&state);
        drop(state);
        if let Some(wanted) = wanted {
            shared.want(wanted);
        }
        for stream in silent {
            shared.lose(&stream, &Lost::Silent);
        }
        if let Some(end) = end {
            return shared.end(end);
        }
    }
}

/// What was counted when it was last decided how many streams are wanted.
#[derive(Default)]
struct Counted {
    streams: usize,
    segments: u64,
    retransmits: u64,
}

impl Counted {
    /// How many streams would carry more than those that there are. One that loses packets by chance carries little, and
    /// several share the losses.
    fn wanted(&mut self, state: &State) -> Option<u64> {
        let sockets = || state.streams.iter().filter_map(|stream| stream.socket.as_ref());
        let known: Vec<TcpInfo> = sockets().filter_map(tcp::info).collect();
        let segments = known.iter().map(|info| u64::from(info.segments)).sum();
        let retransmits = known.iter().map(|info| u64::from(info.retransmits)).sum();
        let before = std::mem::replace(self, Self { streams: known.len(), segments, retransmits });
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
        (is_lossy && !is_queued).then_some(2 * known.len() as u64)
    }
}

/// Asks the kernel what streams have delivered and received. It knows more than the threads, which see whole records only.
fn count(shared: &Shared, state: &State, now: u64) {
    for stream in &state.streams {
        let Some(known) = stream.socket.as_ref().and_then(tcp::info) else { continue };
        let [delivered, received] = &stream.counted;
        if delivered.swap(known.acknowledged_bytes, Relaxed) != known.acknowledged_bytes {
            stream.delivered_ms.store(now, Relaxed);
        }
        if received.swap(known.received_bytes, Relaxed) != known.received_bytes {
            stream.heard_ms.store(now, Relaxed);
            shared.heard_ms.store(now, Relaxed);
        }
    }
}

fn beat(state: &State, now: u64) {
    for stream in &state.streams {
        if now - stream.told_ms.load(Relaxed).min(now) >= BEAT_MS {
            stream.beat_due.store(true, Relaxed);
            stream.wake.notify_all();
        }
    }
}

/// Has others send what a stream seems not to deliver.
fn doubt(state: &mut State, now: u64) {
    for stream in &state.streams {
        let since = stream.doubted_ms.load(Relaxed);
        let progress =
            if stream.socket.is_some() { &stream.delivered_ms } else { &stream.heard_ms };
        if since != 0 && progress.load(Relaxed) > since {
            stream.doubted_ms.store(0, Relaxed);
        }
    }
    let Some((by, at)) = state.outgoing.oldest() else { return };
    if now - at.min(now) < OVERDUE_MS {
        return;
    }
    let is_alive = |other: &&Arc<Stream>| {
        other.number != by && !other.is_doubted() && other.heard_ms.load(Relaxed) > at + BEAT_MS
    };
    let is_stuck = |stream: &&Arc<Stream>| {
        // Without a socket it is not known what was delivered.
        let delivers = stream.socket.is_some()
            && now - stream.delivered_ms.load(Relaxed).min(now) < OVERDUE_MS;
        stream.number == by && !delivers
    };
    let late = state.streams.iter().find(is_stuck);
    let Some(late) = late.filter(|_| state.streams.iter().any(|other| is_alive(&other))) else {
        return;
    };
    tracing::debug!(number = by, "a data stream delivers nothing");
    late.doubted_ms.store(now, Relaxed);
    state.outgoing.give_back(by);
    state.wake_all();
}

/// Whether nothing was heard of a stream, or nothing was delivered by it, for too long. A spare stream is never replaced, so
/// it may be silent for as long as the whole pool may be.
fn is_silent(stream: &Stream, now: u64) -> bool {
    let is_long = |since: &AtomicU64| now - since.load(Relaxed).min(now) >= SILENT_MS;
    let is_useless = stream.is_doubted() && is_long(&stream.doubted_ms);
    !stream.is_spare && (is_long(&stream.heard_ms) || is_useless)
}

/// Whether the pool is over.
fn end_of(state: &State, now: u64, heard: u64, patience: Duration) -> Option<End> {
    if state.streams.is_empty() && state.spare_ended {
        let limit = if state.was_closed { GONE_MS } else { RESET_MS };
        // Without streams nothing else could take over.
        if !state.had_streams || now - state.last_lost_ms.min(now) >= limit {
            return Some(End::Gone);
        }
    }
    let limit = if state.had_streams { patience } else { SILENCE };
    let silent = Duration::from_millis(now - heard.min(now));
    (silent >= limit).then_some(End::Unreachable(silent))
}
