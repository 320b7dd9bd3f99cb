//! Entries that were copied separately because a hard link could not be made.
use dmover_model::{
    Attribute, ByteRange, EntryError, EntryKind, ErrorClass, Metadata, Operation, PathBytes, Side,
};
use dmover_sys::xattr::{self, Held};
use dmover_sys::{AsFd, Errno, OwnedFd, directory, file, stat};

use super::Renaming;
use crate::content::Reading;
use crate::directory::TargetDirectory;
use crate::end::Local;
use crate::error::{CallFailed, entry_error};
use crate::handle::FileRef;
use crate::session::Session;
use crate::source::open_to_read;

/// Bytes that are compared at a time, of both files together.
const BUFFER: usize = 512 << 10;

type Xattrs = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// Whether the entry that a hard link replaces is surely equal to it, in content, times, permissions, owner and
/// extended attributes. An earlier run makes such a copy where it cannot link. A backup of it would replace the backup
/// of the version before it.
///
/// # Errors
/// The job stops, or another mover has the task.
pub(super) fn is_separate_copy(
    session: &Session<'_>,
    renaming: Renaming<'_>,
) -> Result<bool, EntryError> {
    let Renaming { to, name, last, .. } = renaming;
    let compared = match session.local.end.find_target(to, last) {
        Ok(Some(old)) if old.kind == EntryKind::File => is_equal_file(session, to, name, last),
        Ok(Some(old)) => {
            Ok(is_equal_special(&session.local, to, name, (last, &old)).unwrap_or(false))
        }
        _ => Ok(false),
    };
    match compared {
        // What cannot be read or is being changed gets its backup.
        Err(error) if !matches!(error.class, ErrorClass::Fenced | ErrorClass::Cancelled) => {
            tracing::debug!(?error, "cannot compare an entry with the link that replaces it");
            Ok(false)
        }
        compared => compared,
    }
}

fn is_equal_special(
    local: &Local<'_>,
    to: &TargetDirectory,
    name: &[u8],
    (last, old): (&[u8], &Metadata),
) -> Result<bool, CallFailed> {
    let Some(new) = local.end.find_target(to, name)? else { return Ok(false) };
    if old.kind == EntryKind::Symlink {
        let read = |name| directory::read_symlink(&to.fd, name);
        if read(name)? != read(last)? {
            return Ok(false);
        }
    }
    let now = local.end.find_target(to, last)?;
    let stays = now.is_some_and(|now| now.version() == old.version());
    Ok(stays && looks_alike(local, &new, old))
}

/// The old file must not change meanwhile, and still have its name afterwards.
fn is_equal_file(
    session: &Session<'_>,
    to: &TargetDirectory,
    name: &[u8],
    last: &[u8],
) -> Result<bool, EntryError> {
    let shown = || to.place.entry(last);
    let fail = |operation, e| entry_error(Side::Destination, operation, shown(), e);
    let open = |name| {
        let fd = open_to_read(&to.fd, name, false, session.permit);
        let fd = fd.map_err(|e| fail(Operation::Open, e))?;
        let found = stat::stat_fd(&fd).map_err(|e| fail(Operation::Stat, e))?;
        Ok((fd, session.local.end.mounts.metadata(&found)))
    };
    let ((link, new), (copy, old)) = (open(name)?, open(last)?);
    let is_written = || file::is_open_for_writing(&copy) != Some(false);
    if !looks_alike(&session.local, &new, &old) || is_written() {
        return Ok(false);
    }
    let read = |file| xattrs(file).map_err(|e| fail(Operation::ReadXattr, e));
    if read(&link)? != read(&copy)? || !are_equal(session, &[link, copy], to, new.size, &shown)? {
        return Ok(false);
    }
    let now = session.local.end.find_target(to, last);
    Ok(now.is_ok_and(|now| now.is_some_and(|now| now.version() == old.version())))
}

fn are_equal(
    session: &Session<'_>,
    files: &[OwnedFd; 2],
    to: &TargetDirectory,
    size: u64,
    shown: &dyn Fn() -> PathBytes,
) -> Result<bool, EntryError> {
    let reading = |file| Reading {
        source: (file, &*to.facts),
        direct: false,
        skips_holes: false,
        path: shown,
        permit: session.permit,
    };
    let readings = files.each_ref().map(|file| reading(FileRef::Open(file.as_fd())));
    let range = ByteRange { start: 0, end: size };
    let compared = session.local.content().compare_bytes(readings, range, &mut vec![0; BUFFER]);
    compared.map(|differing| differing.is_empty())
}

fn looks_alike(local: &Local<'_>, new: &Metadata, old: &Metadata) -> bool {
    let facts = |entry: &Metadata| (entry.kind, entry.mode, entry.uid, entry.gid, entry.device);
    // Where times are not kept, each copy has its own.
    let keeps_times = local.rules.policy.preserve.has(Attribute::Times);
    let alike = facts(new) == facts(old) && new.size == old.size;
    alike && (new.mtime == old.mtime || !keeps_times)
}

fn xattrs(file: &OwnedFd) -> Result<Xattrs, Errno> {
    let mut names = xattr::list(file, Held::Open)?.unwrap_or_default();
    names.sort_unstable();
    names
        .into_iter()
        .map(|name| xattr::get(file, Held::Open, &name).map(|value| (name, value)))
        .collect()
}
