//! Files that are open for writing while they are copied.
use dmover_local::source::OpenFile;
use dmover_model::{Metadata, Name, Note, Verb};

use crate::context::Engine;
use crate::directory_pair::DirectoryPair;

/// Records a file that is open for writing: later writes through a mapping need not change any time. A program that
/// opens the file later does change its times first.
pub(crate) fn note_writers(
    engine: &Engine,
    level: &DirectoryPair,
    name: &Name,
    file: OpenFile<'_>,
) {
    if is_written_to(engine, level, file) {
        note_written(engine, level, name, file.metadata);
    }
}

/// Whether a file is open for writing, where this is recorded.
pub(crate) fn is_written_to(engine: &Engine, level: &DirectoryPair, file: OpenFile<'_>) -> bool {
    engine.doubts.notes_writers
        && level.source.facts.local
        && !rests(engine, level, file)
        && file.is_open_for_writing()
}

/// Whether a copy may skip the check for open writers, which costs as much as four other calls. A pass always
/// checks.
///
/// A page that was written back cannot be changed without a new time, even through a mapping. A write(2) sets the
/// time when it begins: one to a short file takes less than the three seconds that are subtracted from the start of
/// a pass, one to any file less than an hour.
fn rests(engine: &Engine, level: &DirectoryPair, file: OpenFile<'_>) -> bool {
    const AN_HOUR_S: i64 = 3600;
    const SHORT: u64 = 64 << 10;
    let metadata = file.metadata;
    let above = &level.source.metadata.identity;
    // A file that is mounted by itself may lie on any file system.
    let is_known = level.source.facts.writes_back && metadata.identity.mount == above.mount;
    // A mover elsewhere has another clock than the coordinator, who says when the pass began.
    if engine.spec.verb != Verb::Copy || !is_known || engine.reports.coordinator.is_remote() {
        return false;
    }
    // Setting another modification time changes this time.
    let changed = metadata.ctime;
    let is_old = if metadata.size <= SHORT {
        changed < engine.facts.history.pass_began
    } else {
        changed.seconds + AN_HOUR_S < engine.facts.history.pass_began.seconds
    };
    is_old && file.is_written_back()
}

pub(crate) fn note_written(
    engine: &Engine,
    level: &DirectoryPair,
    name: &Name,
    metadata: &Metadata,
) {
    engine.reports.note(Note::OpenForWriting, || level.source_path(name.as_bytes()));
    engine.doubts.add(level.path.join(name.as_bytes()));
    if metadata.links > 1 {
        engine.doubts.note_writer(metadata.identity);
    }
}
