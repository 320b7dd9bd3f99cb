//! The final metadata of directories, set when everything below them is done.
use dmover_model::{EntryError, Metadata, Operation, Side, Timestamp};
use dmover_plan::equality::same_time;
use dmover_sys::{flags, set, stat};

use crate::attributes::{Attributes, Object};
use crate::directory::{SourceDirectory, TargetDirectory};
use crate::end::Local;
use crate::entry_attributes;
use crate::error::entry_error;
use crate::project::ProjectOf;

/// How a directory is finished.
#[derive(Clone, Copy)]
pub struct Finish<'a> {
    /// Its present metadata.
    pub now: &'a Metadata,
    /// Where its project comes from.
    pub project: ProjectOf<'a>,
    /// Attributes that its source does not have are removed.
    pub removes_foreign: bool,
}

impl TargetDirectory {
    /// Sets its times.
    ///
    /// # Errors
    /// They cannot be set.
    pub fn set_times(&self, atime: Timestamp, mtime: Timestamp) -> Result<(), EntryError> {
        let time = |time: Timestamp| Some((time.seconds, time.nanoseconds));
        set::times(&self.fd, time(atime), time(mtime))
            .map_err(|e| entry_error(Side::Destination, Operation::SetTimes, self.place.own(), e))
    }
}

impl Local<'_> {
    /// The present metadata of an open directory of the destination.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn now(&self, to: &TargetDirectory) -> Result<Metadata, EntryError> {
        let found = stat::stat_fd(&to.fd)
            .map_err(|e| entry_error(Side::Destination, Operation::Stat, to.place.own(), e))?;
        Ok(self.end.mounts.metadata(&found))
    }

    /// Gives a directory all metadata of its source, its times last and flags that lock it after them. Returns whether that
    /// has changed one that was there before with its own metadata.
    ///
    /// # Errors
    /// An attribute cannot be read or set.
    pub fn finish(
        &self,
        from: &SourceDirectory,
        to: &TargetDirectory,
        Finish { now, project, removes_foreign }: Finish<'_>,
    ) -> Result<bool, EntryError> {
        let rules = self.attributes();
        let shown = || to.place.own();
        let mut attributes = entry_attributes::attributes_of(self, from)?;
        let plain = to.made && !to.hands_down_project;
        self.settle_project(project, &mut attributes, plain)?;
        let object = to.object(&shown);
        rules.set_project(object, &attributes)?;
        // What was inherited was taken away when the directory was made.
        rules.prepare(Object { inherits: None, ..object }, &attributes)?;
        if removes_foreign {
            rules.remove_foreign(object, &attributes)?;
        }
        rules.set(object, &from.metadata, &attributes, now)?;
        rules.carry_flags(object, &attributes, flags::PLAIN)?;
        let step = to.facts.granularity_ns();
        let (atime, mtime) = (from.metadata.atime, from.metadata.mtime);
        // A pass over what it made before leaves alone what only reading has changed.
        let passes = self.rules.updates && !to.made;
        let read = !passes && !same_time(atime, now.atime, step);
        if read || !same_time(mtime, now.mtime, step) {
            rules.set_times(object, &from.metadata)?;
        }
        rules.carry_flags(object, &attributes, flags::LOCKS)?;
        if to.made || to.narrowed.is_some() {
            return Ok(false);
        }
        // Whatever was set has moved the change time.
        Ok(self.now(to)?.ctime != now.ctime)
    }

    /// Gives a directory what is known of its source, which may not be opened.
    ///
    /// # Errors
    /// An attribute cannot be set.
    pub fn finish_unread(&self, source: &Metadata, to: &TargetDirectory) -> Result<(), EntryError> {
        let shown = || to.place.own();
        let (rules, object) = (self.attributes(), to.object(&shown));
        // Attributes of a directory that may not be opened are mostly out of reach as well.
        rules.set(object, source, &Attributes::default(), &to.metadata)?;
        rules.set_times(object, source)
    }
}
