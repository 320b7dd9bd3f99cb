//! Names whose case has changed, on a destination that ignores case.
use dmover_local::directory::fold;
use dmover_local::directory::look_at;
use dmover_local::error::entry_error;
use dmover_model::{EntryError, Operation, Side, Verb};
use dmover_observe::Counter;
use dmover_sys::directory::{self, DirectoryReader};
use dmover_sys::{Errno, path, stat};

use crate::level::{Level, TargetDirectory};
use crate::mover::Mover;

impl Mover<'_> {
    /// Renames a destination entry to the case of the source, unless the source has an entry with the other case as
    /// well. In that case two entries map to one name, and the second one is refused.
    pub(crate) fn settle_case(&mut self, level: &Level, name: &[u8]) -> Result<(), EntryError> {
        let engine = self.engine;
        let settles = engine.spec.verb == Verb::Sync && !engine.spec.policy.dry_run;
        let target = level.target.as_ref().filter(|target| settles && target.folds_case);
        let Some(target) = target else { return Ok(()) };
        let fail = |operation| {
            move |error| entry_error(Side::Destination, operation, level.target_path(name), error)
        };
        let Some(found) = look_at(&target.fd, name).map_err(fail(Operation::Stat))? else {
            return Ok(());
        };
        if self.session.is_exact(target, name) {
            return Ok(());
        }
        let mut stored = None;
        let alike = fold(name);
        each_name(&target.fd, |known| {
            let itself = fold(known) == alike
                && stat::stat_at(&target.fd, known, false)
                    .is_ok_and(|known| (known.device, known.inode) == (found.device, found.inode));
            if itself {
                stored = Some(known.to_vec());
            }
        })
        .map_err(fail(Operation::ReadDirectory))?;
        let Some(stored) = stored else { return Ok(()) };
        let mut has_both = false;
        each_name(&level.source.fd, |known| has_both |= known == stored).map_err(|error| {
            entry_error(Side::Source, Operation::ReadDirectory, level.own_source_path(), error)
        })?;
        if has_both {
            return Ok(());
        }
        self.check_lease(level, name)?;
        self.change_case(target, &stored, name).map_err(fail(Operation::Rename))?;
        // It may have been finished already.
        self.mark_dirty(&level.reference());
        engine.count(Counter::EntriesRenamed);
        engine.progress();
        Ok(())
    }
}

impl Mover<'_> {
    /// Renames by way of a third name: rename(2) does nothing if both names refer to one object, although the kernel
    /// treats them as different.
    fn change_case(
        &self,
        target: &TargetDirectory,
        stored: &[u8],
        name: &[u8],
    ) -> Result<(), Errno> {
        directory::rename(&target.fd, stored, name)?;
        self.session.forget_names();
        if self.session.is_exact(target, name) {
            return Ok(());
        }
        // This is not a temporary name: a run that finds it after a crash must not remove it.
        let between = [stored, b".dmover-case"].concat();
        directory::move_new(&target.fd, stored, &target.fd, &between)?;
        let moved = directory::move_new(&target.fd, &between, &target.fd, name);
        if moved.is_err() {
            directory::move_new(&target.fd, &between, &target.fd, stored)?;
        }
        self.session.forget_names();
        moved
    }
}

fn each_name(directory: &dmover_sys::OwnedFd, mut each: impl FnMut(&[u8])) -> Result<(), Errno> {
    let fd = path::open_directory_at(directory, b".")?;
    DirectoryReader::default().read(&fd, |name, _| -> Result<bool, Errno> {
        each(name);
        Ok(true)
    })?;
    Ok(())
}
