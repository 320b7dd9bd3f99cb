//! Which files of the destination are certainly on storage.
//!
//! A power cut may leave a file with its size and times but without its content: ext4 commits the size when it
//! allocates blocks and marks them as written later; btrfs and XFS do the same if a file has several extents. So files
//! that look equal are compared if they may be incomplete. For most files the change time rules this out, and nothing
//! more is checked.
use dmover_model::Timestamp;
use dmover_sys::extents::{self, Gap};
use dmover_sys::file::{DataRange, next_data};
use dmover_sys::path;
use std::sync::atomic::Ordering;

use crate::context::Engine;
use crate::level::{Level, TargetDirectory};
use crate::trust::Known;

impl Engine {
    /// Whether a file that looks equal may lack content. `name`: at the destination; `found`: its change time and size
    /// there.
    pub(crate) fn is_suspect(&self, level: &Level, name: &[u8], found: (Timestamp, u64)) -> bool {
        let (ctime, size) = found;
        let Some(target) = level.target.as_ref().filter(|_| size > 0) else { return false };
        // Of an interrupted pass, files that were flushed are recorded, and not checked again.
        if self.history.is_unfinished(level.clocks(), ctime) {
            return true;
        }
        match self.trust.of(ctime) {
            Known::Whole => false,
            Known::CutOff => true,
            Known::Nothing => {
                self.files_asked.fetch_add(1, Ordering::Relaxed);
                lacks_data(level, target, name, size)
            }
        }
    }
}

/// Whether bytes that the source has were never written. If a file cannot be opened, or the file system does not report
/// holes, size and times decide.
fn lacks_data(level: &Level, target: &TargetDirectory, name: &[u8], size: u64) -> bool {
    if target.facts.is(&target.facts.tells_no_gaps) {
        return false;
    }
    let Ok(file) = path::open_file_at(&target.fd, name, false) else { return false };
    let Ok(gaps) = extents::gaps(&file, size) else { return false };
    let Some(gaps) = gaps else {
        target.facts.tells_no_gaps.store(true, Ordering::Relaxed);
        return false;
    };
    if gaps.iter().any(|gap| gap.is_unwritten) {
        return true;
    }
    !gaps.is_empty() && has_data_in(level, name, &gaps)
}

/// Whether the source has data where the destination has holes. If unknown, it has.
fn has_data_in(level: &Level, name: &[u8], holes: &[Gap]) -> bool {
    let Ok(source) = path::open_file_at(&level.source.fd, name, false) else { return true };
    holes.iter().any(|hole| match next_data(&source, hole.range.start) {
        Ok(DataRange::Data(start, _)) => start < hole.range.end,
        Ok(DataRange::End) => false,
        Ok(DataRange::Unknown) | Err(_) => true,
    })
}
