//! Regular files: content under the final or a temporary name, then everything else, times last.
use dmover_model::{
    Attribute, ByteRange, CopyEngine, EntryError, EntryKind, EntryRecord, ErrorClass, Identity,
    Metadata, Name, Note, Operation, Side, Verb, When,
};
use dmover_observe::{Activity, station};
use dmover_plan::decide::Decision;
use dmover_sys::stat::Stat;
use dmover_sys::xattr::Held;
use dmover_sys::{
    AsFd, BorrowedFd, Errno, OwnedFd, cache, directory, file, flags, path, stat, xattr,
};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use crate::apply::{Moved, Planned, Renaming};
use crate::context::Engine;
use crate::later::Temporary;
use crate::level::{Level, TargetDirectory};
use crate::made::Tap;
use crate::mover::Mover;
use dmover_local::attributes::ACCESS_ACL;
use dmover_local::attributes::{Attributes, Object};
use dmover_local::capability::Facts;
use dmover_local::content::{Holes, RING_PIECE_MIN, Transfer};
use dmover_local::error::entry_error;
use dmover_local::privilege::Privilege;
use dmover_tree::{Limit, Permit};

mod existing;
mod leases;
mod patched;
mod ranges;
use patched::PATCHED_MIN;
pub(crate) use patched::unfinished_time;
use ranges::{covers_all, ranges};

/// The content and attributes of one file, from the source half.
///
/// Locally the content is a descriptor, so that copies inside the kernel stay possible.
pub(crate) struct Supply {
    pub fd: OwnedFd,
    pub metadata: Metadata,
    pub attributes: Attributes,
}

/// An open source file, with its metadata after opening.
pub(crate) struct Opened {
    pub fd: OwnedFd,
    pub found: Stat,
}

/// Attributes of a replaced file that the source does not determine.
#[derive(Debug, Clone)]
pub(crate) struct Replaced {
    pub metadata: Metadata,
    /// With an ACL, the group bits of the mode are its mask, so without it they would grant access.
    pub acl: Option<Vec<u8>>,
}

/// An incomplete destination file. Unless it is kept, it is removed.
pub(crate) struct Unfinished<'a> {
    pub target: &'a TargetDirectory,
    /// Taken only when the file is closed for good.
    file: Option<OwnedFd>,
    pub name: Vec<u8>,
    pub metadata: Metadata,
    /// The file that it replaces, or that was written into.
    pub replaces: Option<Replaced>,
    /// It is an existing file that is written into.
    pub written_into: bool,
    armed: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.remove();
        }
    }
}

impl<'a> Unfinished<'a> {
    pub fn new(
        engine: &Engine,
        target: &'a TargetDirectory,
        fd: OwnedFd,
        name: &[u8],
    ) -> Result<Self, Errno> {
        let metadata = engine.mounts.metadata(&stat::stat_fd(&fd)?);
        let (file, name) = (Some(fd), name.to_vec());
        Ok(Self { target, file, name, metadata, replaces: None, written_into: false, armed: true })
    }

    /// A file that was just created on a file system where new files are as requested. Its identity is unknown, and not
    /// needed under a final name.
    fn unseen(
        engine: &Engine,
        target: &'a TargetDirectory,
        fd: OwnedFd,
        (name, mode): (&[u8], u32),
    ) -> Self {
        let Privilege { uid, gid, .. } = engine.privilege;
        let identity = Identity { mount: target.metadata.identity.mount, inode: 0 };
        let kind = EntryKind::File;
        let metadata =
            Metadata { kind, mode, uid, gid, size: 0, identity, ..target.metadata.clone() };
        let (file, name) = (Some(fd), name.to_vec());
        Self { target, file, name, metadata, replaces: None, written_into: false, armed: true }
    }

