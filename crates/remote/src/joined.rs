//! Values that are longer than a message of a connection: as long as a message has the greatest length, the next one
//! continues it.
use dmover_net::connection::{Broken, Channel};
use dmover_net::frame::PAYLOAD_MAX;
use dmover_wire::{DecodeError, SIZE_MAX, decode};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Sends an encoded value, whatever its length.
///
/// # Errors
/// The channel is over.
pub(crate) fn send(channel: &Channel, mut value: &[u8]) -> Result<(), Broken> {
    while value.len() >= PAYLOAD_MAX {
        let (now, rest) = value.split_at(PAYLOAD_MAX);
        channel.send(now)?;
        value = rest;
    }
    channel.send(value)
}

/// Receives such a value.
///
/// # Errors
/// The channel is over, or what came is no such value.
pub(crate) fn receive<T: DeserializeOwned>(channel: &Channel) -> Result<T, Broken> {
    value(&receive_bytes(channel)?)
}

/// Receives the bytes of such a value.
///
/// # Errors
/// The channel is over.
pub(crate) fn receive_bytes(channel: &Channel) -> Result<Vec<u8>, Broken> {
    join(channel.receive(), channel)
}

/// The same for a value whose first message comes within this time; `None`: it does not.
///
/// # Errors
/// The channel is over, or what came is no such value.
pub(crate) fn receive_within<T: DeserializeOwned>(
    channel: &Channel,
    limit: Duration,
) -> Option<Result<T, Broken>> {
    Some(receive_bytes_within(channel, limit)?.and_then(|bytes| value(&bytes)))
}

/// The bytes of such a value.
///
/// # Errors
/// The channel is over.
pub(crate) fn receive_bytes_within(
    channel: &Channel,
    limit: Duration,
) -> Option<Result<Vec<u8>, Broken>> {
    Some(join(channel.receive_within(limit)?, channel))
}

/// Completes a value whose first message has come.
fn join(first: Result<Option<Vec<u8>>, Broken>, channel: &Channel) -> Result<Vec<u8>, Broken> {
    let missing = || Broken::Violation("an answer is missing");
    let mut value = first?.ok_or_else(missing)?;
    let mut is_full = value.len() == PAYLOAD_MAX;
    while is_full {
        let more = channel.receive()?.ok_or_else(missing)?;
        is_full = more.len() == PAYLOAD_MAX;
        if value.len() + more.len() > SIZE_MAX {
            return Err(Broken::Violation("an answer is too long"));
        }
        value.extend_from_slice(&more);
    }
    Ok(value)
}

fn value<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Broken> {
    decode(bytes).map_err(|error| unreadable(&error))
}

/// What came is no such value.
pub(crate) fn unreadable(error: &DecodeError) -> Broken {
    tracing::debug!(%error, "an answer cannot be read");
    Broken::Violation("an answer cannot be read")
}
