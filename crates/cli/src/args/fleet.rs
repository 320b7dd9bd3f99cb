//! Arguments for brokers and movers.
use clap::Args;
use dmover_engine::REPAIR;
use dmover_net::RemoteHost;
use std::ffi::OsString;
use std::net::IpAddr;

use super::LogFormatArg;

/// Options for movers on other hosts.
#[derive(Debug, PartialEq, Eq, Args)]
#[command(next_help_heading = "Movers on other hosts")]
pub struct FleetArgs {
    /// Run the job on the movers of this broker
    ///
    /// The broker is given by the join file that 'dmover broker' wrote, or as tls://HOST:PORT
    /// (separate several servers of one cluster by commas). 'dmover mover' starts movers.
    #[arg(long, value_name = "URL|FILE")]
    pub broker: Option<String>,
    /// File with the credentials for the broker
    ///
    /// FILE contains a token or the seed of an nkey, or is a credentials file of nsc.
    #[arg(long, value_name = "FILE", requires = "broker")]
    pub credentials: Option<OsString>,
    /// Allow connections to the broker in clear text
    ///
    /// Anyone on the network path can then read and change the traffic, or impersonate the broker.
    #[arg(long, requires = "broker")]
    pub insecure: bool,
    /// Also admit movers with these keys (repeatable)
    ///
    /// FILE is 'identity.pub' from the state directory of the user who runs the mover. DIR contains
    /// such files.
    #[arg(long, value_name = "FILE|DIR", requires = "broker")]
    pub trust: Vec<OsString>,
    /// Reassign a mover's tasks after this long without a heartbeat
    #[arg(long, value_name = "DURATION", value_parser = super::positive_duration, default_value = "30s",
        requires = "broker")]
    pub lease: u64,
    /// End the job (exit code 6) after this long without a mover or broker
    #[arg(long, value_name = "DURATION", value_parser = super::positive_duration, default_value = "1h",
        requires = "broker")]
    pub mover_wait: u64,
    /// Use only movers with this --label (repeatable)
    ///
    /// If it is given several times, a mover needs all of these labels.
    #[arg(long, value_name = "KEY=VALUE", value_parser = label, requires = "broker")]
    pub only_movers: Vec<(String, String)>,
    /// Share the rate limits with all jobs of this NAME at the broker
    ///
    /// The limits are --bwlimit, --ops-limit, --open-limit and --create-limit. They are divided
    /// evenly, for example among all jobs that write to one file system. Give all of these jobs the
    /// same limits.
    #[arg(long, value_name = "NAME", value_parser = pool, requires = "broker")]
    pub limit_pool: Option<String>,
    /// Serve Prometheus metrics at http://HOST:PORT/metrics
    ///
    /// They are available while the job runs. A PORT without HOST listens on this host only. PORT 0
    /// takes a free port.
    #[arg(long, value_name = "[HOST:]PORT", help_heading = "Output")]
    pub metrics: Option<String>,
}

/// Values of `--class`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ClassArg {
    /// All tasks.
    Any,
    /// Names and small files.
    Small,
    /// Content of large files.
    Large,
}

/// Arguments of `broker`.
#[derive(Debug, Args)]
pub struct BrokerArgs {
    /// Directory for data, log and join file
    ///
    /// It also contains the configuration of nats-server. Default: 'broker' in $DMOVER_STATE_DIR,
    /// or in the default state directory.
    #[arg(long, value_name = "DIR")]
    pub state: Option<OsString>,
    /// Address to listen on
    ///
    /// Movers on other hosts must be able to reach it.
    #[arg(long, value_name = "ADDRESS", value_parser = listen, default_value = "127.0.0.1")]
    pub listen: IpAddr,
    /// Port (0: the port of the last start, or a free one)
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// Host name or address for clients (repeatable)
    ///
    /// Use it if clients reach the broker by another address than --listen, or if they are on
    /// several networks.
    #[arg(long, value_name = "HOST")]
    pub advertise: Vec<String>,
    /// Do not encrypt connections (no TLS)
    ///
    /// Anyone on the network path can then read and change the traffic, or impersonate the broker.
    /// Movers and jobs need --insecure as well.
    #[arg(long, conflicts_with_all = ["tls", "tls_certificate"])]
    pub insecure: bool,
    /// Encrypt connections with a generated certificate (the default)
    #[arg(long, hide = true, conflicts_with = "tls_certificate")]
    pub tls: bool,
    /// Certificate (PEM) to use instead of a generated one
    ///
    /// Clients trust the certificates in FILE. Add those that signed the first one if clients
    /// should trust these as well. The join file passes them on.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<OsString>,
    /// Private key of --tls-certificate
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<OsString>,
    /// Path of nats-server (2.9 or later)
    ///
    /// By default, dmover searches its own directory and PATH.
    #[arg(long, value_name = "PROGRAM")]
    pub nats_server: Option<OsString>,
    /// Exit when standard input ends
    ///
    /// This happens when the process that started the broker exits.
    #[arg(long)]
    pub until_eof: bool,
}

const MOVER_EXAMPLES: &str = "Examples:
  dmover mover --broker join.json                    work for all jobs of this user
  dmover mover --broker join.json --class small      prefer names and small files
  dmover mover --broker join.json --allow-root /scratch --allow-host dtn7
                                                     only below /scratch, also from dtn7";

