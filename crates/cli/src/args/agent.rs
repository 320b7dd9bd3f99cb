//! Arguments of `agent`.
use clap::{ArgGroup, Args};
use dmover_net::listening::Fingerprint;
use std::ffi::OsString;
use std::path::PathBuf;

const EXAMPLES: &str = "Examples:
  dmover agent --install dtn7           put this program on dtn7
  dmover agent --check dtn7             show its version and the round trip time
  dmover agent --check ann@dtn7:/data   the same, and what /data is
  dmover agent --make-identity          make the key that agents without ssh know you by
  dmover agent --trust dmover://dtn7    accept the certificate of such an agent
  dmover agent --listen /etc/dmover/agent.toml   serve the clients that the file names";

/// Arguments of `agent`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group(ArgGroup::new("action").required(true).args([
    "install",
    "check",
    "stdio",
    "stream_to",
    "listen",
    "make_identity",
    "show_identity",
    "trust",
])))]
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
    /// Serve clients without ssh, as FILE says, until the process is ended
    ///
    /// FILE names the identity of this agent and, for each client, the fingerprint of its
    /// certificate, the user it works as, and what it may read, write and run. It is read again
    /// for each connection.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub listen: Option<PathBuf>,
    /// Identities.
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// Serve one connection on standard input and output
    ///
    /// dmover runs this on the other host. It is not for a terminal.
    #[arg(long)]
    pub stdio: bool,
    /// Pass standard input and output on to this port of this host; dmover runs this on the other host.
    #[arg(long, hide = true, value_name = "PORT")]
    pub stream_to: Option<u16>,
    /// What the connection may do; 'dmover agent --listen' passes it.
    #[arg(long, hide = true, requires = "stdio")]
    pub confined: Option<String>,
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

/// Options for what agents that listen, and their clients, are known by.
#[derive(Debug, Args)]
pub struct IdentityArgs {
    /// Make the key and the certificate by which agents that listen know you; print the fingerprint
    ///
    /// An existing file is not replaced.
    #[arg(long)]
    pub make_identity: bool,
    /// Print the fingerprint of your certificate
    #[arg(long)]
    pub show_identity: bool,
    /// File with the key and the certificate (default: ~/.config/dmover/identity.pem)
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub identity: Option<PathBuf>,
    /// Accept the certificate of the agent that listens at HOST
    #[arg(long, value_name = "dmover://HOST[:PORT]")]
    pub trust: Option<OsString>,
    /// Fingerprint that the agent must have (default: you are asked)
    #[arg(long, value_name = "FINGERPRINT", requires = "trust")]
    pub fingerprint: Option<Fingerprint>,
    /// Time until the certificate expires
    #[arg(long, value_name = "DURATION", default_value = "730d", value_parser = super::duration, requires = "make_identity")]
    pub valid_for: u64,
}
