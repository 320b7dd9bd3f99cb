//! A file and its copy, both open: compared byte by byte.
use dmover_model::{
    ByteRange, EntryError, EntryKind, EntryRecord, Metadata, Operation, PathBytes, Side,
};
use dmover_observe::{Activity, activity};
use dmover_sys::{OwnedFd, path, stat};
use dmover_tree::{Permit, RemoteFile};
use std::sync::Arc;

use crate::capability::Facts;
use crate::comparison;
use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::Local;
use crate::error::{at_destination, changed, entry_error};
use crate::handle::{DirectoryHandle, FileHandle};
use crate::rights::Sides;
use crate::session::Session;
use crate::source::{Content, has_settled, open_to_read, past_the_tick};

/// Both sides of a file, open.
pub struct Pair {
    /// The file of the source.
    pub source: Content,
    /// Its copy.
    pub destination: Content,
}

impl Pair {
    /// The range that both sides have.
    pub fn common(&self) -> ByteRange {
        let end = self.source.metadata.size.min(self.destination.metadata.size);
        ByteRange { start: 0, end }
    }

    /// Whether these are two regular files in which any change from now on would show, and the source has one name.
    pub fn is_ordinary(&self) -> bool {
        let Self { source, destination } = self;
        [source, destination].iter().all(|of| of.metadata.kind == EntryKind::File)
            && source.metadata.links == 1
            && has_settled(&source.metadata)
            && has_settled(&destination.metadata)
    }
}

impl Local<'_> {
    /// Opens both sides of a file in the versions that were found. `stored`: only what is on storage counts.
    ///
    /// # Errors
    /// A side cannot be opened, or has changed.
    pub fn open_pair(
        &self,
        sides: Sides<'_>,
        (record, found): (&EntryRecord, &Metadata),
        stored: bool,
        permit: &dyn Permit,
    ) -> Result<Pair, EntryError> {
        // What was found needs no second look if a change since then is sure to show in the look after the reading.
        if has_settled(&record.metadata) && has_settled(found) {
            return open_settled(sides, (record, found), stored, permit);
        }
        let Sides { from, to, follows } = sides;
        let source = self.content_of(from, record, follows, permit)?;
        if source.metadata.version() != record.metadata.version() {
            return Err(changed(Side::Source, from.place.entry(record.name.as_bytes())));
        }
        let last = record.destination_name().as_bytes();
        let destination = open_copy(self, to, last, found, permit)?;
        let of_storage = |content| Content { stored, ..content };
        Ok(Pair { source: of_storage(source), destination: of_storage(destination) })
    }

    /// Opens whatever has a name at both sides; `None` if that fails.
    pub fn open_pair_at_sight(
        &self,
        from: &SourceDirectory,
        to: &TargetDirectory,
        name: &[u8],
        stored: bool,
    ) -> Option<Pair> {
        let open = |directory: &OwnedFd, facts| {
            let fd = path::open_file_at(directory, name, false).ok()?;
            let metadata = self.end.mounts.metadata(&stat::stat_fd(&fd).ok()?);
            Some(Content { stored, ..Content::new(fd, metadata, facts) })
        };
        activity::at(Activity::SourceNames);
        let source = match &from.handle {
            DirectoryHandle::Open(fd) => open(fd, &from.facts)?,
            DirectoryHandle::Remote(directory) => {
                let file = directory.open_file(name, false).ok()?;
                Content { stored, ..remote_content(file, &from.facts) }
            }
        };
        activity::at(Activity::TargetNames);
        let destination = open(&to.fd, &to.facts)?;
        Some(Pair { source, destination })
    }
}

fn open_copy(
    local: &Local<'_>,
    to: &TargetDirectory,
    last: &[u8],
    found: &Metadata,
    permit: &dyn Permit,
) -> Result<Content, EntryError> {
    let shown = || to.place.entry(last);
    let fail = |operation, e| entry_error(Side::Destination, operation, shown(), e);
    let fd = open_to_read(&to.fd, last, false, permit).map_err(|e| fail(Operation::Open, e))?;
    let now = stat::stat_fd(&fd).map_err(|e| fail(Operation::Stat, e))?;
    let now = past_the_tick(&fd, now, permit, &shown).map_err(at_destination)?;
    let metadata = local.end.mounts.metadata(&now);
    if metadata.version() != found.version() {
        return Err(changed(Side::Destination, shown()));
    }
    Ok(Content::new(fd, metadata, &to.facts))
}

/// A file of the source that was opened through messages.
fn remote_content(file: Arc<dyn RemoteFile>, facts: &Arc<Facts>) -> Content {
    let metadata = file.metadata().clone();
    Content::of(FileHandle::Remote(file), metadata, facts)
}

fn open_settled(
    Sides { from, to, follows }: Sides<'_>,
    (record, found): (&EntryRecord, &Metadata),
    stored: bool,
    permit: &dyn Permit,
) -> Result<Pair, EntryError> {
    let (name, last) = (record.name.as_bytes(), record.destination_name().as_bytes());
    let fail = |side, path, e| entry_error(side, Operation::Open, path, e);
    let source = match &from.handle {
        DirectoryHandle::Open(from) => {
            open_to_read(from, name, follows, permit).map(FileHandle::Open)
        }
        DirectoryHandle::Remote(from) => Ok(FileHandle::Remote(from.open_file(name, follows)?)),
    };
    let source = source.map_err(|e| fail(Side::Source, from.place.entry(name), e))?;
    let destination = open_to_read(&to.fd, last, false, permit)
        .map_err(|e| fail(Side::Destination, to.place.entry(last), e))?;
    let side = |file, metadata: &Metadata, facts| Content {
        stored,
        ..Content::of(file, metadata.clone(), facts)
    };
    Ok(Pair {
        source: side(source, &record.metadata, &from.facts),
        destination: side(FileHandle::Open(destination), found, &to.facts),
    })
}

/// Compares a range that both sides have. Both must stay unchanged meanwhile.
///
/// # Errors
/// A side cannot be read, or has changed.
pub fn compare(
    session: &mut Session<'_>,
    pair: &Pair,
    range: ByteRange,
    [source_shown, shown]: [&dyn Fn() -> PathBytes; 2],
) -> Result<Vec<ByteRange>, EntryError> {
    let Pair { source, destination } = pair;
    let ranges =
        comparison::compare_contents(session, [source, destination], range, [source_shown, shown])?;
    session.local.check_unchanged(source, source_shown)?;
    session.local.check_unchanged(destination, shown).map_err(at_destination)?;
    Ok(ranges)
}
