//! What cp reads and writes as a stream: devices, FIFOs, and files that a kernel makes up as they are read.
use std::ffi::OsStr;
use std::fs::{File, FileTimes, Metadata, OpenOptions, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use super::kept_attributes;
use crate::args::CpArgs;
use crate::print::{failure, line};
use crate::quote::quoted;

/// Whether a path is a device or FIFO.
pub(super) fn is_stream(path: &Path) -> bool {
    std::fs::metadata(path)
        .map(|found| found.file_type())
        .is_ok_and(|of| of.is_char_device() || of.is_block_device() || of.is_fifo())
}

/// Whether a source is a file without storage, as in /proc: its size says nothing of what there is to read.
pub(super) fn is_made_up(source: &OsStr) -> bool {
    let is_file = std::fs::metadata(source).is_ok_and(|found| found.is_file());
    is_file
        && File::open(source).is_ok_and(|file| dmover_engine::capability::is_without_storage(&file))
}

/// Writes one to the other, as cp does it. Says what fails, and answers whether nothing did.
pub(super) fn write(args: &CpArgs, source: &OsStr, target: &Path) -> bool {
    let (from, to) = (quoted(source.as_bytes()), quoted(target.as_os_str().as_bytes()));
    match copy(args, source, target) {
        Ok(()) => {
            if args.verbose {
                line(&format!("{from} -> {to}"));
            }
            true
        }
        Err(error) => {
            failure(&format!("cannot write {from} to {to}: {error}"), "check both");
            false
        }
    }
}

fn copy(args: &CpArgs, source: &OsStr, target: &Path) -> std::io::Result<()> {
    let mut from = File::open(source)?;
    let metadata = from.metadata()?;
    let mode = if metadata.is_file() { metadata.mode() & 0o777 } else { 0o666 };
    let mut options = OpenOptions::new();
    let mut to = options.write(true).create(true).truncate(true).mode(mode).open(target)?;
    std::io::copy(&mut from, &mut to)?;
    if metadata.is_file() && to.metadata()?.is_file() {
        keep(args, &metadata, &to)?;
    }
    Ok(())
}

/// What was asked for of mode, owner and times.
fn keep(args: &CpArgs, metadata: &Metadata, to: &File) -> std::io::Result<()> {
    let kept = kept_attributes(args).unwrap_or_default();
    if kept.contains(&"owner") {
        // As cp does: a user without privilege keeps what is possible.
        let _ = fchown(to, Some(metadata.uid()), Some(metadata.gid()));
    }
    if kept.contains(&"mode") {
        to.set_permissions(Permissions::from_mode(metadata.mode() & 0o7777))?;
    }
    if kept.contains(&"times") {
        let times = FileTimes::new().set_accessed(metadata.accessed()?);
        to.set_times(times.set_modified(metadata.modified()?))?;
    }
    Ok(())
}
