//! Regular files: content under the final or a temporary name, then everything else, times last.
use dmover_model::{
    Attribute, ByteRange, CopyEngine, EntryError, EntryKind, ErrorClass, Identity, Metadata,
    Operation, PathBytes, RangeCopy, Side, When,
};
use dmover_observe::{Activity, activity};
use dmover_plan::decide::Decision;
use dmover_sys::xattr::Held;
use dmover_sys::{Errno, cache, directory, file, flags, path, stat, xattr};
use dmover_tree::{Limit, TargetNames};

use crate::attributes::{ACCESS_ACL, Attributes};
use crate::content::{Holes, RING_PIECE_MIN, Transfer};
use crate::digest_tap::{Made, Tap};
use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::Local;
use crate::error::entry_error;
use crate::put_in_place::{self, Renaming};
use crate::session::{self, Session, WriteError};
use crate::source::{self, OpenedSource, check_empty};
use patched::PATCHED_MIN;
use ranges::{covers_all, ranges};

pub(crate) mod existing;
pub(crate) mod patched;
mod ranges;
mod unfinished;

pub use patched::OldVersion;
pub(crate) use patched::unfinished_time;
pub use unfinished::{Replaced, Unfinished};

/// A file that is to be written, and the two directories.
#[derive(Clone, Copy)]
pub struct FileOrder<'a> {
    /// The directory of the source.
    pub from: &'a SourceDirectory,
    /// The name in it.
    pub name: &'a [u8],
    /// The directory of the destination.
    pub to: &'a TargetDirectory,
    /// The name there.
    pub last: &'a [u8],
    /// What was decided.
    pub decision: Decision,
    /// The entry that was there.
    pub existing: Option<&'a Metadata>,
    /// A version of the file whose blocks the new one may share.
    pub old: Option<OldVersion<'a>>,
    /// Who knows the names of other entries; `None`: they have those of the source directory.
    pub others: Option<&'a dyn TargetNames>,
    /// The rename may wait for a flush of many files.
    pub may_wait: bool,
}

/// A complete temporary file that waits for a flush and its rename.
#[derive(Debug)]
pub struct Temporary {
    /// Its name.
    pub name: Vec<u8>,
    /// The file.
    pub identity: Identity,
}

/// A file that was written.
#[derive(Debug, Default)]
pub struct Written {
    /// Bytes that were written, without holes.
    pub bytes: u64,
    /// Digests of the content, if requested.
    pub made: Vec<Made>,
    /// The temporary file, if it waits to be renamed.
    pub waits: Option<Temporary>,
}

impl Local<'_> {
    /// Whether syncfs(2) does not reach the storage: a FUSE server is not informed.
    pub fn flushes_unheard(&self, target: &TargetDirectory) -> bool {
        self.end.flusher.is_some() && target.facts.fills_with_zeroes
    }
}

/// The mode with which to create a file. In a directory that is closed to other users it is the final mode at once,
/// unless a later step needs another: set-id bits wait for the owner, and without privilege extended attributes
/// need a file that its owner may write.
fn birth_mode(local: &Local<'_>, target: &TargetDirectory, source: &Metadata) -> u32 {
    let mode = local.attributes().final_mode(source);
    let privilege = local.end.privilege;
    let may_open = privilege.privileged || mode & 0o600 == 0o600;
    let plain = mode & 0o7000 == 0 && may_open && !local.rules.policy.skip_chmod;
    if plain && target.is_closed(privilege) { mode } else { local.attributes().closed_mode(source) }
}

