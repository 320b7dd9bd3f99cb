//! Arguments of `sync`.
use clap::{Args, ValueEnum};
use dmover_model::DeleteLimit;
use std::ffi::OsString;

use super::{
    DefaultsArgs, FidelityArgs, FilterArgs, FleetArgs, ItemArgs, JobArgs, LimitArgs, OutputArgs,
    ProofArgs, RemoteArgs, StateArgs, WritingArgs, percentage,
};

/// Arguments of `sync`.
#[derive(Debug, Args)]
pub struct SyncArgs {
    /// Directory to copy from, directory that gets its contents
    #[arg(value_name = "SOURCE DEST", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<OsString>,
    /// Deletes.
    #[command(flatten)]
    pub delete: DeleteArgs,
    /// How closely equal entries are compared.
    #[command(flatten)]
    pub comparison: ComparisonArgs,
    /// Watching after the pass.
    #[command(flatten)]
    pub watch: WatchArgs,
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
    /// Movers on other hosts.
    #[command(flatten)]
    pub fleet: FleetArgs,
    /// Hosts that ssh reaches.
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// Directories for state.
    #[command(flatten)]
    pub state: StateArgs,
    /// Process only what failed in the last pass ('dmover retry')
    #[arg(long, hide = true)]
    pub only_failed: bool,
    /// Configuration files.
    #[command(flatten)]
    pub defaults: DefaultsArgs,
}

/// Options for deletes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Deletion")]
pub struct DeleteArgs {
    /// Delete entries that only DEST has (default: delay)
    ///
    /// Nothing is deleted (exit code 3) if SOURCE is empty, is not mounted, is not the directory of
    /// the first run, or could not be read completely. With 'during', entries may already be
    /// deleted when a later error occurs.
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true,
        default_missing_value = "delay")]
    pub delete: Option<DeleteArg>,
    /// Refuse to delete more than N entries, or than P% of DEST
    ///
    /// If more would be deleted, nothing is deleted, and the exit code is 5. P% is a share of the
    /// entries that DEST had before the pass. With --delete=during, dmover deletes N entries and
    /// then stops.
    #[arg(long, value_name = "N|P%", value_parser = limit, requires = "delete")]
    pub max_delete: Option<DeleteLimit>,
    /// Confirm deletes that would otherwise be refused or need an answer
    ///
    /// Without --yes, nothing is deleted (exit code 2) in three cases: DEST has an entry with the
    /// name of SOURCE that SOURCE does not have; more than half of DEST and more than 100 entries
    /// would be deleted; or DEST had content before the first pass of this job. --max-delete on the
    /// command line confirms the last two. On a terminal, dmover asks first. With -n, it only
    /// reports the refusal. --delete=during stops at 100 entries, or at half of the entries seen so
    /// far if that is more. It deletes the others at the end if that is allowed.
    #[arg(long)]
    pub yes: bool,
    /// Move deleted entries into DIR instead of removing them
    ///
    /// DIR must be on the file system of DEST.
    #[arg(long, value_name = "DIR", requires = "delete")]
    pub trash: Option<OsString>,
    /// Delete even if SOURCE is empty
    #[arg(long)]
    pub allow_empty_source: bool,
}

/// Options for watching after the pass.
#[derive(Debug, Args)]
#[command(next_help_heading = "Watching")]
pub struct WatchArgs {
    /// Keep running after the pass, and copy changes of SOURCE as they occur
    ///
    /// The kernel reports changes by fanotify(7), to root only, on ext4, XFS, tmpfs and btrfs. A
    /// signal or 'dmover cancel' ends the watch.
    #[arg(long, conflicts_with_all = ["dry_run", "check", "no_state", "only_failed", "dereference", "manifest",
        "verify", "print_hash"])]
    pub watch: bool,
    /// With --watch: handle an entry after this long without a change
    #[arg(long, value_name = "DURATION", value_parser = super::positive_duration, default_value = "200ms",
        requires = "watch")]
    pub watch_delay: u64,
    /// With --watch: make a complete pass this often (0: never)
    #[arg(long, value_name = "DURATION", value_parser = super::duration, default_value = "24h", requires = "watch")]
    pub reconcile: u64,
}

/// Options for how closely equal entries are compared.
#[derive(Debug, Args)]
#[command(next_help_heading = "Comparison")]
pub struct ComparisonArgs {
    /// Compare the content of files that are equal in size and time
    #[arg(short, long)]
    pub checksum: bool,
    /// Like --checksum, but only for files whose ctime is newer than the copy
    ///
    /// ctime is the time of the last change of any kind, which no program can set.
    #[arg(long, conflicts_with = "checksum")]
    pub ctime: bool,
    /// Copy renamed entries again instead of renaming them in DEST
    #[arg(long)]
    pub no_renames: bool,
    /// Change nothing; exit with 1 if the two sides differ
    #[arg(long)]
    pub check: bool,
}

/// Values of `--delete`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeleteArg {
    /// Directory by directory, while they are read
    During,
    /// After everything else is done
    Delay,
    /// After everything else is done and all names were read again
    After,
}

fn limit(text: &str) -> Result<DeleteLimit, String> {
    if text.ends_with('%') {
        return percentage(text).map(DeleteLimit::Millionths);
    }
    let entries = text.parse().map(DeleteLimit::Entries);
    entries.map_err(|_| "must be a number of entries, or a percentage such as 5%".into())
}
