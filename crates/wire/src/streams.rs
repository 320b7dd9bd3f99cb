//! How two sides agree on data streams: the fields of their greetings about them.
use core::net::IpAddr;
use serde::{Deserialize, Serialize};

/// What protects the bytes on data streams. Who opens a stream is always proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Protection {
    /// TLS 1.3: nobody on the way reads or changes them.
    #[default]
    Full,
    /// Nobody on the way changes them, but they can be read.
    Integrity,
    /// Only TCP's own checksum.
    None,
}

/// Whether what goes over data streams is compressed (Zstandard), in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Compression {
    /// While that is faster.
    #[default]
    Auto,
    /// All of it.
    Always,
    /// Nothing.
    Never,
}

/// Which data streams a user wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamSettings {
    /// How many; zero: none.
    pub count: u32,
    /// More are opened if the line loses packets.
    pub grows: bool,
    /// What protects the bytes.
    pub protection: Protection,
    /// The first and the last port on which the accepting side may listen; zero: any.
    pub ports: (u16, u16),
    /// The names or addresses of the accepting side; none: those that it says itself, and that by which it was reached.
    pub addresses: Vec<String>,
    /// The addresses of the connecting side that streams come from, in turn; none: what the kernel chooses.
    pub from: Vec<IpAddr>,
    /// The congestion control of both sides, by the kernel's name.
    pub congestion: Option<String>,
    /// Bytes of the buffers of each stream in each direction.
    pub buffer_bytes: Option<u32>,
    /// How long both sides keep their ends while the other one cannot be reached, in milliseconds.
    pub patience_ms: u32,
    /// Whether chunks are compressed.
    pub compression: Compression,
}

/// A way to the accepting side that leads through relays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayedWay {
    /// Addresses of the first relay, and at last its name.
    pub addresses: Vec<String>,
    /// The port on which it listens.
    pub port: u16,
    /// The relays, from the first to the last.
    pub relays: Vec<RelayHop>,
}

/// What a stream sends to one relay before its own bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayHop {
    /// Who knows it may use the relay.
    pub token: RelayToken,
    /// The port of the next relay; `None`: there is none, and the port is that of the accepting side.
    pub next_port: Option<u16>,
}

/// A random number that a relay was given with its order.
pub type RelayToken = [u8; 32];

/// What the side that has started the other one asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamOffer {
    /// The certificate that its streams present (DER). It is made for this connection.
    #[serde(with = "serde_bytes")]
    pub certificate: Vec<u8>,
    /// What protects the bytes.
    pub protection: Protection,
    /// The first and the last port on which the other side may listen; zero: any.
    pub ports: (u16, u16),
    /// The congestion control of both sides, by the kernel's name.
    pub congestion: Option<String>,
    /// Bytes of the buffers of each stream in each direction.
    pub buffer_bytes: Option<u32>,
    /// How long the other side keeps its end while no stream works, in milliseconds.
    pub patience_ms: u32,
    /// Whether chunks are compressed.
    pub compression: Compression,
}

/// What the other side answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamAnswer {
    /// It listens. Everything after the greetings is in chunks.
    Listens {
        /// The certificate of its end (DER).
        #[serde(with = "serde_bytes")]
        certificate: Vec<u8>,
        /// The port.
        port: u16,
        /// Addresses at which it may be reached, the best one first.
        addresses: Vec<String>,
    },
    /// It does not, for this reason.
    Refuses(String),
}
