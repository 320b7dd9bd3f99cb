//! Delayed renames: small files that replace others are renamed together.
//!
//! The content of a file must be on storage before it replaces another file. A flush for each file costs more than
//! everything else, so the files of many directories wait under temporary names until one flush of the file system
//! covers all of them.
use dmover_model::{EntryError, Identity, Operation, Side};
use dmover_observe::{Activity, station};
use dmover_plan::decide::Decision;
use dmover_sys::directory;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::apply::{Moved, Planned, Renaming};
use crate::level::{Level, TargetDirectory};
use crate::mover::Mover;
use dmover_local::error::{cancelled, entry_error};

/// The most files, bytes and directories (two descriptors each) that wait.
const FILES_MAX: usize = 1024;
const BYTES_MAX: u64 = 64 << 20;
const DIRECTORIES_MAX: usize = 64;
/// Larger files are flushed one by one.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A complete temporary file that waits for a flush and its rename.
#[derive(Debug)]
pub(crate) struct Temporary {
    pub name: Vec<u8>,
    pub identity: Identity,
}

/// A waiting file.
struct Waiting {
    planned: Planned,
    moved: Moved,
    temporary: Temporary,
    started: Instant,
}

/// Waiting files, by directory.
#[derive(Default)]
pub(crate) struct Later {
    directories: Vec<(Level, Vec<Waiting>)>,
    files: usize,
    bytes: u64,
}

impl Later {
    /// Whether any file of a directory waits.
    pub fn has(&self, level: &Level) -> bool {
        self.directories.iter().any(|(waiting, _)| waiting.path == level.path)
    }

    fn is_full(&self) -> bool {
        self.files >= FILES_MAX
            || self.bytes >= BYTES_MAX
            || self.directories.len() >= DIRECTORIES_MAX
    }
}

impl Mover<'_> {
    /// Whether the rename of a file may be delayed.
    pub(crate) fn may_wait(
        &self,
        target: &TargetDirectory,
        decision: Decision,
        bytes: u64,
    ) -> bool {
        self.puts_off
            && decision == Decision::Replace
            && bytes <= FILE_BYTES_MAX
            && target.facts.local
            && self.engine.flusher.is_some()
            && self.engine.spec.policy.backup.is_none()
            && !self.engine.spec.policy.fsync
    }

    /// Delays the rename of a file. If its directory cannot be held open, the file is renamed now.
    pub(crate) fn put_off(
        &mut self,
        level: &Level,
        planned: Planned,
        (moved, temporary): (Moved, Temporary),
        started: Instant,
    ) {
        self.later.files += 1;
        self.later.bytes += moved.bytes;
        let waiting = Waiting { planned, moved, temporary, started };
        match self.later.directories.last_mut().filter(|(last, _)| last.path == level.path) {
            Some((_, files)) => files.push(waiting),
            None => match level.again() {
                Ok(own) => {
                    self.engine.held_for_later.fetch_add(1, Ordering::Relaxed);
                    self.later.directories.push((own, vec![waiting]));
                }
                Err(_) => {
                    self.make_written_durable();
                    self.give_name(level, waiting);
                }
            },
        }
        let held = self.engine.held_for_later.load(Ordering::Relaxed);
        if self.later.is_full() || held >= self.engine.held_for_later_max {
            self.settle_later();
        }
    }

    /// Renames all waiting files.
    pub(crate) fn settle_later(&mut self) {
        let Later { directories, .. } = std::mem::take(&mut self.later);
        if directories.is_empty() {
            return;
        }
        self.make_written_durable();
        let count = directories.len();
        for (level, files) in directories {
            for waiting in files {
                self.give_name(&level, waiting);
                self.lease.extend();
            }
        }
        self.engine.held_for_later.fetch_sub(count, Ordering::Relaxed);
    }

    /// Flushes everything that was written so far.
    fn make_written_durable(&mut self) {
        station::at(Activity::TargetData);
        let written = self.written.borrow().clone();
        for mount in written {
            let flushed =
                self.engine.flusher.as_ref().map_or(Ok(()), |flusher| flusher.flush(mount));
            if let Err(error) = flushed {
                // The files under temporary names may not be whole: none gets its name.
                self.unflushed = Some(error);
            }
        }
    }

    fn give_name(&mut self, level: &Level, waiting: Waiting) {
        let Waiting { planned, moved, temporary, started } = waiting;
        let Some(target) = &level.target else { return };
        station::at(Activity::TargetNames);
        let last = planned.record.destination_name().as_bytes();
        let engine = self.engine;
        let renamed = match self.unflushed {
            Some(error) => {
                let path = level.target_path(last);
                Err(entry_error(Side::Destination, Operation::Sync, path, error))
            }
            None if engine.control.is_over() => Err(cancelled(level.target_path(last))),
            None => {
                let Temporary { name, identity } = &temporary;
                let (decision, identity) = (planned.decision, *identity);
                let source = planned.record.metadata.identity;
                let renaming = Renaming { name, last, decision, locks: false, identity, source };
                self.put_in_place(level, target, renaming)
            }
        };
        match renamed {
            Ok(()) => self.account(level, &planned, moved, started),
            Err(error) => {
                if !self.is_at(target, last, temporary.identity)
                    && self.is_at(target, &temporary.name, temporary.identity)
                    && let Err(error) = directory::unlink(&target.fd, &temporary.name)
                {
                    tracing::warn!(?error, "cannot remove a temporary; the next run removes it");
                }
                self.try_once_more(level, &planned, error);
            }
        }
    }

    /// Copies a file again whose rename failed, if the reason may be temporary.
    fn try_once_more(&mut self, level: &Level, planned: &Planned, error: EntryError) {
        if self.unflushed.is_some() || !self.engine.may_pass(&error, 1) {
            return self.engine.error(error);
        }
        match self.look_again(level, &planned.record) {
            Ok(Some(fresh)) => {
                self.apply_one(level, fresh);
            }
            Ok(None) => {}
            Err(error) => self.engine.error(error),
        }
    }
}
