//! Which files of the destination are certainly on storage.
//!
//! A power cut may leave a file with its size and times but without its content: ext4 commits the size when it
//! allocates blocks and marks them as written later; btrfs and XFS do the same if a file has several extents. So files
//! that look equal are compared if they may be incomplete. For most files the change time rules this out, and nothing
//! more is checked.
use dmover_local::unwritten::lacks_data;
use dmover_model::Timestamp;
use std::sync::atomic::Ordering;

use crate::context::Engine;
use crate::directory_pair::DirectoryPair;
use crate::trust::Known;

/// Whether a file that looks equal may lack content. `name`: at the destination; `found`: its change time and size
/// there.
pub(crate) fn is_suspect(
    engine: &Engine,
    level: &DirectoryPair,
    name: &[u8],
    found: (Timestamp, u64),
) -> bool {
    let (ctime, size) = found;
    let Some(target) = level.target.as_ref().filter(|_| size > 0) else { return false };
    // Of an interrupted pass, files that were flushed are recorded, and not checked again.
    if engine.facts.history.is_unfinished(level.clocks(), ctime) {
        return true;
    }
    match engine.facts.trust.of(ctime) {
        Known::Whole => false,
        Known::CutOff => true,
        Known::Nothing => {
            engine.doubts.files_asked.fetch_add(1, Ordering::Relaxed);
            lacks_data(&level.source, target, name, size)
        }
    }
}
