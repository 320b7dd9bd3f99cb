//! Copies that cp makes as streams: devices, FIFOs, and files whose content the kernel generates when they are read.
use std::ffi::OsStr;
use std::fs::{File, FileTimes, Metadata, OpenOptions, Permissions};
use std::io::{Error, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use super::backups::{Backups, Control};
use super::targets::is_same;
use super::{follows, kept_attributes};
use crate::args::CpArgs;
use crate::print::{failure, line};
use dmover_job::quote::quoted;

/// Whether a path is a device or FIFO.
pub(super) fn is_stream(path: &Path) -> bool {
    std::fs::metadata(path)
        .map(|found| found.file_type())
        .is_ok_and(|of| of.is_char_device() || of.is_block_device() || of.is_fifo())
}

/// Whether a source is a file without storage, as in /proc, whose size is not the size of its content.
pub(super) fn is_made_up(source: &OsStr) -> bool {
    let is_file = std::fs::metadata(source).is_ok_and(|found| found.is_file());
    is_file
        && File::open(source).is_ok_and(|file| dmover_engine::capability::is_without_storage(&file))
}

/// Copies a source to a target as cp does. Reports a failure, and returns whether there was none.
pub(super) fn write(args: &CpArgs, backups: &Backups, source: &OsStr, target: &Path) -> bool {
    let (from, to) = (quoted(source.as_bytes()), quoted(target.as_os_str().as_bytes()));
    let done = entry_at(args, backups, source, target).and_then(|there| match there {
        Entry::Newer => Ok(false),
        there => copy(args, &there, source, target).map(|()| true),
    });
    match done {
        Ok(is_written) => {
            if args.verbose && is_written {
                line(&format!("{from} -> {to}"));
            }
            true
        }
        Err(error) => {
            let hint = "check that the source can be read and the destination written";
            failure(&format!("cannot copy {from} to {to}: {error}"), hint);
            false
        }
    }
}

/// The existing entry with the name of the copy, and what happens to it first.
enum Entry {
    None,
    /// The content is written into it.
    Written,
    Removed,
    /// It is renamed to this name.
    BackedUp(PathBuf),
    /// `--update` keeps it.
    Newer,
}

fn entry_at(
    args: &CpArgs,
    backups: &Backups,
    source: &OsStr,
    target: &Path,
) -> std::io::Result<Entry> {
    let read = std::fs::metadata(source)?;
    let Ok(there) = std::fs::symlink_metadata(target) else { return Ok(Entry::None) };
    if there.is_dir() {
        return Err(Error::from(ErrorKind::IsADirectory));
    }
    let keeps_old = backups.control != Control::None;
    // If a link is replaced, the link itself is compared.
    let compared = if keeps_old || args.remove_destination {
        there
    } else {
        let dangling = |_| Error::other("not writing through dangling symlink");
        std::fs::metadata(target).map_err(dangling)?
    };
    if args.update && compared.modified()? >= read.modified()? {
        return Ok(Entry::Newer);
    }
    if is_same(&compared, &read) {
        return Err(Error::other("both are the same file"));
    }
    if keeps_old {
        let backup = backups.name_for(target);
        if std::fs::metadata(&backup).is_ok_and(|found| is_same(&found, &read)) {
            return Err(Error::other("the backup would overwrite the source"));
        }
        return Ok(Entry::BackedUp(backup));
    }
    let is_linked = compared.nlink() > 1 && kept(args).contains(&"links");
    let is_replaced = args.remove_destination || is_linked;
    let is_removed = is_replaced || !(read.is_file() || follows(args, false));
    Ok(if is_removed { Entry::Removed } else { Entry::Written })
}

/// The old entry keeps its name until the source is open. If the copy fails, a backup gets the name back.
fn copy(args: &CpArgs, there: &Entry, source: &OsStr, target: &Path) -> std::io::Result<()> {
    let mut from = File::open(source)?;
    match there {
        Entry::Removed => std::fs::remove_file(target)?,
        Entry::BackedUp(backup) => std::fs::rename(target, backup)?,
        _ => {}
    }
    let copied = transfer(args, &mut from, target, matches!(there, Entry::Written));
    if let (Err(_), Entry::BackedUp(backup)) = (&copied, there) {
        std::fs::rename(backup, target)?;
    }
    copied
}

fn transfer(args: &CpArgs, from: &mut File, target: &Path, exists: bool) -> std::io::Result<()> {
    let metadata = from.metadata()?;
    let mut options = OpenOptions::new();
    options.write(true).truncate(exists).create_new(!exists).mode(metadata.mode() & 0o777);
    let mut to = options.open(target)?;
    std::io::copy(from, &mut to)?;
    if metadata.is_file() && to.metadata()?.is_file() {
        keep(args, &metadata, &to)?;
    }
    Ok(())
}

fn kept(args: &CpArgs) -> Vec<&'static str> {
    kept_attributes(args).unwrap_or_default()
}

/// Sets mode, owner and times as far as they are preserved.
fn keep(args: &CpArgs, metadata: &Metadata, to: &File) -> std::io::Result<()> {
    let kept = kept(args);
    if kept.contains(&"owner") {
        // Like cp, ignores a failure: a user without privilege cannot set every owner.
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
