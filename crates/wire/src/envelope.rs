//! Envelopes: what authenticates a message, and the bytes that signatures and codes are made of. Making and checking
//! them needs keys, which are not here.
use bytes::Bytes;
use dmover_plan::leases::MoverId;
use serde::{Deserialize, Serialize};

use crate::encoding::from_plain;

/// The public half of an ephemeral key (X25519).
pub type PublicKey = [u8; 32];

/// The same in every protocol, so that coordinators of different versions know that the other one is alive: an empty
/// call, and its answer [`crate::Reply::Pong`], both in the form of protocol 4.
pub const PING: &[u8] = &[0, 7];

/// First bytes of signed messages, and of messages with a code.
const SIGNED: u8 = 2;
const SEALED: u8 = 3;

/// A message with a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed<'a> {
    /// The mover that sent it or receives it.
    pub mover: MoverId,
    /// The handshake whose keys it has.
    pub turn: u32,
    /// Its number.
    pub number: u64,
    /// The keyed BLAKE3 of the number (8 bytes, little-endian) and the body.
    pub code: [u8; 32],
    /// The message.
    #[serde(with = "serde_bytes")]
    pub body: &'a [u8],
}

/// A message with a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signed<'a> {
    /// The public key.
    pub by: &'a str,
    /// The signature of what [`signed_in_run`] returns.
    #[serde(with = "serde_bytes")]
    pub signature: &'a [u8],
    /// The message.
    #[serde(with = "serde_bytes")]
    pub body: &'a [u8],
}

/// A message as received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Envelope<'a> {
    /// Without protection.
    Plain(&'a [u8]),
    /// With a signature.
    Signed(Signed<'a>),
    /// With a code.
    Sealed(Sealed<'a>),
}

fn written<T: Serialize>(first: u8, message: &T) -> Bytes {
    // Serialising to memory does not fail for what is in here.
    postcard::to_extend(message, vec![first]).unwrap_or_default().into()
}

impl Sealed<'_> {
    /// The bytes to send.
    pub fn to_bytes(&self) -> Bytes {
        written(SEALED, self)
    }
}

impl Signed<'_> {
    /// The bytes to send.
    pub fn to_bytes(&self) -> Bytes {
        written(SIGNED, self)
    }
}

/// Parses a message. `None`: it is invalid.
pub fn open(bytes: &[u8]) -> Option<Envelope<'_>> {
    match bytes.split_first()? {
        (&SIGNED, rest) => from_plain(rest).ok().map(Envelope::Signed),
        (&SEALED, rest) => from_plain(rest).ok().map(Envelope::Sealed),
        _ => Some(Envelope::Plain(bytes)),
    }
}

/// The bytes that a signature is made of: a message of a run, and the message that it answers, by their BLAKE3.
pub fn signed_in_run(job: &str, run: u64, to: &[u8; 32], body: &[u8; 32]) -> Vec<u8> {
    postcard::to_stdvec(&(job, run, to, body)).unwrap_or_default()
}

/// What both sides of a handshake know before they have keys. The keys depend on all of it.
#[derive(Debug, Serialize)]
pub struct Meeting {
    /// The digest of the offer.
    pub offer: [u8; 32],
    /// The mover.
    pub mover: MoverId,
    /// The number of the handshake between this mover and its coordinator.
    pub turn: u32,
    /// The public half of the mover's key.
    pub movers_key: PublicKey,
    /// The public half of the coordinator's key.
    pub coordinators_key: PublicKey,
}

impl Meeting {
    /// The bytes that the keys depend on. `None` if there are none, which must not become keys: both sides would agree on
    /// them whatever they know of each other.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        postcard::to_stdvec(self).ok()
    }
}
