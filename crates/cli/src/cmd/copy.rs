//! `dmover copy`.
use clap::ArgMatches;
use dmover_model::ExitCode as Code;
use std::process::ExitCode;

use super::delegate::{self, Limits};
use super::delegated::Received;
use super::run::{exit, failed, refuse};
use super::transfer::{self, Transfer};
use super::{detach, remote};
use crate::args::CopyArgs;
use crate::spec;

pub(crate) fn run(args: &CopyArgs, matches: Option<&ArgMatches>) -> ExitCode {
    let Some(matches) = matches else { return exit(Code::Usage) };
    let spec = match spec::job_spec(args, matches) {
        Ok(spec) => spec,
        Err(unusable) => return refuse(&unusable),
    };
    let CopyArgs { output, job, state, fleet, selection, proof, .. } = args;
    let others = [
        ("--files-from", selection.files_from.is_some()),
        ("--read-stdin", selection.read_stdin),
        ("--manifest", proof.manifest.is_some()),
    ];
    let limits = Limits { output, job: Some(job), fleet, others: &others };
    if let Some(code) = delegate::run(&spec, &args.remote, &limits) {
        return code;
    }
    if let Some(code) = detach::go_on(job, state, &spec, output.quiet > 0) {
        return code;
    }
    match remote::sources(&spec, &args.remote, fleet) {
        Ok(remote) => run_received(args, Received::alone(spec, remote)),
        Err(error) => failed(&error),
    }
}

/// Runs a job with these options.
pub(super) fn run_received(args: &CopyArgs, received: Received) -> ExitCode {
    let Received { spec, remote, chunk_movers } = received;
    let CopyArgs { proof, items, output, job, state, .. } = args;
    let fleet = Some((&args.fleet, &args.remote));
    let transfer = Transfer {
        spec,
        publish: None,
        failed: None,
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
