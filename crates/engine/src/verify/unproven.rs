//! Files whose data does not read back as it was read at the source.
use dmover_model::{EntryError, EntryKind, Record};

use crate::context::Engine;

impl Engine {
    /// Marks an unverified file as incomplete by its modification time: otherwise it looks equal to its source, and the
    /// next run would skip it.
    pub(super) fn mark_unproven(&self, record: &Record) {
        if !self.spec.verify_policy().marks_unproven || record.body.kind != EntryKind::File {
            return;
        }
        if let Err(error) = self.try_to_mark(record) {
            let detail = "the file is not verified, and the next run would skip it: remove the \
                file before that run"
                .into();
            self.error(EntryError { detail, ..error });
        }
    }

    fn try_to_mark(&self, record: &Record) -> Result<(), EntryError> {
        let Some((directory, name)) = record.path.split_last() else { return Ok(()) };
        let level = self.checked_level(&directory)?;
        self.end.mark_unfinished(&level.source, name, record.body.mtime)
    }
}
