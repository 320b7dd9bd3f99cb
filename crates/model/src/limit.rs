//! What keeps a job from being faster.
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
    /// The processors of this machine.
    Cpu,
    /// A limit that was asked for.
    Cap,
    /// It was too short to tell.
    Unknown,
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
        }
    }
}

/// The present limit, and why it is taken for that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Which.
    pub what: Bottleneck,
    /// What was seen, in words.
    pub evidence: String,
}
