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

use crate::apply;
use crate::directory_pair::DirectoryPair;
use crate::file;
use crate::mover::Mover;
use crate::plan_entry;
use crate::planned::{CopyResult, Planned};
use crate::waiting_files::WaitingFile;

/// Delays the rename of a file. If its directory cannot be held open, the file is renamed now.
pub(crate) fn put_off(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    planned: Planned,
    (moved, temporary): (CopyResult, Temporary),
    started: Instant,
) {
    mover.waiting.files += 1;
    mover.waiting.bytes += moved.bytes;
    let waiting = WaitingFile { planned, moved, temporary, started };
    match mover.waiting.directories.last_mut().filter(|(last, _)| last.path == level.path) {
        Some((_, files)) => files.push(waiting),
        None => match level.again() {
            Ok(own) => {
                mover.engine.resources.hold_for_later();
                mover.waiting.directories.push((own, vec![waiting]));
            }
            Err(_) => {
                make_written_durable(mover);
                give_name(mover, level, waiting);
            }
        },
    }
    if mover.waiting.is_full() || mover.engine.resources.holds_enough() {
        settle_later(mover);
    }
}

/// Renames all waiting files.
pub(crate) fn settle_later(mover: &mut Mover<'_>) {
    let directories = mover.waiting.take();
    if directories.is_empty() {
        return;
    }
    make_written_durable(mover);
    let count = directories.len();
    for (level, files) in directories {
        for waiting in files {
            give_name(mover, &level, waiting);
            mover.lease.extend();
        }
    }
    mover.engine.resources.release_held(count);
}

/// Flushes everything that was written so far.
fn make_written_durable(mover: &mut Mover<'_>) {
    activity::at(Activity::TargetData);
    if let Err(error) = mover.session.flush_written() {
        // The files under temporary names may not be whole: none gets its name.
        mover.waiting.unflushed = Some(error);
    }
}

fn give_name(mover: &mut Mover<'_>, level: &DirectoryPair, waiting: WaitingFile) {
    let WaitingFile { planned, moved, temporary, started } = waiting;
    let Some(target) = &level.target else { return };
    activity::at(Activity::TargetNames);
    let last = planned.record.destination_name().as_bytes();
    let engine = mover.engine;
    let renamed = match mover.waiting.unflushed {
        Some(error) => Err(error.at((Side::Destination, Operation::Sync), level.target_path(last))),
        None if engine.control.is_over() => Err(cancelled(level.target_path(last))),
        None => {
            let Temporary { name, identity } = &temporary;
            let (decision, identity) = (planned.decision, *identity);
            let source = planned.record.metadata.identity;
            mover.session.put_in_place(Renaming {
                from: &level.source,
                to: target,
                name,
                last,
                decision,
                locks: false,
                identity,
                source,
                is_link: false,
                others: file::names_beside(mover.engine, level),
            })
        }
    };
    match renamed {
        Ok(()) => apply::account(mover, level, &planned, moved, started),
        Err(error) => {
            mover.session.drop_temporary(target, &temporary, last);
            try_once_more(mover, level, &planned, error);
        }
    }
}

/// Copies a file again whose rename failed, if the reason may be temporary.
fn try_once_more(
    mover: &mut Mover<'_>,
    level: &DirectoryPair,
    planned: &Planned,
    error: EntryError,
) {
    if mover.waiting.unflushed.is_some() || !mover.engine.may_pass(&error, 1) {
        return mover.engine.error(error);
    }
    match plan_entry::look_again(mover, level, &planned.record) {
        Ok(Some(fresh)) => {
            apply::apply_one(mover, level, fresh);
        }
        Ok(None) => {}
        Err(error) => mover.engine.error(error),
    }
}