/// Arguments of `mover`.
#[derive(Debug, Args)]
#[command(after_help = MOVER_EXAMPLES)]
pub struct MoverArgs {
    /// Join file, '-', or tls://HOST:PORT
    ///
    /// 'dmover broker' writes the join file. '-' reads it from standard input.
    #[arg(long, value_name = "URL|FILE|-", required = true)]
    pub broker: String,
    /// File with the credentials for the broker
    ///
    /// FILE contains a token or the seed of an nkey, or is a credentials file of nsc.
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<OsString>,
    /// Allow connections in clear text, and for root an open broker
    ///
    /// An open broker admits clients without credentials. The mover then trusts any broker at this
    /// address and any client of it, except where it checks signatures.
    #[arg(long)]
    pub insecure: bool,
    /// Also work for jobs signed by these keys (repeatable)
    ///
    /// FILE is 'identity.pub' from the state directory of the user who runs the job. DIR contains
    /// such files. The mover always trusts the key of the user who runs it, and the keys that the
    /// join file names.
    #[arg(long, value_name = "FILE|DIR")]
    pub trust: Vec<OsString>,
    /// Work only for jobs whose trees are all in DIR (repeatable)
    ///
    /// A tree may be DIR itself. Jobs that follow symbolic links (-L, --dereference-args) are then
    /// refused, and those with a SOURCE on another host unless --allow-host names it.
    #[arg(long, value_name = "DIR")]
    pub allow_root: Vec<OsString>,
    /// With --allow-root, also work for jobs whose SOURCE is on HOST (repeatable)
    ///
    /// HOST is what the job names, such as a name or user@name. The mover reads from there over a
    /// connection of its own, whatever the account that it logs in with can read there.
    #[arg(long, value_name = "[USER@]HOST", value_parser = host, requires = "allow_root")]
    pub allow_host: Vec<RemoteHost>,
    /// Path of dmover on HOST of HOST:PATH (default: ~/.local/bin/dmover, else from PATH)
    #[arg(long, value_name = "PATH")]
    pub agent: Option<OsString>,
    /// ssh command, with options, for jobs whose SOURCE is on another host
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub ssh_command: String,
    /// Work only for jobs of this verb (repeatable)
    ///
    /// 'verify' does not allow 'verify --repair', which is 'repair'.
    #[arg(long, value_name = "VERB", value_parser = ["copy", "sync", "verify", "sum", REPAIR])]
    pub allow_verb: Vec<String>,
    /// Concurrent operations per job (0: automatic)
    #[arg(short = 'j', long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
    /// Memory for buffers
    #[arg(long, value_name = "SIZE", value_parser = super::size, default_value = "512M")]
    pub memory: u64,
    /// Prefer tasks of this class
    ///
    /// 'small' is names and small files, 'large' is the content of large files. The mover takes
    /// other tasks after one second without a task of its class.
    #[arg(long, value_name = "CLASS", value_enum, default_value = "any")]
    pub class: ClassArg,
    /// Label of this mover, such as site=west (repeatable)
    ///
    /// Jobs select movers by --only-movers.
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub label: Vec<(String, String)>,
    /// Work only for jobs whose id starts with JOB (repeatable)
    #[arg(long, value_name = "JOB")]
    pub job: Vec<String>,
    /// Wait this long for a broker that is not reachable yet
    #[arg(long, value_name = "DURATION", value_parser = super::duration, default_value = "30s")]
    pub broker_wait: u64,
    /// Exit after this long without a job
    #[arg(long, value_name = "DURATION", value_parser = super::positive_duration)]
    pub idle_exit: Option<u64>,
    /// Exit when standard input ends
    ///
    /// This happens when the process that started the mover exits.
    #[arg(long)]
    pub until_eof: bool,
    /// Move at most SIZE per second for each job
    ///
    /// This holds in addition to the limits of the job.
    #[arg(long, value_name = "SIZE", value_parser = super::positive_size)]
    pub bwlimit: Option<u64>,
    /// Serve Prometheus metrics at http://HOST:PORT/metrics
    ///
    /// A PORT without HOST listens on this host only. PORT 0 takes a free port.
    #[arg(long, value_name = "[HOST:]PORT")]
    pub metrics: Option<String>,
    /// Directory for data that exceeds --memory
    #[arg(long, value_name = "DIR")]
    pub spill_dir: Option<OsString>,
    /// Log more: once debug, twice trace (default: info)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Write the log to FILE instead of standard error
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<OsString>,
    /// Format of log lines
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormatArg,
}

/// An address of this host, without a port.
fn listen(text: &str) -> Result<IpAddr, String> {
    let address = text.trim_start_matches('[').trim_end_matches(']').parse();
    address.map_err(|_| match text.rsplit_once(':') {
        Some((address, port)) if port.parse::<u16>().is_ok() => {
            format!("--listen takes only an address; use --listen {address} --port {port}")
        }
        _ => "must be an IP address; use --advertise for host names and --port for the port".into(),
    })
}

fn host(text: &str) -> Result<RemoteHost, String> {
    if text.contains(['/', ',']) && !text.starts_with("dmover://") {
        return Err("must be one host without a path; repeat the option for others".into());
    }
    RemoteHost::parse(text.as_ref()).map_err(|error| error.to_string())
}

/// A name that can be part of a NATS subject.
fn pool(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if (1..=64).contains(&text.len()) && text.chars().all(is_plain) {
        return Ok(text.to_owned());
    }
    Err("must be 1 to 64 letters, digits, '-' or '_'".into())
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("must be KEY=VALUE, such as rack=a7".into()),
    }
}
