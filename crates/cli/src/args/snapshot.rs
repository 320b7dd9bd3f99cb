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
                                        /backup/home/2026-01-31T02-00-00.000Z, and a link 'latest'
  dmover snapshot prune --keep-last 3 --keep-daily 7 --keep-monthly 12 /backup/home
  dmover verify --level=mtime /home /backup/home/latest
Interrupted? The same command goes on."
    };
}
/// Arguments of `snapshot`.
#[derive(Debug, Args)]
pub struct SnapshotArgs {
    /// What to do
    #[command(subcommand)]
    pub action: SnapshotAction,
}

/// What `snapshot` can do.
#[derive(Debug, Subcommand)]
pub enum SnapshotAction {
    /// Make a snapshot of SOURCE in DIR
    ///
    /// A snapshot is a complete tree, DIR/TIME. Files that have not changed since the one before are further names of the
    /// same inodes (or share blocks, with --share=reflink), so that it takes the space of what has changed. It gets its
    /// name when it is complete; an interrupted one is gone on with by the same command.
    #[command(after_help = snapshot_examples!())]
    Create(Box<CreateArgs>),
    /// List the snapshots in DIR, the oldest first
    List(ListArgs),
    /// Remove snapshots that are not to be kept
    ///
    /// Those stay that any of the --keep options names, and the newest in which nothing is missing in any case. Hours, days,
    /// weeks (from Monday), months and years are those of this machine's time zone.
    Prune(Box<PruneArgs>),
}

/// Arguments of `snapshot create`.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The directory whose contents are to be kept, and the directory that holds its snapshots
    #[arg(value_name = "SOURCE DIR", value_hint = clap::ValueHint::DirPath)]
    pub paths: Vec<OsString>,
    /// How it is made
    #[command(flatten)]
    pub how: SnapshotOptions,
    /// Which entries take part
    #[command(flatten)]
    pub filter: FilterArgs,
    /// What is kept
    #[command(flatten)]
    pub fidelity: FidelityArgs,
    /// How it is written
    #[command(flatten)]
    pub writing: WritingArgs,
    /// Proof
    #[command(flatten)]
    pub proof: ProofArgs,
    /// Bounds
    #[command(flatten)]
    pub limits: LimitArgs,
    /// What is shown of single entries
    #[command(flatten)]
    pub items: ItemArgs,
    /// What is shown
    #[command(flatten)]
    pub output: OutputArgs,
    /// How it goes on when nobody watches
    #[command(flatten)]
    pub job: JobArgs,
    /// Where things are kept
    #[command(flatten)]
    pub state: StateArgs,
    /// Defaults
    #[command(flatten)]
    pub defaults: DefaultsArgs,
}

/// How a snapshot is made.
#[derive(Debug, Args)]
#[command(next_help_heading = "Snapshot")]
pub struct SnapshotOptions {
    /// How unchanged files get into the snapshot: 'link' as further names of the files of the one before, 'reflink' as
    /// files of their own that share blocks with them (XFS, btrfs)
    #[arg(long, value_name = "HOW", value_enum, default_value_t = ShareArg::Link)]
    pub share: ShareArg,
    /// Compare the bytes of all files that look unchanged by size and time
    #[arg(short, long)]
    pub checksum: bool,
    /// The same only for files that were changed in any way (ctime) since the snapshot before
    #[arg(long, conflicts_with = "checksum")]
    pub ctime: bool,
    /// Name it as a snapshot also if entries of SOURCE are missing in it; 'list' says so, and 'prune' never keeps it in
    /// the place of another one
    #[arg(long)]
    pub accept_errors: bool,
    /// Make one also if SOURCE has no entries
    #[arg(long)]
    pub allow_empty_source: bool,
    /// SOURCE goes on with the snapshots in DIR although it is another directory or file system than before
    #[arg(long)]
    pub other_source: bool,
}

/// `--share`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShareArg {
    /// Further names of the same inodes.
    Link,
    /// Files of their own with the same blocks.
    Reflink,
}

/// Arguments of `snapshot list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// The directory that holds the snapshots
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub directory: OsString,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `snapshot prune`.
#[derive(Debug, Args)]
pub struct PruneArgs {
    /// The directory that holds the snapshots
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub directory: OsString,
    /// What stays
    #[command(flatten)]
    pub keep: KeptArgs,
    /// Say what would go, and remove nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Bounds
    #[command(flatten)]
    pub limits: LimitArgs,
    /// What is shown
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What stays.
#[derive(Debug, Args)]
#[command(next_help_heading = "Retention")]
pub struct KeptArgs {
    /// Keep the newest N
    #[arg(long = "keep-last", value_name = "N")]
    pub last: Option<u64>,
    /// Keep the newest of each hour that has one, for N hours
    #[arg(long = "keep-hourly", value_name = "N")]
    pub hourly: Option<u64>,
    /// Keep the newest of each day that has one, for N days
    #[arg(long = "keep-daily", value_name = "N")]
    pub daily: Option<u64>,
    /// Keep the newest of each week that has one, for N weeks
    #[arg(long = "keep-weekly", value_name = "N")]
    pub weekly: Option<u64>,
    /// Keep the newest of each month that has one, for N months
    #[arg(long = "keep-monthly", value_name = "N")]
    pub monthly: Option<u64>,
    /// Keep the newest of each year that has one, for N years
    #[arg(long = "keep-yearly", value_name = "N")]
    pub yearly: Option<u64>,
    /// Keep all that are not older than this ('36h', '14d')
    #[arg(long = "keep-within", value_name = "DURATION", value_parser = positive_duration)]
    pub within: Option<u64>,
}
