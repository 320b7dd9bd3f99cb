//! Large files that were opened a moment ago. Each part of a file is a task of its own. It needs no round trip to open the file
//! again. If another task has asked for content and has not read it, this one reads it.
use dmover_model::Version;
use dmover_observe::lock;
use dmover_schedule::sync::Mutex;
use dmover_wire::agent::DirectoryAt;
use std::collections::VecDeque;
use std::sync::Arc;

use super::file::File;

/// How many are kept. More are seldom under way at a time.
const KEPT_MAX: usize = 64;

/// Large files, the one that was opened last at the end.
#[derive(Debug, Default)]
pub(super) struct OpenedFiles(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Each of them holds what this belongs to, so they have to be dropped.
    files: VecDeque<Arc<File>>,
    is_closed: bool,
}

impl OpenedFiles {
    /// Keeps an open file.
    pub(super) fn keep(&self, file: &Arc<File>) {
        let mut kept = lock(&self.0);
        if kept.is_closed {
            return;
        }
        let (mut old, new) =
            std::mem::take(&mut kept.files).into_iter().partition(|known| known.is_at(file));
        kept.files = new;
        kept.files.push_back(Arc::clone(file));
        if kept.files.len() > KEPT_MAX {
            old.extend(kept.files.pop_front());
        }
        drop(kept);
        // Dropping channels may wait for a write.
        drop::<VecDeque<_>>(old);
    }

    /// The file that had this name when it was opened last, if it had this version.
    pub(super) fn find(
        &self,
        directory: &DirectoryAt,
        named: (&[u8], bool),
        version: &Version,
    ) -> Option<Arc<File>> {
        let kept = lock(&self.0);
        kept.files.iter().find(|file| file.is(directory, named, version)).cloned()
    }

    /// Drops all files.
    pub(super) fn close(&self) {
        let mut kept = lock(&self.0);
        kept.is_closed = true;
        let files = std::mem::take(&mut kept.files);
        drop(kept);
        drop(files);
    }
}
