//! Files that several movers write: begun under a temporary name, continued by a later run, and ended by one of them.
use dmover_model::{
    DoneParts, EntryError, ErrorClass, Identity, Metadata, Name, Operation, PartialFile, Side,
    Timestamp, When,
};
use dmover_sys::copy::{self, KernelAnswer};
use dmover_sys::stat::{FileType, Stat};
use dmover_sys::{Errno, OwnedFd, cache, directory, file, path, set, stat};

use crate::content::{Holes, Transfer};
use crate::digest_tap::{Made, Tap};
use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::{Local, LocalEnd};
use crate::error::entry_error;
use crate::file::patched::begins_with_old;
use crate::file::{FileOrder, Unfinished, cannot_share, create_file, finish_file, takes_after};
use crate::session::{self, Session, WriteError};
use crate::source::{self, OpenedSource};

mod part;

pub use part::{LargePart, PartOrder};

/// A temporary file to which several movers will write, or that of an earlier run, or a file that shares its blocks.
pub struct Begun<'t> {
    /// Its name.
    pub temporary: Name,
    /// The file.
    pub unfinished: Unfinished<'t>,
    /// What it has already.
    pub done: DoneParts,
    /// It has the blocks of an older version, so only differences are written.
    pub patched: bool,
    /// It is a new file that no other process uses.
    pub is_new: bool,
}

/// What became of a file that was begun.
pub enum Start<'t> {
    /// Its parts are to be copied.
    Parts(Begun<'t>),
    /// It has all blocks of the source already, and only lacks metadata and its name.
    Shared(Unfinished<'t>, Option<Box<Tap>>),
}

/// A temporary file that is open for writing, and was not looked at.
pub struct OpenTemporary(OwnedFd);

/// Removes a temporary file later.
pub struct Removal {
    directory: OwnedFd,
    name: Name,
}

impl Removal {
    /// The removal of a temporary file; `None` if there are no more descriptors.
    pub fn of(target: &TargetDirectory, name: &Name) -> Option<Self> {
        let directory = file::duplicate(&target.fd).ok()?;
        Some(Self { directory, name: name.clone() })
    }

    /// Removes it, if it is there.
    pub fn carry_out(self) {
        _ = directory::unlink(&self.directory, self.name.as_bytes());
    }
}

impl Session<'_> {
    /// Begins a large file: shares all blocks of the source, or those of an older version, or reserves its space.
    ///
    /// # Errors
    /// The file cannot be created, there is no space, or blocks must be shared and cannot.
    pub fn begin_large<'t>(
        &mut self,
        order: FileOrder<'t>,
        supply: &OpenedSource,
    ) -> Result<Start<'t>, EntryError> {
        let FileOrder { from, to, last, .. } = order;
        let temporary = session::temporary_in(self, from, to);
        let mut unfinished = create_file(self, to, temporary.as_bytes(), last, supply)?;
        let tap = self.local.rules.tap(supply.metadata.size);
        unfinished.replaces = takes_after(&self.local, to, last, order.existing);
        if share_whole(self, order, supply, &unfinished, tap.as_ref())? {
            return Ok(Start::Shared(unfinished, tap.map(Box::new)));
        }
        let patched = fill_up(&self.local, order, &supply.metadata, &unfinished)?;
        let done = DoneParts::default();
        Ok(Start::Parts(Begun { temporary, unfinished, done, patched, is_new: true }))
    }

    /// Ends a file that has all blocks of its source. Returns its digest, if one is required.
    ///
    /// # Errors
    /// The source has changed, metadata cannot be set, or the file cannot get its name.
    pub fn end_shared(
        &self,
        order: FileOrder<'_>,
        supply: &OpenedSource,
        file: Unfinished<'_>,
        tap: Option<Box<Tap>>,
    ) -> Result<Vec<Made>, WriteError> {
        source::check_version(&self.local, order.from, order.name, supply)?;
        end_file(self, order, supply, file)?;
        Ok(tap.map(|tap| tap.into_made(None)).into_iter().collect())
    }

    /// Ends a file after all its parts.
    ///
    /// # Errors
    /// Metadata cannot be set, the file cannot be flushed, or cannot get its name.
    pub fn seal(
        &self,
        order: FileOrder<'_>,
        supply: &OpenedSource,
        mut file: Unfinished<'_>,
    ) -> Result<(), WriteError> {
        file.replaces = takes_after(&self.local, order.to, order.last, order.existing);
        end_file(self, order, supply, file)
    }

    /// Continues the work of an earlier run on a file. `None`: it is of no use.
    ///
    /// # Errors
    /// A new file cannot be created.
    pub fn continue_large<'t>(
        &self,
        (from, to): (&SourceDirectory, &'t TargetDirectory),
        last: &[u8],
        supply: &OpenedSource,
        partial: &PartialFile,
    ) -> Result<Option<Begun<'t>>, EntryError> {
        let Some(old) = open_partial(&self.local, to, partial, supply) else { return Ok(None) };
        let (content, metadata) = (supply.file.as_ref(), &supply.metadata);
        let patched = partial.patched || self.local.content().may_leave_older(content, metadata);
        if patched {
            // What is missing is compared: the cache may have what a failed flush has left there.
            cache::forget(&old, 0, supply.metadata.size);
        }
        session::unlock_for_temporaries(&self.local, from, to);
        let is_new = partial.fenced;
        let file = if is_new {
            clone_partial(self, (from, to), last, supply, &old)?
        } else {
            let name = &partial.temporary;
            adopt(self, to, name).map(|unfinished| (name.clone(), unfinished))
        };
        Ok(file.map(|(temporary, unfinished)| {
            let done = partial.done.clone();
            Begun { temporary, unfinished, done, patched, is_new }
        }))
    }
}

