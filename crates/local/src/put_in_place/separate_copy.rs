//! Entries that were copied separately because a hard link could not be made.
use dmover_model::{ByteRange, EntryError, EntryKind, Metadata, Operation, PathBytes, Side};
use dmover_sys::xattr::{self, Held};
use dmover_sys::{AsFd, Errno, OwnedFd, directory, path, stat};

use super::Renaming;
use crate::content::Reading;
use crate::directory::TargetDirectory;
use crate::error::{at_destination, entry_error};
use crate::session::Session;

/// Bytes that are compared at a time, of both files together.
const BUFFER: usize = 512 << 10;

type Xattrs = Vec<(Vec<u8>, Option<Vec<u8>>)>;

impl Session<'_> {
    /// Whether the entry that a hard link replaces is equal to it in content and metadata. An earlier run makes such a
    /// copy where it cannot link. A backup of it would replace the backup of the version before it.
    ///
    /// # Errors
    /// It cannot be told. Nothing was changed.
    pub(super) fn is_separate_copy(&self, renaming: Renaming<'_>) -> Result<bool, EntryError> {
        let Renaming { to, name, last, .. } = renaming;
        let shown = || to.place.entry(last);
        let fail = |operation, e| entry_error(Side::Destination, operation, shown(), e);
        let look = |name| match stat::stat_at(&to.fd, name, false) {
            Ok(found) => Ok(Some(self.local.end.mounts.metadata(&found))),
            Err(error) if stat::is_absent(error) => Ok(None),
            Err(error) => Err(fail(Operation::Stat, error)),
        };
        let (Some(new), Some(old)) = (look(name)?, look(last)?) else { return Ok(false) };
        if !looks_alike(&new, &old) {
            return Ok(false);
        }
        match old.kind {
            EntryKind::File => {
                let open = |name| path::open_file_at(&to.fd, name, false);
                let fail = |e| fail(Operation::Open, e);
                let files = [open(name).map_err(fail)?, open(last).map_err(fail)?];
                self.are_equal(&files, to, new.size, &shown)
            }
            EntryKind::Symlink => {
                let read = |name| directory::read_symlink(&to.fd, name);
                let fail = |e| fail(Operation::ReadLink, e);
                Ok(read(name).map_err(fail)? == read(last).map_err(fail)?)
            }
            _ => Ok(true),
        }
    }

    fn are_equal(
        &self,
        files: &[OwnedFd; 2],
        to: &TargetDirectory,
        size: u64,
        shown: &dyn Fn() -> PathBytes,
    ) -> Result<bool, EntryError> {
        let fail = |e| entry_error(Side::Destination, Operation::ReadXattr, shown(), e);
        if xattrs(&files[0]).map_err(fail)? != xattrs(&files[1]).map_err(fail)? {
            return Ok(false);
        }
        let reading = |file| Reading {
            source: (file, &*to.facts),
            direct: false,
            skips_holes: false,
            path: shown,
            permit: self.permit,
        };
        let readings = files.each_ref().map(|file| reading(file.as_fd()));
        let range = ByteRange { start: 0, end: size };
        let compared = self.local.content().compare_bytes(readings, range, &mut vec![0; BUFFER]);
        compared.map(|differing| differing.is_empty()).map_err(at_destination)
    }
}

fn looks_alike(new: &Metadata, old: &Metadata) -> bool {
    let facts = |entry: &Metadata| (entry.kind, entry.mode, entry.uid, entry.gid, entry.device);
    facts(new) == facts(old) && (new.size, new.mtime) == (old.size, old.mtime)
}

fn xattrs(file: &OwnedFd) -> Result<Xattrs, Errno> {
    let mut names = xattr::list(file, Held::Open)?.unwrap_or_default();
    names.sort_unstable();
    names
        .into_iter()
        .map(|name| xattr::get(file, Held::Open, &name).map(|value| (name, value)))
        .collect()
}