    /// Removes the name if it still refers to this file.
    fn remove(&self) {
        // Closed, it is one that was looked at when it was made: elsewhere closing has no late errors.
        let inode = self.file.as_ref().map_or(Ok(self.metadata.identity.inode), |file| {
            stat::stat_fd(file).map(|own| own.inode)
        });
        let there = stat::stat_at(&self.target.fd, &self.name, false);
        let same = inode.is_ok_and(|inode| there.is_ok_and(|there| there.inode == inode));
        if same && let Err(error) = directory::unlink(&self.target.fd, &self.name) {
            tracing::warn!(%error, name = ?String::from_utf8_lossy(&self.name),
                "cannot remove an unfinished file; the next run removes it");
        }
    }

    /// Keeps the name whatever happens: it belongs to a later task.
    pub fn disarm(&mut self) {
        self.armed = false;
    }

    /// Checks for late errors that NFS and FUSE report only when a descriptor is closed.
    pub fn hear_late_errors(&self) -> Result<(), Errno> {
        if self.target.facts.local {
            return Ok(());
        }
        self.fd().try_clone_to_owned().map_or(Ok(()), file::close)
    }

    /// Closes the file and keeps it, unless a late error says that its content is not safe.
    pub fn keep(mut self) -> Result<(), Errno> {
        let closed = self.file.take().map_or(Ok(()), file::close);
        if closed.is_ok() {
            self.disarm();
        }
        closed
    }

    /// The open file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("a file that is being worked on is open").as_fd()
    }
}

impl Engine {
    /// Opens a source file and reads its attributes.
    pub(crate) fn supply(
        &self,
        level: &Level,
        record: &EntryRecord,
        permit: &dyn Permit,
    ) -> Result<Supply, EntryError> {
        self.supply_opened(level, record, self.open_content(level, record, permit)?)
    }

    /// Opens a source file without its attributes.
    pub(crate) fn open_source_file(
        &self,
        level: &Level,
        record: &EntryRecord,
        permit: &dyn Permit,
    ) -> Result<(OwnedFd, Metadata), EntryError> {
        let Opened { fd, found } = self.open_content(level, record, permit)?;
        let metadata = self.settled(level, record, &fd, found)?;
        Ok((fd, metadata))
    }

    pub(crate) fn open_content(
        &self,
        level: &Level,
        record: &EntryRecord,
        permit: &dyn Permit,
    ) -> Result<Opened, EntryError> {
        permit.one_more(Limit::Opens);
        station::at(Activity::SourceNames);
        let fail = |operation, e| {
            entry_error(Side::Source, operation, level.source_path(record.name.as_bytes()), e)
        };
        let (directory, name) = (&level.source.fd, record.name.as_bytes());
        let opened = self.open_to_read(directory, name, self.follows(level));
        let fd = opened.map_err(|e| fail(Operation::Open, e))?;
        let found = stat::stat_fd(&fd).map_err(|e| fail(Operation::Stat, e))?;
        Ok(Opened { fd, found })
    }

    /// Reads the attributes of an open file.
    fn supply_opened(
        &self,
        level: &Level,
        record: &EntryRecord,
        Opened { fd, found }: Opened,
    ) -> Result<Supply, EntryError> {
        let metadata = self.settled(level, record, &fd, found)?;
        let shown = || level.source_path(record.name.as_bytes());
        let mut attributes = self.attributes().read(fd.as_fd(), Held::Open, &shown)?;
        self.settle_project(level, EntryKind::File, &mut attributes, true)?;
        self.note_writers(level, &record.name, (&metadata, &fd));
        Ok(Supply { fd, metadata, attributes })
    }

    /// The metadata of an open source file once its times can show a later change, if it is the file of the record.
    pub(crate) fn settled(
        &self,
        level: &Level,
        record: &EntryRecord,
        fd: &OwnedFd,
        found: Stat,
    ) -> Result<Metadata, EntryError> {
        let shown = || level.source_path(record.name.as_bytes());
        let metadata = self.mounts.metadata(&self.past_the_tick(fd, found, &shown)?);
        let same = metadata.identity == record.metadata.identity;
        if metadata.kind != EntryKind::File || !same {
            let words = "another file has replaced this one";
            let class = ErrorClass::Changed;
            return Err(EntryError::plain(Side::Source, Operation::Open, class, shown(), words));
        }
        Ok(metadata)
    }

