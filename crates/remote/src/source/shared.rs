//! What all that was opened in one tree shares.
use super::asking::Asking;
use super::looks::Known;
use super::open::OpenDirectories;
use super::opened::OpenedFiles;
use super::skew::Skew;
use super::stream::OpenStreams;
use super::walk::Walks;
use std::sync::atomic::AtomicBool;

/// The connection of a tree, and what is known and open there.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) asking: Asking,
    /// What lists of directories have shown.
    pub(super) known: Known,
    /// Directories that are open.
    pub(super) open: OpenDirectories,
    /// Directories that were asked for ahead.
    pub(super) walks: Walks,
    /// Large files that were opened a moment ago.
    pub(super) opened: OpenedFiles,
    /// Streams of content.
    pub(super) streams: OpenStreams,
    /// The agent knows no requests for blocks that differ.
    pub(super) sends_all: AtomicBool,
    /// Directories are listed with what symbolic links lead to.
    pub(super) follows_all: bool,
    /// How far the clocks of both hosts differ.
    pub(super) skew: Skew,
}
