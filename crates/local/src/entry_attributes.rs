//! The attributes of entries: read from a name at either end, from both for a comparison, and set again where they differ.
use dmover_model::{
    EntryError, EntryKind, EntryRecord, ErrorClass, Metadata, Operation, PathBytes, Side,
};
use dmover_observe::{Activity, activity};
use dmover_sys::xattr::Held;
use dmover_sys::{AsFd, BorrowedFd, OwnedFd, flags, path, stat};
use dmover_tree::{EntryAttributes, Permit};

use crate::attributes::{Attributes, Object};
use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::Local;
use crate::error::{at_destination, entry_error};
use crate::handle::{DirectoryHandle, FileHandle};
use crate::pair::Pair;
use crate::reading::Shown;
use crate::rights::Sides;
use crate::source::{self, Content, OpenedSource, open_to_read};

/// An entry that stays open, with its attributes.
pub struct OpenEntry {
    /// Its attributes.
    pub attributes: Attributes,
    /// As long as it is open, its inode number belongs to no other entry.
    _entry: SourceEntry,
}

/// A source entry, to read its attributes.
enum SourceEntry {
    /// Open at this host.
    Open(OwnedFd, Held),
    /// Read through messages.
    Read(EntryAttributes),
}

/// Both sides of an entry, open to compare and set attributes.
pub struct EntryPair<'a> {
    local: Local<'a>,
    sides: Sides<'a>,
    record: &'a EntryRecord,
    source: SourceEntry,
    destination: OwnedFd,
    /// How the destination is open.
    held: Held,
}

/// Checks that an entry is the one that was found. A number that is free is given to the next entry, of whatever type: its
/// attributes are no business of this one.
fn check_same(
    record: &EntryRecord,
    found: &Metadata,
    shown: &dyn Fn() -> PathBytes,
) -> Result<(), EntryError> {
    if (found.identity, found.kind) == (record.metadata.identity, record.metadata.kind) {
        return Ok(());
    }
    let words = "another entry has replaced this one";
    let (side, class) = (Side::Source, ErrorClass::Changed);
    Err(EntryError::plain(side, Operation::Open, class, shown(), words))
}

/// Opens a source entry for its attributes if it is still the one that was found; an entry that is neither a file nor a
/// directory is opened with O_PATH.
fn open_for_attributes(
    local: &Local<'_>,
    from: &SourceDirectory,
    record: &EntryRecord,
    follows: bool,
) -> Result<SourceEntry, EntryError> {
    let name = record.name.as_bytes();
    let shown = || from.place.entry(name);
    let fail = |e| entry_error(Side::Source, Operation::Open, shown(), e);
    let directory = match &from.handle {
        DirectoryHandle::Open(directory) => directory,
        DirectoryHandle::Remote(directory) => {
            let (found, attributes) = directory.attributes(name, follows)?;
            check_same(record, &found, &shown)?;
            return Ok(SourceEntry::Read(attributes));
        }
    };
    let (fd, held) = match record.metadata.kind {
        EntryKind::File => (path::open_file_at(directory, name, false), Held::Open),
        EntryKind::Directory => (path::open_directory_at(directory, name), Held::Open),
        _ if follows => (path::pin_at_following(directory, name), Held::Pinned),
        _ => (path::pin_at(directory, name), Held::Pinned),
    };
    let fd = fd.map_err(fail)?;
    let found = local.end.mounts.metadata(&stat::stat_fd(&fd).map_err(fail)?);
    check_same(record, &found, &shown)?;
    Ok(SourceEntry::Open(fd, held))
}

fn attributes_of_entry(
    local: &Local<'_>,
    entry: &SourceEntry,
    shown: Shown<'_>,
) -> Result<Attributes, EntryError> {
    match entry {
        SourceEntry::Open(fd, held) => local.attributes().read(fd.as_fd(), *held, shown),
        SourceEntry::Read(found) => Ok(local.attributes().received(found.clone(), shown)),
    }
}