/// Sets metadata in order. Flushes before the times where a crash could otherwise leave an incomplete file that
/// looks complete.
///
/// # Errors
/// An attribute cannot be set, or the content cannot be flushed.
pub(crate) fn finish_file(
    local: &Local<'_>,
    file: &Unfinished<'_>,
    source: &Metadata,
    attributes: &Attributes,
    flush: bool,
    shown: &dyn Fn() -> PathBytes,
) -> Result<(), EntryError> {
    activity::at(Activity::TargetNames);
    let fail = |operation, e| entry_error(Side::Destination, operation, shown(), e);
    let object = file.object(shown);
    let rules = local.attributes();
    if object.replaces.is_some() && rules.takes_acl_away(object, attributes) {
        xattr::remove(file.fd(), Held::Open, ACCESS_ACL)
            .map_err(|e| fail(Operation::SetXattr, e))?;
    }
    rules.set(object, source, attributes, &file.metadata)?;
    if let Some(acl) = file.replaces.as_ref().and_then(|replaced| replaced.acl.as_deref()) {
        xattr::set(file.fd(), Held::Open, ACCESS_ACL, acl)
            .map_err(|e| fail(Operation::SetXattr, e))?;
    }
    if !project_waits(file, attributes) {
        rules.set_project(object, attributes)?;
    }
    // In a directory of this job that has no flags to hand down, a new file has none.
    let hands_down = !file.target.made || file.target.hands_down_flags;
    if hands_down || attributes.flags & !flags::LOCKS != 0 {
        rules.carry_flags(object, attributes, flags::PLAIN)?;
    }
    if flush || local.rules.policy.fsync || local.flushes_unheard(file.target) {
        activity::at(Activity::TargetData);
        file::sync_data(file.fd()).map_err(|e| fail(Operation::Sync, e))?;
    }
    rules.set_times(object, source)
}

/// Sets attributes that can only be set under the final name. The file is complete, so a failure does not remove
/// it.
///
/// # Errors
/// An attribute cannot be set.
pub(crate) fn set_last(
    local: &Local<'_>,
    file: &Unfinished<'_>,
    attributes: &Attributes,
    shown: &dyn Fn() -> PathBytes,
) -> Result<(), EntryError> {
    let object = file.object(shown);
    if project_waits(file, attributes) {
        local.attributes().set_project(object, attributes)?;
    }
    if attributes.flags & flags::LOCKS == 0 {
        return Ok(()); // they are never inherited, and what had them could not be written
    }
    local.attributes().carry_flags(object, attributes, flags::LOCKS)
}

/// The file whose mode and owner the new one gets where those of the source are not kept. If the old version stays
/// as a backup, the file counts as new.
pub(crate) fn takes_after(
    local: &Local<'_>,
    target: &TargetDirectory,
    last: &[u8],
    existing: Option<&Metadata>,
) -> Option<Replaced> {
    let policy = local.rules.policy;
    let old = existing.filter(|old| old.kind == EntryKind::File);
    let metadata = old.filter(|_| policy.backup.is_none())?.clone();
    let asks = !policy.preserve.has(Attribute::Mode) && !policy.preserve.has(Attribute::Acl);
    let pinned = asks.then(|| path::pin_at(&target.fd, last)).and_then(Result::ok);
    let acl = pinned.and_then(|fd| xattr::get(fd, Held::Pinned, ACCESS_ACL).ok().flatten());
    Some(Replaced { metadata, acl })
}

