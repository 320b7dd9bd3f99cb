//! `dmover sync`.
use clap::ArgMatches;
use dmover_engine::{JobList, JobReport, JobState, job_id};
use dmover_job::Published;
use dmover_journal::{FailedList, FailedPaths, JournalReader};
use dmover_model::{ExitCode as Code, JobSpec};
use dmover_observe::Counter;
use std::process::ExitCode;
use std::sync::Arc;

use super::detach;
use super::jobs::{self, Refused};
use super::run::{exit, refuse, spill_directory};
use super::transfer::{self, Publish, Step, Transfer};
use super::watch;
use crate::args::SyncArgs;
use crate::print::say;
use crate::spec;

pub(crate) fn run(args: &SyncArgs, matches: Option<&ArgMatches>) -> ExitCode {
    let Some(matches) = matches else { return exit(Code::Usage) };
    let spec = match spec::sync_spec(args, matches) {
        Ok(spec) => spec,
        Err(unusable) => return refuse(&unusable),
    };
    let slash = args.paths.iter().any(|path| path.as_encoded_bytes().ends_with(b"/"));
    if slash && args.output.quiet == 0 && !args.output.json {
        say("dmover: note: a trailing slash has no effect: sync copies the contents of SOURCE to \
             DEST");
    }
    let SyncArgs { proof, items, output, job, state, .. } = args;
    if let Some(code) = detach::go_on(job, state, &spec, output.quiet > 0) {
        return code;
    }
    if args.watch.watch {
        return watch::run(args, spec);
    }
    let (spec, failed) = match only_failed(args, spec) {
        Ok(found) => found,
        Err(refused) => return jobs::refuse(refused),
    };
    let fleet = Some(&args.fleet);
    let checks = |report: &JobReport, _| {
        let differs = report.state == JobState::Finished && changes(report) > 0;
        Ok(Step::Other(if differs { Published::Different } else { Published::Done }))
    };
    let publish: Option<&Publish<'_>> = args.comparison.check.then_some(&checks);
    let transfer = Transfer { spec, publish, failed, proof, items, output, job, state, fleet };
    transfer::run(&transfer, |_| {})
}

/// With `--only-failed`, the paths that failed in the last pass.
fn only_failed(
    args: &SyncArgs,
    spec: JobSpec,
) -> Result<(JobSpec, Option<Arc<FailedList>>), Refused> {
    if !args.only_failed {
        return Ok((spec, None));
    }
    let state = jobs::directory(args.state.state_dir.as_ref())?;
    let id = job_id(&spec, &JobList::None, Some(&state))
        .map_err(|error| (error.to_string(), "check the paths", Code::Usage))?;
    let hint = "run the original sync command: it scans the whole tree";
    let fatal = |message| (message, hint, Code::Fatal);
    let journal = JournalReader::open(&state.directory(&id.0)).map_err(fatal)?;
    if journal.as_ref().map_or(Ok(false), JournalReader::is_unfinished).map_err(fatal)? {
        let message = "the last pass of this job did not finish".into();
        return Err((message, "run 'dmover resume' first, then 'dmover retry'", Code::Usage));
    }
    let Some(journal) = journal else {
        return Err((format!("job {id} has no journal"), hint, Code::Usage));
    };
    // There may be millions: they go to a file.
    let directory = spill_directory(&args.state, Some(&state));
    let paths = FailedPaths::create(&directory).map_err(|error| fatal(error.to_string()))?;
    let (mut undone, mut had, mut left, mut trouble) = (false, false, false, None);
    journal
        .each_error(&mut |error| {
            if error.operation == "unlink" {
                undone = true;
                return true;
            }
            // The destination may be inside the source, or the source inside the destination.
            let root = if error.side == "source" { &spec.sources[0] } else { &spec.destination };
            let Some(path) = error.path.below(root) else { return true };
            had = true;
            // A path that is no longer at the source cannot be copied.
            let looked = std::fs::symlink_metadata(spec.sources[0].join(&path).to_path());
            if looked.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
                return true;
            }
            left = true;
            trouble = paths.add(&path).err();
            trouble.is_none()
        })
        .map_err(fatal)?;
    if let Some(error) = trouble {
        return Err((error.to_string(), "check for free space, or use --spill-dir", Code::Fatal));
    }
    if undone {
        say("dmover: note: retry does not repeat failed deletes; run the original sync command");
    }
    if !left {
        let message = match (had, undone) {
            (true, _) => "the entries that failed in the last pass are no longer at the source",
            (false, false) => "nothing failed in the last pass of this job",
            (false, true) => "nothing but deletes failed in the last pass of this job",
        };
        return Err((message.into(), hint, Code::Usage));
    }
    // A job with a list does not scan other entries, so it cannot find extra ones to delete.
    let mut spec = spec;
    if let Some(sync) = &mut spec.policy.sync {
        sync.delete = None;
    }
    Ok((spec, Some(Arc::new(paths.into()))))
}

/// The number of entries that a pass changed, or would change in a dry run.
fn changes(report: &JobReport) -> u64 {
    let counters = [
        Counter::FilesCopied,
        Counter::DirectoriesCreated,
        Counter::SymlinksCopied,
        Counter::SpecialsCopied,
        Counter::HardLinksCreated,
        Counter::EntriesRenamed,
        Counter::EntriesDressed,
        Counter::DirectoriesUpdated,
        Counter::EntriesDeleted,
    ];
    counters.into_iter().map(|counter| report.counters.get(counter)).sum()
}
