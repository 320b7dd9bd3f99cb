//! Entries of the source: opened, and proven unchanged after they were read.
use dmover_model::{
    EntryError, EntryKind, EntryRecord, ErrorClass, Metadata, Note, Operation, PathBytes, Side,
    Version,
};
use dmover_observe::{Activity, activity};
use dmover_schedule::thread;
use dmover_schedule::time::since_1970;
use dmover_sys::stat::Stat;
use dmover_sys::xattr::Held;
use dmover_sys::{AsFd, Errno, OwnedFd, cache, file, path, stat};
use dmover_tree::{Limit, Permit, RemoteFile};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::attributes::Attributes;
use crate::capability::Facts;
use crate::content::data_bytes;
use crate::directory::SourceDirectory;
use crate::end::Local;
use crate::error::entry_error;
use crate::handle::{DirectoryHandle, FileHandle, FileRef, errno_of};
use crate::mounts::MountTable;
use crate::patient_open::past_leases;

/// How often a file may have changed recently before it counts as being written.
const RACY_WAITS_MAX: u32 = 10;

/// An open source file with its attributes.
///
/// The content is a descriptor, so that copies inside the kernel stay possible.
pub struct OpenedSource {
    /// The open file.
    pub(crate) file: FileHandle,
    /// Its metadata: the version that is copied.
    pub metadata: Metadata,
    /// Its attributes beyond that.
    pub attributes: Attributes,
}

/// An open source file, with its metadata after opening.
pub struct Opened(Reached);

impl Opened {
    /// Its metadata after opening.
    pub(crate) fn metadata(&self, mounts: &MountTable) -> Metadata {
        match &self.0 {
            Reached::Open(_, found) => mounts.metadata(found),
            Reached::Remote(file) => file.metadata().clone(),
        }
    }

    /// The file.
    pub(crate) fn into_file(self) -> FileHandle {
        match self.0 {
            Reached::Open(fd, _) => FileHandle::Open(fd),
            Reached::Remote(file) => FileHandle::Remote(file),
        }
    }
}

/// How an open source file is reached.
enum Reached {
    /// By a descriptor, with what statx(2) returned.
    Open(OwnedFd, Stat),
    /// Through messages.
    Remote(Arc<dyn RemoteFile>),
}

/// An open file, to be asked whether other processes write to it.
#[derive(Clone, Copy)]
pub struct OpenFile<'a> {
    file: FileRef<'a>,
    /// Its version.
    pub metadata: &'a Metadata,
}

impl OpenFile<'_> {
    /// Whether a process is known to have it open for writing.
    pub fn is_open_for_writing(&self) -> bool {
        self.file.fd().is_some_and(|fd| file::is_open_for_writing(fd) == Some(true))
    }

    /// Whether it is known that every page of it was written back.
    pub fn is_written_back(&self) -> bool {
        self.file.fd().is_some_and(|fd| cache::is_clean(fd) == Some(true))
    }
}

impl OpenedSource {
    /// The open file.
    pub fn open_file(&self) -> OpenFile<'_> {
        OpenFile { file: self.file.as_ref(), metadata: &self.metadata }
    }
}

/// Opens a file for reading, and waits for leases on it unless the job is stopped.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn open_to_read(
    directory: impl AsFd,
    name: &[u8],
    follows: bool,
    permit: &dyn Permit,
) -> Result<OwnedFd, Errno> {
    let open = || path::open_file_at(&directory, name, follows);
    past_leases(open, &|| permit.is_stopping())
}

/// A file that is open to be hashed or compared.
pub struct Content {
    /// The open file.
    pub(crate) file: FileHandle,
    /// Its version.
    pub metadata: Metadata,
    /// The facts of its file system.
    pub(crate) facts: Arc<Facts>,
    /// It is read from its present position to its end: a pipe, a device, standard input, or a file that is generated
    /// when it is read.
    pub is_stream: bool,
    /// Read from storage, not from the page cache.
    pub stored: bool,
}

impl Content {
    /// A file that is read through the page cache, from any offset.
    pub(crate) fn new(fd: OwnedFd, metadata: Metadata, facts: &Arc<Facts>) -> Self {
        Self::of(FileHandle::Open(fd), metadata, facts)
    }

    /// A file that is read from any offset.
    pub(crate) fn of(file: FileHandle, metadata: Metadata, facts: &Arc<Facts>) -> Self {
        Self { file, metadata, facts: Arc::clone(facts), is_stream: false, stored: false }
    }

    /// Whether it may have content though its size is 0, as generated files have. What is read through messages is read
    /// by its size.
    pub fn may_be_generated(&self) -> bool {
        self.metadata.size == 0 && self.file.fd().is_some()
    }