/// Opens a source entry and reads its attributes.
///
/// # Errors
/// It cannot be opened, or is another entry by now.
pub fn open_entry(
    local: &Local<'_>,
    from: &SourceDirectory,
    record: &EntryRecord,
    follows: bool,
) -> Result<OpenEntry, EntryError> {
    let shown = || from.place.entry(record.name.as_bytes());
    let entry = open_for_attributes(local, from, record, follows)?;
    let attributes = attributes_of_entry(local, &entry, &shown)?;
    Ok(OpenEntry { attributes, _entry: entry })
}

/// The attributes of an open directory.
///
/// # Errors
/// They cannot be read.
pub fn attributes_of(local: &Local<'_>, from: &SourceDirectory) -> Result<Attributes, EntryError> {
    let shown = || from.place.own();
    match &from.handle {
        DirectoryHandle::Open(fd) => local.attributes().read(fd.as_fd(), Held::Open, &shown),
        DirectoryHandle::Remote(from) => {
            Ok(local.attributes().received(from.attributes(b"", false)?.1, &shown))
        }
    }
}

/// The attributes of an open file.
///
/// # Errors
/// They cannot be read.
pub fn attributes_of_content(
    local: &Local<'_>,
    content: &Content,
    shown: Shown<'_>,
) -> Result<Attributes, EntryError> {
    source::attributes_of_file(local, &content.file, shown)
}

/// Adds its attributes to an open source file, to copy it.
///
/// # Errors
/// They cannot be read.
pub fn supply_of(
    local: &Local<'_>,
    content: Content,
    shown: Shown<'_>,
) -> Result<OpenedSource, EntryError> {
    let attributes = attributes_of_content(local, &content, shown)?;
    let Content { file, metadata, .. } = content;
    Ok(OpenedSource { file, metadata, attributes })
}

/// The attributes of a directory and of its copy.
///
/// # Errors
/// They cannot be read.
pub fn attributes_of_directories(
    local: &Local<'_>,
    from: &SourceDirectory,
    to: &TargetDirectory,
) -> Result<[Attributes; 2], EntryError> {
    let expected = attributes_of(local, from)?;
    Ok([expected, attributes_found(local, (to.fd.as_fd(), Held::Open), &|| to.place.own())?])
}

/// The attributes of a file and of its copy.
///
/// # Errors
/// They cannot be read.
pub fn attributes_of_pair(
    local: &Local<'_>,
    Pair { source, destination }: &Pair,
    [source_shown, shown]: [Shown<'_>; 2],
) -> Result<[Attributes; 2], EntryError> {
    let expected = source::attributes_of_file(local, &source.file, source_shown)?;
    let found =
        source::attributes_of_file(local, &destination.file, shown).map_err(at_destination)?;
    Ok([expected, found])
}

/// The attributes of an open file and of what has its name in the other directory; `None` if that cannot be opened.
///
/// # Errors
/// They cannot be read.
pub fn attributes_beside(
    local: &Local<'_>,
    source: &Content,
    to: &TargetDirectory,
    last: &[u8],
    [source_shown, shown]: [Shown<'_>; 2],
) -> Result<Option<[Attributes; 2]>, EntryError> {
    let Ok(other) = path::open_file_at(&to.fd, last, false) else { return Ok(None) };
    let expected = source::attributes_of_file(local, &source.file, source_shown)?;
    Ok(Some([expected, attributes_found(local, (other.as_fd(), Held::Open), shown)?]))
}

/// The attributes of an entry of the destination.
fn attributes_found(
    local: &Local<'_>,
    (entry, held): (BorrowedFd<'_>, Held),
    shown: Shown<'_>,
) -> Result<Attributes, EntryError> {
    local.attributes().read(entry, held, shown).map_err(at_destination)
}

/// Opens both sides of an entry without content, with O_PATH.
///
/// # Errors
/// A side cannot be opened.
pub fn pin_entry_pair<'a>(
    local: &Local<'a>,
    sides: Sides<'a>,
    record: &'a EntryRecord,
) -> Result<EntryPair<'a>, EntryError> {
    activity::at(Activity::SourceNames);
    let Sides { from, to, .. } = sides;
    let (name, last) = (record.name.as_bytes(), record.destination_name().as_bytes());
    let fail = |side, path, e| entry_error(side, Operation::Open, path, e);
    let source = match &from.handle {
        DirectoryHandle::Open(fd) => path::pin_at(fd, name)
            .map(|fd| SourceEntry::Open(fd, Held::Pinned))
            .map_err(|e| fail(Side::Source, from.place.entry(name), e))?,
        DirectoryHandle::Remote(from) => SourceEntry::Read(from.attributes(name, false)?.1),
    };
    let destination =
        path::pin_at(&to.fd, last).map_err(|e| fail(Side::Destination, to.place.entry(last), e))?;
    Ok(EntryPair { local: *local, sides, record, source, destination, held: Held::Pinned })
}

/// Opens both sides of an entry: files for reading, others with O_PATH.
///
/// # Errors
/// A side cannot be opened, or the source is another entry by now.
pub fn open_entry_pair<'a>(
    local: &Local<'a>,
    sides: Sides<'a>,
    record: &'a EntryRecord,
    permit: &dyn Permit,
) -> Result<EntryPair<'a>, EntryError> {
    activity::at(Activity::SourceNames);
    let Sides { from, to, follows } = sides;
    let last = record.destination_name().as_bytes();
    let fail = |e| entry_error(Side::Destination, Operation::Open, to.place.entry(last), e);
    let (source, destination, held) = if record.metadata.kind == EntryKind::File {
        let source = match local.content_of(from, record, follows, permit)?.file {
            FileHandle::Open(fd) => SourceEntry::Open(fd, Held::Open),
            FileHandle::Remote(file) => SourceEntry::Read(file.attributes()?),
        };
        let destination = open_to_read(&to.fd, last, false, permit).map_err(fail)?;
        (source, destination, Held::Open)
    } else {
        let source = open_for_attributes(local, from, record, follows)?;
        let held = match source {
            SourceEntry::Open(_, held) => held,
            SourceEntry::Read(_) => Held::Pinned,
        };
        (source, path::pin_at(&to.fd, last).map_err(fail)?, held)
    };
    Ok(EntryPair { local: *local, sides, record, source, destination, held })
}

