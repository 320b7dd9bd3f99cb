//! Delayed renames: small files that replace others are renamed together.
//!
//! The content of a file must be on storage before it replaces another file. A flush for each file costs more than
//! everything else, so the files of many directories wait under temporary names until one flush of the file system
//! covers all of them.
use dmover_local::error::cancelled;
use dmover_local::file::Temporary;
use dmover_local::put_in_place::Renaming;
use dmover_model::{EntryError, Operation, Side};
use dmover_observe::{Activity, activity};
use dmover_schedule::time::Instant;

use crate::level::Level;
use crate::mover::Mover;
use crate::planned::{CopyResult, Planned};
use crate::waiting_files::{WaitingFile, WaitingFiles};

impl Mover<'_> {
    /// Delays the rename of a file. If its directory cannot be held open, the file is renamed now.
    pub(crate) fn put_off(
        &mut self,
        level: &Level,
        planned: Planned,
        (moved, temporary): (CopyResult, Temporary),
        started: Instant,
    ) {
        self.waiting.files += 1;
        self.waiting.bytes += moved.bytes;
        let waiting = WaitingFile { planned, moved, temporary, started };
        match self.waiting.directories.last_mut().filter(|(last, _)| last.path == level.path) {
            Some((_, files)) => files.push(waiting),
            None => match level.again() {
                Ok(own) => {
                    self.engine.resources.hold_for_later();
                    self.waiting.directories.push((own, vec![waiting]));
                }
                Err(_) => {
                    self.make_written_durable();
                    self.give_name(level, waiting);
                }
            },
        }
        if self.waiting.is_full() || self.engine.resources.holds_enough() {
            self.settle_later();
        }
    }

    /// Renames all waiting files.
    pub(crate) fn settle_later(&mut self) {
        let WaitingFiles { directories, .. } = std::mem::take(&mut self.waiting);
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
        self.engine.resources.release_held(count);
    }

    /// Flushes everything that was written so far.
    fn make_written_durable(&mut self) {
        activity::at(Activity::TargetData);
        if let Err(error) = self.session.flush_written() {
            // The files under temporary names may not be whole: none gets its name.
            self.unflushed = Some(error);
        }
    }

    fn give_name(&mut self, level: &Level, waiting: WaitingFile) {
        let WaitingFile { planned, moved, temporary, started } = waiting;
        let Some(target) = &level.target else { return };
        activity::at(Activity::TargetNames);
        let last = planned.record.destination_name().as_bytes();
        let engine = self.engine;
        let renamed = match self.unflushed {
            Some(error) => {
                Err(error.at((Side::Destination, Operation::Sync), level.target_path(last)))
            }
            None if engine.control.is_over() => Err(cancelled(level.target_path(last))),
            None => {
                let Temporary { name, identity } = &temporary;
                let (decision, identity) = (planned.decision, *identity);
                let source = planned.record.metadata.identity;
                self.session.put_in_place(Renaming {
                    from: &level.source,
                    to: target,
                    name,
                    last,
                    decision,
                    locks: false,
                    identity,
                    source,
                    is_link: false,
                    others: self.names_beside(level),
                })
            }
        };
        match renamed {
            Ok(()) => self.account(level, &planned, moved, started),
            Err(error) => {
                self.session.drop_temporary(target, &temporary, last);
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
