//! The messages of a job that runs at the host of its destination, while its user and its sources are at another host.
//!
//! The host that runs the job asks. Each request opens a channel.
use dmover_model::PathBytes;
use serde::{Deserialize, Serialize};

/// How the reason begins with which requests about a source end after the connection to its host was lost.
pub const SOURCE_LOST: &str = "the source is lost: ";

/// A request: the first message of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DelegateRequest {
    /// What to run; answered with a [`DelegatedJob`].
    Job,
    /// A request about a source, as [`crate::agent`] describes it, with the same answers.
    Source {
        /// The number of the source in the job.
        number: u32,
        /// The request.
        #[serde(with = "serde_bytes")]
        request: Vec<u8>,
    },
    /// Answered with the number of each signal that the process of the user gets, as an i32, until the job ends.
    Signals,
    /// What the job prints: followed by messages with nothing but these bytes.
    Output(OutputStream),
    /// The job has ended, with this exit code. Nothing follows.
    Ended(u8),
}

/// Where a job prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutputStream {
    /// Standard output.
    Standard,
    /// Standard error.
    Error,
}

/// A job that another host runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelegatedJob {
    /// The command line of the user.
    pub words: Vec<PathBytes>,
    /// The specification as JSON. Its sources are named for this job, and its destination is a path of the host that runs
    /// it.
    pub spec: String,
    /// The sources as the user has typed them.
    pub typed: Vec<PathBytes>,
    /// The columns of the user's terminal; `None`: there is none.
    pub columns: Option<u16>,
}
