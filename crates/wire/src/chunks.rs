//! The messages between the host that runs a job and other hosts that share its DEST: their movers copy chunks of large files.
//!
//! The other host asks. Each request opens a channel.
use dmover_model::{CoordinatorRequest, Outcome};
use serde::{Deserialize, Serialize};

use crate::report::MoverReport;

/// A request: the first message of a channel.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum ChunkRequest {
    /// The process that makes the connection, before each [`Self::Offer`]. Answered with a list of [`Process`]es of its host that had
    /// chunks on earlier connections or in an interrupted run, and may still write.
    Begin(Option<Process>),
    /// These of them cannot write any more. There is no answer.
    Gone(Vec<Process>),
    /// What to take part in; answered with an option of the offer of a pass as JSON. None: no pass has begun within a
    /// moment.
    Offer,
    /// A question; answered with a [`dmover_model::Answer`].
    Ask(CoordinatorRequest),
    /// A chunk to copy; answered with an option of a [`crate::TaskMessage`].
    Take {
        /// How long to wait for one, in milliseconds.
        wait_ms: u32,
    },
    /// The mover continues; answered with [`ChunkNews`].
    Renew {
        /// The numbers of its chunks, and whether each has made progress since the last time.
        held: Vec<(u32, bool)>,
    },
    /// Followed by [`ChunkReport`]s. There is no answer.
    Reports,
    /// The movers of the host have ended: what it still has may be given to others. There is no answer.
    Leave,
    /// The host cannot take part, for this reason. There is no answer.
    Unable(String),
}

/// A process, so that another one can find out whether it is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The boot of its kernel.
    pub boot: String,
    /// The namespace of its number.
    pub namespace: u64,
    /// Its number.
    pub pid: u32,
    /// When it was started, in ticks since the boot.
    pub started: u64,
}

/// A report about a chunk.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct ChunkReport {
    /// The number of the chunk.
    pub number: u32,
    /// Reports about entries, and counts.
    pub told: MoverReport,
    /// What was found and done.
    pub outcome: Outcome,
    /// The mover has ended it.
    pub ended: bool,
}

/// What a mover must know while it copies chunks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkNews {
    /// Chunks that it does not have any more.
    pub lost: Vec<u32>,
    /// Chunks that it should end early and return.
    pub wanted_back: Vec<u32>,
    /// Other movers wait for chunks, so a part of each should be returned.
    pub others_wait: bool,
    /// How many processes share the limits of the job.
    pub sharers: u32,
    /// The pass has ended.
    pub is_over: bool,
}
