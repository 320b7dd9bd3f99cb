//! What remains of an interrupted run: parts of large files, and whether it made any progress.
use dmover_journal::{Locator, PartialFiles, Starts};
use dmover_local::mounts::names_of;
use dmover_model::{DirectoryRef, Event, Fatal, FileSystemName, JobId, MountId, Name, PathBytes};
use dmover_observe::Counter;

use super::{Job, JobList, Outliving, Run};
use crate::context::Engine;
use crate::control::StopReason;
use crate::large;

/// After this many starts without progress, the job reports it.
const STARTS_IN_VAIN: u32 = 3;
/// Counters of work that another run does not repeat.
const LASTING: [Counter; 8] = [
    Counter::FilesCopied,
    Counter::DirectoriesCreated,
    Counter::SymlinksCopied,
    Counter::SpecialsCopied,
    Counter::HardLinksCreated,
    Counter::MetadataUpdated,
    Counter::EntriesRenamed,
    Counter::EntriesDeleted,
];

/// The parts of large files from earlier runs, and how often the job was started without progress.
pub(super) fn open(job: &Job, id: &JobId, fenced: bool) -> Result<(PartialFiles, Starts), Fatal> {
    let keeps = job.spec.verb.fills() && !job.spec.policy.dry_run;
    let state = job.files.state.as_ref().filter(|_| keeps);
    let boot = dmover_host::boot_id();
    let files = PartialFiles::open(state, id, (boot, fenced))?;
    let starts = Starts::begin(state, id);
    if starts.in_vain >= STARTS_IN_VAIN {
        let words = format!(
            "the last {} runs of this job ended before they completed an entry: give the job more \
            time, or find out what stops it",
            starts.in_vain
        );
        tracing::warn!(runs = starts.in_vain, "no progress");
        job.observers.monitor.event(&Event::Movers { words });
    }
    Ok((files, starts))
}

impl Run {
    /// Records the changes of large files.
    pub(super) fn settle_large_files(&mut self) {
        self.kept.large_files.write();
        let lasts = |run: &Self| {
            let counters = &run.engine.reports.counters;
            run.kept.large_files.has_news()
                || LASTING.iter().any(|counter| counters.get(*counter) > 0)
        };
        if self.kept.starts.waits() && lasts(self) {
            self.kept.starts.progressed();
        }
    }

    /// Ends the run. Its parts of large files stay for the next run, unless the job is complete.
    pub(super) fn end_for_others(&mut self, outliving: &Outliving, is_told: bool, list: &JobList) {
        if !self.begins {
            // Movers of the previous run may still be running.
            if !outliving.before {
                outliving.end();
            }
            return;
        }
        let is_settled = self.hands.is_settled();
        let reason = self.engine.control.reason().filter(|_| is_told);
        let is_finished = is_told && reason.is_none();
        // After a job that is complete, whoever still has a part has it of a file that was begun again.
        if is_settled || is_finished {
            outliving.end();
        }
        if is_finished {
            self.kept.starts.progressed();
        }
        // One over part of the tree has not come to all of them.
        let is_whole = is_finished && !matches!(list, JobList::Failed(_) | JobList::Changed(_));
        if is_whole || reason == Some(StopReason::Cancelled) {
            for unneeded in self.kept.large_files.end() {
                large::partial::remove_unneeded(&self.engine, &unneeded);
            }
        } else {
            self.kept.large_files.stop(is_settled);
        }
    }
}

impl Locator for Engine {
    fn destination(&self, directory: &DirectoryRef, name: &Name) -> PathBytes {
        self.destination_path(directory.root, &directory.path, name.as_bytes())
    }

    fn names_of(&self, mount: MountId) -> Option<Vec<FileSystemName>> {
        if self.spec.sources_are_remote {
            return Some(vec![FileSystemName::Remote(mount.0)]);
        }
        self.end.mounts.device(mount).map(names_of)
    }

    fn named(&self, name: &FileSystemName) -> Option<MountId> {
        match name {
            FileSystemName::Remote(number) => {
                self.spec.sources_are_remote.then_some(MountId(*number))
            }
            name => self.end.mounts.named(name),
        }
    }
}
