//! Arguments of `agent`.
use clap::{ArgGroup, Args};
use std::ffi::OsString;

const EXAMPLES: &str = "Examples:
  dmover agent --install dtn7           put this program on dtn7
  dmover agent --check dtn7             show its version and the round trip time
  dmover agent --check ann@dtn7:/data   the same, and what /data is";

/// Arguments of `agent`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group(ArgGroup::new("action").required(true).args(["install", "check", "stdio"])))]
pub struct AgentArgs {
    /// Copy this program to ~/.local/bin/dmover on HOST
    ///
    /// HOST is a name or an address for ssh. The copy gets its name after HOST has received all of
    /// it and has run it once.
    #[arg(long, value_name = "[USER@]HOST", value_hint = clap::ValueHint::Hostname)]
    pub install: Option<OsString>,
    /// Connect to HOST; print its version, the round trip time, and what PATH is
    ///
    /// A relative PATH is below the home directory there, which is also the default.
    #[arg(long, value_name = "[USER@]HOST[:PATH]", value_hint = clap::ValueHint::Hostname)]
    pub check: Option<OsString>,
    /// Serve one connection on standard input and output
    ///
    /// dmover runs this on the other host. It is not for a terminal.
    #[arg(long)]
    pub stdio: bool,
    /// Replace another dmover at ~/.local/bin/dmover
    #[arg(long, requires = "install")]
    pub force: bool,
    /// Path of dmover on HOST (default: ~/.local/bin/dmover, else from PATH)
    #[arg(long, value_name = "PATH", requires = "check")]
    pub agent: Option<OsString>,
    /// ssh command, with options
    #[arg(long, value_name = "COMMAND", default_value = "ssh", conflicts_with = "stdio")]
    pub ssh_command: String,
    /// Print one JSON object
    #[arg(long, requires = "check")]
    pub json: bool,
    /// Log what ssh and the agent print (to standard error)
    #[arg(short, long, conflicts_with = "stdio")]
    pub verbose: bool,
}
