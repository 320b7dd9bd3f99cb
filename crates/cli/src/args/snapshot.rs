//! Arguments of `snapshot`.
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;

use super::{
    DefaultsArgs, FidelityArgs, FilterArgs, ItemArgs, JobArgs, LimitArgs, OutputArgs, ProofArgs,
    StateArgs, WritingArgs, positive_duration,
};

macro_rules! snapshot_examples {
    () => {
        "Examples:
  dmover snapshot create /home /backup/home
                                        create a snapshot and a link 'latest'
  dmover snapshot prune --keep-last 3 --keep-daily 7 /backup/home
  dmover verify --level=mtime /home /backup/home/latest
To resume after an interruption, run the same command again."
    };
}
/// Arguments of `snapshot`.
#[derive(Debug, Args)]
pub struct SnapshotArgs {
    /// The subverb.
    #[command(subcommand)]
    pub action: SnapshotAction,
}

/// Subverbs of `snapshot`.
#[derive(Debug, Subcommand)]
pub enum SnapshotAction {
    /// Create a snapshot of SOURCE in DIR
    ///
    /// A snapshot is a complete tree, DIR/TIME. Files that did not change since the previous
    /// snapshot are hard links to its files, or share blocks with them (--share=reflink). So a
    /// snapshot needs only the space of the changes. It gets its name when it is complete. If it is
    /// interrupted, the same command resumes it.
    #[command(after_help = snapshot_examples!())]
    Create(Box<CreateArgs>),
    /// List the snapshots in DIR, oldest first
    List(ListArgs),
    /// Remove snapshots that no --keep option selects
    ///
    /// The newest complete snapshot always stays. Hours, days, weeks (from Monday), months and
    /// years follow the time zone of this host.
    Prune(Box<PruneArgs>),
}

/// Arguments of `snapshot create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Directory to copy, and directory that holds its snapshots
    #[arg(value_name = "SOURCE DIR", value_hint = clap::ValueHint::DirPath)]
    pub paths: Vec<OsString>,
    /// How the snapshot is made.
    #[command(flatten)]
    pub how: SnapshotOptions,
    /// Which entries are included.
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Which attributes are preserved.
    #[command(flatten)]
    pub fidelity: FidelityArgs,
    /// How files are written.
    #[command(flatten)]
    pub writing: WritingArgs,
    /// Digests, manifests and read-back.
    #[command(flatten)]
    pub proof: ProofArgs,
    /// Limits.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Output for each entry.
    #[command(flatten)]
    pub items: ItemArgs,
    /// Output of the job.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Label, background and notification.
    #[command(flatten)]
    pub job: JobArgs,
    /// Directories for state.
    #[command(flatten)]
    pub state: StateArgs,
    /// Configuration files.
    #[command(flatten)]
    pub defaults: DefaultsArgs,
}

/// Options for how a snapshot is made.
#[derive(Debug, Args)]
#[command(next_help_heading = "Snapshot")]
pub struct SnapshotOptions {
    /// How to share unchanged files with the last snapshot
    ///
    /// 'link' makes hard links. 'reflink' makes separate files that share blocks (XFS, btrfs).
    #[arg(long, value_name = "HOW", value_enum, default_value_t = ShareArg::Link)]
    pub share: ShareArg,
    /// Compare the content of files that are equal in size and time
    #[arg(short, long)]
    pub checksum: bool,
    /// Like --checksum, but only for files with a ctime after the last snapshot
    ///
    /// ctime is the time of the last change of any kind, which no program can set.
    #[arg(long, conflicts_with = "checksum")]
    pub ctime: bool,
    /// Name the snapshot even if entries of SOURCE are missing in it
    ///
    /// 'list' shows that entries are missing. 'prune' never keeps this snapshot instead of a
    /// complete one.
    #[arg(long)]
    pub accept_errors: bool,
    /// Create a snapshot even if SOURCE is empty
    #[arg(long)]
    pub allow_empty_source: bool,
    /// Accept a SOURCE that is not the directory of the existing snapshots
    #[arg(long)]
    pub other_source: bool,
}

/// Values of `--share`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShareArg {
    /// Hard links to the files of the previous snapshot.
    Link,
    /// Separate files that share blocks (XFS, btrfs).
    Reflink,
}

/// Arguments of `snapshot list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Directory that holds the snapshots
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub directory: OsString,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `snapshot prune`.
#[derive(Debug, Args)]
pub struct PruneArgs {
    /// Directory that holds the snapshots
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub directory: OsString,
    /// Which snapshots stay.
    #[command(flatten)]
    pub keep: KeptArgs,
    /// Show what would be removed; remove nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Limits.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Output of the job.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Options for which snapshots stay.
#[derive(Debug, Args)]
#[command(next_help_heading = "Retention")]
pub struct KeptArgs {
    /// Keep the newest N snapshots
    #[arg(long = "keep-last", value_name = "N")]
    pub last: Option<u64>,
    /// Keep the newest of each of the last N hours with a snapshot
    #[arg(long = "keep-hourly", value_name = "N")]
    pub hourly: Option<u64>,
    /// Keep the newest of each of the last N days with a snapshot
    #[arg(long = "keep-daily", value_name = "N")]
    pub daily: Option<u64>,
    /// Keep the newest of each of the last N weeks with a snapshot
    #[arg(long = "keep-weekly", value_name = "N")]
    pub weekly: Option<u64>,
    /// Keep the newest of each of the last N months with a snapshot
    #[arg(long = "keep-monthly", value_name = "N")]
    pub monthly: Option<u64>,
    /// Keep the newest of each of the last N years with a snapshot
    #[arg(long = "keep-yearly", value_name = "N")]
    pub yearly: Option<u64>,
    /// Keep all snapshots up to this age, such as 36h or 14d
    #[arg(long = "keep-within", value_name = "DURATION", value_parser = positive_duration)]
    pub within: Option<u64>,
}
