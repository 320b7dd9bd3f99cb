//! `dmover copy`.
use clap::ArgMatches;
use dmover_model::ExitCode as Code;
use std::process::ExitCode;

use super::run::{exit, refuse};
use super::transfer::{self, Ended, Transfer};
use crate::args::CopyArgs;
use crate::spec;

pub(crate) fn run(args: &CopyArgs, matches: Option<&ArgMatches>) -> ExitCode {
    let Some(matches) = matches else { return exit(Code::Usage) };
    let spec = match spec::job_spec(args, matches) {
        Ok(spec) => spec,
        Err(unusable) => return refuse(&unusable),
    };
    let CopyArgs { proof, items, output, state, .. } = args;
    let ended = transfer::run(&Transfer { spec, proof, items, output, state });
    ended.as_ref().map_or_else(|code| *code, Ended::exit)
}
