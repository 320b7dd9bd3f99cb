//! Arguments of verbs that tell about the program and its surroundings.
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Directories to look at; a file stands for its directory
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
    /// Print one JSON object a path
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// What to do with it
    #[command(subcommand)]
    pub action: ConfigAction,
}

/// What `config` can do.
#[derive(Debug, Subcommand)]
pub enum ConfigAction {
    /// Print the defaults of 'copy' and 'sync' that come from files and the environment
    Show {
        /// Say where each comes from
        #[arg(long)]
        origin: bool,
        /// Read this configuration file instead of the usual ones
        #[arg(long, value_name = "FILE")]
        config: Option<OsString>,
    },
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: ShellArg,
}

/// Shells with a completion.
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
    /// The verb, and the one below it ('snapshot create'); without it, the page of the program
    #[arg(value_name = "VERB")]
    pub verbs: Vec<String>,
}
