//! Arguments of the verbs that look after jobs.
use clap::Args;
use dmover_model::ErrorClass;
use std::ffi::OsString;

use super::positive_duration;

/// Where jobs are remembered.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// Where jobs are remembered (default: $DMOVER_STATE_DIR, /var/lib/dmover for root, else
    /// $XDG_STATE_HOME/dmover)
    #[arg(long, value_name = "DIR", env = "DMOVER_STATE_DIR", hide_env = true)]
    pub state_dir: Option<OsString>,
}

/// Arguments of `jobs`.
#[derive(Debug, Args)]
pub struct JobsArgs {
    /// Print one JSON object a job
    #[arg(long)]
    pub json: bool,
    /// Where jobs are remembered
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The id of a job, the beginning of one, or a label; without it, the last one that runs, or else the last one
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
    /// Where jobs are remembered
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Arguments of `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// The id of the job to look at first, the beginning of one, or a label; without it, the last one that runs
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// Look again after so long; jobs tell how they stand every two seconds
    #[arg(long, value_name = "DURATION", value_parser = super::positive_duration, default_value = "1s")]
    pub every: u64,
    /// Where jobs are remembered
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Arguments of `wait`.
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Ids of jobs, beginnings of them, or labels; without any, the last one that runs, or else the last one
    #[arg(value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Wait no longer than this ('90s', '1h30m'); exit code 6 then
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub timeout: Option<u64>,
    /// Where jobs are remembered
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Arguments of `pause` and `cancel`.
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The id of a job, the beginning of one, or a label; without it, the last one that runs
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// Where jobs are remembered
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Arguments of `resume` and `retry`.
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// The id of a job, the beginning of one, or a label; without it, the last one that is paused or was interrupted
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// Go on in the background
    #[arg(long)]
    pub detach: bool,
    /// Where jobs are remembered
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Arguments of `standby`.
#[derive(Debug, Args)]
pub struct StandbyArgs {
    /// The id of a job, the beginning of one, or a label
    #[arg(value_name = "JOB")]
    pub job: String,
    /// Kill a process on this host that runs the job and has not said for so long how it stands, and go on: it is stopped, or
    /// hangs. Choose more than its disks may ever take
    #[arg(long, value_name = "DURATION", value_parser = super::positive_duration)]
    pub kill_after: Option<u64>,
    /// Where jobs are remembered
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Arguments of `errors`.
#[derive(Debug, Args)]
pub struct ErrorsArgs {
    /// The id of a job, the beginning of one, or a label; without it, the last one that keeps a journal
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// Only those of this class, such as denied or changed
    #[arg(long, value_name = "CLASS", value_parser = class)]
    pub class: Option<ErrorClass>,
    /// Print one JSON object an error
    #[arg(long)]
    pub json: bool,
    /// Print the paths only, each ended by NUL
    #[arg(short = '0', long, visible_alias = "null", conflicts_with = "json")]
    pub print0: bool,
    /// Where jobs are remembered
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Arguments of `history`.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// The id of a job, the beginning of one, or a label; without it, the last one that keeps a journal
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// Print one JSON object a pass
    #[arg(long)]
    pub json: bool,
    /// Where jobs are remembered
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Arguments of `cleanup`.
#[derive(Debug, Args)]
pub struct CleanupArgs {
    /// Ids of jobs, beginnings of them, or labels
    #[arg(value_name = "JOB", required_unless_present = "all", conflicts_with = "all")]
    pub jobs: Vec<String>,
    /// All jobs that do not run, and the data and secrets of brokers that do not run
    #[arg(long)]
    pub all: bool,
    /// Say what would be removed, change nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Where jobs are remembered
    #[command(flatten)]
    pub place: PlaceArgs,
}

fn class(text: &str) -> Result<ErrorClass, String> {
    let words = || ErrorClass::ALL.iter().map(|class| class.word());
    let known = ErrorClass::ALL.iter().find(|class| class.word() == text);
    known
        .copied()
        .ok_or_else(|| format!("the classes are {}", words().collect::<Vec<_>>().join(", ")))
}
