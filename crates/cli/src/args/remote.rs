//! Options for hosts that ssh reaches.
use clap::Args;
use std::ffi::OsString;

/// Options for hosts that ssh reaches.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Other hosts")]
pub struct RemoteArgs {
    /// Path of dmover on HOST of HOST:PATH (default: ~/.local/bin/dmover, else from PATH)
    #[arg(long, value_name = "PATH")]
    pub agent: Option<OsString>,
    /// ssh command, with options
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub ssh_command: String,
}