impl EntryPair<'_> {
    /// The attributes of both sides.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn attributes(&self) -> Result<[Attributes; 2], EntryError> {
        let Sides { from, to, .. } = self.sides;
        let source_shown = || from.place.entry(self.record.name.as_bytes());
        let shown = || to.place.entry(self.record.destination_name().as_bytes());
        let expected = attributes_of_entry(&self.local, &self.source, &source_shown)?;
        let found = (self.destination.as_fd(), self.held);
        Ok([expected, attributes_found(&self.local, found, &shown)?])
    }

    /// The attributes of the source.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn source_attributes(&self) -> Result<Attributes, EntryError> {
        let shown = || self.sides.from.place.entry(self.record.name.as_bytes());
        attributes_of_entry(&self.local, &self.source, &shown)
    }

    /// The present metadata of the destination.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn found(&self) -> Result<Metadata, EntryError> {
        let found = stat::stat_fd(&self.destination).map_err(|e| {
            let path = self.sides.to.place.entry(self.record.destination_name().as_bytes());
            entry_error(Side::Destination, Operation::Stat, path, e)
        })?;
        Ok(self.local.end.mounts.metadata(&found))
    }

    /// Sets all attributes of the destination, in the order of a new entry. `now`: its present metadata.
    ///
    /// # Errors
    /// An attribute cannot be set. Others may have been set, and have moved the change time.
    pub fn set(&self, attributes: &Attributes, now: &Metadata) -> Result<(), EntryError> {
        let to = self.sides.to;
        let last = self.record.destination_name().as_bytes();
        let shown = || to.place.entry(last);
        let object = Object {
            fd: self.destination.as_fd(),
            held: self.held,
            kind: self.record.metadata.kind,
            facts: &to.facts,
            made: false,
            replaces: None,
            inherits: None,
            place: Some((to.fd.as_fd(), last)),
            path: &shown,
        };
        let rules = self.local.attributes();
        if now.is_locked() {
            rules.lift_flags(object.fd);
        }
        rules.remove_foreign(object, attributes)?;
        rules.set(object, &self.record.metadata, attributes, now)?;
        if object.held == Held::Open {
            rules.set_project(object, attributes)?;
            rules.carry_flags(object, attributes, flags::PLAIN)?;
            rules.carry_flags(object, attributes, flags::LOCKS)?;
        }
        Ok(())
    }
}
