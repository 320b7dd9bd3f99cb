//! Arguments about movers elsewhere.
use clap::Args;
use dmover_engine::REPAIR;
use std::ffi::OsString;
use std::net::IpAddr;

use super::LogFormatArg;

/// Whether movers elsewhere do the work.
#[derive(Debug, Args)]
#[command(next_help_heading = "Movers elsewhere")]
pub struct FleetArgs {
    /// Have the work done by the movers ('dmover mover') behind this broker: the file that 'dmover broker' has written, or
    /// tls://HOST:PORT (several of one cluster separated by commas)
    #[arg(long, value_name = "URL|FILE")]
    pub broker: Option<String>,
    /// A file with what the broker asks for: a token, the seed of an nkey, or a credentials file of nsc
    #[arg(long, value_name = "FILE", requires = "broker")]
    pub credentials: Option<OsString>,
    /// Allow connections to the broker in clear text, which anybody on the way can read and change, and in which anybody at its
    /// address can be the broker
    #[arg(long, requires = "broker")]
    pub insecure: bool,
    /// Let in movers that have these keys as well: a file like 'identity.pub' in the state directory of their user, or a directory
    /// of such files; may be given several times
    #[arg(long, value_name = "FILE|DIR", requires = "broker")]
    pub trust: Vec<OsString>,
    /// A mover that says nothing for so long has lost its tasks, which others get then
    #[arg(long, value_name = "DURATION", value_parser = super::positive_duration, default_value = "30s",
        requires = "broker")]
    pub lease: u64,
    /// End the job (exit code 6) when there was no mover, or no broker, for so long
    #[arg(long, value_name = "DURATION", value_parser = super::positive_duration, default_value = "1h",
        requires = "broker")]
    pub mover_wait: u64,
    /// Have the work done only by movers that were started with this '--label'; with several, by those that have all of them
    #[arg(long, value_name = "KEY=VALUE", value_parser = label, requires = "broker")]
    pub only_movers: Vec<(String, String)>,
    /// Share the limits of this job (--bwlimit, --ops-limit, --open-limit, --create-limit) evenly with all jobs of the same
    /// NAME at this broker, such as all that write to one file system; give all of them the same limits
    #[arg(long, value_name = "NAME", value_parser = pool, requires = "broker")]
    pub limit_pool: Option<String>,
    /// Let Prometheus have metrics at http://HOST:PORT/metrics while the job runs; a PORT alone listens on this host only,
    /// 0 takes any port that is free
    #[arg(long, value_name = "[HOST:]PORT", help_heading = "Output")]
    pub metrics: Option<String>,
}

/// Which tasks a mover is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ClassArg {
    Any,
    Small,
    Large,
}

/// Arguments of `broker`.
#[derive(Debug, Args)]
pub struct BrokerArgs {
    /// Where it keeps its data, its configuration, its log and the file that lets others in (default: 'broker' in
    /// $DMOVER_STATE_DIR, or where jobs are remembered without it)
    #[arg(long, value_name = "DIR")]
    pub state: Option<OsString>,
    /// The address to listen on; movers on other hosts need one that they reach
    #[arg(long, value_name = "ADDRESS", value_parser = listen, default_value = "127.0.0.1")]
    pub listen: IpAddr,
    /// The port; 0 takes that of the last time, or any that is free
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// The host name or address that others reach it by, if that is not --listen; may be given several times, for hosts on
    /// several networks
    #[arg(long, value_name = "HOST")]
    pub advertise: Vec<String>,
    /// Do not encrypt connections (TLS): anybody on the way can read and change them, and anybody at its address can be the broker.
    /// Movers and jobs have to say --insecure as well
    #[arg(long, conflicts_with_all = ["tls", "tls_certificate"])]
    pub insecure: bool,
    /// What is done without it as well: encrypt connections with a certificate that is made once
    #[arg(long, hide = true, conflicts_with = "tls_certificate")]
    pub tls: bool,
    /// Encrypt connections with this certificate (PEM; with those that have signed it, if others are to trust these), instead of
    /// with one that is made once; the file that lets others in has what they trust
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<OsString>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<OsString>,
    /// The program nats-server (2.9 or later), if it is neither beside dmover nor on PATH
    #[arg(long, value_name = "PROGRAM")]
    pub nats_server: Option<OsString>,
    /// End when standard input ends, as it does when whoever started this is gone
    #[arg(long)]
    pub until_eof: bool,
}