    /// Reads the metadata of an open file again until its times can show a later change.
    pub(crate) fn past_the_tick(
        &self,
        fd: &OwnedFd,
        mut found: Stat,
        shown: &dyn Fn() -> dmover_model::PathBytes,
    ) -> Result<Stat, EntryError> {
        let fail = |operation, e| entry_error(Side::Source, operation, shown(), e);
        let mut waits = 0;
        while let Some(wait) = racy_for(found.ctime).filter(|_| !self.control.is_stopping()) {
            // Two writes within one tick of the kernel's clock leave the same times: the version says
            // nothing until the tick has passed.
            if waits == RACY_WAITS_MAX {
                let words = "the file keeps changing";
                let class = ErrorClass::Changed;
                return Err(EntryError::plain(
                    Side::Source,
                    Operation::Open,
                    class,
                    shown(),
                    words,
                ));
            }
            waits += 1;
            std::thread::sleep(wait);
            found = stat::stat_fd(fd).map_err(|e| fail(Operation::Stat, e))?;
        }
        Ok(found)
    }

    /// Checks that the version after reading is the one before.
    pub(crate) fn check_version(
        &self,
        level: &Level,
        name: &[u8],
        fd: impl AsFd,
        before: &Metadata,
    ) -> Result<(), EntryError> {
        self.check_unchanged(&level.source.facts, fd, before, &|| level.source_path(name))
    }

    /// Checks the version of a file outside of trees.
    pub(crate) fn check_unchanged(
        &self,
        facts: &Facts,
        fd: impl AsFd,
        before: &Metadata,
        shown: &dyn Fn() -> dmover_model::PathBytes,
    ) -> Result<(), EntryError> {
        let found = stat::stat_fd(fd)
            .map_err(|e| entry_error(Side::Source, Operation::Stat, shown(), e))?;
        let now = self.mounts.metadata(&found);
        if now.atime != before.atime && !facts.touches_atime.swap(true, Ordering::Relaxed) {
            self.note(Note::SourceAtimeTouched, shown);
        }
        if now.same_version(before) {
            return Ok(());
        }
        let words = "the file changed while it was read";
        let class = ErrorClass::Changed;
        Err(EntryError::plain(Side::Source, Operation::Check, class, shown(), words))
    }

    /// The mode with which to create a file. In a directory that is closed to other users it is the final mode at once,
    /// unless a later step needs another: set-id bits wait for the owner, and without privilege extended attributes
    /// need a file that its owner may write.
    pub(crate) fn birth_mode(&self, target: &TargetDirectory, source: &Metadata) -> u32 {
        let mode = self.attributes().final_mode(source);
        let may_open = self.privilege.privileged || mode & 0o600 == 0o600;
        let plain = mode & 0o7000 == 0 && may_open && !self.spec.policy.skip_chmod;
        if plain && target.is_closed(self.privilege) {
            mode
        } else {
            self.attributes().closed_mode(source)
        }
    }

