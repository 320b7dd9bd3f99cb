//! The messages of a job that runs at the host of its destination, while its user and its sources are at another host.
//!
//! The host that runs the job asks. Each request opens a channel.
use crate::streams::{RelayedWay, StreamSettings};
use dmover_model::PathBytes;
use serde::{Deserialize, Serialize};

/// A request: the first message of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DelegateRequest {
    /// What to run; answered with a [`DelegatedJob`].
    Job,
    /// A request about a source of the host of the command, as [`crate::agent`] describes it, with the same answers.
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
    /// Connects with the agent of a source on a third host: the messages of the channel are the bytes of the connection in both
    /// directions, beginning with the greetings.
    Connect {
        /// The number of the host: those of the first source come first.
        number: u32,
    },
    /// Which sources are on third hosts; answered with [`ThirdHosts`].
    ThirdHosts,
    /// What this host does for the job; answered with a [`DelegateRole`].
    Role,
    /// Accepts a connection of another host that shares DEST: the messages of the channel are its bytes in both directions,
    /// beginning with the greetings. They begin when that host is there.
    Accept {
        /// The number of the host in the list.
        number: u32,
    },
    /// Connects with the host that runs the job: the other end of [`Self::Accept`].
    Coordinator,
}

/// What a host does for a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DelegateRole {
    /// It runs the job.
    Runs {
        /// The names of the other hosts that share DEST.
        others: Vec<String>,
    },
    /// It copies chunks of large files for the host that runs the job.
    CopiesChunks {
        /// The sources as the user has typed them.
        typed: Vec<PathBytes>,
        /// The sources of the job, which those of the offer must be.
        sources: Vec<PathBytes>,
        /// Its destination, likewise.
        destination: PathBytes,
    },
}

/// A third host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThirdHost {
    /// Its name or address, as the host of the command knows it.
    pub name: String,
    /// The ways to it that lead through relays; none: data streams go to it directly.
    pub ways: Vec<RelayedWay>,
}

/// The third hosts that have sources of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThirdHosts {
    /// For each source, the hosts that have it; none: the host of the command.
    pub hosts: Vec<Vec<ThirdHost>>,
    /// Which data streams are opened to them.
    pub streams: StreamSettings,
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
