//! `dmover logs`: prints the file with the messages of a job.
use dmover_job::Choice;
use dmover_model::ExitCode as Code;
use std::process::ExitCode;

use super::{named_or_last, refuse};
use crate::args::LogsArgs;
use crate::cmd::run::exit;
use crate::print::data;

pub(crate) fn logs(args: &LogsArgs) -> ExitCode {
    let known = named_or_last(args.job.as_deref(), args.place.state_dir.as_ref(), Choice::Any);
    let printed = known.and_then(|known| known.copy_messages(args.lines, args.follow, &mut data()));
    printed.map_or_else(refuse, |()| exit(Code::Done))
}