/// Gives a new temporary file the blocks of an older version, or reserves its space. Returns whether it shares the old
/// blocks.
fn fill_up(
    local: &Local<'_>,
    order: FileOrder<'_>,
    source: &Metadata,
    file: &Unfinished<'_>,
) -> Result<bool, EntryError> {
    let shown = || order.to.place.entry(order.last);
    if local.rules.policy.reflink == When::Always {
        return Err(cannot_share(shown()));
    }
    let patched = begins_with_old(local, order, source, file)?;
    if !patched {
        let fail = |e| entry_error(Side::Destination, Operation::Allocate, shown(), e);
        reserve(local, file, source).map_err(fail)?;
    }
    Ok(patched)
}

/// Sets the size. Where files are written in place and there are no holes to keep, the space is reserved at once:
/// it is contiguous, a lack of space is noticed before the first byte, and direct writes need not grow the file.
fn reserve(local: &Local<'_>, file: &Unfinished<'_>, source: &Metadata) -> Result<(), Errno> {
    let reserves = file.target.facts.writes_in_place
        && local.content().holes(source) == Holes::Fill
        && file::allocate(file.fd(), source.size)?;
    if reserves { Ok(()) } else { file::set_size(file.fd(), source.size) }
}

/// Tries to share all blocks of the source.
fn share_whole(
    session: &mut Session<'_>,
    order: FileOrder<'_>,
    supply: &OpenedSource,
    file: &Unfinished<'_>,
    tap: Option<&Tap>,
) -> Result<bool, EntryError> {
    let source_path = || order.from.place.entry(order.name);
    let target_path = || order.to.place.entry(order.last);
    let size = supply.metadata.size;
    let transfer = Transfer {
        tap: tap.map(|tap| &tap.pieces),
        ..file.transfer(order.from, supply, [&source_path, &target_path], session.permit)
    };
    let content = session.local.content();
    let shared = content.share(transfer, size)?;
    if shared {
        content.read_for_digest(transfer, size, session.tools)?;
    }
    Ok(shared)
}

/// Sets metadata, flushes, and renames into place.
fn end_file(
    session: &Session<'_>,
    order: FileOrder<'_>,
    supply: &OpenedSource,
    file: Unfinished<'_>,
) -> Result<(), WriteError> {
    let shown = || order.to.place.entry(order.last);
    let (metadata, attributes) = (&supply.metadata, &supply.attributes);
    finish_file(&session.local, &file, metadata, attributes, true, &shown)?;
    session.settle(order, file, supply)
}

/// Opens the temporary file for reading if it was copied from the present version of the source.
fn open_partial(
    local: &Local<'_>,
    target: &TargetDirectory,
    partial: &PartialFile,
    supply: &OpenedSource,
) -> Option<OwnedFd> {
    let rules = local.rules;
    let wanted = partial.version == Some(supply.metadata.version())
        && partial.shape == rules.digest_shape(supply.metadata.size)
        && rules.policy.reflink != When::Always;
    if !wanted || partial.done.ranges.is_empty() {
        return None;
    }
    let fd = path::open_file_at(&target.fd, partial.temporary.as_bytes(), false).ok()?;
    let found = stat::stat_fd(&fd).ok()?;
    let same = found.inode == partial.inode
        && found.file_type() == FileType::RegularFile
        && found.size == supply.metadata.size
        && found.links == 1
        && is_as_it_was_left(local, target, partial, &found);
    same.then_some(fd)
}

/// Whether a temporary file is unchanged since the earlier run ended: it is no older state, such as from a restored
/// backup, and was not changed later.
fn is_as_it_was_left(
    local: &Local<'_>,
    target: &TargetDirectory,
    partial: &PartialFile,
    found: &Stat,
) -> bool {
    let ctime = local.end.mounts.metadata(found).ctime;
    let is_older = partial.changed.is_some_and(|changed| ctime < changed);
    // The clock of a server may be another one.
    let is_newer = target.facts.local && partial.until.is_some_and(|until| ctime > until);
    !is_older && !is_newer
}

/// Continues in the temporary file of an earlier run, to which no other mover can write any more.
fn adopt<'t>(
    session: &Session<'_>,
    target: &'t TargetDirectory,
    name: &Name,
) -> Option<Unfinished<'t>> {
    session.writes_to(target);
    let fd = file::open_for_writing(&target.fd, name.as_bytes()).ok()?;
    let mut unfinished = Unfinished::new(session.local.end, target, fd, name.as_bytes()).ok()?;
    // Whatever happens: the record has it, and another attempt continues it.
    unfinished.disarm();
    Some(unfinished)
}

