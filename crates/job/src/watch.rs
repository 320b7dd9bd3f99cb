//! A job that follows the changes of its source.
use dmover_engine::{
    FanotifyFeed, Job, JobList, JobReport, StopReason, WatchOptions, Watched, job_id,
};
use dmover_model::{ChangeFeed, DeleteLimit, ExitCode, Fatal, JobId, JobSpec};
use std::sync::Arc;

/// How a watch ended.
#[derive(Debug)]
pub enum WatchEnd {
    /// It was stopped, or its deletes were withheld. The report is that of the last pass.
    Ended(Box<JobReport>),
    /// It was stopped before its first pass.
    NotBegun(Option<StopReason>),
    /// It could not start or continue.
    Failed {
        /// Why.
        error: Fatal,
        /// The signal that stopped the job before it failed, such as one during the wait for a broker.
        signal: Option<i32>,
        /// The job, if a user who waits for it must be notified.
        notifies: Option<JobId>,
    },
}

/// Refuses a limit of deletes that a watch cannot apply.
///
/// # Errors
/// The limit is a share of the tree.
pub fn check_watch_limit(limit: Option<DeleteLimit>) -> Result<(), Fatal> {
    if matches!(limit, Some(DeleteLimit::Millionths(_))) {
        let hint = "give a number of entries; it limits each pass over the changes";
        let message = "--max-delete=P% cannot be used with --watch, which does not scan the whole \
                       tree in each pass";
        return Err(Fatal::refused(message, hint));
    }
    Ok(())
}

/// Listens to the changes of the source of a job. Open the feed before the first pass, so that no change during that pass
/// is missed.
///
/// # Errors
/// The file system of the source reports no changes to this process.
pub fn open_feed(spec: &JobSpec) -> Result<FanotifyFeed, Fatal> {
    let opened = FanotifyFeed::open(&spec.sources[0].to_path(), spec.selection.one_file_system);
    opened.map_err(|error| Fatal::refused(error.message, error.hint))
}

/// Runs passes until the job is stopped or cannot continue. `tell` gets what happens; the start of the first pass is no
/// news.
pub fn watch(
    job: Job,
    feed: &mut dyn ChangeFeed,
    options: WatchOptions,
    tell: &mut dyn FnMut(Watched<'_>),
) -> WatchEnd {
    let control = Arc::clone(&job.control);
    let id = job_id(&job.spec, &JobList::None, job.files.state.as_ref());
    let mut first = true;
    let result = dmover_engine::watch(job, feed, options, &mut |what| match what {
        Watched::Begins(_) if std::mem::take(&mut first) => {}
        what => tell(what),
    });
    match result {
        Ok(Some(report)) => WatchEnd::Ended(Box::new(report)),
        Ok(None) => WatchEnd::NotBegun(control.reason()),
        Err(error) => {
            let signal = match control.reason() {
                Some(StopReason::Signal(signal)) => Some(signal),
                _ => None,
            };
            // A job that could not start sends no notification, unless the error is fatal.
            let ended = error.exit_code() == ExitCode::Fatal || !first;
            WatchEnd::Failed { error, signal, notifies: id.ok().filter(|_| ended) }
        }
    }
}