impl Session<'_> {
    /// Writes a whole file at once, under a name of its own.
    ///
    /// # Errors
    /// It could not be copied, or its source has changed.
    pub fn write_file(
        &mut self,
        order: FileOrder<'_>,
        supply: &OpenedSource,
    ) -> Result<Written, WriteError> {
        let FileOrder { from, to, last, decision, .. } = order;
        let temporary = put_in_place::needs_temporary(&self.local, decision)
            .then(|| session::temporary_in(self, from, to));
        let name = temporary.as_ref().map_or(last, |t| t.as_bytes());
        let mut file = create_file(self, to, name, last, supply)?;
        file.replaces = takes_after(&self.local, to, last, order.existing);
        let tap = self.local.rules.tap(supply.metadata.size);
        let (bytes, presized) = fill(self, order, supply, &file, tap.as_ref())?;
        source::check_version(&self.local, from, order.name, supply)?;
        let shown = || to.place.entry(last);
        let waits = order.may_wait
            && supply.attributes.flags & flags::LOCKS == 0
            && !project_waits(&file, &supply.attributes);
        let flush = (presized || temporary.is_some()) && !waits;
        finish_file(&self.local, &file, &supply.metadata, &supply.attributes, flush, &shown)?;
        let waits = if waits {
            let temporary = Temporary { name: name.to_vec(), identity: file.metadata.identity };
            // Under a temporary name it hides nothing from another attempt.
            file.keep()
                .map_err(|e| entry_error(Side::Destination, Operation::Close, shown(), e))?;
            Some(temporary)
        } else {
            self.settle(order, file, supply)?;
            None
        };
        let made = tap.map(|tap| tap.into_made(None)).into_iter().collect();
        Ok(Written { bytes, made, waits })
    }

    /// Removes a finished temporary file that did not get its final name, if it still has the temporary one.
    pub fn drop_temporary(&self, to: &TargetDirectory, temporary: &Temporary, last: &[u8]) {
        let Temporary { name, identity } = temporary;
        if !session::is_at(&self.local, to, last, *identity)
            && session::is_at(&self.local, to, name, *identity)
            && let Err(error) = directory::unlink(&to.fd, name)
        {
            tracing::warn!(?error, "cannot remove a temporary; the next run removes it");
        }
    }

    /// Renames a finished file into place, then sets flags that would forbid renaming.
    ///
    /// # Errors
    /// It could not be renamed, or a late error says that its content is not safe.
    pub fn settle(
        &self,
        order: FileOrder<'_>,
        mut file: Unfinished<'_>,
        supply: &OpenedSource,
    ) -> Result<(), WriteError> {
        let FileOrder { from, to, last, decision, others, .. } = order;
        let shown = || to.place.entry(last);
        let fail = |e| entry_error(Side::Destination, Operation::Close, shown(), e);
        if file.name != last {
            // While the old version, if any, is still in place: an error here costs only the new one.
            file.hear_late_errors().map_err(fail)?;
            let locks = supply.attributes.flags & flags::LOCKS != 0;
            let (identity, source) = (file.metadata.identity, supply.metadata.identity);
            let renaming = Renaming {
                from,
                to,
                name: &file.name,
                last,
                decision,
                locks,
                identity,
                source,
                is_link: false,
                others,
            };
            if let Err(error) = self.put_in_place(renaming) {
                return Err(WriteError {
                    error,
                    in_place: session::is_at(&self.local, to, last, identity),
                });
            }
            file.name = last.to_vec();
            file.disarm();
        }
        let set = set_last(&self.local, &file, &supply.attributes, &shown);
        // A late error takes away what was made under its final name.
        keep(file, last).map_err(|(e, in_place)| WriteError { error: fail(e), in_place })?;
        set.map_err(WriteError::in_place)
    }

    /// Writes into an existing file (`--inplace`), or ranges of one (`--offset`, batch lists).
    ///
    /// # Errors
    /// It could not be copied, or its source has changed. What is incomplete has another time than its source.
    pub fn write_into(
        &mut self,
        order: FileOrder<'_>,
        supply: &OpenedSource,
        wanted: Option<&RangeCopy>,
    ) -> Result<Written, WriteError> {
        let FileOrder { from, to, last, .. } = order;
        let local = self.local;
        let existing = order.decision != Decision::Create;
        let shown = || to.place.entry(last);
        let fail = |operation, e| entry_error(Side::Destination, operation, shown(), e);
        let source_path = || from.place.entry(order.name);
        if supply.metadata.size == 0 {
            check_empty(from, supply.file.as_ref(), &source_path)?;
        }
        let mut file = open_or_make(self, order, supply)?;
        file.written_into = existing;
        if existing {
            // An existing file is never removed; its times show that it is incomplete.
            file.disarm();
        }
        if existing && wanted.is_none() {
            let metadata = file.metadata.clone();
            file.replaces = takes_after(&local, to, last, Some(&metadata));
            let closed = existing::close_existing(&self.local, &file, supply)
                .and_then(|()| stat::stat_fd(file.fd()))
                .map_err(|e| fail(Operation::SetMode, e))?;
            file.metadata = local.end.mounts.metadata(&closed);
            local.attributes().remove_foreign(file.object(&shown), &supply.attributes)?;
        }
        if wanted.is_none() {
            local.attributes().prepare(file.object(&shown), &supply.attributes)?;
        }
        let transfer = file.transfer(from, supply, [&source_path, &shown], self.permit);
        let (written, is_finished) = if existing && wanted.is_none() && local.rules.updates {
            (patched::update_existing(self, order, &file, supply, transfer)?, true)
        } else {
            (overwrite(self, order, &file, (supply, wanted), transfer)?, false)
        };
        let mut in_place = is_finished;
        if wanted.is_some() && !covers_all(wanted, supply.metadata.size) {
            // Only some bytes are the source's, so its times would lie.
            file.disarm();
            file::sync_data(file.fd()).map_err(|e| fail(Operation::Sync, e))?;
        } else {
            if !is_finished {
                finish_file(&local, &file, &supply.metadata, &supply.attributes, true, &shown)?;
                // Equal from here on.
                in_place = existing;
            }
            set_last(&local, &file, &supply.attributes, &shown)
                .map_err(|error| WriteError { error, in_place })?;
        }
        keep(file, last).map_err(|(e, stays)| WriteError {
            error: fail(Operation::Close, e),
            in_place: in_place || stays,
        })?;
        Ok(written)
    }
}

