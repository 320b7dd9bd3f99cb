//! Arguments of `sync`.
use clap::{Args, ValueEnum};
use dmover_model::DeleteLimit;
use std::ffi::OsString;

use super::{
    DefaultsArgs, FidelityArgs, FilterArgs, FleetArgs, ItemArgs, JobArgs, LimitArgs, OutputArgs,
    ProofArgs, StateArgs, WritingArgs, percentage,
};

/// Arguments of `sync`.
#[derive(Debug, Args)]
pub struct SyncArgs {
    /// The directory whose contents DEST is to have, and DEST
    #[arg(value_name = "SOURCE DEST", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<OsString>,
    /// What goes
    #[command(flatten)]
    pub delete: DeleteArgs,
    /// How what looks equal is looked at
    #[command(flatten)]
    pub comparison: ComparisonArgs,
    /// Whether it goes on
    #[command(flatten)]
    pub watch: WatchArgs,
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
    /// Who does it
    #[command(flatten)]
    pub fleet: FleetArgs,
    /// Where things are kept
    #[command(flatten)]
    pub state: StateArgs,
    /// Only what failed in the last pass ('dmover retry')
    #[arg(long, hide = true)]
    pub only_failed: bool,
    /// Defaults
    #[command(flatten)]
    pub defaults: DefaultsArgs,
}

/// What goes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Deletion")]
pub struct DeleteArgs {
    /// Delete what only DEST has: 'delay' (the default), 'after' or 'during'
    ///
    /// 'delay' deletes when everything else is done, 'after' the same by another look at all names, 'during' directory by directory. Nothing goes if SOURCE is empty, is not mounted, is another file
    /// system than last time or could not be read completely (exit code 3)
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true,
        default_missing_value = "delay")]
    pub delete: Option<DeleteArg>,
    /// Delete nothing if it would be more entries than N, or than P% of DEST (exit code 5)
    ///
    /// P% is of what DEST had before the pass; with --delete=during it stops at N
    #[arg(long, value_name = "N|P%", value_parser = limit, requires = "delete")]
    pub max_delete: Option<DeleteLimit>,
    /// Deletes are meant. Without it, and without --max-delete on the command line, nothing goes (exit code 2; a terminal asks;
    /// -n says so) if DEST has an entry with the name of SOURCE that SOURCE lacks, if more than half of DEST and more than 100
    /// entries would go, or if DEST had content before the first pass of this job. --delete=during stops at 100 entries, or at
    /// half of what it has seen, and deletes the others at the end, if they may go
    #[arg(long)]
    pub yes: bool,
    /// Move what would be deleted into this directory, which has to be on the file system of DEST
    #[arg(long, value_name = "DIR", requires = "delete")]
    pub trash: Option<OsString>,
    /// Delete also if SOURCE has no entries
    #[arg(long)]
    pub allow_empty_source: bool,
}

/// Whether passes go on.
#[derive(Debug, Args)]
#[command(next_help_heading = "Watching")]
pub struct WatchArgs {
    /// Go on after the pass: bring over what changes at SOURCE as it changes, as the kernel tells (fanotify(7); root;
    /// ext4, XFS, tmpfs, btrfs), until a signal or 'dmover cancel' ends it
    #[arg(long, conflicts_with_all = ["dry_run", "check", "no_state", "only_failed", "dereference", "manifest",
        "verify", "print_hash"])]
    pub watch: bool,
    /// With --watch: look at an entry when nothing has happened to it for so long
    #[arg(long, value_name = "DURATION", value_parser = super::positive_duration, default_value = "200ms",
        requires = "watch")]
    pub watch_delay: u64,
    /// With --watch: look at everything again after so long, whatever was told (0: never)
    #[arg(long, value_name = "DURATION", value_parser = super::duration, default_value = "24h", requires = "watch")]
    pub reconcile: u64,
}

/// How what looks equal is looked at.
#[derive(Debug, Args)]
#[command(next_help_heading = "Comparison")]
pub struct ComparisonArgs {
    /// Compare the bytes of all files that look equal by size and time
    #[arg(short, long)]
    pub checksum: bool,
    /// The same only for files that were changed in any way (ctime) after they were brought over
    #[arg(long, conflicts_with = "checksum")]
    pub ctime: bool,
    /// Bring over anew what was renamed at SOURCE since the last pass, instead of renaming it in DEST
    #[arg(long)]
    pub no_renames: bool,
    /// Change nothing and say whether anything would be done: exit code 1 if so
    #[arg(long)]
    pub check: bool,
}

/// `--delete`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeleteArg {
    /// Directory by directory, as they are read
    During,
    /// When everything else is done
    Delay,
    /// The same, by another look at all names
    After,
}

fn limit(text: &str) -> Result<DeleteLimit, String> {
    if text.ends_with('%') {
        return percentage(text).map(DeleteLimit::Millionths);
    }
    let entries = text.parse().map(DeleteLimit::Entries);
    entries.map_err(|_| "has to be a number of entries, or a percentage such as 5%".into())
}
