//! Large files that were opened a moment ago: each part of one is read by itself, and needs no round trip to open it again.
use dmover_model::Version;
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_wire::agent::{DirectoryAt, FileAt, Head};
use std::collections::VecDeque;

/// How many are known. More are seldom under way at a time.
const KNOWN_MAX: usize = 64;

/// What was seen of large files when they were opened, the last one at the end.
#[derive(Debug, Default)]
pub(super) struct OpenedFiles(Mutex<VecDeque<(FileAt, Head)>>);

impl OpenedFiles {
    /// Remembers an open file whose content has not come with its head.
    pub(super) fn keep(&self, at: &FileAt, head: &Head) {
        if head.short.is_some() {
            return;
        }
        let mut files = lock(&self.0);
        files.retain(|(known, _)| !is_same_name(known, at));
        if files.len() >= KNOWN_MAX {
            files.pop_front();
        }
        files.push_back((at.clone(), head.clone()));
    }

    /// The file that had this name when it was opened last, if it had this version.
    pub(super) fn find(
        &self,
        directory: &DirectoryAt,
        (name, follows): (&[u8], bool),
        version: &Version,
    ) -> Option<(FileAt, Head)> {
        let files = lock(&self.0);
        let mut found = files.iter().filter(|(at, _)| {
            at.directory == *directory
                && at.name.as_bytes() == name
                && at.follows == follows
                && at.version == *version
        });
        found.next().cloned()
    }
}

fn is_same_name(known: &FileAt, at: &FileAt) -> bool {
    known.directory == at.directory && known.name == at.name && known.follows == at.follows
}
