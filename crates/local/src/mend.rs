//! Repairs of files: only ranges that differ are written.
//!
//! Where blocks can be shared, ranges of a file are replaced in a clone of it, which is then renamed into place;
//! otherwise they are written into the file. Meanwhile its modification time marks it as incomplete, and equal ranges
//! are not touched.
use dmover_model::{
    ByteRange, Content as Recorded, EntryError, ErrorClass, Metadata, Operation, PathBytes, Side,
};
use dmover_plan::decide::Decision;
use dmover_sys::copy::KernelAnswer;
use dmover_sys::{Errno, OwnedFd, cache, copy, file, path, stat};

use crate::content::Holes;
use crate::digest;
use crate::error::{EPERM, at_destination, changed, entry_error};
use crate::file::existing::{close_existing, open_existing};
use crate::file::{FileOrder, Unfinished, create_file, finish_file, set_last};
use crate::pair::{self, Pair};
use crate::session::{self, Session, WriteError};
use crate::source::{self, Content, OpenedSource, open_to_read};
use crate::stored_size::set_size_anew;

/// The repair of a file.
#[derive(Clone, Copy)]
pub struct Mending<'a> {
    /// The file, and its directories.
    pub order: FileOrder<'a>,
    /// The source.
    pub supply: &'a OpenedSource,
    /// The version of the destination that was compared.
    pub found: &'a Metadata,
    /// The ranges that differ.
    pub ranges: &'a [ByteRange],
    /// The content in the manifest, if it counts and not the source.
    pub recorded: Option<&'a Recorded>,
}

impl Mending<'_> {
    fn writes(&self) -> bool {
        self.found.size != self.supply.metadata.size || !self.ranges.is_empty()
    }

    fn shown(&self) -> PathBytes {
        self.order.to.place.entry(self.order.last)
    }

    fn fail(&self, operation: Operation, error: Errno) -> EntryError {
        entry_error(Side::Destination, operation, self.shown(), error)
    }

    /// Checks that the file is still the one that was compared.
    fn check_same(&self, now: &Metadata) -> Result<(), EntryError> {
        if self.found.version() == now.version() {
            return Ok(());
        }
        Err(changed(Side::Destination, self.shown()))
    }
}

impl Session<'_> {
    /// Gives a file the bytes of the source where they differ, its size and its attributes.
    ///
    /// # Errors
    /// It could not be repaired, or a side has changed. What is incomplete has another time than its source.
    pub fn mend(&mut self, mending: &Mending<'_>) -> Result<(), WriteError> {
        let cloned = mending.writes() && mend_clone(self, mending)?;
        if !cloned {
            mend_in_place(self, mending)?;
        }
        Ok(())
    }
}

/// Repairs a clone and renames it into place. Returns false where blocks cannot be shared.
fn mend_clone(session: &mut Session<'_>, mending: &Mending<'_>) -> Result<bool, WriteError> {
    let Mending { order, supply, found, .. } = *mending;
    let FileOrder { from, to, last, .. } = order;
    let mount = to.metadata.identity.mount;
    if to.facts.no_clone_from.is(mount) {
        return Ok(false);
    }
    let old = open_checked(session, mending)?;
    let temporary = session::temporary_in(session, from, to);
    let unfinished = create_file(session, to, temporary.as_bytes(), last, supply)?;
    match copy::clone_file(&old, unfinished.fd()) {
        Ok(KernelAnswer::Done(())) => {}
        Ok(KernelAnswer::Never) => {
            to.facts.no_clone_from.set(mount);
            return Ok(false);
        }
        // Whatever else is the matter, the bytes can still be written in place.
        Ok(KernelAnswer::NotThese) | Err(_) => return Ok(false),
    }
    write_ranges(session, &unfinished, mending)?;
    let shown = || mending.shown();
    let OpenedSource { metadata, attributes, .. } = supply;
    finish_file(&session.local, &unfinished, metadata, attributes, true, &shown)?;
    if found.is_locked() {
        // An immutable or append-only file cannot be replaced; the failure is reported.
        session::lift_file(&session.local, to, last);
    }
    session.settle(FileOrder { decision: Decision::Replace, ..order }, unfinished, supply)?;
    Ok(true)
}

