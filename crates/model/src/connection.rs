//! What is known of the connection to another host.
use serde::{Deserialize, Serialize};

/// What protects the bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protected {
    /// ssh, through which everything goes.
    Ssh,
    /// The connection to an agent that listens, through which everything goes (TLS 1.3).
    Agent,
    /// The connections of the host of the command to both hosts, through which everything goes.
    Command,
    /// Several connections of ssh, which carry data streams.
    SshStreams,
    /// TLS 1.3.
    Tls,
    /// Codes that show changes; everything can be read.
    Integrity,
    /// Nothing but the checksum of TCP.
    Nothing,
}

impl Protected {
    /// One word for scripts.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ssh => "ssh",
            Self::Agent => "agent",
            Self::Command => "command",
            Self::SshStreams => "ssh_streams",
            Self::Tls => "tls",
            Self::Integrity => "integrity",
            Self::Nothing => "none",
        }
    }
}

/// Segments that one side of a connection has sent over data streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SentSegments {
    /// All of them, also those that were sent again.
    pub segments: u64,
    /// Those that were sent again.
    pub retransmits: u64,
}

/// What is known of the connection to another host. Counts of segments are those that this side sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// Data streams beside ssh.
    pub streams: u32,
    /// Streams that have ended and were replaced, or will be.
    pub lost_streams: u64,
    /// The first relay of each way that streams may take; none: they go directly.
    pub relays: Vec<String>,
    /// What protects the bytes.
    pub protected: Protected,
    /// The congestion control of the streams.
    pub congestion: Option<String>,
    /// The smoothed round trip, averaged over the streams, in microseconds.
    pub round_trip_us: Option<u32>,
    /// The shortest round trip in microseconds.
    pub least_round_trip_us: Option<u32>,
    /// Segments that were sent, also those that were sent again.
    pub segments: u64,
    /// Segments that were sent again.
    pub retransmits: u64,
    /// Segments with data that have come.
    pub received_segments: u64,
    /// Those of them that came out of order, as those do that follow a lost one.
    pub disordered_segments: u64,
    /// Bytes that both sides have sent over it.
    pub content_bytes: u64,
    /// The same as they went over the line, perhaps compressed.
    pub line_bytes: u64,
    /// The buffers of a stream: for what is sent, and for what is received.
    pub buffers: Option<(u64, u64)>,
    /// What the other side had sent about a second ago; `None`: it has not said it.
    #[serde(default)]
    pub there: Option<SentSegments>,
}
