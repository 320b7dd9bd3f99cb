//! `dmover sync`.
use clap::ArgMatches;
use dmover_engine::{JobReport, JobState};
use dmover_job::{Published, Refusal, entries_changed};
use dmover_journal::FailedList;
use dmover_model::{ExitCode as Code, JobSpec};
use std::process::ExitCode;
use std::sync::Arc;

use super::delegate::{self, Limits};
use super::delegated::Received;
use super::run::{self, exit, refuse, spill_directory};
use super::transfer::{self, Publish, Step, Transfer};
use super::{detach, jobs, remote, watch};
use crate::args::SyncArgs;
use crate::print::{failure, say};
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
    let SyncArgs { output, job, state, fleet, proof, .. } = args;
    let others = [
        ("--watch", args.watch.watch),
        ("--only-failed", args.only_failed),
        ("--manifest", proof.manifest.is_some()),
    ];
    let limits = Limits { output, job: Some(job), fleet, others: &others };
    if let Some(code) = delegate::run(&spec, &args.remote, &limits) {
        return code;
    }
    if let Some(code) = detach::go_on(job, state, &spec, output.quiet > 0) {
        return code;
    }
    if args.watch.watch {
        if spec.sources_are_remote {
            let hint = "run it on the host of SOURCE, or repeat the command without --watch";
            failure("--watch needs a SOURCE on this host", hint);
            return exit(Code::Usage);
        }
        return watch::run(args, spec);
    }
    let (spec, failed) = match only_failed(args, spec) {
        Ok(found) => found,
        Err(refused) => return jobs::refuse(refused),
    };
    match remote::sources(&spec, &args.remote, fleet) {
        Ok(remote) => run_passes(args, Received::alone(spec, remote), failed),
        Err(error) => run::failed(&error),
    }
}

/// Runs a job with these options.
pub(super) fn run_received(args: &SyncArgs, received: Received) -> ExitCode {
    run_passes(args, received, None)
}

fn run_passes(
    args: &SyncArgs,
    Received { spec, remote, chunk_movers }: Received,
    failed: Option<Arc<FailedList>>,
) -> ExitCode {
    let SyncArgs { proof, items, output, job, state, .. } = args;
    let fleet = Some((&args.fleet, &args.remote));
    let checks = |report: &JobReport, _| {
        let differs = report.state == JobState::Finished && entries_changed(report) > 0;
        Ok(Step::Other(if differs { Published::Different } else { Published::Done }))
    };
    let publish: Option<&Publish<'_>> = args.comparison.check.then_some(&checks);
    let transfer = Transfer {
        spec,
        publish,
        failed,
        proof,
        items,
        output,
        job,
        state,
        fleet,
        remote,
        chunk_movers,
    };
    transfer::run(&transfer, |_| {})
}

/// With `--only-failed`, the paths that failed in the last pass.
fn only_failed(
    args: &SyncArgs,
    spec: JobSpec,
) -> Result<(JobSpec, Option<Arc<FailedList>>), Refusal> {
    if !args.only_failed {
        return Ok((spec, None));
    }
    let state = jobs::directory(args.state.state_dir.as_ref())?;
    let spill = spill_directory(&args.state, Some(&state));
    let mut note = |words: &str| say(&format!("dmover: note: {words}"));
    let (spec, paths) = dmover_job::only_failed(spec, &state, &spill, &mut note)?;
    Ok((spec, Some(paths)))
}