/// Arguments of `mover`.
#[derive(Debug, Args)]
pub struct MoverArgs {
    /// The broker: the file that 'dmover broker' has written, '-' (its content is on standard input), or tls://HOST:PORT
    #[arg(long, value_name = "URL|FILE|-", required = true)]
    pub broker: String,
    /// A file with what the broker asks for: a token, the seed of an nkey, or a credentials file of nsc
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<OsString>,
    /// Allow connections in clear text, and as root a broker that lets anybody in: whoever answers at its address, or
    /// connects there, is believed as far as signatures do not say otherwise
    #[arg(long)]
    pub insecure: bool,
    /// Work for jobs that are signed by these keys as well: a file like 'identity.pub' in the state directory of whoever runs the job,
    /// or a directory of such files; may be given several times. Trusted without it: the key of the user who runs the mover, and
    /// the keys that the file of the broker names
    #[arg(long, value_name = "FILE|DIR")]
    pub trust: Vec<OsString>,
    /// Work only for jobs whose trees all lie in DIR, at it or below it; may be given several times. Jobs that follow symbolic
    /// links (-L, --dereference-args) are refused then
    #[arg(long, value_name = "DIR")]
    pub allow_root: Vec<OsString>,
    /// Work only for jobs of this verb; may be given several times. 'verify' does not allow 'verify --repair', which is 'repair'
    #[arg(long, value_name = "VERB", value_parser = ["copy", "sync", "verify", "sum", REPAIR])]
    pub allow_verb: Vec<String>,
    /// Concurrent operations for each job, 0 chooses and adapts
    #[arg(short = 'j', long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
    /// Memory for buffers
    #[arg(long, value_name = "SIZE", value_parser = super::size, default_value = "512M")]
    pub memory: u64,
    /// Take tasks of this class only, unless there are none for a second: 'small' (names, small files), 'large' (content of
    /// large files)
    #[arg(long, value_name = "CLASS", value_enum, default_value = "any")]
    pub class: ClassArg,
    /// Something to know it by, such as site=west; may be given several times. Jobs can ask for it by '--only-movers'
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub label: Vec<(String, String)>,
    /// Work only for jobs whose ids begin so; may be given several times
    #[arg(long, value_name = "JOB")]
    pub job: Vec<String>,
    /// Wait so long for a broker that is not there yet
    #[arg(long, value_name = "DURATION", value_parser = super::duration, default_value = "30s")]
    pub broker_wait: u64,
    /// End when there was no job for so long
    #[arg(long, value_name = "DURATION", value_parser = super::positive_duration)]
    pub idle_exit: Option<u64>,
    /// Leave when standard input ends, as it does when whoever started this is gone
    #[arg(long)]
    pub until_eof: bool,
    /// Bytes of content per second that it moves at most for a job, whatever the job says
    #[arg(long, value_name = "SIZE", value_parser = super::positive_size)]
    pub bwlimit: Option<u64>,
    /// Let Prometheus have metrics at http://HOST:PORT/metrics; a PORT alone listens on this host only, 0 takes any port that is
    /// free
    #[arg(long, value_name = "[HOST:]PORT")]
    pub metrics: Option<String>,
    /// Where to put what does not fit into memory
    #[arg(long, value_name = "DIR")]
    pub spill_dir: Option<OsString>,
    /// Say more in the log: once info (the default), twice debug
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Write the log to this file instead of standard error
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<OsString>,
    /// How log lines look
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormatArg,
}

/// An address of this host, without a port.
fn listen(text: &str) -> Result<IpAddr, String> {
    let address = text.trim_start_matches('[').trim_end_matches(']').parse();
    address.map_err(|_| match text.rsplit_once(':') {
        Some((address, port)) if port.parse::<u16>().is_ok() => {
            format!("--listen takes an address alone; write --listen {address} --port {port}")
        }
        _ => "has to be an IP address; --advertise takes host names, --port the port".into(),
    })
}

/// A name that can be part of a subject of NATS.
fn pool(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if (1..=64).contains(&text.len()) && text.chars().all(is_plain) {
        return Ok(text.to_owned());
    }
    Err("up to 64 letters, digits, - and _".into())
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("has to be KEY=VALUE, such as rack=a7".into()),
    }
}