/// Creates an empty file, closed to other users, with attributes that only count on an empty file.
///
/// # Errors
/// It cannot be created or prepared.
pub(crate) fn create_file<'t>(
    session: &Session<'_>,
    to: &'t TargetDirectory,
    name: &[u8],
    last: &[u8],
    supply: &OpenedSource,
) -> Result<Unfinished<'t>, EntryError> {
    activity::at(Activity::TargetNames);
    let Local { end, .. } = session.local;
    session.writes_to(to);
    let shown = || to.place.entry(last);
    let mode = birth_mode(&session.local, to, &supply.metadata);
    session.permit.one_more(Limit::Creates);
    let file = file::create_new(&to.fd, name, mode)
        .and_then(|fd| {
            if name == last && to.hands_down_nothing(end.privilege) {
                return Ok(Unfinished::unseen(end, to, fd, (name, mode)));
            }
            Unfinished::new(end, to, fd, name)
        })
        .map_err(|e| session::not_made(to, name, last, e))?;
    session.local.attributes().prepare(file.object(&shown), &supply.attributes)?;
    end.layout
        .place(file.fd(), &supply.metadata)
        .map_err(|e| entry_error(Side::Destination, Operation::Create, shown(), e))?;
    Ok(file)
}

/// Copies the content. Returns the bytes copied, and whether the size may reach storage before the data.
fn fill(
    session: &mut Session<'_>,
    order: FileOrder<'_>,
    supply: &OpenedSource,
    file: &Unfinished<'_>,
    tap: Option<&Tap>,
) -> Result<(u64, bool), EntryError> {
    let FileOrder { from, name, to, last, .. } = order;
    let (policy, content) = (session.local.rules.policy, session.local.content());
    let size = supply.metadata.size;
    let source_path = || from.place.entry(name);
    if size == 0 {
        return check_empty(from, supply.file.as_ref(), &source_path).map(|()| (0, false));
    }
    let target_path = || to.place.entry(last);
    let transfer = Transfer {
        flushed: file.name != last,
        tap: tap.map(|tap| &tap.pieces),
        ..file.transfer(from, supply, [&source_path, &target_path], session.permit)
    };
    if content.share(transfer, size)? {
        content.read_for_digest(transfer, size, session.tools)?;
        return Ok((size, false));
    }
    if policy.reflink == When::Always {
        return Err(cannot_share(target_path()));
    }
    let range = ByteRange { start: 0, end: size };
    if size >= PATCHED_MIN
        && patched::begins_with_old(&session.local, order, &supply.metadata, file)?
    {
        return content
            .patch_range(transfer, range, true, session.tools)
            .map(|bytes| (bytes, true));
    }
    let holes = content.holes(&supply.metadata);
    if let Some(older) = session.local.older_version(to, last, (transfer.source, size)) {
        file::set_size(file.fd(), size)
            .map_err(|e| entry_error(Side::Destination, Operation::Allocate, target_path(), e))?;
        let bytes = content.copy_changed(transfer, range, (&older, holes), session.tools)?;
        return Ok((bytes, true));
    }
    if holes != Holes::Fill {
        file::set_size(file.fd(), size)
            .map_err(|e| entry_error(Side::Destination, Operation::Allocate, target_path(), e))?;
    }
    let bytes = content.copy_range(transfer, range, 0, holes, session.tools)?;
    // A ring writes in any order, so the end may reach storage before the middle.
    let unordered = policy.engine == CopyEngine::Uring && size > RING_PIECE_MIN as u64;
    Ok((bytes, unordered || holes != Holes::Fill))
}

