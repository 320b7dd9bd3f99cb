//! `dmover sync --watch`.
use dmover_engine::{
    JobList, JobReport, JobState, StopReason, WatchOptions, Watched, job_id, watch,
};
use dmover_model::{DeleteLimit, ExitCode as Code, Fatal, JobSpec};
use std::process::ExitCode;

use super::notify::{notify, notify_of_failure};
use super::run::{end, exit};
use super::transfer::{self, Prepared, Transfer};
use crate::args::SyncArgs;
use crate::print::failure;

pub(super) fn run(args: &SyncArgs, spec: JobSpec) -> ExitCode {
    if matches!(args.delete.max_delete, Some(DeleteLimit::Millionths(_))) {
        let hint = "give a number of entries; it limits each pass over the changes";
        let message = "--max-delete=P% cannot be used with --watch, which does not scan the whole \
                       tree in each pass";
        let refused = Fatal::refused(message, hint);
        return told(&refused);
    }
    let SyncArgs { proof, items, output, job: named, state, .. } = args;
    let source = spec.sources[0].to_path();
    let one_file_system = spec.selection.one_file_system;
    let fleet = Some(&args.fleet);
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
    };
    let Prepared { job, printer, .. } = match transfer::prepare(&transfer) {
        Ok(prepared) => prepared,
        Err(code) => return code,
    };
    // Open the feed before the first pass, so that no change during that pass is missed.
    let mut feed = match dmover_engine::FanotifyFeed::open(&source, one_file_system) {
        Ok(feed) => feed,
        Err(error) => return told(&Fatal::refused(error.message, error.hint)),
    };
    let control = std::sync::Arc::clone(&job.control);
    let id = job_id(&job.spec, &JobList::None, job.state.as_ref());
    let options =
        WatchOptions { rest_ms: args.watch.watch_delay, reconcile_ms: args.watch.reconcile };
    let mut first = true;
    let result = watch(job, &mut feed, options, &mut |what| match what {
        Watched::Begins(_) if std::mem::take(&mut first) => {}
        Watched::Begins(why) => printer.say(&format!("dmover: scanning the whole tree: {why}")),
        Watched::Everything(report) => {
            printer.end(output, &Ok(report.clone()), None, Code::Done);
            if report.state == JobState::Finished {
                printer.say("dmover: waiting for changes");
            }
        }
        Watched::Changes { report, lag_ms, .. } => printer.changes(report, lag_ms),
    });
    match result {
        Ok(Some(report)) => ended(&report, named.notify.as_deref()),
        Ok(None) => match control.reason() {
            Some(StopReason::Signal(signal)) => crate::signals::raise_again(signal),
            _ => exit(Code::Limit),
        },
        Err(error) => {
            if let Some(StopReason::Signal(signal)) = control.reason() {
                // The signal came while the job waited for a broker.
                return crate::signals::raise_again(signal);
            }
            let code = error.exit_code();
            // A job that could not start sends no notification, unless the error is fatal.
            let ended = code == Code::Fatal || !first;
            if let (Some(command), true, Ok(id)) = (&named.notify, ended, &id) {
                notify_of_failure(command, id, code);
            }
            printer.end(output, &Err(error), None, Code::Done);
            exit(code)
        }
    }
}

fn ended(report: &JobReport, command: Option<&str>) -> ExitCode {
    if let Some(command) = command {
        notify(command, report, report.exit_code());
    }
    end(report, report.exit_code())
}

fn told(error: &Fatal) -> ExitCode {
    failure(&error.to_string(), &error.hint());
    exit(error.exit_code())
}
