//! One part of a large file, which one mover copies.
use dmover_model::{ByteRange, Digest, EntryError, Operation, Shape, Side, Timestamp};
use dmover_sys::{cache, file, stat};

use crate::content::{COMPARED_AT_ONCE, OlderVersion, Transfer};
use crate::digest_tap::Tap;
use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::Local;
use crate::error::entry_error;
use crate::file::Unfinished;
use crate::session::Session;
use crate::source::Content;

/// The file of a part.
#[derive(Clone, Copy)]
pub struct PartOrder<'a> {
    /// The directory of the source.
    pub from: &'a SourceDirectory,
    /// The name in it.
    pub name: &'a [u8],
    /// The directory of the destination.
    pub to: &'a TargetDirectory,
    /// The final name there.
    pub last: &'a [u8],
    /// The temporary file has the blocks of an older version, so only differences are written.
    pub patched: bool,
}

/// A part of a large file, with both files open.
pub struct LargePart<'a> {
    order: PartOrder<'a>,
    source: Content,
    file: Unfinished<'a>,
    tap: Option<Tap>,
    /// What the destination has of the file, if that is of use.
    older: Option<OlderVersion>,
}

impl<'a> LargePart<'a> {
    /// A part from `start` on. `shape`: how its digests are computed, if they are required.
    pub fn new(
        order: PartOrder<'a>,
        source: Content,
        file: Unfinished<'a>,
        (shape, start): (Option<Shape>, u64),
    ) -> Self {
        let tap = shape.map(|shape| Tap::new(shape, start));
        Self { order, source, file, tap, older: None }
    }

    /// Makes it from the version of the file that the destination has, as far as that is of use.
    #[must_use]
    pub fn with_older(self, local: Local<'_>) -> Self {
        let PartOrder { to, last, patched, .. } = self.order;
        let source = (self.source.file.as_ref(), self.source.metadata.size);
        let older = (!patched).then(|| local.older_version(to, last, source)).flatten();
        Self { older, ..self }
    }

    /// Continues the part of an earlier run: of a file with holes it may have left bytes of an older version, so what the range has
    /// is compared. The range is dropped from the page cache first: what an earlier run could not flush looks as it should
    /// there, and the kernel takes it for clean. What still waits to be written stays.
    #[must_use]
    pub fn resumed(mut self, local: Local<'_>, range: ByteRange) -> Self {
        let (source, metadata) = (self.source.file.as_ref(), &self.source.metadata);
        self.order.patched |= local.content().may_leave_older(source, metadata);
        cache::forget(self.file.fd(), range.start, range.len());
        self
    }

    /// Whether everything is compared with what the temporary has.
    pub fn is_compared(&self) -> bool {
        self.order.patched
    }

    /// Announces the range that will be copied, step by step.
    pub fn will_read(&self, range: ByteRange) {
        // If it is compared first, perhaps little of it is sent.
        if self.compared_at_once().is_none() {
            self.source.file.as_ref().will_read(range);
        }
    }

    /// Whether the source is read through messages: then content is on its way before it is asked for.
    pub fn is_sent_ahead(&self) -> bool {
        self.source.file.as_ref().fd().is_none()
    }

    /// If an older version is compared with the source on another host, how much at a time: that takes round trips.
    pub fn compared_at_once(&self) -> Option<u64> {
        let is_compared = self.older.is_some() || self.order.patched;
        (is_compared && self.is_sent_ahead()).then_some(COMPARED_AT_ONCE)
    }

    /// Checks that the source is still the version that was opened.
    ///
    /// # Errors
    /// It has changed.
    pub fn check_source(&self, local: Local<'_>) -> Result<(), EntryError> {
        let PartOrder { from, name, .. } = self.order;
        local.check_unchanged(&self.source, &|| from.place.entry(name))
    }

    /// The digests of what was copied, if they are required.
    pub fn take_digests(&mut self) -> Option<Vec<Digest>> {
        self.tap.take().map(|tap| tap.into_made(None).pieces)
    }

    /// Flushes the content of the file.
    ///
    /// # Errors
    /// It cannot be flushed.
    pub fn flush(&self) -> Result<(), EntryError> {
        let PartOrder { to, last, .. } = self.order;
        file::sync_data(self.file.fd())
            .map_err(|e| entry_error(Side::Destination, Operation::Sync, to.place.entry(last), e))
    }

    /// When the file was last changed.
    pub fn changed(&self, local: Local<'_>) -> Option<Timestamp> {
        let found = stat::stat_fd(self.file.fd()).ok()?;
        Some(local.end.mounts.metadata(&found).ctime)
    }

    /// Closes the file.
    ///
    /// # Errors
    /// A late error says that its content is not safe.
    pub fn close(self) -> Result<(), EntryError> {
        self.file.leave(self.order.last)
    }
}

impl Session<'_> {
    /// Copies a range of a part.
    ///
    /// # Errors
    /// The source cannot be read, or the destination cannot be written.
    pub fn copy_part(&mut self, part: &LargePart<'_>, range: ByteRange) -> Result<(), EntryError> {
        let LargePart { order, source, file, tap, older } = part;
        let PartOrder { from, name, to, last, patched } = *order;
        let transfer = Transfer {
            source: source.file.as_ref(),
            destination: file.fd(),
            size: source.metadata.size,
            flushed: true,
            source_mount: source.metadata.identity.mount,
            source_facts: &from.facts,
            facts: &to.facts,
            source_path: &|| from.place.entry(name),
            target_path: &|| to.place.entry(last),
            permit: self.permit,
            tap: tap.as_ref().map(|tap| &tap.pieces),
        };
        let content = self.local.content();
        if patched {
            content.patch_range(transfer, range, true, self.tools)?;
        } else {
            let holes = content.holes(&source.metadata);
            if let Some(older) = older {
                content.copy_changed(transfer, range, (older, holes), self.tools)?;
                return Ok(());
            }
            content.copy_range(transfer, range, range.start, holes, self.tools)?;
        }
        Ok(())
    }
}