/// Writes all bytes of the source, or of ranges of it, into an open file.
fn overwrite(
    session: &mut Session<'_>,
    order: FileOrder<'_>,
    file: &Unfinished<'_>,
    (supply, wanted): (&OpenedSource, Option<&RangeCopy>),
    transfer: Transfer<'_>,
) -> Result<Written, EntryError> {
    let (local, size) = (session.local, supply.metadata.size);
    let fail = |e| {
        let path = order.to.place.entry(order.last);
        entry_error(Side::Destination, Operation::Allocate, path, e)
    };
    let partial = wanted.is_some();
    let mut holes = if partial { Holes::Fill } else { local.content().holes(&supply.metadata) };
    if holes != Holes::Fill {
        // Old bytes must not shine through the holes; where none can be punched, zeroes are written.
        let punched = file::punch_hole(file.fd(), 0, size).map_err(fail)?;
        holes = if punched { holes } else { Holes::Fill };
    }
    let mut written = Written::default();
    for (range, at) in ranges(wanted, size) {
        let tap = local.rules.tap(range.len());
        let transfer = Transfer { tap: tap.as_ref().map(|tap| &tap.pieces), ..transfer };
        written.bytes += local.content().copy_range(transfer, range, at, holes, session.tools)?;
        let at = partial.then_some((range.start, at));
        written.made.extend(tap.map(|tap| tap.into_made(at)));
    }
    if !partial {
        file::set_size(file.fd(), size).map_err(fail)?;
    }
    source::check_version(&local, order.from, order.name, supply)?;
    Ok(written)
}

/// Opens an existing file, or creates it under its final name.
fn open_or_make<'t>(
    session: &Session<'_>,
    order: FileOrder<'t>,
    supply: &OpenedSource,
) -> Result<Unfinished<'t>, EntryError> {
    let FileOrder { from, to, last, .. } = order;
    let existing = order.decision != Decision::Create;
    let fail = |operation, e| entry_error(Side::Destination, operation, to.place.entry(last), e);
    let fd = if existing {
        existing::open_existing(session, from, to, last, &supply.metadata)?.0
    } else {
        session.permit.one_more(Limit::Creates);
        let mode = session.local.attributes().closed_mode(&supply.metadata);
        file::create_new(&to.fd, last, mode).map_err(|e| fail(Operation::Create, e))?
    };
    session.check_commit(to, last)?;
    let file =
        Unfinished::new(session.local.end, to, fd, last).map_err(|e| fail(Operation::Stat, e))?;
    if existing {
        // After a flush that failed, ext4 gives no blocks to pages that it still has in memory, whatever is written into
        // them: they have to be read again. A page that is not flushed yet stays.
        cache::forget(file.fd(), 0, file.metadata.size);
    }
    Ok(file)
}

/// Closes a file under its final name and keeps it. The error comes with whether the file stays there nevertheless, and
/// looks complete to another attempt.
fn keep(file: Unfinished<'_>, last: &[u8]) -> Result<(), (Errno, bool)> {
    let target = file.target;
    file.keep().map_err(|error| {
        let is_gone = stat::stat_at(&target.fd, last, false).is_err_and(stat::is_absent);
        (error, !is_gone)
    })
}

/// Whether the project id must wait for the final name: no file of another project can be renamed or linked into a
/// directory that hands its own project down (EXDEV). Most files have no project, and cost no call.
fn project_waits(file: &Unfinished<'_>, attributes: &Attributes) -> bool {
    attributes.project_there.is_some()
        && matches!(flags::project(&file.target.fd), Ok(Some(project)) if project.inherit)
}

/// The error of `--reflink=always` where blocks cannot be shared.
pub(crate) fn cannot_share(path: PathBytes) -> EntryError {
    let words = "cannot share blocks with the source";
    let (side, class) = (Side::Destination, ErrorClass::Unsupported);
    EntryError::plain(side, Operation::Write, class, path, words)
}