    /// The open file.
    pub fn open_file(&self) -> OpenFile<'_> {
        OpenFile { file: self.file.as_ref(), metadata: &self.metadata }
    }

    /// Drops the first bytes from the page cache, except those that were not written back.
    pub fn forget(&self, length: u64) {
        if let Some(fd) = self.file.fd() {
            cache::forget(fd, 0, length);
        }
    }

    /// What is needed to read it.
    pub(crate) fn held(&self) -> (FileRef<'_>, &Facts) {
        (self.file.as_ref(), &self.facts)
    }
}

impl SourceDirectory {
    /// The bytes of a file without its holes; `size` if it cannot be opened.
    pub fn data_in(&self, name: &[u8], follows: bool, size: u64) -> u64 {
        let file = match &self.handle {
            DirectoryHandle::Open(fd) => {
                path::open_file_at(fd, name, follows).map(FileHandle::Open)
            }
            DirectoryHandle::Remote(from) => {
                from.open_file(name, follows).map(FileHandle::Remote).map_err(|e| errno_of(&e))
            }
        };
        file.map_or(size, |file| data_bytes(file.as_ref(), size))
    }
}

impl Local<'_> {
    /// Opens an entry of which only the type is known, as a regular file. `None` if it cannot be opened.
    pub fn open_at_sight(
        &self,
        from: &SourceDirectory,
        name: &[u8],
        permit: &dyn Permit,
    ) -> Option<(Opened, Metadata)> {
        permit.one_more(Limit::Opens);
        activity::at(Activity::SourceNames);
        let from = match &from.handle {
            DirectoryHandle::Open(from) => from,
            DirectoryHandle::Remote(from) => {
                let file = from.open_file(name, false).ok()?;
                let metadata = file.metadata().clone();
                return Some((Opened(Reached::Remote(file)), metadata));
            }
        };
        let fd = path::open_file_at(from, name, false).ok()?;
        let found = stat::stat_fd(&fd).ok()?;
        Some((Opened(Reached::Open(fd, found)), self.end.mounts.metadata(&found)))
    }

    /// Opens a source file. `follows`: what the name is a symbolic link to.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open_content(
        &self,
        from: &SourceDirectory,
        name: &[u8],
        follows: bool,
        permit: &dyn Permit,
    ) -> Result<Opened, EntryError> {
        permit.one_more(Limit::Opens);
        activity::at(Activity::SourceNames);
        let fail = |operation, e| entry_error(Side::Source, operation, from.place.entry(name), e);
        let opened = match &from.handle {
            DirectoryHandle::Open(from) => open_to_read(from, name, follows, permit),
            DirectoryHandle::Remote(from) => {
                return Ok(Opened(Reached::Remote(from.open_file(name, follows)?)));
            }
        };
        let fd = opened.map_err(|e| fail(Operation::Open, e))?;
        let found = stat::stat_fd(&fd).map_err(|e| fail(Operation::Stat, e))?;
        Ok(Opened(Reached::Open(fd, found)))
    }

    /// Opens a source file to hash or compare it, if it is the file of the record.
    ///
    /// # Errors
    /// It cannot be opened, is another file by now, or changes all the time.
    pub fn content_of(
        &self,
        from: &SourceDirectory,
        record: &EntryRecord,
        follows: bool,
        permit: &dyn Permit,
    ) -> Result<Content, EntryError> {
        let opened = self.open_content(from, record.name.as_bytes(), follows, permit)?;
        self.content_of_opened(from, record, opened, permit)
    }

    /// A source file that was opened before with this version, if that needs no round trip. Its version has to be compared
    /// after it was read.
    pub fn reopened(
        &self,
        from: &SourceDirectory,
        (name, follows): (&[u8], bool),
        version: &Version,
    ) -> Option<Content> {
        let DirectoryHandle::Remote(directory) = &from.handle else { return None };
        let file = directory.reopen_file(name, follows, version)?;
        let metadata = file.metadata().clone();
        Some(Content::of(FileHandle::Remote(file), metadata, &from.facts))
    }

    /// An open source file to hash or compare, if it is the file of the record.
    ///
    /// # Errors
    /// It is another file by now, or it changes all the time.
    pub fn content_of_opened(
        &self,
        from: &SourceDirectory,
        record: &EntryRecord,
        opened: Opened,
        permit: &dyn Permit,
    ) -> Result<Content, EntryError> {
        let (file, metadata) = settled(self, from, record, opened, permit)?;
        Ok(Content::of(file, metadata, &from.facts))
    }

    /// Reads the attributes of an open file, if it is the file of the record.
    ///
    /// # Errors
    /// It is another file by now, or its attributes cannot be read.
    pub fn supply(
        &self,
        from: &SourceDirectory,
        record: &EntryRecord,
        opened: Opened,
        permit: &dyn Permit,
    ) -> Result<OpenedSource, EntryError> {
        let (file, metadata) = settled(self, from, record, opened, permit)?;
        let shown = || from.place.entry(record.name.as_bytes());
        let attributes = attributes_of_file(self, &file, &shown)?;
        Ok(OpenedSource { file, metadata, attributes })
    }

    /// Checks that the version of a file that was hashed or compared is the one before.
    ///
    /// # Errors
    /// It has changed.
    pub fn check_unchanged(
        &self,
        content: &Content,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<(), EntryError> {
        compare_version(self, &content.facts, content.open_file(), shown)
    }
}

