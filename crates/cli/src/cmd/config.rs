//! `dmover config`.
use std::process::ExitCode;

use crate::args::{ConfigAction, ConfigArgs};
use crate::config::{ParseError, show};
use crate::print::{failure, line};

pub(crate) fn run(args: &ConfigArgs) -> ExitCode {
    let ConfigAction::Show { origin, config } = &args.action;
    let shown = match show(config.as_ref()) {
        Ok(shown) => shown,
        Err(ParseError::Config(message)) => {
            failure(&message, "correct the configuration file");
            return ExitCode::from(dmover_model::ExitCode::Usage.code());
        }
        Err(ParseError::Clap(error)) => {
            failure(error.to_string().trim(), "correct the variable or the file");
            return ExitCode::from(dmover_model::ExitCode::Usage.code());
        }
    };
    line("[copy]");
    for setting in shown {
        // What has no value stays a comment, so that the lines can go into a file as they are.
        let unset = if setting.value.is_none() { "# " } else { "" };
        let value = setting.value.map_or_else(|| "\"\"".to_owned(), |value| value.to_string());
        let from = if *origin { format!("  # {}", setting.origin) } else { String::new() };
        line(&format!("{unset}{} = {value}{from}", setting.key));
    }
    ExitCode::SUCCESS
}