    /// Sets metadata in order. Flushes before the times where a crash could otherwise leave an incomplete file that
    /// looks complete.
    pub(crate) fn finish_file(
        &self,
        file: &Unfinished<'_>,
        source: &Metadata,
        attributes: &Attributes,
        flush: bool,
        shown: &dyn Fn() -> dmover_model::PathBytes,
    ) -> Result<(), EntryError> {
        station::at(Activity::TargetNames);
        let object = self.file_object(file, shown);
        if object.replaces.is_some() && self.attributes().takes_acl_away(object, attributes) {
            xattr::remove(file.fd(), Held::Open, ACCESS_ACL)
                .map_err(|e| entry_error(Side::Destination, Operation::SetXattr, shown(), e))?;
        }
        self.attributes().set(object, source, attributes, &file.metadata)?;
        if let Some(acl) = file.replaces.as_ref().and_then(|replaced| replaced.acl.as_deref()) {
            xattr::set(file.fd(), Held::Open, ACCESS_ACL, acl)
                .map_err(|e| entry_error(Side::Destination, Operation::SetXattr, shown(), e))?;
        }
        if !project_waits(file, attributes) {
            self.attributes().set_project(object, attributes)?;
        }
        // In a directory of this job that has no flags to hand down, a new file has none.
        let hands_down = !file.target.made || file.target.hands_down_flags;
        if hands_down || attributes.flags & !flags::LOCKS != 0 {
            self.attributes().carry_flags(object, attributes, flags::PLAIN)?;
        }
        if flush || self.spec.policy.fsync || self.flushes_unheard(file.target) {
            station::at(Activity::TargetData);
            file::sync_data(file.fd())
                .map_err(|e| entry_error(Side::Destination, Operation::Sync, shown(), e))?;
        }
        self.attributes().set_times(object, source)
    }

    /// Whether syncfs(2) does not reach the storage: a FUSE server is not informed.
    pub(crate) fn flushes_unheard(&self, target: &TargetDirectory) -> bool {
        self.flusher.is_some() && target.facts.fills_with_zeroes
    }

    /// Sets attributes that can only be set under the final name. The file is complete, so a failure does not remove
    /// it.
    pub(crate) fn set_last(
        &self,
        file: &Unfinished<'_>,
        attributes: &Attributes,
        shown: &dyn Fn() -> dmover_model::PathBytes,
    ) -> Result<(), EntryError> {
        let object = self.file_object(file, shown);
        if project_waits(file, attributes) {
            self.attributes().set_project(object, attributes)?;
        }
        if attributes.flags & flags::LOCKS == 0 {
            return Ok(()); // they are never inherited, and what had them could not be written
        }
        self.attributes().carry_flags(object, attributes, flags::LOCKS)
    }

    /// The file whose mode and owner the new one gets where those of the source are not kept. If the old version stays
    /// as a backup, the file counts as new.
    pub(crate) fn takes_after(
        &self,
        target: &TargetDirectory,
        last: &[u8],
        existing: Option<&Metadata>,
    ) -> Option<Replaced> {
        let preserve = self.spec.policy.preserve;
        let old = existing.filter(|old| old.kind == EntryKind::File);
        let metadata = old.filter(|_| self.spec.policy.backup.is_none())?.clone();
        let asks = !preserve.has(Attribute::Mode) && !preserve.has(Attribute::Acl);
        let pinned = asks.then(|| path::pin_at(&target.fd, last)).and_then(Result::ok);
        let acl = pinned.and_then(|fd| xattr::get(fd, Held::Pinned, ACCESS_ACL).ok().flatten());
        Some(Replaced { metadata, acl })
    }

    pub(crate) fn file_object<'o>(
        &self,
        file: &'o Unfinished<'_>,
        shown: &'o dyn Fn() -> dmover_model::PathBytes,
    ) -> Object<'o> {
        Object {
            fd: file.fd(),
            held: Held::Open,
            kind: EntryKind::File,
            facts: &file.target.facts,
            made: true,
            replaces: file.replaces.as_ref().map(|replaced| &replaced.metadata),
            inherits: file.target.default_acl.filter(|_| !file.written_into),
            place: None,
            path: shown,
        }
    }
}

