//! `dmover sync`.
use clap::ArgMatches;
use dmover_engine::{JobReport, JobState};
use dmover_model::ExitCode as Code;
use dmover_observe::Counter;
use std::process::ExitCode;

use super::run::{exit, refuse};
use super::transfer::{self, Transfer};
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
        say(
            "dmover: note: a slash at the end of a path means nothing here: contents go to contents",
        );
    }
    let SyncArgs { proof, items, output, state, .. } = args;
    match transfer::run(&Transfer { spec, proof, items, output, state }) {
        Ok(mut ended) => {
            let finished = ended.report.state == JobState::Finished;
            if args.comparison.check && finished && changes(&ended.report) > 0 {
                ended.code = ended.code.merge(Code::Different);
            }
            ended.exit()
        }
        Err(code) => code,
    }
}

/// Entries that a pass has changed, or would change.
fn changes(report: &JobReport) -> u64 {
    let counters = [
        Counter::FilesCopied,
        Counter::DirectoriesCreated,
        Counter::SymlinksCopied,
        Counter::SpecialsCopied,
        Counter::HardLinksCreated,
        Counter::EntriesDressed,
        Counter::EntriesDeleted,
    ];
    counters.into_iter().map(|counter| report.counters.get(counter)).sum()
}
