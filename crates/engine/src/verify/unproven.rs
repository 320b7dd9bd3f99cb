//! Files whose data does not read back as it was read at the source.
use dmover_local::error::entry_error;
use dmover_local::file::unfinished_time;
use dmover_model::{EntryError, EntryKind, Operation, Record, Side};
use dmover_sys::{Errno, path, set, stat};

use crate::context::Engine;

/// A file whose modification time differs from the one that it got by more than this was written by another program.
const NEAR_S: u64 = 2;

impl Engine {
    /// Marks an unverified file as incomplete by its modification time: otherwise it looks equal to its source, and the
    /// next run would skip it.
    pub(super) fn mark_unproven(&self, record: &Record) {
        if !self.verify_policy().marks_unproven || record.body.kind != EntryKind::File {
            return;
        }
        if let Err(error) = self.try_to_mark(record) {
            let detail = "the file is not verified, and the next run would skip it: remove the \
                file before that run"
                .into();
            self.error(EntryError { detail, ..error });
        }
    }

    fn try_to_mark(&self, record: &Record) -> Result<(), EntryError> {
        let Some((directory, name)) = record.path.split_last() else { return Ok(()) };
        let level = self.checked_level(&directory)?;
        let fail =
            |e| entry_error(Side::Destination, Operation::SetTimes, level.source_path(name), e);
        let fd = match path::open_file_at(&level.source.fd, name, false) {
            Ok(fd) => fd,
            // It is gone or was replaced.
            Err(error) if stat::is_absent(error) || error == Errno::LOOP => return Ok(()),
            Err(error) => return Err(fail(error)),
        };
        let found = self.end.mounts.metadata(&stat::stat_fd(&fd).map_err(fail)?);
        let (is, was) = (found.mtime.seconds, record.body.mtime.seconds);
        if found.kind != EntryKind::File || is.abs_diff(was) > NEAR_S {
            return Ok(());
        }
        set::times(&fd, None, Some(unfinished_time(record.body.mtime))).map_err(fail)
    }
}