fn mend_in_place(session: &mut Session<'_>, mending: &Mending<'_>) -> Result<(), EntryError> {
    let Mending { order, supply, found, .. } = *mending;
    let FileOrder { from, to, last, .. } = order;
    let local = session.local;
    let shown = || mending.shown();
    let opened = open_existing(session, from, to, last, &supply.metadata);
    let (fd, opened_up) = match opened {
        Err(error) if error.errno == EPERM && session::lift_file(&session.local, to, last) => {
            (open_existing(session, from, to, last, &supply.metadata)?.0, true)
        }
        opened => opened?,
    };
    let mut file =
        Unfinished::new(local.end, to, fd, last).map_err(|e| mending.fail(Operation::Stat, e))?;
    // An existing file is never removed; its times show that it is incomplete.
    file.disarm();
    file.written_into = true;
    let mut now = file.metadata.clone();
    if opened_up {
        // That was ours.
        now.ctime = found.ctime;
    }
    mending.check_same(&now)?;
    let closes = mending.writes() && file.metadata.mode & !supply.metadata.mode & 0o077 != 0;
    if closes {
        // New content is not for those whom the old mode lets in.
        let closed =
            close_existing(&session.local, &file, supply).and_then(|()| stat::stat_fd(file.fd()));
        let closed = closed.map_err(|e| mending.fail(Operation::SetMode, e))?;
        file.metadata = local.end.mounts.metadata(&closed);
    }
    let object = file.object(&shown);
    local.attributes().prepare(object, &supply.attributes)?;
    local.attributes().remove_foreign(object, &supply.attributes)?;
    let identity = file.metadata.identity;
    let written = if mending.writes() { write_ranges(session, &file, mending) } else { Ok(()) };
    // A file marked as incomplete may have been written by a repair that did not flush it.
    let flush = mending.writes() || file.metadata.mtime != supply.metadata.mtime;
    let finished = written.and_then(|()| {
        finish_file(&local, &file, &supply.metadata, &supply.attributes, flush, &shown)
    });
    if let Err(error) = finished {
        local.end.unflushed.add(identity, mending.ranges);
        cache::forget(file.fd(), 0, supply.metadata.size);
        return Err(error);
    }
    local.end.unflushed.settle(identity);
    set_last(&local, &file, &supply.attributes, &shown)?;
    file.keep().map_err(|e| mending.fail(Operation::Close, e))
}

/// Writes differing ranges; they must read back from storage before the file is marked as complete.
fn write_ranges(
    session: &mut Session<'_>,
    file: &Unfinished<'_>,
    mending: &Mending<'_>,
) -> Result<(), EntryError> {
    let Mending { order, supply, ranges, .. } = *mending;
    let FileOrder { from, name, .. } = order;
    let local = session.local;
    let source_path = || from.place.entry(name);
    let target_path = || mending.shown();
    let transfer = file.transfer(from, supply, [&source_path, &target_path], session.permit);
    set_size_anew(file.fd(), supply.metadata.size)
        .map_err(|e| mending.fail(Operation::Allocate, e))?;
    for range in ranges {
        // Old bytes must not shine through holes; where none can be punched, zeroes are written.
        let mut holes = local.content().holes(&supply.metadata);
        if holes != Holes::Fill {
            let punched = file::punch_hole(file.fd(), range.start, range.len());
            let punched = punched.map_err(|e| mending.fail(Operation::Allocate, e))?;
            holes = if punched { holes } else { Holes::Fill };
        }
        local.content().copy_range(transfer, *range, range.start, holes, session.tools)?;
    }
    source::check_version(&local, from, name, supply)?;
    file::sync_data(file.fd()).map_err(|e| mending.fail(Operation::Sync, e))?;
    if is_read_otherwise(session, file, mending)? {
        Err(reads_otherwise(target_path()))
    } else {
        Ok(())
    }
}

/// Whether ranges read back from storage differ from what was written.
fn is_read_otherwise(
    session: &mut Session<'_>,
    file: &Unfinished<'_>,
    mending: &Mending<'_>,
) -> Result<bool, EntryError> {
    let Mending { order: FileOrder { from, name, .. }, supply, ranges, .. } = *mending;
    let shown = || mending.shown();
    let found = stat::stat_fd(file.fd()).map_err(|e| mending.fail(Operation::Stat, e))?;
    let fd = path::open_file_at(&file.target.fd, &file.name, false)
        .map_err(|e| mending.fail(Operation::Open, e))?;
    let metadata = session.local.end.mounts.metadata(&found);
    let destination = Content::new(fd, metadata, &file.target.facts);
    let destination = Content { stored: true, ..destination };
    if let Some(recorded) = mending.recorded {
        let differs = digest::differs_from_record(session, &destination, recorded, ranges, &shown);
        return differs.map_err(at_destination);
    }
    let again = supply.file.again().map_err(|e| mending.fail(Operation::Open, e))?;
    let source = Content::of(again, supply.metadata.clone(), &from.facts);
    let pair = Pair { source, destination };
    let source_path = || from.place.entry(name);
    let mut differs = false;
    for range in ranges {
        differs |= !pair::compare(session, &pair, *range, [&source_path, &shown])?.is_empty();
    }
    Ok(differs)
}

/// Opens the file to repair for reading.
fn open_checked(session: &Session<'_>, mending: &Mending<'_>) -> Result<OwnedFd, EntryError> {
    let FileOrder { to, last, .. } = mending.order;
    let fd = open_to_read(&to.fd, last, false, session.permit)
        .map_err(|e| mending.fail(Operation::Open, e))?;
    let found = stat::stat_fd(&fd).map_err(|e| mending.fail(Operation::Stat, e))?;
    mending.check_same(&session.local.end.mounts.metadata(&found))?;
    Ok(fd)
}

/// The error of a repaired file that does not read back as it was written.
pub fn reads_otherwise(path: PathBytes) -> EntryError {
    let words = "the data read back differs from the data written";
    EntryError::plain(Side::Destination, Operation::Check, ErrorClass::Integrity, path, words)
}
