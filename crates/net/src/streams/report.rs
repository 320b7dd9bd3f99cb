//! What is known of the streams of a pool.
use dmover_host::tcp;
use dmover_model::{ConnectionReport, Protected};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::shared::{Carried, Stream};

/// What the kernel says about these streams. `lost`: how many have ended before.
pub(super) fn of(
    streams: &[Arc<Stream>],
    (protected, carried): (Protected, &Carried),
    lost: u64,
) -> ConnectionReport {
    let sockets: Vec<_> = streams.iter().filter_map(|stream| stream.line()).collect();
    let count = streams.iter().filter(|stream| !stream.is_spare).count();
    let known: Vec<_> = sockets.iter().filter_map(|socket| tcp::info(socket)).collect();
    let sum = |of: fn(&tcp::TcpInfo) -> u32| known.iter().map(of).map(u64::from).sum::<u64>();
    let average = sum(|info| info.round_trip_us).checked_div(known.len() as u64);
    let buffers = sockets.first().and_then(|socket| tcp::buffers(socket));
    ConnectionReport {
        streams: count as u32,
        lost_streams: lost,
        relays: Vec::new(),
        protected,
        congestion: sockets.first().and_then(|socket| tcp::congestion(socket)),
        round_trip_us: average.map(|time| time as u32),
        least_round_trip_us: known.iter().map(|info| info.least_round_trip_us).min(),
        segments: sum(|info| info.segments),
        retransmits: sum(|info| info.retransmits),
        received_segments: sum(|info| info.received_segments),
        disordered_segments: sum(|info| info.disordered_segments),
        content_bytes: carried.content.load(Relaxed),
        line_bytes: carried.line.load(Relaxed),
        there: None,
        buffers: buffers.map(|(sends, receives)| (sends as u64, receives as u64)),
    }
}
