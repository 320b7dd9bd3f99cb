//! What the movers of several hosts and their coordinator say to each other.
use serde::{Deserialize, Serialize};

/// Identifies a file system, also across hosts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileSystemName {
    /// A device number under one kernel, which is identified by the random id of its boot.
    Device(String, u64),
    /// A file system with one name on all hosts: its type and export, such as `nfs server:/export`.
    Shared(String),
    /// Its UUID.
    Uuid(String),
}
