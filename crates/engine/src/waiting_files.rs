//! Files that wait under temporary names until one flush covers all of them.
use dmover_local::error::CallFailed;
use dmover_local::file::Temporary;
use dmover_schedule::time::Instant;

use crate::directory_pair::DirectoryPair;
use crate::planned::{CopyResult, Planned};

/// The most files, bytes and directories (two descriptors each) that wait.
const FILES_MAX: usize = 1024;
const BYTES_MAX: u64 = 64 << 20;
const DIRECTORIES_MAX: usize = 64;

/// A waiting file.
pub(crate) struct WaitingFile {
    pub planned: Planned,
    pub moved: CopyResult,
    pub temporary: Temporary,
    pub started: Instant,
}

/// Waiting files, by directory.
#[derive(Default)]
pub(crate) struct WaitingFiles {
    pub directories: Vec<(DirectoryPair, Vec<WaitingFile>)>,
    pub files: usize,
    pub bytes: u64,
    /// Files of the present batch may be delayed.
    pub puts_off: bool,
    /// A flush has failed, so no waiting file may be renamed.
    pub unflushed: Option<CallFailed>,
}

impl WaitingFiles {
    /// Takes all files, so that none waits.
    pub fn take(&mut self) -> Vec<(DirectoryPair, Vec<WaitingFile>)> {
        (self.files, self.bytes) = (0, 0);
        std::mem::take(&mut self.directories)
    }

    /// Whether any file of a directory waits.
    pub fn has(&self, level: &DirectoryPair) -> bool {
        self.directories.iter().any(|(waiting, _)| waiting.path == level.path)
    }

    /// Whether they are too many to wait any longer.
    pub fn is_full(&self) -> bool {
        self.files >= FILES_MAX
            || self.bytes >= BYTES_MAX
            || self.directories.len() >= DIRECTORIES_MAX
    }
}
