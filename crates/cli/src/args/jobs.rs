//! Arguments of the verbs that manage jobs.
use clap::Args;
use dmover_journal::JobPhase;
use dmover_model::ErrorClass;
use std::ffi::OsString;

use super::positive_duration;

/// Option for the directory of job records.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// Directory for job records
    ///
    /// Default: $DMOVER_STATE_DIR, /var/lib/dmover for root, else $XDG_STATE_HOME/dmover.
    #[arg(long, value_name = "DIR", env = "DMOVER_STATE_DIR", hide_env = true)]
    pub state_dir: Option<OsString>,
}

/// Option for jobs that another host runs.
#[derive(Debug, Args)]
pub struct ElsewhereArgs {
    /// Host that runs the job, for jobs that --detach has left there
    ///
    /// HOST is a name or an address for ssh, or dmover://HOST[:PORT] of an agent that listens.
    #[arg(long, value_name = "[USER@]HOST", value_hint = clap::ValueHint::Hostname)]
    pub at: Option<OsString>,
    /// ssh command, with options
    #[arg(long, value_name = "COMMAND", default_value = "ssh", requires = "at")]
    pub ssh_command: String,
}

/// Arguments of `jobs`.
#[derive(Debug, Args)]
pub struct JobsArgs {
    /// Print one JSON object per job
    #[arg(long)]
    pub json: bool,
    /// List only jobs in these states, such as running,stopped
    #[arg(long = "state", value_name = "STATE", value_parser = phase, value_delimiter = ',')]
    pub states: Vec<JobPhase>,
    /// List only jobs with this label
    #[arg(long, value_name = "LABEL")]
    pub label: Option<String>,
    /// List only jobs of this verb
    #[arg(long, value_name = "VERB", value_parser = ["copy", "sync", "snapshot", "verify", "sum"])]
    pub verb: Option<String>,
    /// List only jobs that ran within this time, such as 90m or 2d
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub since: Option<u64>,
    /// Directory for job records.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// The host of the job.
    #[command(flatten)]
    pub elsewhere: ElsewhereArgs,
}

impl JobsArgs {
    /// Whether an option excludes some jobs.
    pub fn has_filter(&self) -> bool {
        let named = self.label.is_some() || self.verb.is_some();
        named || self.since.is_some() || !self.states.is_empty()
    }
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Job to show (default: the last running job, else the last job)
    ///
    /// JOB is a job id, the unique beginning of one, or a label.
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
    /// Directory for job records.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// The host of the job.
    #[command(flatten)]
    pub elsewhere: ElsewhereArgs,
}

/// Arguments of `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Job to show first (default: the last running job)
    ///
    /// JOB is a job id, the unique beginning of one, or a label.
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// Refresh interval
    ///
    /// Jobs update their state every two seconds.
    #[arg(long, value_name = "DURATION", value_parser = super::positive_duration, default_value = "1s")]
    pub every: u64,
    /// Directory for job records.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Arguments of `wait`.
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Jobs to wait for (default: the last running job, else the last job)
    ///
    /// A JOB is a job id, the unique beginning of one, or a label.
    #[arg(value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Wait at most this long, such as 90s or 1h30m; then exit with 6
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub timeout: Option<u64>,
    /// Print nothing while waiting
    #[arg(short, long)]
    pub quiet: bool,
    /// Interval of status lines without a terminal (0: never)
    #[arg(long, value_name = "DURATION", value_parser = super::duration, num_args = 0..=1, require_equals = true,
        default_value = "60s", default_missing_value = "60s")]
    pub stats: u64,
    /// Directory for job records.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// The host of the job.
    #[command(flatten)]
    pub elsewhere: ElsewhereArgs,
}

/// Arguments of `logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Job whose messages to print (default: the last running job, else the last job)
    ///
    /// JOB is a job id, the unique beginning of one, or a label.
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// Follow the log until the job ends
    #[arg(short, long)]
    pub follow: bool,
    /// Start with the last LINES lines
    #[arg(short = 'n', long, value_name = "LINES")]
    pub lines: Option<u64>,
    /// Directory for job records.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// The host of the job.
    #[command(flatten)]
    pub elsewhere: ElsewhereArgs,
}

