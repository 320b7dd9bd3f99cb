//! How fast bytes move between this host and an agent: from memory to memory, and to and from its storage.
use dmover_model::Fatal;
use dmover_net::RemoteAgent;
use dmover_net::connection::{Broken, Channel};
use dmover_net::frame::PAYLOAD_MAX;
use dmover_schedule::thread;
use dmover_schedule::time::Instant;
use dmover_wire::agent::{Measured, NOT_ACCEPTED, Request};
use dmover_wire::{decode, encode};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub use dmover_wire::agent::Measure;

/// The length of a message with content.
pub(crate) const MESSAGE: usize = PAYLOAD_MAX;
/// Channels that are used at the same time: each has a window of its own.
const CHANNELS: usize = 4;
/// Random bytes that are sent again and again: more than compression looks back for.
const NOISE_BYTES: usize = 8 << 20;

/// Bytes that cannot be compressed.
pub(crate) fn noise() -> Vec<u8> {
    let mut bytes = vec![0; NOISE_BYTES];
    let seed = dmover_host::random_u64().to_le_bytes();
    blake3::Hasher::new().update(&seed).finalize_xof().fill(&mut bytes);
    bytes
}

/// What has moved, and in which time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Bytes.
    pub bytes: u64,
    /// From the first byte to the last one, or to the answer that all has come.
    pub elapsed: Duration,
}

/// Measures for a time.
///
/// # Errors
/// The connection is over, or the agent cannot do it.
pub fn measure(agent: &RemoteAgent, what: Measure, time: Duration) -> Result<Moved, Fatal> {
    let begin = Instant::now();
    let (bytes, first_us) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let noise = noise();
    let one = || -> Result<(), Broken> {
        let channel = agent.request(&encode(&Request::Measure(what)))?;
        match what {
            Measure::Send(_) | Measure::Read(_) => {
                channel.finish()?;
                channel.expect_much()?;
                while let Some(message) = channel.receive()? {
                    first_us.fetch_min(begin.elapsed().as_micros() as u64, Relaxed);
                    bytes.fetch_add(message.len() as u64, Relaxed);
                }
                Ok(())
            }
            Measure::Receive | Measure::Write => {
                first_us.fetch_min(begin.elapsed().as_micros() as u64, Relaxed);
                bytes.fetch_add(send(&channel, &noise, begin + time)?, Relaxed);
                Ok(())
            }
        }
    };
    let done: Result<Vec<()>, Broken> = thread::scope(|scope| {
        let threads: Vec<_> = (0..CHANNELS).map(|_| scope.spawn(one)).collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect()
    });
    done.map_err(|why| match why {
        // The agent has said what is wrong there.
        Broken::Cancelled(words) if !words.starts_with(NOT_ACCEPTED) => Fatal::refused(
            format!("the host '{}' cannot measure: {words}", agent.host()),
            "name a directory in which you may write, on a local file system of that host",
        ),
        why => agent.fatal(&why),
    })?;
    let first = Duration::from_micros(first_us.into_inner().min(u64::from(u32::MAX)));
    let elapsed = begin.elapsed().saturating_sub(first);
    Ok(Moved { bytes: bytes.into_inner(), elapsed })
}

/// Sends until a time, and waits until all has come.
fn send(channel: &Channel, noise: &[u8], end: Instant) -> Result<u64, Broken> {
    let (mut parts, mut sent) = (noise.chunks(MESSAGE).cycle(), 0);
    while Instant::now() < end {
        let part = parts.next().unwrap_or_default();
        channel.send(part)?;
        sent += part.len() as u64;
    }
    channel.finish()?;
    let answer = channel.receive()?;
    let measured: Option<Measured> = answer.and_then(|answer| decode(&answer).ok());
    match measured {
        Some(Measured { bytes }) if bytes == sent => Ok(sent),
        _ => Err(Broken::Violation("not all of a measurement has come")),
    }
}
