//! `dmover copy`.
use clap::ArgMatches;
use dmover_model::ExitCode as Code;
use std::process::ExitCode;

use super::detach;
use super::run::{exit, refuse};
use super::transfer::{self, Transfer};
use crate::args::CopyArgs;
use crate::spec;

pub(crate) fn run(args: &CopyArgs, matches: Option<&ArgMatches>) -> ExitCode {
    let Some(matches) = matches else { return exit(Code::Usage) };
    let spec = match spec::job_spec(args, matches) {
        Ok(spec) => spec,
        Err(unusable) => return refuse(&unusable),
    };
    let CopyArgs { proof, items, output, job, state, .. } = args;
    if let Some(code) = detach::go_on(job, state, &spec, output.quiet > 0) {
        return code;
    }
    let transfer = Transfer {
        spec,
        publish: None,
        failed: None,
        proof,
        items,
        output,
        job,
        state,
        fleet: Some(&args.fleet),
        remote: Some(&args.remote),
    };
    transfer::run(&transfer, |_| {})
}
