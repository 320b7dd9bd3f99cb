//! Arguments of `submit`.
use clap::{ArgGroup, Args, ValueEnum};
use dmover_queue::placement::{Shape, parse_hosts};
use std::ffi::OsString;
use std::net::IpAddr;

const EXAMPLES: &str = "Examples:
  dmover submit --local --movers 4 -- copy run42 /scratch/
                                        with four mover processes on this host
  dmover submit --ssh dtn1,dtn2,dtn3 -- sync /old/projects /new/projects
                                        with movers on three hosts, and the job's output here
  dmover submit --slurm --movers 8:2 --time 24:00:00 -- copy /old/run42 /new/
                                        as a job of Slurm on 8 nodes with 2 movers each
  dmover submit --template slurm > copy.sh
                                        a batch script to edit
The exit code is that of the job; 6: no movers could be started anywhere.";

/// A batch system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SystemArg {
    /// Slurm
    Slurm,
    /// OpenPBS and its relatives
    Pbs,
}

/// Hosts between commas; clap takes a type for one value.
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
    /// The job: copy, sync, verify or sum, with its arguments. With --broker it may be left out: then there are just movers
    #[arg(last = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    pub job: Vec<OsString>,
    /// Movers are processes on this host
    #[arg(long, help_heading = "Where movers run")]
    pub local: bool,
    /// Movers run on these hosts, to which ssh gets without asking; one that does not answer is done without
    #[arg(long, value_name = "HOST,HOST,…", value_parser = hosts, help_heading = "Where movers run")]
    pub ssh: Option<Hosts>,
    /// Everything is a job of Slurm; with --broker, movers are an array of jobs, and the job's output is here
    #[arg(long, help_heading = "Where movers run")]
    pub slurm: bool,
    /// Everything is a job of PBS; with --broker, movers are an array of jobs, and the job's output is here
    #[arg(long, help_heading = "Where movers run")]
    pub pbs: bool,
    /// Movers run on the nodes of the batch job that this is a part of; batch scripts say so
    #[arg(long, help_heading = "Where movers run")]
    pub allocation: bool,
    /// Print a batch script of six lines to edit, and do nothing
    #[arg(long, value_name = "SYSTEM", value_enum, help_heading = "Where movers run")]
    pub template: Option<SystemArg>,
    /// Movers: N processes here, the first N hosts, or N nodes; PER_NODE of them on each host or node. Default: 2 here, all
    /// hosts, 1 node
    #[arg(long, value_name = "N[:PER_NODE]", value_parser = Shape::parse, help_heading = "Movers")]
    pub movers: Option<Shape>,
    /// Concurrent operations of each mover, 0 chooses and adapts
    #[arg(short = 'j', long, value_name = "N", default_value_t = 0, help_heading = "Movers")]
    pub threads: usize,
    /// The program dmover where movers run, if it is not at the same path as here
    #[arg(long, value_name = "PROGRAM", help_heading = "Movers")]
    pub dmover: Option<OsString>,
    /// How ssh is called, with options of its own
    #[arg(long, value_name = "COMMAND", default_value = "ssh", help_heading = "Movers")]
    pub ssh_command: String,
    /// Use this broker instead of starting one: the file that 'dmover broker' has written, or tls://HOST:PORT
    #[arg(long, value_name = "URL|FILE", help_heading = "Broker")]
    pub broker: Option<OsString>,
    /// Allow connections in clear text, which anybody on the way can read and change, and in which anybody at its address can be
    /// the broker
    #[arg(long, help_heading = "Broker")]
    pub insecure: bool,
    /// The address that the broker listens on (default: the one that the other hosts reach)
    #[arg(long, value_name = "ADDRESS", conflicts_with = "broker", help_heading = "Broker")]
    pub listen: Option<IpAddr>,
    /// The interface whose address the broker listens on, such as ib0
    #[arg(long, value_name = "NAME", conflicts_with_all = ["broker", "listen"], help_heading = "Broker")]
    pub interface: Option<String>,
    /// Try again for so long what may be different later: a lock that is held, another run that still answers (default: 10m in a
    /// batch job, else 0)
    #[arg(long, value_name = "DURATION", value_parser = super::duration, help_heading = "Job")]
    pub retry_for: Option<u64>,
    /// Where the job and the broker keep their state. For a batch job all nodes have to see it, and its file system needs locks
    /// that hold on all of them (default: 'shared' in the usual state directory)
    #[arg(long, value_name = "DIR", help_heading = "Job")]
    pub state_dir: Option<OsString>,
    /// Print the batch script instead of submitting it
    #[arg(long, help_heading = "Batch job")]
    pub print: bool,
    /// How the batch job is called
    #[arg(long, value_name = "NAME", default_value = "dmover", help_heading = "Batch job")]
    pub job_name: String,
    /// The longest time of the batch job, as the batch system has it: 24:00:00
    #[arg(long, value_name = "TIME", help_heading = "Batch job")]
    pub time: Option<String>,
    /// Its partition, or queue
    #[arg(long, value_name = "NAME", help_heading = "Batch job")]
    pub partition: Option<String>,
    /// Who pays for it
    #[arg(long, value_name = "NAME", help_heading = "Batch job")]
    pub account: Option<String>,
    /// Licenses that it holds while it runs, such as gateway:4 (Slurm)
    #[arg(long, value_name = "LIST", help_heading = "Batch job")]
    pub licenses: Option<String>,
    /// Generic resources of each node, such as dtn:1 (Slurm)
    #[arg(long, value_name = "LIST", help_heading = "Batch job")]
    pub gres: Option<String>,
    /// Processors for each mover
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Batch job")]
    pub cpus: Option<u32>,
    /// Where its output goes (default: as the batch system does)
    #[arg(long, value_name = "FILE", help_heading = "Batch job")]
    pub output: Option<String>,
    /// A further option for it, as it is: --with=--exclusive; may be given several times
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true, help_heading = "Batch job")]
    pub with: Vec<String>,
}