impl Mover<'_> {
    /// A temporary name in the directory, which is prepared for it.
    pub(crate) fn temporary_in(&self, level: &Level) -> Name {
        self.unlock_for_temporaries(level);
        self.temporary_name()
    }

    /// Clears the append-only flag of a directory, in which a temporary file could be created but neither renamed nor
    /// removed. Returns whether flags were cleared.
    pub(crate) fn unlock_for_temporaries(&self, level: &Level) -> bool {
        let locked = level.target.as_ref().is_some_and(|target| target.metadata.is_locked());
        locked && self.engine.lift_directory(level)
    }

    /// Creates an empty file, closed to other users, with attributes that only count on an empty file.
    pub(crate) fn create_file<'t>(
        &self,
        level: &Level,
        target: &'t TargetDirectory,
        name: &[u8],
        last: &[u8],
        supply: &Supply,
    ) -> Result<Unfinished<'t>, EntryError> {
        station::at(Activity::TargetNames);
        let engine = self.engine;
        self.writes_to(target);
        let shown = || level.target_path(last);
        let mode = engine.birth_mode(target, &supply.metadata);
        self.permit().one_more(Limit::Creates);
        let file = file::create_new(&target.fd, name, mode)
            .and_then(|fd| {
                if name == last && target.hands_down_nothing(engine.privilege) {
                    return Ok(Unfinished::unseen(engine, target, fd, (name, mode)));
                }
                Unfinished::new(engine, target, fd, name)
            })
            .map_err(|e| self.not_made(level, target, name, last, e))?;
        let object = engine.file_object(&file, &shown);
        engine.attributes().prepare(object, &supply.attributes)?;
        engine
            .layout
            .place(file.fd(), &supply.metadata)
            .map_err(|e| entry_error(Side::Destination, Operation::Create, shown(), e))?;
        Ok(file)
    }

    /// Copies a whole file at once.
    pub(crate) fn bring_file(
        &mut self,
        level: &Level,
        target: &TargetDirectory,
        planned: &Planned,
        opened: Option<Opened>,
    ) -> Result<Moved, EntryError> {
        let (engine, record, decision) = (self.engine, &planned.record, planned.decision);
        if level.root.range.is_some() || decision == Decision::UpdateInPlace {
            return self.write_into(level, target, record, decision);
        }
        let supply = match opened {
            Some(opened) => engine.supply_opened(level, record, opened)?,
            None => engine.supply(level, record, &self.permit())?,
        };
        let last = record.destination_name().as_bytes();
        let temporary = self.needs_temporary(decision).then(|| self.temporary_in(level));
        let name = temporary.as_ref().map_or(last, |t| t.as_bytes());
        let mut file = self.create_file(level, target, name, last, &supply)?;
        file.replaces = engine.takes_after(target, last, planned.existing.as_ref());
        let tap = engine.tap(supply.metadata.size);
        let (bytes, presized) = self.fill(level, planned, &supply, &file, tap.as_ref())?;
        engine.check_version(level, record.name.as_bytes(), &supply.fd, &supply.metadata)?;
        let shown = || level.target_path(last);
        let waits = self.may_wait(target, decision, supply.metadata.size)
            && supply.attributes.flags & flags::LOCKS == 0
            && !project_waits(&file, &supply.attributes);
        let flush = (presized || temporary.is_some()) && !waits;
        engine.finish_file(&file, &supply.metadata, &supply.attributes, flush, &shown)?;
        let later = if waits {
            let temporary = Temporary { name: name.to_vec(), identity: file.metadata.identity };
            self.keep(file, name)
                .map_err(|e| entry_error(Side::Destination, Operation::Close, shown(), e))?;
            self.in_place = false;
            Some(temporary)
        } else {
            let source = supply.metadata.identity;
            self.settle(level, file, last, (decision, source), &supply.attributes)?;
            None
        };
        let made = tap.map(|tap| tap.into_made(None));
        let extended = engine.extended_to_keep(&supply.attributes, Held::Open);
        let (made, version) = (made.into_iter().collect(), Some(supply.metadata));
        Ok(Moved { bytes, made, version, extended, instead: None, later })
    }

    /// Copies the content. Returns the bytes copied, and whether the size may reach storage before the data.
    fn fill(
        &mut self,
        level: &Level,
        planned: &Planned,
        supply: &Supply,
        file: &Unfinished<'_>,
        tap: Option<&Tap>,
    ) -> Result<(u64, bool), EntryError> {
        let (engine, record) = (self.engine, &planned.record);
        let size = supply.metadata.size;
        let source_path = || level.source_path(record.name.as_bytes());
        if size == 0 {
            let facts = &level.source.facts;
            return has_nothing(facts, supply.fd.as_fd(), &source_path).map(|()| (0, false));
        }
        let target_path = || level.target_path(record.destination_name().as_bytes());
        let transfer = Transfer {
            source: supply.fd.as_fd(),
            destination: file.fd(),
            size: supply.metadata.size,
            flushed: file.name != record.destination_name().as_bytes(),
            source_mount: supply.metadata.identity.mount,
            source_facts: &level.source.facts,
            facts: &file.target.facts,
            source_path: &source_path,
            target_path: &target_path,
            permit: &self.permit(),
            tap: tap.map(|tap| &tap.pieces),
        };
        if engine.content().share(transfer, size)? {
            engine.content().read_for_digest(transfer, size, self.tools)?;
            return Ok((size, false));
        }
        if engine.spec.policy.reflink == When::Always {
            return Err(cannot_share(target_path()));
        }
        let range = ByteRange { start: 0, end: size };
        if size >= PATCHED_MIN && self.begins_with_old(level, file.target, planned, file, size)? {
            return engine
                .content()
                .patch_range(transfer, range, true, self.tools)
                .map(|bytes| (bytes, true));
        }
        let holes = engine.content().holes(&supply.metadata);
        if holes != Holes::Fill {
            file::set_size(file.fd(), size).map_err(|e| {
                entry_error(Side::Destination, Operation::Allocate, target_path(), e)
            })?;
        }
        let bytes = engine.content().copy_range(transfer, range, 0, holes, self.tools)?;
        // A ring writes in any order, so the end may reach storage before the middle.
        let unordered =
            engine.spec.policy.engine == CopyEngine::Uring && size > RING_PIECE_MIN as u64;
        Ok((bytes, unordered || holes != Holes::Fill))
    }

    /// Renames a finished file into place, then sets flags that would forbid renaming.
    pub(crate) fn settle(
        &mut self,
        level: &Level,
        mut file: Unfinished<'_>,
        last: &[u8],
        (decision, source): (Decision, Identity),
        attributes: &Attributes,
    ) -> Result<(), EntryError> {
        let shown = || level.target_path(last);
        let fail = |e| entry_error(Side::Destination, Operation::Close, shown(), e);
        if file.name != last {
            // While the old version, if any, is still in place: an error here costs only the new one.
            file.hear_late_errors().map_err(fail)?;
            let locks = attributes.flags & flags::LOCKS != 0;
            let identity = file.metadata.identity;
            let renaming = Renaming { name: &file.name, last, decision, locks, identity, source };
            if let Err(error) = self.put_in_place(level, file.target, renaming) {
                self.in_place = self.is_at(file.target, last, identity);
                return Err(error);
            }
            file.name = last.to_vec();
            file.disarm();
            self.in_place = true;
        }
        let dressed = self.engine.set_last(&file, attributes, &shown);
        // A late error takes away what was made under its final name.
        self.keep(file, last).map_err(fail)?;
        self.in_place = true;
        dressed
    }

    fn keep(&mut self, file: Unfinished<'_>, last: &[u8]) -> Result<(), Errno> {
        let target = file.target;
        let kept = file.keep();
        // What could not be taken away either looks complete to another attempt.
        self.in_place |=
            kept.is_err() && !stat::stat_at(&target.fd, last, false).is_err_and(stat::is_absent);
        kept
    }

    /// Writes into an existing file (`--inplace`), or ranges of one (`--offset`, batch lists).
    fn write_into(
        &mut self,
        level: &Level,
        target: &TargetDirectory,
        record: &EntryRecord,
        decision: Decision,
    ) -> Result<Moved, EntryError> {
        let engine = self.engine;
        let mut supply = engine.supply(level, record, &self.permit())?;
        let last = record.destination_name().as_bytes();
        let shown = || level.target_path(last);
        let source_path = || level.source_path(record.name.as_bytes());
        if supply.metadata.size == 0 {
            has_nothing(&level.source.facts, supply.fd.as_fd(), &source_path)?;
        }
        let existing = decision != Decision::Create;
        let mut file = self.open_or_make(level, target, last, (&supply, existing))?;
        file.written_into = existing;
        if existing && level.root.range.is_none() {
            let metadata = file.metadata.clone();
            file.replaces = engine.takes_after(target, last, Some(&metadata));
            let closed = self
                .close_existing(&file, &supply)
                .and_then(|()| stat::stat_fd(file.fd()))
                .map_err(|e| entry_error(Side::Destination, Operation::SetMode, shown(), e))?;
            file.metadata = engine.mounts.metadata(&closed);
            engine
                .attributes()
                .remove_foreign(engine.file_object(&file, &shown), &supply.attributes)?;
            engine.settle_project(level, EntryKind::File, &mut supply.attributes, false)?;
        }
        if level.root.range.is_none() {
            let object = engine.file_object(&file, &shown);
            engine.attributes().prepare(object, &supply.attributes)?;
        }
        // An existing file is never removed; its times show that it is incomplete.
        file.armed = !existing;
        let transfer = Transfer {
            source: supply.fd.as_fd(),
            destination: file.fd(),
            size: supply.metadata.size,
            flushed: true,
            source_mount: supply.metadata.identity.mount,
            source_facts: &level.source.facts,
            facts: &target.facts,
            source_path: &source_path,
            target_path: &shown,
            permit: &self.permit(),
            tap: None,
        };
        let size = supply.metadata.size;
        let partial = level.root.range.is_some();
        if existing && !partial && engine.spec.verb == Verb::Sync {
            let mut moved = self.update_existing(level, &file, (record, &supply), transfer)?;
            self.in_place = true;
            engine.set_last(&file, &supply.attributes, &shown)?;
            self.keep(file, last)
                .map_err(|e| entry_error(Side::Destination, Operation::Close, shown(), e))?;
            moved.extended = engine.extended_to_keep(&supply.attributes, Held::Open);
            moved.version = Some(supply.metadata);
            return Ok(moved);
        }
        let mut holes =
            if partial { Holes::Fill } else { engine.content().holes(&supply.metadata) };
        if holes != Holes::Fill {
            // Old bytes must not shine through the holes; where none can be punched, zeroes are written.
            let punched = file::punch_hole(file.fd(), 0, size)
                .map_err(|e| entry_error(Side::Destination, Operation::Allocate, shown(), e))?;
            holes = if punched { holes } else { Holes::Fill };
        }
        let mut moved = Moved::default();
        for (range, to) in ranges(level.root.range.as_ref(), size) {
            let tap = engine.tap(range.len());
            let transfer = Transfer { tap: tap.as_ref().map(|tap| &tap.pieces), ..transfer };
            moved.bytes += engine.content().copy_range(transfer, range, to, holes, self.tools)?;
            moved.made.extend(tap.map(|tap| tap.into_made(partial.then_some((range.start, to)))));
        }
        if !partial {
            file::set_size(file.fd(), size)
                .map_err(|e| entry_error(Side::Destination, Operation::Allocate, shown(), e))?;
        }
        engine.check_version(level, record.name.as_bytes(), &supply.fd, &supply.metadata)?;
        if partial && !covers_all(level.root.range.as_ref(), size) {
            // Only some bytes are the source's, so its times would lie.
            file.armed = false;
            file::sync_data(file.fd())
                .map_err(|e| entry_error(Side::Destination, Operation::Sync, shown(), e))?;
        } else {
            engine.finish_file(&file, &supply.metadata, &supply.attributes, true, &shown)?;
            // Equal from here on.
            self.in_place = existing;
            engine.set_last(&file, &supply.attributes, &shown)?;
        }
        self.keep(file, last)
            .map_err(|e| entry_error(Side::Destination, Operation::Close, shown(), e))?;
        moved.extended = engine.extended_to_keep(&supply.attributes, Held::Open);
        moved.version = (!partial).then_some(supply.metadata);
        Ok(moved)
    }

    /// Opens an existing file, or creates it under its final name.
    fn open_or_make<'t>(
        &self,
        level: &Level,
        target: &'t TargetDirectory,
        last: &[u8],
        (supply, existing): (&Supply, bool),
    ) -> Result<Unfinished<'t>, EntryError> {
        let engine = self.engine;
        let fail =
            |operation, e| entry_error(Side::Destination, operation, level.target_path(last), e);
        let fd = if existing {
            self.open_existing(level, target, last, &supply.metadata)?.0
        } else {
            self.permit().one_more(Limit::Creates);
            file::create_new(&target.fd, last, engine.attributes().closed_mode(&supply.metadata))
                .map_err(|e| fail(Operation::Create, e))?
        };
        self.check_lease(level, last)?;
        let file =
            Unfinished::new(engine, target, fd, last).map_err(|e| fail(Operation::Stat, e))?;
        if existing {
            // After a flush that failed, ext4 gives no blocks to pages that it still has in memory, whatever is written into
            // them: they have to be read again. A page that is not flushed yet stays.
            cache::forget(file.fd(), 0, file.metadata.size);
        }
        Ok(file)
    }
}

