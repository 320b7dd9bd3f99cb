//! `dmover errors`.
use dmover_engine::RecordedError;
use dmover_model::ExitCode as Code;
use std::io::Write;
use std::process::ExitCode;

use super::{Refused, UNREADABLE, refuse};
use crate::args::ErrorsArgs;
use crate::cmd::choose::{Choice, named_or_last};
use crate::cmd::run::exit;
use crate::print::data;
use crate::print::errors::{as_json, as_text};

pub(crate) fn errors(args: &ErrorsArgs) -> ExitCode {
    list(args).unwrap_or_else(refuse)
}

fn list(args: &ErrorsArgs) -> Result<ExitCode, Refused> {
    let place = args.place.state_dir.as_ref();
    let known = named_or_last(args.job.as_deref(), place, Choice::Any)?;
    let job = &known.file.job;
    let mut out = data();
    let mut written = Ok(());
    // There may be millions of errors: print each at once and keep none in memory.
    let listed = known.state.errors(job, &mut |error| {
        if args.class.is_none_or(|class| class.word() == error.class) {
            written = put(&mut out, args, &error);
        }
        written.is_ok()
    });
    match listed {
        Err(message) => return Err((message, UNREADABLE, Code::Fatal)),
        Ok(false) => {
            let message = format!("job {job} has no list of errors");
            let hint = "see the messages of the job; --errors-to FILE records a list";
            return Err((message, hint, Code::Usage));
        }
        Ok(true) => {}
    }
    let written = written.and_then(|()| out.flush());
    Ok(exit(if written.is_ok() { Code::Done } else { Code::Fatal }))
}

fn put(out: &mut impl Write, args: &ErrorsArgs, error: &RecordedError) -> std::io::Result<()> {
    if args.print0 {
        return out.write_all(&[&error.path.0[..], b"\0"].concat());
    }
    let line = if args.json { as_json(error) } else { as_text(error) };
    writeln!(out, "{line}")
}
