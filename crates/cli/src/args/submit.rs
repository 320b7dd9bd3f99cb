//! Arguments of `submit`.
use clap::{ArgGroup, Args, ValueEnum};
use dmover_queue::placement::{Shape, parse_hosts};
use std::ffi::OsString;
use std::net::IpAddr;

const EXAMPLES: &str = "Examples:
  dmover submit --local --movers 4 -- copy run42 /scratch/
                                        run with four mover processes here
  dmover submit --ssh dtn1,dtn2,dtn3 -- sync /old/projects /new/projects
                                        run with movers on three hosts
  dmover submit --slurm --movers 8:2 --time 24:00:00 -- copy /old/run42 /new/
                                        run on 8 Slurm nodes, 2 movers on each
  dmover submit --template slurm > copy.sh
                                        print a batch script to edit
The exit code is that of the job, or 6 if no mover could be started.";

/// Batch systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SystemArg {
    /// Slurm
    Slurm,
    /// OpenPBS and compatible systems
    Pbs,
}

/// Host names separated by commas, as one value for clap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts(pub Vec<String>);

fn hosts(text: &str) -> Result<Hosts, String> {
    parse_hosts(text).map(Hosts)
}

/// Arguments of `submit`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group(ArgGroup::new("place").required(true)
    .args(["local", "ssh", "slurm", "pbs", "allocation", "template"])))]
pub struct SubmitArgs {
    /// Job to run: copy, sync, verify or sum, with its arguments
    ///
    /// With --broker, the job may be omitted: submit then starts only movers.
    #[arg(last = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    pub job: Vec<OsString>,
    /// Run movers as processes on this host
    #[arg(long, help_heading = "Where movers run")]
    pub local: bool,
    /// Run movers on these hosts, over ssh without prompts
    ///
    /// submit reports a host that does not answer, and runs without it.
    #[arg(long, value_name = "HOST,HOST,…", value_parser = hosts, help_heading = "Where movers run")]
    pub ssh: Option<Hosts>,
    /// Run everything as a Slurm job
    ///
    /// With --broker, only the movers run there, as a job array; the dmover job runs here.
    #[arg(long, help_heading = "Where movers run")]
    pub slurm: bool,
    /// Run everything as a PBS job
    ///
    /// With --broker, only the movers run there, as a job array; the dmover job runs here.
    #[arg(long, help_heading = "Where movers run")]
    pub pbs: bool,
    /// Run movers on the nodes of the current batch job (for batch scripts)
    #[arg(long, help_heading = "Where movers run")]
    pub allocation: bool,
    /// Print a batch script of six lines to edit, and exit
    #[arg(long, value_name = "SYSTEM", value_enum, help_heading = "Where movers run")]
    pub template: Option<SystemArg>,
    /// Hosts, nodes or local processes, and movers on each
    ///
    /// N is the number of processes with --local (default 2), of hosts with --ssh (the first N;
    /// default all), and of nodes in a batch job (default 1). PER_NODE is the number of movers on
    /// each host or node.
    #[arg(long, value_name = "N[:PER_NODE]", value_parser = Shape::parse, help_heading = "Movers")]
    pub movers: Option<Shape>,
    /// Concurrent operations of each mover (0: automatic)
    #[arg(short = 'j', long, value_name = "N", default_value_t = 0, help_heading = "Movers")]
    pub threads: usize,
    /// Path of dmover where movers run (default: the same path as here)
    #[arg(long, value_name = "PROGRAM", help_heading = "Movers")]
    pub dmover: Option<OsString>,
    /// ssh command, with options
    #[arg(long, value_name = "COMMAND", default_value = "ssh", help_heading = "Movers")]
    pub ssh_command: String,
    /// Use this broker instead of starting one
    ///
    /// The broker is given by the join file that 'dmover broker' wrote, or as tls://HOST:PORT.
    #[arg(long, value_name = "URL|FILE", help_heading = "Broker")]
    pub broker: Option<OsString>,
    /// Allow connections in clear text
    ///
    /// Anyone on the network path can then read and change the traffic, or impersonate the broker.
    #[arg(long, help_heading = "Broker")]
    pub insecure: bool,
    /// Address for the broker (default: one that the other hosts can reach)
    #[arg(long, value_name = "ADDRESS", conflicts_with = "broker", help_heading = "Broker")]
    pub listen: Option<IpAddr>,
    /// Network interface for the broker, such as ib0
    #[arg(long, value_name = "NAME", conflicts_with_all = ["broker", "listen"], help_heading = "Broker")]
    pub interface: Option<String>,
    /// Retry temporary failures for this long
    ///
    /// Such failures are a lock held by another process, or an earlier run that still answers. The
    /// default is 10m in a batch job, else 0.
    #[arg(long, value_name = "DURATION", value_parser = super::duration, help_heading = "Job")]
    pub retry_for: Option<u64>,
    /// Directory for the state of the job and of the broker
    ///
    /// For a batch job, all nodes must see it, and file locks must hold on all of them. Default:
    /// 'shared' in the default state directory.
    #[arg(long, value_name = "DIR", help_heading = "Job")]
    pub state_dir: Option<OsString>,
    /// Print the batch script instead of submitting it
    #[arg(long, help_heading = "Batch job")]
    pub print: bool,
    /// Name of the batch job
    #[arg(long, value_name = "NAME", default_value = "dmover", help_heading = "Batch job")]
    pub job_name: String,
    /// Time limit, in the batch system's format: 24:00:00
    #[arg(long, value_name = "TIME", help_heading = "Batch job")]
    pub time: Option<String>,
    /// Partition or queue
    #[arg(long, value_name = "NAME", help_heading = "Batch job")]
    pub partition: Option<String>,
    /// Account to charge
    #[arg(long, value_name = "NAME", help_heading = "Batch job")]
    pub account: Option<String>,
    /// Licenses to hold while the job runs, such as gateway:4 (Slurm)
    #[arg(long, value_name = "LIST", help_heading = "Batch job")]
    pub licenses: Option<String>,
    /// Generic resources of each node, such as dtn:1 (Slurm)
    #[arg(long, value_name = "LIST", help_heading = "Batch job")]
    pub gres: Option<String>,
    /// Processors per mover
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Batch job")]
    pub cpus: Option<u32>,
    /// File for the output of the batch job (default: the batch system's)
    #[arg(long, value_name = "FILE", help_heading = "Batch job")]
    pub output: Option<String>,
    /// Pass an option to the batch system: --with=--exclusive (repeatable)
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true, help_heading = "Batch job")]
    pub with: Vec<String>,
}
