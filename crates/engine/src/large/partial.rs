//! Parts of large files: when they are flushed and reported, and how a run continues the temporary file of an earlier
//! one.
use dmover_journal::Unneeded;
use dmover_local::error::entry_error;
use dmover_local::file::Unfinished;
use dmover_local::large_file::remove_temporary;
use dmover_local::source::Supply;
use dmover_model::{
    DoneParts, EntryError, FileRef, Identity, LargeFile, LargeNews, Metadata, Name, Operation,
    PartialFile, SealTask, Side, Timestamp, When,
};
use dmover_sys::stat::{FileType, Stat};
use dmover_sys::{OwnedFd, cache, file, path, set, stat};

use crate::context::Engine;
use crate::level::{Level, TargetDirectory};
use crate::mover::Mover;

/// The temporary file of an earlier run, or a file that shares its blocks.
pub(super) struct Continued<'t> {
    pub temporary: Name,
    pub unfinished: Unfinished<'t>,
    pub done: DoneParts,
    pub patched: bool,
    /// It is a new file that no other process uses.
    pub is_new: bool,
}

impl Mover<'_> {
    /// Continues the work of an earlier run on this file. `None`: it was useless and was removed.
    pub(super) fn continue_partial<'t>(
        &mut self,
        level: &Level,
        target: &'t TargetDirectory,
        of: &FileRef,
        supply: &Supply,
    ) -> Result<Option<Continued<'t>>, EntryError> {
        let Some(partial) = self.lease.task.partial.clone() else { return Ok(None) };
        // The file was open for writing: a write through a mapping need not have changed a time.
        let last = of.destination_name.as_bytes();
        let is_doubtful = self.is_doubtful || self.engine.is_doubtful(level, of.name.as_bytes());
        let old = (!is_doubtful).then(|| self.open_partial(target, &partial, supply)).flatten();
        let Some(old) = old else {
            self.discard_partial(level);
            return Ok(None);
        };
        if partial.patched {
            // What is missing is compared: the cache may have what a failed flush has left there.
            cache::forget(&old, 0, supply.metadata.size);
        }
        self.session.unlock_for_temporaries(&level.source, target);
        let PartialFile { temporary, done, patched, fenced, .. } = *partial;
        let continued = if fenced {
            self.session.clone_partial((&level.source, target), last, supply, &old)?.map(
                |(temporary, unfinished)| Continued {
                    temporary,
                    unfinished,
                    done,
                    patched,
                    is_new: true,
                },
            )
        } else {
            self.session.adopt(target, &temporary).map(|unfinished| Continued {
                temporary,
                unfinished,
                done,
                patched,
                is_new: false,
            })
        };
        if fenced || continued.is_none() {
            self.discard_partial(level);
        }
        Ok(continued)
    }

    /// Opens the temporary file for reading if it was copied from the present version of the source.
    fn open_partial(
        &self,
        target: &TargetDirectory,
        partial: &PartialFile,
        supply: &Supply,
    ) -> Option<OwnedFd> {
        let engine = self.engine;
        let wanted = partial.version == Some(supply.metadata.version())
            && partial.shape == self.session.local.rules.digest_shape(supply.metadata.size)
            && engine.spec.policy.reflink != When::Always;
        if !wanted || partial.done.ranges.is_empty() {
            return None;
        }
        let fd = path::open_file_at(&target.fd, partial.temporary.as_bytes(), false).ok()?;
        let found = stat::stat_fd(&fd).ok()?;
        let same = found.inode == partial.inode
            && found.file_type() == FileType::RegularFile
            && found.size == supply.metadata.size
            && found.links == 1
            && self.is_as_it_was_left(target, partial, &found);
        same.then_some(fd)
    }

    /// Whether a temporary file is unchanged since the earlier run ended: it is no older state, such as from a restored
    /// backup, and was not changed later.
    fn is_as_it_was_left(
        &self,
        target: &TargetDirectory,
        partial: &PartialFile,
        found: &Stat,
    ) -> bool {
        let ctime = self.engine.end.mounts.metadata(found).ctime;
        let is_older = partial.changed.is_some_and(|changed| ctime < changed);
        // The clock of a server may be another one.
        let is_newer = target.facts.local && partial.until.is_some_and(|until| ctime > until);
        !is_older && !is_newer
    }

    /// Leaves a file that a stop has interrupted to the next run, with what was written of it on storage. `false`:
    /// nothing of it is on record.
    pub(super) fn leave_to_next_run(&mut self, task: &SealTask) -> Result<bool, EntryError> {
        let (engine, temporary) = (self.engine, &task.large.temporary);
        let parts = &engine.written_parts;
        let continues = task.failure.as_ref().is_some_and(|error| engine.may_be_continued(error));
        if !continues || !engine.keeps_parts || parts.has_failed(temporary) {
            return Ok(false);
        }
        // The user waits no longer for a stop that has become a hard one.
        if let Some(done) = parts.take(temporary).filter(|_| !engine.control.is_over()) {
            let changed = self.flush_temporary(&task.large).inspect_err(|_| {
                parts.fail(temporary);
            })?;
            let (temporary, changed) = (temporary.clone(), Some(changed));
            self.outcome.large.push(LargeNews::Flushed { temporary, done, changed });
            return Ok(true);
        }
        Ok(parts.is_recorded(temporary))
    }

    /// Returns the time of the file's last change.
    fn flush_temporary(&self, large: &LargeFile) -> Result<Timestamp, EntryError> {
        let level = self.engine.open_level(&large.file.directory)?;
        let target = self.target_of(&level, large)?;
        let unfinished = self.open_temporary(&level, target, large)?;
        let fail = |operation, error| {
            let path = level.target_path(large.file.destination_name.as_bytes());
            entry_error(Side::Destination, operation, path, error)
        };
        file::sync_data(unfinished.fd()).map_err(|error| fail(Operation::Sync, error))?;
        let found = stat::stat_fd(unfinished.fd()).map_err(|error| fail(Operation::Stat, error))?;
        unfinished.keep().map_err(|error| fail(Operation::Close, error))?;
        Ok(self.engine.end.mounts.metadata(&found).ctime)
    }

    /// Removes what an earlier run left of this file.
    pub(super) fn discard_partial(&mut self, level: &Level) {
        let Some(partial) = self.lease.task.partial.as_deref() else { return };
        let Some(target) = &level.target else { return };
        if remove_temporary(target, &partial.temporary) {
            let temporary = partial.temporary.clone();
            self.outcome.large.push(LargeNews::Ended { temporary });
        }
    }
}

impl Engine {
    /// Removes a temporary file that no run needs any more, from a directory that already has its times.
    pub(crate) fn remove_unneeded(&self, unneeded: &Unneeded) {
        let Unneeded { root, directory, temporary } = unneeded;
        let anywhere = Identity::default();
        let target = self.root(*root).and_then(|root| self.open_target(&root, directory, anywhere));
        match target {
            Ok(Some(target)) => {
                let Metadata { atime, mtime, .. } = target.metadata;
                let there = stat::stat_at(&target.fd, temporary.as_bytes(), false).is_ok();
                if there && remove_temporary(&target, temporary) {
                    let time = |time: Timestamp| Some((time.seconds, time.nanoseconds));
                    let kept = set::times(&target.fd, time(atime), time(mtime));
                    tracing::debug!(
                        ?kept,
                        ?temporary,
                        "removed a temporary that is no longer needed"
                    );
                }
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(?error, ?temporary, "cannot look for a temporary"),
        }
    }
}