/// Arguments of `pause` and `cancel`.
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// Job to pause (default: the last running job)
    ///
    /// JOB is a job id, the unique beginning of one, or a label.
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// Directory for job records.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// The host of the job.
    #[command(flatten)]
    pub elsewhere: ElsewhereArgs,
}

/// Arguments of `resume` and `retry`.
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// Job to resume (default: the last paused or interrupted job)
    ///
    /// JOB is a job id, the unique beginning of one, or a label.
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// Run in the background
    #[arg(long)]
    pub detach: bool,
    /// Directory for job records.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// The host of the job.
    #[command(flatten)]
    pub elsewhere: ElsewhereArgs,
}

/// Arguments of `standby`.
#[derive(Debug, Args)]
pub struct StandbyArgs {
    /// Job to take over
    ///
    /// JOB is a job id, the unique beginning of one, or a label.
    #[arg(value_name = "JOB")]
    pub job: String,
    /// Kill a process that sends no status for this long, and take over
    ///
    /// This works only for a process on this host that is stopped or hangs. Choose more time than
    /// its storage can ever need for one operation.
    #[arg(long, value_name = "DURATION", value_parser = super::positive_duration)]
    pub kill_after: Option<u64>,
    /// Directory for job records.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Arguments of `errors`.
#[derive(Debug, Args)]
pub struct ErrorsArgs {
    /// Job whose errors to list (default: the last running job, else the last job)
    ///
    /// JOB is a job id, the unique beginning of one, or a label.
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// List only errors of this class, such as denied or changed
    #[arg(long, value_name = "CLASS", value_parser = class)]
    pub class: Option<ErrorClass>,
    /// Print one JSON object per error
    #[arg(long)]
    pub json: bool,
    /// Print only paths, each followed by NUL
    #[arg(short = '0', long, visible_alias = "null", conflicts_with = "json")]
    pub print0: bool,
    /// Directory for job records.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// The host of the job.
    #[command(flatten)]
    pub elsewhere: ElsewhereArgs,
}

/// Arguments of `history`.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Job whose passes to list (default: the last job with a journal)
    ///
    /// JOB is a job id, the unique beginning of one, or a label.
    #[arg(value_name = "JOB")]
    pub job: Option<String>,
    /// Print one JSON object per pass
    #[arg(long)]
    pub json: bool,
    /// Directory for job records.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// The host of the job.
    #[command(flatten)]
    pub elsewhere: ElsewhereArgs,
}

/// Arguments of `cleanup`.
#[derive(Debug, Args)]
pub struct CleanupArgs {
    /// Jobs to clean up
    ///
    /// A JOB is a job id, the unique beginning of one, or a label.
    #[arg(value_name = "JOB", required_unless_present_any = ["all", "older_than"],
        conflicts_with_all = ["all", "older_than"])]
    pub jobs: Vec<String>,
    /// Clean up all jobs that are not running
    ///
    /// This also removes the data and secrets of brokers that are not running.
    #[arg(long)]
    pub all: bool,
    /// Clean up finished and cancelled jobs older than this, such as 30d
    ///
    /// The age is the time since the job ended. Jobs that later runs need are kept: those that can
    /// be resumed, those with failed entries, losses or another exit code than 0, and all 'sync'
    /// and snapshot jobs, which recognise their SOURCE and thus protect DEST from wrong deletes. Of
    /// a copy, dmover keeps whether SOURCE goes into DEST. JOB and --all remove everything: the next run of the same
    /// command is then a first one. It may copy SOURCE into a DEST that an earlier run made, and
    /// --delete with --max-delete may delete what another SOURCE lacks.
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, conflicts_with = "all")]
    pub older_than: Option<u64>,
    /// Show what would be removed; remove nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Directory for job records.
    #[command(flatten)]
    pub place: PlaceArgs,
}

fn class(text: &str) -> Result<ErrorClass, String> {
    let words = || ErrorClass::ALL.iter().map(|class| class.word());
    let known = ErrorClass::ALL.iter().find(|class| class.word() == text);
    known
        .copied()
        .ok_or_else(|| format!("must be one of {}", words().collect::<Vec<_>>().join(", ")))
}

fn phase(text: &str) -> Result<JobPhase, String> {
    let known = JobPhase::ALL.into_iter().find(|phase| phase.word() == text);
    known.ok_or_else(|| format!("must be one of {}", JobPhase::ALL.map(JobPhase::word).join(", ")))
}
