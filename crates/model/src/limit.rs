//! What limits the speed of a job.
use serde::{Deserialize, Serialize};

/// The present limit of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// Reading content.
    Source,
    /// Writing content.
    Destination,
    /// Names and attributes, on either side.
    Metadata,
    /// The processors of this host.
    Cpu,
    /// A limit that the user set.
    Cap,
    /// The job was too short to tell.
    Unknown,
    /// What may be on its way from another host: the windows of the data streams.
    Window,
    /// Segments of data streams that were lost.
    Loss,
    /// The line to another host, whose queue is full.
    Line,
}

impl Bottleneck {
    /// The word in text and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
            Self::Metadata => "metadata",
            Self::Cpu => "cpu",
            Self::Cap => "cap",
            Self::Unknown => "unknown",
            Self::Window => "window",
            Self::Loss => "loss",
            Self::Line => "line",
        }
    }
}

/// The present limit, and the evidence for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The limit.
    pub what: Bottleneck,
    /// The evidence, in words.
    pub evidence: String,
}