/// The attributes of an open source file.
pub(crate) fn attributes_of_file(
    local: &Local<'_>,
    file: &FileHandle,
    shown: &dyn Fn() -> PathBytes,
) -> Result<Attributes, EntryError> {
    match file {
        FileHandle::Open(fd) => local.attributes().read(fd.as_fd(), Held::Open, shown),
        FileHandle::Remote(file) => Ok(local.attributes().received(file.attributes()?, shown)),
    }
}

/// An open source file and its metadata once its times can show a later change, if it is the file of the record.
fn settled(
    local: &Local<'_>,
    from: &SourceDirectory,
    record: &EntryRecord,
    Opened(reached): Opened,
    permit: &dyn Permit,
) -> Result<(FileHandle, Metadata), EntryError> {
    let shown = || from.place.entry(record.name.as_bytes());
    let (file, metadata) = match reached {
        Reached::Open(fd, found) => {
            let found = past_the_tick(&fd, found, permit, &shown)?;
            (FileHandle::Open(fd), local.end.mounts.metadata(&found))
        }
        Reached::Remote(file) => {
            // Its times have settled when it is opened.
            let metadata = file.metadata().clone();
            (FileHandle::Remote(file), metadata)
        }
    };
    let same = metadata.identity == record.metadata.identity;
    if metadata.kind != EntryKind::File || !same {
        let words = "another file has replaced this one";
        let class = ErrorClass::Changed;
        return Err(EntryError::plain(Side::Source, Operation::Open, class, shown(), words));
    }
    Ok((file, metadata))
}

/// Checks that the version of a source file after reading is the one before.
///
/// # Errors
/// It has changed.
pub(crate) fn check_version(
    local: &Local<'_>,
    from: &SourceDirectory,
    name: &[u8],
    supply: &OpenedSource,
) -> Result<(), EntryError> {
    compare_version(local, &from.facts, supply.open_file(), &|| from.place.entry(name))
}

fn compare_version(
    local: &Local<'_>,
    facts: &Facts,
    OpenFile { file, metadata: before }: OpenFile<'_>,
    shown: &dyn Fn() -> PathBytes,
) -> Result<(), EntryError> {
    let now = file.now(&local.end.mounts, shown)?;
    if now.atime != before.atime && !facts.touches_atime.swap(true, Ordering::Relaxed) {
        local.reports.note(Note::SourceAtimeTouched, shown);
    }
    if now.same_version(before) {
        return Ok(());
    }
    let words = "the file changed while it was read";
    let class = ErrorClass::Changed;
    Err(EntryError::plain(Side::Source, Operation::Check, class, shown(), words))
}

/// Reads the metadata of an open file again until its times can show a later change.
///
/// # Errors
/// It changes all the time.
pub(crate) fn past_the_tick(
    fd: &OwnedFd,
    mut found: Stat,
    permit: &dyn Permit,
    shown: &dyn Fn() -> PathBytes,
) -> Result<Stat, EntryError> {
    let mut waits = 0;
    while let Some(wait) = racy_for(found.ctime).filter(|_| !permit.is_stopping()) {
        // Two writes within one tick of the kernel's clock leave the same times: the version says
        // nothing until the tick has passed.
        if waits == RACY_WAITS_MAX {
            let words = "the file keeps changing";
            let class = ErrorClass::Changed;
            return Err(EntryError::plain(Side::Source, Operation::Open, class, shown(), words));
        }
        waits += 1;
        thread::sleep(wait);
        found = stat::stat_fd(fd)
            .map_err(|e| entry_error(Side::Source, Operation::Stat, shown(), e))?;
    }
    Ok(found)
}

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
    let now = since_1970();
    // A time in the future comes from another clock, which waiting does not reach.
    let age = now.checked_sub(changed)?;
    TICK.checked_sub(age).filter(|wait| !wait.is_zero())
}

/// Checks that a file of size 0 really has no content: some servers generate content when it is read, and such a file
/// must not be copied as empty.
pub(crate) fn check_empty(
    from: &SourceDirectory,
    source: FileRef<'_>,
    path: &dyn Fn() -> PathBytes,
) -> Result<(), EntryError> {
    if from.facts.local {
        return Ok(());
    }
    let source = match source {
        FileRef::Open(source) => source,
        // The host of the file knows its file system, and reads it in the same way.
        FileRef::Remote(_) => return Ok(()),
    };
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
