//! Files of the source that are read at any offset, and asked again later what they are.
use dmover_model::{
    ByteRange, EntryError, EntryRecord, ErrorClass, Metadata, Name, Operation, PathBytes, Side,
};
use dmover_observe::{Activity, activity};
use dmover_sys::AsFd;
use dmover_sys::file::DataRange;
use dmover_tree::{NextData, Permit};

use crate::content::data_bytes;
use crate::directory::SourceDirectory;
use crate::end::{Local, LocalEnd};
use crate::error::no_name;
use crate::handle::{DirectoryHandle, FileRef};
use crate::source::{Content, check_empty};

impl Local<'_> {
    /// Opens a regular file, whatever it is now, once its times can show a later change.
    ///
    /// # Errors
    /// It cannot be opened, is no regular file, changes all the time, or has content although its size is 0.
    pub fn open_settled(
        &self,
        from: &SourceDirectory,
        name: &[u8],
        follows: bool,
        permit: &dyn Permit,
    ) -> Result<Content, EntryError> {
        let opened = self.open_content(from, name, follows, permit)?;
        let metadata = opened.metadata(&self.end.mounts);
        let name = Name::new(name).map_err(|_| no_name(from.place.entry(name)))?;
        let record = EntryRecord { name, renamed: None, metadata, symlink: None };
        let content = self.content_of_opened(from, &record, opened, permit)?;
        if content.metadata.size == 0 {
            let shown = || from.place.entry(record.name.as_bytes());
            check_empty(from, content.held().0, &shown)?;
        }
        Ok(content)
    }

    /// Opens a file again that was opened before.
    ///
    /// # Errors
    /// It cannot be opened, or another one has replaced it.
    pub fn open_again(
        &self,
        from: &SourceDirectory,
        (name, follows): (&[u8], bool),
        before: dmover_model::Identity,
        permit: &dyn Permit,
    ) -> Result<Content, EntryError> {
        let opened = self.open_content(from, name, follows, permit)?;
        let metadata = opened.metadata(&self.end.mounts);
        if metadata.identity != before {
            let words = "another file has replaced this one";
            let (side, class) = (Side::Source, ErrorClass::Changed);
            let path = from.place.entry(name);
            return Err(EntryError::plain(side, Operation::Open, class, path, words));
        }
        Ok(Content::of(opened.into_file(), metadata, &from.facts))
    }
}

impl LocalEnd {
    /// The present metadata of an open file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn present_metadata(
        &self,
        content: &Content,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<Metadata, EntryError> {
        content.file.as_ref().now(&self.mounts, shown)
    }

    /// The present metadata of an open directory.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn present_of(&self, directory: &SourceDirectory) -> Result<Metadata, EntryError> {
        match &directory.handle {
            DirectoryHandle::Open(fd) => {
                let shown = || directory.place.own();
                FileRef::Open(fd.as_fd()).now(&self.mounts, &shown)
            }
            DirectoryHandle::Remote(_) => Ok(directory.metadata.clone()),
        }
    }
}

impl Content {
    /// Reads up to `buffer` bytes from an offset on; 0 at the end of the file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read_at(
        &self,
        buffer: &mut [u8],
        at: u64,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<usize, EntryError> {
        activity::at(Activity::SourceData);
        self.file.as_ref().read(at, buffer, shown)
    }

    /// What follows at an offset, as the file system reports it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn next_data(
        &self,
        at: u64,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<NextData, EntryError> {
        Ok(match self.file.as_ref().next_data(at, shown)? {
            DataRange::Data(start, end) => NextData::Data(ByteRange { start, end }),
            DataRange::End => NextData::End,
            DataRange::Unknown => NextData::Unknown,
        })
    }

    /// Whether it has holes, as far as the file system knows.
    pub fn has_holes(&self) -> bool {
        let size = self.metadata.size;
        self.metadata.may_have_holes() && data_bytes(self.file.as_ref(), size) < size
    }

    /// Whether holes need not be read: only file systems of this kernel are trusted.
    pub fn may_skip_holes(&self) -> bool {
        self.facts.local
    }
}
