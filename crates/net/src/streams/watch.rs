//! The thread that sees whether streams are alive.
use dmover_host::tcp;
use dmover_observe::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::growth::Counted;
use super::health::{self, BEAT_MS, Health};
use super::shared::{End, Lost, Shared, State, Stream};
use crate::connection::SILENCE;

/// How often it looks.
const TICK: Duration = Duration::from_millis(250);
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
        let is_silent = |stream: &&Arc<Stream>| Health::of(stream).is_silent(now);
        let silent: Vec<Arc<Stream>> = state.streams.iter().filter(is_silent).cloned().collect();
        let end = end_of(&state, now, shared.heard_ms.load(Relaxed), patience);
        let sockets = state.streams.iter().filter_map(|stream| stream.line());
        let wanted = counted.wanted(&sockets.filter_map(tcp::info).collect::<Vec<_>>());
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
        if Health::of(stream).has_recovered() {
            stream.doubted_ms.store(0, Relaxed);
        }
    }
    let streams: Vec<_> = state.streams.iter().map(|stream| Health::of(stream)).collect();
    let Some(by) = health::stuck(&streams, state.outgoing.oldest(), now) else { return };
    tracing::debug!(number = by, "a data stream delivers nothing");
    for stream in state.streams.iter().filter(|stream| stream.number == by) {
        stream.doubted_ms.store(now, Relaxed);
    }
    state.outgoing.give_back(by);
    state.wake_all();
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