/// Whether the project id must wait for the final name: no file of another project can be renamed or linked into a
/// directory that hands its own project down (EXDEV). Most files have no project, and cost no call.
fn project_waits(file: &Unfinished<'_>, attributes: &Attributes) -> bool {
    attributes.project_there.is_some()
        && matches!(flags::project(&file.target.fd), Ok(Some(project)) if project.inherit)
}

/// The error of `--reflink=always` where blocks cannot be shared.
pub(crate) fn cannot_share(path: dmover_model::PathBytes) -> EntryError {
    let words = "cannot share blocks with the source";
    let (side, class) = (Side::Destination, ErrorClass::Unsupported);
    EntryError::plain(side, Operation::Write, class, path, words)
}

/// How often a file may have changed recently before it counts as being written.
const RACY_WAITS_MAX: u32 = 10;

/// Whether any later change would show in the times of a file.
pub(crate) fn has_settled(metadata: &Metadata) -> bool {
    let ctime = metadata.ctime;
    racy_for((ctime.seconds, ctime.nanoseconds)).is_none()
}

/// How long to wait until a change at `ctime` is more than one tick of the kernel's clock ago. The longest tick is ten
/// milliseconds (CONFIG_HZ=100).
fn racy_for(ctime: (i64, u32)) -> Option<Duration> {
    const TICK: Duration = Duration::from_millis(10);
    let changed = Duration::new(u64::try_from(ctime.0).ok()?, ctime.1);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    // A time in the future comes from another clock, which waiting does not reach.
    let age = now.checked_sub(changed)?;
    TICK.checked_sub(age).filter(|wait| !wait.is_zero())
}

/// Checks that a file of size 0 really has no content: some servers generate content when it is read, and such a file
/// must not be copied as empty.
fn has_nothing(
    facts: &Facts,
    source: BorrowedFd<'_>,
    path: &dyn Fn() -> dmover_model::PathBytes,
) -> Result<(), EntryError> {
    if facts.local {
        return Ok(());
    }
    let read = file::read_at(source, &mut [0], 0);
    match read.map_err(|e| entry_error(Side::Source, Operation::Read, path(), e))? {
        0 => Ok(()),
        // Another program is writing the file, which is noticed later.
        _ if stat::stat_fd(source).is_ok_and(|now| now.size > 0) => Ok(()),
        _ => {
            let words = "its file system reports size 0, but the file has content";
            let (side, class) = (Side::Source, ErrorClass::Unsupported);
            Err(EntryError::plain(side, Operation::Read, class, path(), words))
        }
    }
}
