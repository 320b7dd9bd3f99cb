//! `dmover config`.
use std::process::ExitCode;

use crate::args::{ConfigAction, ConfigArgs};
use crate::config::{ParseError, SECTIONS, show};
use crate::print::{failure, line};

pub(crate) fn run(args: &ConfigArgs) -> ExitCode {
    let ConfigAction::Show { origin, config } = &args.action;
    for section in SECTIONS {
        if let Err(code) = show_section(section, *origin, config.as_ref()) {
            return code;
        }
    }
    ExitCode::SUCCESS
}

fn show_section(
    section: &str,
    origin: bool,
    config: Option<&std::ffi::OsString>,
) -> Result<(), ExitCode> {
    let shown = show(section, config).map_err(|error| {
        match error {
            ParseError::Config(message) => failure(&message, "correct the configuration file"),
            ParseError::Habit((message, hint)) => failure(&message, &hint),
            ParseError::Clap(error) => {
                failure(error.to_string().trim(), "correct the variable or the file");
            }
        }
        ExitCode::from(dmover_model::ExitCode::Usage.code())
    })?;
    line(&format!("[{section}]"));
    for setting in shown {
        // A key without a value is printed as a comment, so that the output is a valid configuration file.
        let unset = if setting.value.is_none() { "# " } else { "" };
        let value = setting.value.map_or_else(|| "\"\"".to_owned(), |value| value.to_string());
        let from = if origin { format!("  # {}", setting.origin) } else { String::new() };
        line(&format!("{unset}{} = {value}{from}", setting.key));
    }
    Ok(())
}
