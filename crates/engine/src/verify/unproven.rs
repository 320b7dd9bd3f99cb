//! Files whose data does not read back as it was read at the source.
use dmover_model::{EntryError, EntryKind, Record};

use crate::checked_tree;
use crate::context::Engine;

/// Marks an unverified file as incomplete by its modification time: otherwise it looks equal to its source, and the
/// next run would skip it.
pub(super) fn mark_unproven(engine: &Engine, record: &Record) {
    if !engine.spec.verify_policy().marks_unproven || record.body.kind != EntryKind::File {
        return;
    }
    if let Err(error) = try_to_mark(engine, record) {
        let detail = "the file is not verified, and the next run would skip it: remove the \
            file before that run"
            .into();
        engine.error(EntryError { detail, ..error });
    }
}

fn try_to_mark(engine: &Engine, record: &Record) -> Result<(), EntryError> {
    let Some((directory, name)) = record.path.split_last() else { return Ok(()) };
    let level = checked_tree::checked_level(engine, &directory)?;
    engine.end.mark_unfinished(&level.source, name, record.body.mtime)
}
