//! Existing files that are written into.
use dmover_model::{EntryError, EntryKind, ErrorClass, Metadata, Operation, Side};
use dmover_sys::stat::FileType;
use dmover_sys::xattr::Held;
use dmover_sys::{Errno, OwnedFd, file, path, set, stat, xattr};

use super::Unfinished;
use crate::attributes::ACCESS_ACL;
use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::Local;
use crate::error::entry_error;
use crate::patient_open::past_leases;
use crate::session::{self, Session};
use crate::source::OpenedSource;

/// Closes an existing file: users whom the old mode and ACL admit must not read the new content, and attributes
/// that the source does not have must not stay.
///
/// # Errors
/// Its mode or an attribute cannot be changed.
pub(crate) fn close_existing(
    local: &Local<'_>,
    file: &Unfinished<'_>,
    supply: &OpenedSource,
) -> Result<(), Errno> {
    set::mode(file.fd(), local.attributes().closed_mode(&supply.metadata) | 0o200)?;
    let names = xattr::list(file.fd(), Held::Open)?.unwrap_or_default();
    for name in names {
        let wanted = supply.attributes.xattrs.iter().any(|(other, _)| *other == name);
        let ours = name.starts_with(b"user.") || name == ACCESS_ACL;
        if ours && !wanted {
            xattr::remove(file.fd(), Held::Open, &name)?;
        }
    }
    Ok(())
}

/// Opens a file to write into it. Also returns whether its flags or mode had to be changed, which changed its
/// ctime.
///
/// # Errors
/// It cannot be opened, or is another entry by now.
pub(crate) fn open_existing(
    session: &Session<'_>,
    from: &SourceDirectory,
    target: &TargetDirectory,
    last: &[u8],
    source: &Metadata,
) -> Result<(OwnedFd, bool), EntryError> {
    let shown = || target.place.entry(last);
    let fail = |e| entry_error(Side::Destination, Operation::Open, shown(), e);
    let opened = match open_own(session, target, last) {
        Err(Errno::PERM)
            if session::is_locked_by_us(&session.local, from, target, last)
                && session::lift_file(&session.local, target, last) =>
        {
            open_own(session, target, last).map(|(fd, _)| (fd, true))
        }
        opened => opened,
    };
    let (fd, opened_up) = opened.map_err(fail)?;
    let found = session.local.end.mounts.metadata(&stat::stat_fd(&fd).map_err(fail)?);
    let foreign = found.kind != EntryKind::File || found.links != 1;
    if foreign || found.identity == source.identity {
        let words = "another entry has replaced this one";
        let class = ErrorClass::Escaped;
        let side = Side::Destination;
        return Err(EntryError::plain(side, Operation::Open, class, shown(), words));
    }
    Ok((fd, opened_up))
}

/// Opens a file for writing; without privilege, also a file of this user whose mode does not let its owner write.
/// Its mode is restored at once, because the descriptor is enough.
fn open_own(
    session: &Session<'_>,
    target: &TargetDirectory,
    last: &[u8],
) -> Result<(OwnedFd, bool), Errno> {
    let privilege = session.local.end.privilege;
    let open = || file::open_for_writing(&target.fd, last);
    let is_stopping = || session.permit.is_stopping();
    let opened = past_leases(open, &is_stopping).map(|fd| (fd, false));
    if opened.as_ref().err() != Some(&Errno::ACCESS) || privilege.privileged {
        return opened;
    }
    let pinned = path::pin_at(&target.fd, last)?;
    let found = stat::stat_fd(&pinned)?;
    let closed = found.mode & OWNER_OPENS != OWNER_OPENS;
    if found.uid != privilege.uid || found.file_type() != FileType::RegularFile || !closed {
        return opened;
    }
    let mode = found.mode & 0o7777;
    set::mode_pinned(&pinned, mode | OWNER_OPENS)?;
    let opened = file::open_for_writing(&target.fd, last);
    set::mode_pinned(&pinned, mode)?;
    opened.map(|fd| (fd, true))
}

/// The permission bits for reading and writing by the owner.
const OWNER_OPENS: u32 = 0o600;
