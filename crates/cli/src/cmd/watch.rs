//! `dmover sync --watch`.
use dmover_engine::{JobState, StopReason, WatchOptions, Watched};
use dmover_job::{WatchEnd, check_watch_limit, open_feed, watch};
use dmover_model::{ExitCode as Code, Fatal, JobSpec};
use std::process::ExitCode;

use super::notify::{notify, notify_of_failure};
use super::run::{end, exit};
use super::transfer::{self, Prepared, Transfer};
use crate::args::SyncArgs;
use crate::print::failure;

pub(super) fn run(args: &SyncArgs, spec: JobSpec) -> ExitCode {
    if let Err(refused) = check_watch_limit(args.delete.max_delete) {
        return told(&refused);
    }
    let SyncArgs { proof, items, output, job: named, state, .. } = args;
    let fleet = Some((&args.fleet, &args.remote));
    let transfer = Transfer {
        spec,
        publish: None,
        failed: None,
        proof,
        items,
        output,
        job: named,
        state,
        fleet,
        remote: None,
        chunk_movers: None,
    };
    let Prepared { job, printer, .. } = match transfer::prepare(&transfer) {
        Ok(prepared) => prepared,
        Err(code) => return code,
    };
    let mut feed = match open_feed(&job.spec) {
        Ok(feed) => feed,
        Err(error) => return told(&error),
    };
    let options =
        WatchOptions { rest_ms: args.watch.watch_delay, reconcile_ms: args.watch.reconcile };
    let ended = watch(job, &mut feed, options, &mut |what| match what {
        Watched::Begins(why) => printer.say(&format!("dmover: scanning the whole tree: {why}")),
        Watched::Everything(report) => {
            printer.end(output, &Ok(report.clone()), None, Code::Done);
            if report.state == JobState::Finished {
                printer.say("dmover: waiting for changes");
            }
        }
        Watched::Changes { report, lag_ms, .. } => printer.changes(report, lag_ms),
    });
    let command = named.notify.as_deref();
    match ended {
        WatchEnd::Ended(report) => {
            if let Some(command) = command {
                notify(command, &report, report.exit_code());
            }
            end(&report, report.exit_code())
        }
        WatchEnd::NotBegun(Some(StopReason::Signal(signal))) => crate::signals::raise_again(signal),
        WatchEnd::NotBegun(_) => exit(Code::Limit),
        // The signal came while the job waited for a broker.
        WatchEnd::Failed { signal: Some(signal), .. } => crate::signals::raise_again(signal),
        WatchEnd::Failed { error, notifies, .. } => {
            let code = error.exit_code();
            if let (Some(command), Some(id)) = (command, &notifies) {
                notify_of_failure(command, id, code);
            }
            printer.end(output, &Err(error), None, Code::Done);
            exit(code)
        }
    }
}

fn told(error: &Fatal) -> ExitCode {
    failure(&error.to_string(), &error.hint());
    exit(error.exit_code())
}
