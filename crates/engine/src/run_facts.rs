//! What all movers of a run must agree on, on any host.
use dmover_plan::history::History;
use serde::{Deserialize, Serialize};

use crate::trust::Trust;

/// Facts about a run that all its movers must agree on, on any host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunFacts {
    /// The run resumes the work of an earlier run.
    pub is_resumed: bool,
    /// Completed work must be on storage.
    pub is_durable: bool,
    pub keeps_journal: bool,
    /// Completed parts of large files are recorded.
    pub keeps_parts: bool,
    /// Movers run in other processes than the coordinator.
    pub is_elsewhere: bool,
    /// Movers at other hosts copy chunks as well.
    pub shares_chunks: bool,
    /// A mover flushes each chunk of a large file before it reports it, because another host ends the file.
    pub flushes_chunks: bool,
    pub keeps_catalog: bool,
    pub tells_entered: bool,
    /// The run scans only paths that a change feed has reported.
    pub follows: bool,
    /// Exactly one task finishes each destination directory.
    pub directories_apart: bool,
    /// What earlier passes have seen.
    pub history: History,
    /// Which files of the destination are on storage.
    pub trust: Trust,
    /// The umask of the user.
    pub umask: u32,
}
