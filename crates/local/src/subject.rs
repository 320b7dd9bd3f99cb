//! Files that a person names to be hashed, and files of trees beside them.
use dmover_model::{EntryError, EntryKind, ErrorClass, Operation, PathBytes, Side};
use dmover_observe::{Activity, activity};
use dmover_sys::{Errno, file, path, stat};
use dmover_tree::Permit;
use std::path::Path;

use crate::allowed_trees::AllowedTrees;
use crate::directory::SourceDirectory;
use crate::end::Local;
use crate::error::entry_error;
use crate::handle::{DirectoryHandle, FileHandle};
use crate::source::{Content, open_to_read, past_the_tick};

/// What is to be hashed.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    /// An entry of a tree.
    Entry {
        /// Its directory.
        from: &'a SourceDirectory,
        /// Its name.
        name: &'a [u8],
        /// What the name is a symbolic link to.
        follows: bool,
    },
    /// Whatever has this path: also a pipe or a device. It must lie in one of these trees.
    Path(&'a Path, &'a AllowedTrees),
    /// Standard input.
    Input,
}

impl Local<'_> {
    /// Opens content to hash it.
    ///
    /// # Errors
    /// It cannot be opened, may not be read, is a directory, or changes all the time.
    pub fn open_subject(
        &self,
        subject: Subject<'_>,
        permit: &dyn Permit,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<Content, EntryError> {
        activity::at(Activity::SourceNames);
        let is_entry = matches!(subject, Subject::Entry { .. });
        let fail = |operation, e| {
            let mut error = entry_error(Side::Source, operation, shown(), e);
            let gone = matches!(error.class, ErrorClass::Vanished | ErrorClass::Changed);
            if gone && !is_entry {
                // Nobody has seen it there.
                error.class = ErrorClass::Other;
            }
            error
        };
        let fd = match subject {
            Subject::Entry { from, name, follows } => match &from.handle {
                DirectoryHandle::Open(from) => open_to_read(from, name, follows, permit),
                DirectoryHandle::Remote(directory) => {
                    let file = directory.open_file(name, follows)?;
                    let metadata = file.metadata().clone();
                    return Ok(Content::of(FileHandle::Remote(file), metadata, &from.facts));
                }
            },
            Subject::Path(path, _) => path::open_as_named(path),
            Subject::Input => file::standard_input(),
        };
        let fd = fd.map_err(|e| fail(Operation::Open, e))?;
        if let Subject::Path(_, trees) = subject
            && !trees.holds(&fd)
        {
            return Err(fail(Operation::Open, Errno::ACCESS));
        }
        let found = stat::stat_fd(&fd).map_err(|e| fail(Operation::Stat, e))?;
        let found = past_the_tick(&fd, found, permit, shown)?;
        let metadata = self.end.mounts.metadata(&found);
        if metadata.kind == EntryKind::Directory {
            return Err(fail(Operation::Read, Errno::ISDIR));
        }
        let facts = self.end.capabilities.facts(metadata.identity.mount, &fd);
        let is_input = matches!(subject, Subject::Input);
        let is_stream = metadata.kind != EntryKind::File || metadata.size == 0 || is_input;
        Ok(Content { is_stream, ..Content::new(fd, metadata, &facts) })
    }
}
