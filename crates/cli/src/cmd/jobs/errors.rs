//! `dmover errors`.
use dmover_job::{Choice, Refusal};
use dmover_journal::{Listed, RecordedError};
use dmover_model::ExitCode as Code;
use std::io::Write;
use std::process::ExitCode;

use super::{named_or_last, refuse};
use crate::args::ErrorsArgs;
use crate::cmd::run::exit;
use crate::print::errors::{as_json, as_text};
use crate::print::{counted, data, failure, grouped, say};

/// The hint for a list that lacks errors.
const INCOMPLETE: &str = "check for free space in the state directory, then run the command of the job \
     again: it reports what fails";

pub(crate) fn errors(args: &ErrorsArgs) -> ExitCode {
    list(args).unwrap_or_else(refuse)
}

fn list(args: &ErrorsArgs) -> Result<ExitCode, Refusal> {
    let place = args.place.state_dir.as_ref();
    let known = named_or_last(args.job.as_deref(), place, Choice::Any)?;
    let mut out = data();
    let (mut written, mut printed) = (Ok(()), false);
    // There may be millions of errors: print each at once and keep none in memory.
    let listed = known.each_error(&mut |error| {
        if args.class.is_none_or(|class| class.word() == error.class) {
            written = put(&mut out, args, &error);
            printed = true;
        }
        written.is_ok()
    })?;
    let written = written.and_then(|()| out.flush());
    if written.is_err() {
        return Ok(exit(Code::Fatal));
    }
    if listed.is_complete() {
        if !printed && !args.json && !args.print0 {
            let of_class = if args.class.is_some() { " of this class" } else { "" };
            say(&format!("dmover: no errors{of_class} are listed"));
        }
        return Ok(exit(Code::Done));
    }
    failure(&missing(&listed), INCOMPLETE);
    Ok(exit(Code::Partial))
}

/// What is missing from a list, in words.
fn missing(listed: &Listed) -> String {
    let errors = grouped(listed.errors);
    let mut words = match listed.of {
        Some(all) => format!("{errors} of {} listed", counted(all, "error is", "errors are")),
        None => format!("{errors} errors are listed, and others may be missing"),
    };
    if listed.damaged > 0 {
        let lines = counted(listed.damaged, "line is", "lines are");
        words.extend(["; ", &lines, " damaged"]);
    }
    match &listed.why {
        Some(why) => words.extend([": ", why]),
        None if listed.damaged == 0 => words.push_str(": the list was not written completely"),
        None => {}
    }
    words
}

fn put(out: &mut impl Write, args: &ErrorsArgs, error: &RecordedError) -> std::io::Result<()> {
    if args.print0 {
        return out.write_all(&[&error.path.0[..], b"\0"].concat());
    }
    let line = if args.json { as_json(error) } else { as_text(error) };
    writeln!(out, "{line}")
}
