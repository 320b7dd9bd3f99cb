//! Arguments of verbs that describe the program and its environment.
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Directories to check; for a file, its directory is checked
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
    /// Print one JSON object per PATH
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// The subverb.
    #[command(subcommand)]
    pub action: ConfigAction,
}

/// Subverbs of `config`.
#[derive(Debug, Subcommand)]
pub enum ConfigAction {
    /// Print the defaults of 'copy' and 'sync' from files and the environment
    Show {
        /// Print where each value comes from
        #[arg(long)]
        origin: bool,
        /// Read this configuration file instead of the default ones
        #[arg(long, value_name = "FILE")]
        config: Option<OsString>,
    },
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to print the script for
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: ShellArg,
}

/// Shells with a completion script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShellArg {
    /// bash
    Bash,
    /// fish
    Fish,
    /// zsh
    Zsh,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Verb, or verb and subverb ('snapshot create'); default: dmover itself
    #[arg(value_name = "VERB")]
    pub verbs: Vec<String>,
}
