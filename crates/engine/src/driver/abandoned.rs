//! Names the work that a stopped job has not attempted.
use dmover_journal::{Ledger, Unneeded};
use dmover_model::{
    DirectoryRef, EntryError, ErrorClass, Fatal, FileRef, Name, Operation, PathBytes, RecordsTask,
    RootId, Side, SumItem, Task, TaskKind, WithheldReason,
};

use super::{EXTRA_NAMES, Executor, LINK_NAMES, Run};
use crate::extra;
use crate::large;
use crate::sum::subject_path;

fn of_file(file: &FileRef) -> (&DirectoryRef, Option<&Name>) {
    (&file.directory, Some(&file.destination_name))
}

impl Run {
    /// Names the part of the tree that a stopped job has not attempted.
    pub(super) fn tell_abandoned(&self, kind: &TaskKind) {
        let below = |d: &DirectoryRef| self.engine.destination_path(d.root, &d.path, b"");
        let many = |n: usize| format!("{n} entries of this directory were not attempted");
        let (path, words) = match kind {
            TaskKind::Scan { directory, names } if !names.names().is_empty() => {
                (below(directory), many(names.names().len()))
            }
            TaskKind::Scan { directory, .. } => (below(directory), "not attempted".into()),
            TaskKind::Open { file, .. } => {
                let name = file.destination_name.as_bytes();
                let at = &file.directory;
                let path = self.engine.destination_path(at.root, &at.path, name);
                (path, "not attempted".into())
            }
            TaskKind::Pairs(pairs) => match pairs.first() {
                Some((_, destination, _)) => {
                    let more = pairs.len() - 1;
                    (destination.clone(), format!("this entry and {more} more were not attempted"))
                }
                None => return,
            },
            TaskKind::Delete(extra) => {
                extra::guard::withhold(&self.engine, extra, &WithheldReason::Stopped);
                return;
            }
            TaskKind::Links(groups) => {
                return groups.iter().for_each(|g| self.tell_group(g));
            }
            TaskKind::Sums(items) => {
                return items.iter().for_each(|item| self.tell_unhashed(item));
            }
            TaskKind::FinishHash(task) => return self.tell_unhashed(&task.file.item),
            TaskKind::FinishCompare(judge) => {
                let (at, name) = (&judge.file.directory, judge.file.destination_name.as_bytes());
                let path = self.engine.destination_path(at.root, &at.path, name);
                (path, "not attempted".into())
            }
            TaskKind::Records(RecordsTask { records, .. }) => match records.first() {
                Some(record) => {
                    let path = self.engine.destination_path(RootId(0), &record.path, b"");
                    (path, format!("this entry and {} more were not attempted", records.len() - 1))
                }
                None => return,
            },
            // Directories stay closed until the next run; chunks are reported with their file.
            TaskKind::Finish(_)
            | TaskKind::Chunk(_)
            | TaskKind::Seal(_)
            | TaskKind::Hash(_)
            | TaskKind::Compare(_)
            // What was renamed is dealt with by the scan as well, and the next pass looks at it all.
            | TaskKind::Revisit(_)
            | TaskKind::Rename(_)
            | TaskKind::Catalog(_)
            | TaskKind::CatalogNames(_) => return,
        };
        self.tell_not_attempted(path, &words);
    }

    /// Ends a large file that a stop has interrupted, if movers of other processes have worked on it: they take no more
    /// tasks, and none knows what the others have flushed. Returns whether it did.
    pub(super) fn ends_interrupted(&mut self, task: &Task) -> bool {
        let TaskKind::Seal(seal) = &task.kind else { return false };
        let engine = &self.engine;
        let is_here = matches!(self.hands, Executor::Here(_, None));
        let Some(failure) = seal.failure.as_deref() else { return false };
        if is_here || !engine.control.is_stopping() {
            return false;
        }
        let large = &seal.large;
        if engine.written_parts.has_unflushed(&large.temporary) {
            // A mover here flushes what it has written itself.
            return false;
        }
        if !(large::may_be_continued(engine, failure)
            && self.kept.large_files.is_recorded(&large.temporary))
        {
            let (directory, temporary) = (&large.file.directory, large.temporary.clone());
            let (root, directory) = (directory.root, directory.path.clone());
            large::partial::remove_unneeded(engine, &Unneeded { root, directory, temporary });
            self.kept.large_files.ended(&large.temporary);
        }
        large::tell_interrupted(engine, large, failure);
        true
    }

    /// Names a task that too many movers have lost, so that it is not tried again.
    pub(super) fn tell_lost(&self, task: &Task) {
        let place = match &task.kind {
            TaskKind::Scan { directory, .. } => Some((directory, None)),
            TaskKind::Open { file, .. } => Some((&file.directory, Some(&file.destination_name))),
            TaskKind::Chunk(chunk) => Some(of_file(&chunk.large.file)),
            TaskKind::Seal(seal) => Some(of_file(&seal.large.file)),
            TaskKind::Links(groups) => groups.first().map(|group| of_file(&group.first)),
            TaskKind::Finish(directories) => directories.first().map(|directory| (directory, None)),
            TaskKind::Delete(extra) => extra.first().map(|extra| (&extra.directory, None)),
            _ => None,
        };
        let path = place.map(|(at, name)| {
            let name = name.map_or(&b""[..], |name| name.as_bytes());
            self.engine.destination_path(at.root, &at.path, name)
        });
        let path = path.unwrap_or_else(|| self.engine.spec.destination.clone());
        let words = format!("{} movers in a row lost their lease on this task", task.lost.len());
        let (side, class) = (Side::Destination, ErrorClass::Fenced);
        self.engine.error(EntryError::plain(side, Operation::Attempt, class, path, words));
    }

    fn tell_not_attempted(&self, path: PathBytes, words: &str) {
        let (side, class) = (Side::Destination, ErrorClass::Cancelled);
        self.engine.error(EntryError::plain(side, Operation::Attempt, class, path, words));
    }

    fn tell_unhashed(&self, item: &SumItem) {
        self.tell_not_attempted(subject_path(&self.engine, &item.subject), "not attempted");
    }

    fn tell_group(&self, group: &dmover_model::LinkGroup) {
        for file in std::iter::once(&group.first).chain(&group.rest) {
            let (at, name) = (&file.directory, file.destination_name.as_bytes());
            let path = self.engine.destination_path(at.root, &at.path, name);
            self.tell_not_attempted(path, "not attempted");
        }
    }

    /// Reports linked names that were waiting for their phase when the job was stopped.
    pub(super) fn tell_unlinked(&mut self) -> Result<(), Fatal> {
        if !self.engine.control.is_stopping() {
            return Ok(());
        }
        loop {
            let supply = self.ledger.take_links(LINK_NAMES)?;
            supply.groups.iter().for_each(|g| self.tell_group(g));
            if supply.exhausted {
                break;
            }
        }
        loop {
            let names = self.ledger.take_extra(EXTRA_NAMES)?;
            if names.is_empty() {
                return Ok(());
            }
            extra::guard::withhold(&self.engine, &names, &WithheldReason::Stopped);
        }
    }
}
