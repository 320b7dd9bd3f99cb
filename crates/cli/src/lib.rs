//! The command line of dmover: it translates arguments to a `JobSpec`, and prints what the engine reports.
#![forbid(unsafe_code)]

mod args;
mod cmd;
mod compat;
mod config;
mod endpoint;
mod habits;
mod help;
mod hints;
mod list;
mod manuals;
mod print;
mod signals;
mod spec;
mod state;
mod sums;

use clap::{CommandFactory, FromArgMatches};
use std::process::ExitCode;

pub use args::{Cli, Verb};
pub use habits::{Fate, HABITS, Habit, Verbs};
pub use manuals::{Manual, completions, man_pages};
use print::failure;

/// The whole command line for clap, from which help, man pages, completions and the reference are generated.
pub fn command() -> clap::Command {
    help::shaped(Cli::command())
}

/// Runs the program.
pub fn main() -> ExitCode {
    if config::environment(config::SUBMITTED_AS).is_some() {
        // Without `submit` there is no broker, and this process would hold the lock for nothing.
        dmover_host::process::end_with_parent();
    }
    signals::survive_file_size_limit();
    let words = help::as_flag(compat::as_called(std::env::args_os().collect()));
    let matches = match config::parse(&words) {
        Ok(matches) => matches,
        Err(config::ParseError::Clap(error)) => {
            let help = || hints::for_help(&error, &std::env::args_os().collect::<Vec<_>>());
            if let Some((message, hint)) = hints::for_error(&error).or_else(help) {
                failure(&message, &hint);
                return ExitCode::from(dmover_model::ExitCode::Usage.code());
            }
            let error = hints::without_wrong_suggestions(error);
            // As clap does: help and version go to standard output with 0, errors to standard error with 2.
            if error.use_stderr() {
                print::usage(&error);
            } else {
                let _ = error.print();
            }
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
        Err(config::ParseError::Habit((message, hint))) => {
            failure(&message, &hint);
            return ExitCode::from(dmover_model::ExitCode::Usage.code());
        }
        Err(config::ParseError::Config(message)) => {
            failure(&message, "correct the configuration file, or ignore it by --no-config");
            return ExitCode::from(dmover_model::ExitCode::Usage.code());
        }
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    if let Some(elsewhere) = cli.verb.elsewhere() {
        return cmd::elsewhere::run(elsewhere);
    }
    let verb_matches = matches.subcommand().map(|(_, sub)| sub);
    match cli.verb {
        Verb::Copy(args) => cmd::copy::run(&args, verb_matches),
        Verb::Sync(args) => cmd::sync::run(&args, verb_matches),
        Verb::Snapshot(args) => cmd::snapshot::run(&args, verb_matches),
        Verb::Sum(args) => cmd::sum::run(&args, verb_matches),
        Verb::Verify(args) => cmd::verify::run(&args, verb_matches),
        Verb::Manifest(args) => cmd::manifest::run(&args, verb_matches),
        Verb::Cp(args) => compat::cp(&args),
        Verb::Mcp(args) => compat::mcp(&args),
        Verb::Msum(args) => compat::msum(&args),
        Verb::Top(args) => cmd::top::top(&args),
        Verb::Standby(args) => cmd::standby::standby(&args),
        Verb::Retry(args) => cmd::ask::retry(&args),
        Verb::Cleanup(args) => cmd::jobs::cleanup::cleanup(&args),
        Verb::Submit(args) => cmd::submit::run(&args),
        Verb::Broker(args) => cmd::fleet::broker(&args),
        Verb::Mover(args) => cmd::fleet::mover(&args),
        Verb::Agent(args) => cmd::agent::run(&args),
        Verb::Bench(args) => cmd::bench::run(&args),
        Verb::Doctor(args) => cmd::doctor::run(&args),
        Verb::Config(args) => cmd::config::run(&args),
        Verb::Completions(args) => cmd::manuals::completions(&args),
        Verb::Man(args) => cmd::manuals::man(&args),
        about_a_job => match cmd::elsewhere::about_jobs(&about_a_job) {
            Some(code) => code,
            None => unreachable!("every other verb is above"),
        },
    }
}