/// Continues in a file that shares the blocks of the temporary file of an earlier run: a mover that still writes to
/// the old file does not affect it.
fn clone_partial<'t>(
    session: &Session<'_>,
    (from, target): (&SourceDirectory, &'t TargetDirectory),
    last: &[u8],
    supply: &OpenedSource,
    old: &OwnedFd,
) -> Result<Option<(Name, Unfinished<'t>)>, EntryError> {
    let name = session::temporary_in(session, from, target);
    let unfinished = create_file(session, target, name.as_bytes(), last, supply)?;
    // If blocks cannot be shared, the file is started again: a copy of the old data would be written as well.
    let is_shared = matches!(copy::clone_file(old, unfinished.fd()), Ok(KernelAnswer::Done(())));
    // The record says of it at once that the shared blocks are on storage.
    let is_durable = is_shared && file::sync_data(unfinished.fd()).is_ok();
    Ok(is_durable.then_some((name, unfinished)))
}

/// Removes a temporary file of this job. Returns whether it is gone.
pub fn remove_temporary(target: &TargetDirectory, name: &Name) -> bool {
    match directory::unlink(&target.fd, name.as_bytes()) {
        Ok(()) => true,
        Err(error) if stat::is_absent(error) => true,
        Err(error) => {
            tracing::warn!(%error, ?name, "cannot remove a temporary");
            false
        }
    }
}

/// Removes a temporary file that no run needs any more, from a directory that already has its times.
pub fn remove_unneeded(target: &TargetDirectory, temporary: &Name) {
    let Metadata { atime, mtime, .. } = target.metadata;
    let there = stat::stat_at(&target.fd, temporary.as_bytes(), false).is_ok();
    if there && remove_temporary(target, temporary) {
        let time = |time: Timestamp| Some((time.seconds, time.nanoseconds));
        let kept = set::times(&target.fd, time(atime), time(mtime));
        tracing::debug!(?kept, ?temporary, "removed a temporary that is no longer needed");
    }
}

impl TargetDirectory {
    /// Opens a temporary file for writing. `last`: its final name, which a person knows.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open_temporary(&self, name: &Name, last: &[u8]) -> Result<OpenTemporary, EntryError> {
        let opened = file::open_for_writing(&self.fd, name.as_bytes());
        let fail = |e| entry_error(Side::Destination, Operation::Open, self.place.entry(last), e);
        opened.map(OpenTemporary).map_err(fail)
    }
}

impl Unfinished<'_> {
    /// Closes the file and leaves it to another task. `last`: its final name, which a person knows.
    ///
    /// # Errors
    /// A late error says that its content is not safe.
    pub fn leave(self, last: &[u8]) -> Result<(), EntryError> {
        let target = self.target;
        self.keep().map_err(|e| {
            entry_error(Side::Destination, Operation::Close, target.place.entry(last), e)
        })
    }
}

impl Local<'_> {
    /// Flushes a file and leaves it to another run. Returns the time of its last change.
    ///
    /// # Errors
    /// It cannot be flushed, or a late error says that its content is not safe.
    pub fn flush_and_leave(
        &self,
        file: Unfinished<'_>,
        last: &[u8],
    ) -> Result<Timestamp, EntryError> {
        let target = file.target;
        let fail =
            |operation, e| entry_error(Side::Destination, operation, target.place.entry(last), e);
        file::sync_data(file.fd()).map_err(|e| fail(Operation::Sync, e))?;
        let found = stat::stat_fd(file.fd()).map_err(|e| fail(Operation::Stat, e))?;
        file.leave(last)?;
        Ok(self.end.mounts.metadata(&found).ctime)
    }
}

impl LocalEnd {
    /// A temporary file of another task, if it is this one.
    ///
    /// # Errors
    /// It is another file, or cannot be looked at.
    pub fn temporary<'t>(
        &self,
        target: &'t TargetDirectory,
        OpenTemporary(fd): OpenTemporary,
        (name, is): (&Name, Identity),
        last: &[u8],
    ) -> Result<Unfinished<'t>, EntryError> {
        let shown = || target.place.entry(last);
        let mut unfinished = Unfinished::new(self, target, fd, name.as_bytes())
            .map_err(|e| entry_error(Side::Destination, Operation::Open, shown(), e))?;
        unfinished.disarm();
        if unfinished.metadata.identity == is {
            return Ok(unfinished);
        }
        let words = "another file has replaced the temporary";
        let class = ErrorClass::Escaped;
        Err(EntryError::plain(Side::Destination, Operation::Open, class, shown(), words))
    }

    /// Removes a temporary file if it is this one. Returns whether it is not there any more.
    pub fn remove_if_same(&self, target: &TargetDirectory, name: &Name, is: Identity) -> bool {
        let there = stat::stat_at(&target.fd, name.as_bytes(), false);
        let same = there.is_ok_and(|there| self.mounts.identity(&there) == is);
        !same || remove_temporary(target, name)
    }
}
