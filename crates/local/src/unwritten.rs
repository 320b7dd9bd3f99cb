//! Files whose space was allocated and never written.
use dmover_sys::extents::{self, Gap};
use dmover_sys::file::DataRange;
use dmover_sys::path;
use std::sync::atomic::Ordering;

use crate::directory::{SourceDirectory, TargetDirectory};
use crate::handle::{DirectoryHandle, FileHandle, errno_of};

/// Whether bytes that the source has were never written. If a file cannot be opened, or the file system does not report
/// holes, size and times decide.
pub fn lacks_data(
    from: &SourceDirectory,
    target: &TargetDirectory,
    name: &[u8],
    size: u64,
) -> bool {
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
    !gaps.is_empty() && has_data_in(from, name, &gaps)
}

/// Whether the source has data where the destination has holes. If unknown, it has.
fn has_data_in(from: &SourceDirectory, name: &[u8], holes: &[Gap]) -> bool {
    let source = match &from.handle {
        DirectoryHandle::Open(from) => path::open_file_at(from, name, false).map(FileHandle::Open),
        DirectoryHandle::Remote(from) => {
            from.open_file(name, false).map(FileHandle::Remote).map_err(|e| errno_of(&e))
        }
    };
    let Ok(source) = source else { return true };
    let shown = || from.place.entry(name);
    holes.iter().any(|hole| match source.as_ref().next_data(hole.range.start, &shown) {
        Ok(DataRange::Data(start, _)) => start < hole.range.end,
        Ok(DataRange::End) => false,
        Ok(DataRange::Unknown) | Err(_) => true,
    })
}
