//! The command line: one definition, from which help, man pages and completions are generated.
use clap::{Arg, Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;

#[macro_use]
mod texts;

mod about;
mod agent;
mod bench;
mod compat;
mod fleet;
mod jobs;
mod manifest;
mod remote;
mod snapshot;
mod submit;
mod sum;
mod sync;
mod values;
mod verify;

pub use about::{CompletionsArgs, ConfigAction, ConfigArgs, DoctorArgs, ManArgs, ShellArg};
pub use agent::{AgentArgs, IdentityArgs};
pub use bench::BenchArgs;
pub use compat::{CpArgs, McpArgs, MsumArgs, MutilArgs};
pub use fleet::{BrokerArgs, ClassArg, FleetArgs, MoverArgs};
pub use jobs::{
    CleanupArgs, ElsewhereArgs, ErrorsArgs, HistoryArgs, JobsArgs, LogsArgs, PauseArgs, ResumeArgs,
    StandbyArgs, StatusArgs, TopArgs, WaitArgs,
};
pub use manifest::{
    DiffArgs, FilterManifestArgs, FormatArg, ManifestAction, ManifestArgs, PrintArgs,
};
pub use remote::{CompressArg, EncryptArg, Relays, RemoteArgs, StreamsArg};
pub use snapshot::{
    CreateArgs, KeptArgs, ListArgs, PruneArgs, ShareArg, SnapshotAction, SnapshotArgs,
};
pub use submit::{SubmitArgs, SystemArg};
pub use sum::SumArgs;
pub use sync::{DeleteArg, SyncArgs};
pub use values::ReadBackArg;
pub use verify::{LevelArg, VerifyArgs};

use values::{
    buffer, count, duration, hash_type, memory, percentage, positive_duration, positive_size, rate,
    read_back, size, template, threads,
};

/// Copy, synchronize and verify large file trees, on one host or on many
#[derive(Debug, Parser)]
#[command(name = "dmover", version, about, after_long_help = exit_codes!(), max_term_width = 100)]
#[command(propagate_version = true, disable_help_subcommand = false, args_override_self = true)]
pub struct Cli {
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

const CANCELLED: &str = "Job to cancel (default: the only running job)";
const RETRIED: &str = "Job to retry (default: the last 'sync' job with failed entries)";

/// Replaces the help of an operand JOB.
fn described(job: Arg, help: &'static str) -> Arg {
    let names = "JOB is a job id, the unique beginning of one, or a label.";
    job.help(help).long_help(format!("{help}\n\n{names}"))
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Copy files and trees
    ///
    /// Copies SOURCE to DEST, or several SOURCEs into the directory DEST. As with cp, SOURCE goes
    /// into DEST if DEST is a directory; otherwise the copy is named DEST. The same command again
    /// continues in the same place, as long as it finds its state directory. Modes, owners, times,
    /// links, holes, extended attributes, ACLs, flags and project ids are preserved. Entries that
    /// are already equal are skipped.
    #[command(after_help = copy_examples!())]
    #[command(after_long_help = concat!(copy_examples!(), "\n\n", patterns!(), "\n\n", exit_codes!()))]
    Copy(Box<CopyArgs>),
    /// Make DEST match SOURCE; delete only with --delete
    ///
    /// Copies the contents of SOURCE into DEST, and creates DEST if it does not exist. A trailing
    /// slash on either path has no meaning. A pass compares every entry. It updates an entry if
    /// only attributes differ, and replaces an entry of another type. An entry that was renamed at
    /// SOURCE is renamed at DEST. Other entries that only DEST has stay, unless --delete is given.
    #[command(after_help = sync_examples!())]
    #[command(after_long_help = concat!(sync_examples!(), "\n\n", patterns!(), "\n\n", exit_codes!()))]
    Sync(Box<SyncArgs>),
    /// Create, list and prune snapshots that share unchanged files
    Snapshot(Box<SnapshotArgs>),
    /// Compute or check digests of files and trees
    ///
    /// Prints the digest of each FILE, and of each file below each DIR, in the format of
    /// 'sha256sum' and 'b3sum'. With --check, reads such lists and compares. Movers process several
    /// files at a time. Several movers share a large file if the digest allows it, as BLAKE3 (the
    /// default) and CRCs do.
    #[command(after_help = sum_examples!())]
    #[command(after_long_help = concat!(sum_examples!(), "\n\n", patterns!(), "\n\n", exit_codes!()))]
    Sum(Box<SumArgs>),
    /// Compare two trees, or a tree with its manifest; repair differences
    #[command(after_help = verify_examples!())]
    #[command(after_long_help = concat!(verify_examples!(), "\n\n", patterns!(), "\n\n", exit_codes!()))]
    Verify(Box<VerifyArgs>),
    /// Print, filter and compare manifests
    ///
    /// A manifest lists every entry with its metadata and digest. 'dmover copy --manifest' writes
    /// it.
    Manifest(Box<ManifestArgs>),
    /// Copy with the options of cp (GNU coreutils)
    #[command(infer_long_args = true)]
    Cp(Box<CpArgs>),
    /// Copy with the options of mcp (mutil)
    ///
    /// dmover takes these options as well if it is called by the name 'mcp'.
    #[command(infer_long_args = true)]
    Mcp(Box<McpArgs>),
    /// Compute or check digests with the options of msum (mutil)
    ///
    /// dmover takes these options as well if it is called by the name 'msum'.
    #[command(infer_long_args = true)]
    Msum(Box<MsumArgs>),
    /// List jobs and their states
    Jobs(JobsArgs),
    /// Show the state of a job
    Status(StatusArgs),
    /// Watch running jobs and their movers
    Top(TopArgs),
    /// Wait for jobs to end; exit with the worst of their exit codes
    Wait(WaitArgs),
    /// Print the messages of a job, or follow them until it ends
    Logs(LogsArgs),
    /// Pause a job; tasks in progress finish first
    Pause(PauseArgs),
    /// Resume a paused or interrupted job
    Resume(ResumeArgs),
    /// Take over a running job when its process dies
    Standby(StandbyArgs),
    /// Cancel a job; running its command again starts over
    #[command(mut_arg("job", |job| described(job, CANCELLED)))]
    Cancel(PauseArgs),
    /// Retry only what failed in the last pass of a job
    #[command(mut_arg("job", |job| described(job, RETRIED)))]
    Retry(ResumeArgs),
    /// List what failed in the last pass of a job
    ///
    /// The exit code is 3 if the list is known to lack errors.
    Errors(ErrorsArgs),
    /// List the passes of a job
    History(HistoryArgs),
    /// Remove records and leftovers of jobs that are not running
    Cleanup(CleanupArgs),
    /// Run a job on movers started here, over ssh, by Slurm or by PBS
    ///
    /// Starts a broker and movers, runs the job, and ends them. The words after '--' are a dmover
    /// command (copy, sync, verify or sum); submit adds --broker to it. If submit or its host dies,
    /// run the same command again to resume the job. Requeued batch jobs resume by themselves.
    Submit(Box<SubmitArgs>),
    /// Run a broker, which connects jobs to movers on several hosts
    ///
    /// Starts nats-server (2.9 or later) with JetStream and generated keys, and runs until a signal
    /// ends it. It prints the path of its join file. Pass that file to jobs and movers as --broker.
    Broker(BrokerArgs),
    /// Run a mover, which executes tasks from a broker
    ///
    /// Works for jobs of the same user whose trees are mounted here under the same paths. If SOURCE
    /// is on another host (HOST:PATH), only DEST has to be. SIGTERM or SIGUSR2 ends it: the mover
    /// first finishes its tasks in progress or hands them back.
    Mover(MoverArgs),
    /// Set up and check dmover on another host, or serve clients without ssh
    ///
    /// An agent is a dmover on another host that does the work on its file systems. ssh starts it
    /// for each connection, as the user who logs in; it ends with the connection, and listens for
    /// the data streams of that connection only. --listen serves clients without ssh, who name
    /// places as dmover://HOST/PATH.
    Agent(AgentArgs),
    /// Measure how fast bytes move between this host and another one
    ///
    /// Sends random bytes over the same data streams as jobs, from memory to memory in both directions, and with PATH also to a
    /// file without a name in that directory, as much as fits into --time, and back from storage. Names what limits each, and the
    /// last result with the same options.
    Bench(BenchArgs),
    /// Show what the file system of each PATH supports
    ///
    /// Creates a few entries in a temporary directory inside each PATH, checks what the file system
    /// made of them, and removes them. If it cannot create entries, it says so and shows the rest.
    Doctor(DoctorArgs),
    /// Show the configuration in force
    Config(ConfigArgs),
    /// Print a shell completion script
    #[command(after_help = completion_examples!())]
    Completions(CompletionsArgs),
    /// Show the man page of dmover or of a verb
    ///
    /// On a terminal, man(1) shows the page. Otherwise its source (roff) goes to standard output.
    Man(ManArgs),
}

/// Arguments of `copy`.
#[derive(Debug, Args)]
pub struct CopyArgs {
    /// One or more sources, then the destination
    #[arg(value_name = "SOURCE… DEST", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<OsString>,
    /// Where the copies go.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Which entries are copied.
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Which attributes are preserved.
    #[command(flatten)]
    pub fidelity: FidelityArgs,
    /// Which existing entries are replaced.
    #[command(flatten)]
    pub replace: ReplaceArgs,
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
    /// Configuration files.
    #[command(flatten)]
    pub defaults: DefaultsArgs,
}

/// Options for where the copies go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Destination")]
pub struct TargetArgs {
    /// Copy all SOURCEs into this directory
    #[arg(short = 't', long, value_name = "DIR")]
    pub target_directory: Option<OsString>,
    /// Copy SOURCE to DEST itself, never into DEST
    #[arg(short = 'T', long, conflicts_with = "target_directory")]
    pub no_target_directory: bool,
}

/// Options that select what is copied.
#[derive(Debug, Args)]
#[command(next_help_heading = "Selection")]
pub struct SelectionArgs {
    /// Copy only the paths below SOURCE listed in FILE ('-': standard input)
    #[arg(long, value_name = "FILE", conflicts_with = "read_stdin")]
    pub files_from: Option<OsString>,
    /// Names in lists end with NUL instead of a newline
    #[arg(short = '0', long, visible_alias = "null")]
    pub from0: bool,
    /// Copy the pairs listed on standard input as 'SOURCE DEST [RANGES]'
    ///
    /// Each line is one pair, with URI-escaped names. RANGES are byte ranges START-END, separated
    /// by commas; END is excluded.
    #[arg(long, conflicts_with = "manifest")]
    pub read_stdin: bool,
    /// Copy one file from this offset on
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "manifest")]
    pub offset: Option<u64>,
    /// Copy this many bytes of one file
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "manifest")]
    pub length: Option<u64>,
    /// Write at this offset of the copy (default: the offset in the source)
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "manifest")]
    pub dst_offset: Option<u64>,
    /// Filter rules, sizes and times.
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Follow symbolic links given as SOURCE
    #[arg(long)]
    pub dereference_args: bool,
    /// With --dereference: hard-link names that lead to the same file
    #[arg(long, hide = true, requires = "dereference")]
    pub link_followed: bool,
}

/// Options that select entries of trees.
#[derive(Debug, Args)]
#[command(next_help_heading = "Selection")]
pub struct FilterArgs {
    /// Include entries that match, even if a later rule excludes them
    ///
    /// The first rule that matches an entry decides.
    #[arg(long, value_name = "GLOB", allow_hyphen_values = true)]
    pub include: Vec<OsString>,
    /// Exclude entries that match
    ///
    /// A leading slash anchors the pattern at SOURCE. A trailing slash matches directories only.
    #[arg(long, value_name = "GLOB", allow_hyphen_values = true)]
    pub exclude: Vec<OsString>,
    /// Add an rsync filter rule: '- GLOB', '+ GLOB', 'merge FILE' or '!'
    ///
    /// '!' drops all rules before it.
    #[arg(long, value_name = "RULE", allow_hyphen_values = true)]
    pub filter: Vec<OsString>,
    /// Read include patterns from FILE, one per line
    ///
    /// Lines '- GLOB', '+ GLOB' and '!' mean the same as in --filter.
    #[arg(long, value_name = "FILE")]
    pub include_from: Vec<OsString>,
    /// Read exclude patterns from FILE, one per line
    ///
    /// Lines '- GLOB', '+ GLOB' and '!' mean the same as in --filter.
    #[arg(long, value_name = "FILE")]
    pub exclude_from: Vec<OsString>,
    /// Skip files smaller than SIZE
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub min_size: Option<u64>,
    /// Skip files larger than SIZE
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_size: Option<u64>,
    /// Skip files last modified before TIME
    ///
    /// TIME is a time such as '2026-01-31T12:00:00Z', or an age such as '7d'.
    #[arg(long, value_name = "TIME")]
    pub newer: Option<String>,
    /// Skip files last modified at or after TIME
    #[arg(long, value_name = "TIME")]
    pub older: Option<String>,
    /// Do not cross file system boundaries
    #[arg(short = 'x', long)]
    pub one_file_system: bool,
    /// Follow all symbolic links of the source
    ///
    /// Hard links are then copied as separate files.
    #[arg(short = 'L', long)]
    pub dereference: bool,
}

/// Options for attributes that are preserved or compared, and owner maps.
#[derive(Debug, Args)]
#[command(next_help_heading = "Attributes")]
pub struct KeepArgs {
    /// Preserve only these attributes; refuse a DEST that cannot store them
    ///
    /// LIST is one or more of mode, owner, times, links, xattr, acl, flags, project and all,
    /// separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub preserve: Vec<String>,
    /// Do not preserve these attributes
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub no_preserve: Vec<String>,
    /// Map users: FROM:TO[:COUNT], *:TO for all others, @FILE for a file of such rules, comma-separated; first match wins
    ///
    /// FROM is an id or a name at the host of SOURCE, TO an id or a name at that of DEST. Rules of
    /// ids alone come before rules with names.
    #[arg(long, value_name = "MAP", value_delimiter = ',')]
    pub usermap: Vec<String>,
    /// Map groups in the same way
    #[arg(long, value_name = "MAP", value_delimiter = ',')]
    pub groupmap: Vec<String>,
    /// Map users and groups by their names at the hosts of SOURCE and DEST, unless a map has a rule
    ///
    /// This includes ACLs. An owner without an account of that name at DEST keeps its number, or
    /// becomes what the rule *:TO says.
    #[arg(long)]
    pub owners_by_name: bool,
    /// Map project ids: FROM:TO[:COUNT], *:TO for all others but 0, @FILE, comma-separated; first match wins
    #[arg(long, value_name = "MAP", value_delimiter = ',')]
    pub projectmap: Vec<String>,
}

/// Options for attributes that are preserved, holes and shared blocks.
#[derive(Debug, Args)]
#[command(next_help_heading = "Attributes")]
pub struct FidelityArgs {
    /// Which attributes are preserved.
    #[command(flatten)]
    pub keep: KeepArgs,
    /// Preserve everything (the default)
    #[arg(short, long)]
    pub archive: bool,
    /// Copy directories with their contents (the default)
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Preserve hard links (the default)
    #[arg(short = 'H', long)]
    pub hard_links: bool,
    /// Preserve ACLs (the default)
    #[arg(short = 'A', long)]
    pub acls: bool,
    /// Preserve extended attributes (the default)
    #[arg(short = 'X', long)]
    pub xattrs: bool,
    /// Do not count the loss of these attributes as a failure
    ///
    /// LIST is one or more of xattr, acl, capability, flags, project, times, mode, owner, links and
    /// all, separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub allow_loss: Vec<String>,
    /// Turn runs of zeros into holes (auto: where the source has holes)
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = WhenArg::Auto)]
    pub sparse: WhenArg,
    /// Share blocks with the source (auto: where the file system can)
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = WhenArg::Auto)]
    pub reflink: WhenArg,
    /// Do not set final modes: new files stay closed to group and others
    #[arg(long)]
    pub skip_chmod: bool,
}

/// The suffix of simple backups, as in cp.
pub const DEFAULT_SUFFIX: &str = "~";

/// Options for which existing entries are replaced.
#[derive(Debug, Args)]
#[command(next_help_heading = "Writing")]
pub struct ReplaceArgs {
    /// Which existing entries to replace
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = OverwriteArg::Changed)]
    pub overwrite: OverwriteArg,
    /// Replace only entries older than the source (--overwrite=older)
    #[arg(short = 'u', long, conflicts_with_all = ["overwrite", "no_clobber"])]
    pub update: bool,
    /// Do not replace existing entries (--overwrite=never)
    #[arg(long, conflicts_with = "overwrite")]
    pub no_clobber: bool,
    /// Back up replaced entries: simple (the default) or numbered
    #[arg(long, value_name = "HOW", value_enum, num_args = 0..=1, require_equals = true,
        default_missing_value = "simple", conflicts_with_all = ["no_clobber", "inplace"])]
    pub backup: Option<BackupArg>,
    /// Suffix of simple backup names; implies --backup=simple
    #[arg(long, value_name = "SUFFIX", default_value = DEFAULT_SUFFIX)]
    pub suffix: OsString,
}

/// Options for how files are written.
#[derive(Debug, Args)]
#[command(next_help_heading = "Writing")]
pub struct WritingArgs {
    /// Write into existing files instead of replacing them
    ///
    /// Files with several names (hard links) are still replaced.
    #[arg(long)]
    pub inplace: bool,
    /// Send changed files whole to another host
    ///
    /// By default, if SOURCE and DEST are on different hosts and DEST has an older version of a file of at least
    /// 256 KiB, only the blocks of 4 KiB that differ are sent. Both hosts read the file to find them.
    #[arg(short = 'W', long)]
    pub whole_file: bool,
    /// Split files larger than SIZE into chunks of SIZE (0: never)
    ///
    /// By default, the size of a file decides. A file that would have too many chunks gets larger
    /// ones.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub split_size: Option<u64>,
    /// How to copy data
    ///
    /// --direct-read, --direct-write, --fadvise-read and --fadvise-write override it.
    #[arg(long, value_name = "ENGINE", value_enum, default_value_t = EngineArg::Auto)]
    pub engine: EngineArg,
    /// Bytes per read or write, 64K to 1G (default: 1M)
    ///
    /// The limit is a share of --memory. The default is smaller with many movers.
    #[arg(long, value_name = "SIZE", value_parser = buffer)]
    pub buffer_size: Option<u64>,
    /// Read with O_DIRECT, bypassing the page cache
    ///
    /// Where the file system refuses O_DIRECT, dmover reads through the page cache and counts this.
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true,
        default_value_t = WhenArg::Auto, default_missing_value = "always")]
    pub direct_read: WhenArg,
    /// Write with O_DIRECT, bypassing the page cache
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true,
        default_value_t = WhenArg::Auto, default_missing_value = "always")]
    pub direct_write: WhenArg,
    /// Drop read data from the page cache
    #[arg(long)]
    pub fadvise_read: bool,
    /// Drop written data from the page cache once it is on storage
    #[arg(long)]
    pub fadvise_write: bool,
    /// Flush each file to storage before setting its times
    #[arg(long)]
    pub fsync: bool,
    /// Show what would be done; change nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// Options for digests, manifests and read-back.
#[derive(Debug, Args)]
#[command(next_help_heading = "Digests and read-back")]
pub struct ProofArgs {
    /// Print the digest and the name of each copied file
    ///
    /// The digest is that of the bytes read from the source, the name that of the copy. 'dmover sum
    /// -c' checks the copies against this list.
    #[arg(long, conflicts_with_all = ["dry_run", "itemize", "format"])]
    pub print_hash: bool,
    /// With --print-hash: print names of sources instead of copies
    #[arg(long, requires = "print_hash")]
    pub print_src: bool,
    /// Write a manifest: the metadata and digest of every entry
    ///
    /// 'dmover manifest' prints it.
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub manifest: Option<OsString>,
    /// Verify written data: read-back, sample:PERCENT or none
    ///
    /// The default is none. dmover reads the data from storage, not from the page cache, and
    /// compares it with the digests made when it read the source.
    #[arg(long, value_name = "HOW", value_parser = read_back, default_value = "none",
        hide_default_value = true)]
    pub verify: ReadBackArg,
    /// Digest function (see 'dmover sum --help')
    #[arg(long, value_name = "TYPE", value_parser = hash_type, default_value = "blake3")]
    pub hash_type: dmover_model::HashType,
    /// Make tree digests with leaves of SIZE
    ///
    /// This is for functions whose digests are not trees by themselves, such as MD5 and SHA-256.
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub hash_leaf_size: Option<u64>,
    /// With --print-hash: also print the digests of all pieces of a file
    #[arg(long, requires = "print_hash")]
    pub check_tree: bool,
    /// Print digests as mutil does, in pieces of SIZE (0: whole files)
    #[arg(long, value_name = "SIZE", value_parser = size, hide = true)]
    pub mutil: Option<u64>,
}

/// Limits.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Concurrent operations, 1 to 1024 (default: automatic)
    ///
    /// By default, dmover adapts the number to the throughput while it runs.
    #[arg(short = 'j', long, value_name = "N", value_parser = threads)]
    pub threads: Option<u16>,
    /// Memory for buffers and queues, at least 8M
    #[arg(long, value_name = "SIZE", value_parser = memory, default_value = "64M")]
    pub memory: u64,
    /// Limit the data rate, in bytes per second: 500M, 1G
    ///
    /// The unit is required.
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub bwlimit: Option<u64>,
    /// Process at most N entries per second
    #[arg(long, value_name = "N", value_parser = count)]
    pub ops_limit: Option<u64>,
    /// Open at most N source files per second
    #[arg(long, value_name = "N", value_parser = count)]
    pub open_limit: Option<u64>,
    /// Create at most N entries per second at the destination
    #[arg(long, value_name = "N", value_parser = count)]
    pub create_limit: Option<u64>,
    /// Stop after N failed entries
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_errors: Option<u64>,
    /// Stop after this time, such as 90s or 1h30m
    ///
    /// Entries in progress get 7 more seconds.
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub max_duration: Option<u64>,
}

/// Options for output about each entry.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct ItemArgs {
    /// Print each change in rsync's 11 columns
    ///
    /// With -v, unchanged entries are printed as well.
    #[arg(short, long, conflicts_with = "json")]
    pub itemize: bool,
    /// Print each entry by TEMPLATE, such as '%i %n'
    ///
    /// %i is the itemized change, %n the name, %d the name of the copy, %a the action, %t the type,
    /// %l the number of bytes, %e the seconds, %0 a NUL, %% a percent sign. A newline follows,
    /// unless TEMPLATE ends with %0.
    #[arg(long, value_name = "TEMPLATE", value_parser = template,
        conflicts_with_all = ["itemize", "json"])]
    pub format: Option<String>,
    /// Print the time and rate of each file on standard error
    #[arg(long, hide = true)]
    pub print_stats: bool,
}

/// Options for the output of a job.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Print one JSON object per line; the last one is the summary
    #[arg(long)]
    pub json: bool,
    /// Print each completed entry and every error (repeat for more)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Print no progress and no summary (twice: no messages either)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub quiet: u8,
    /// When to show progress
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true,
        default_value_t = ProgressArg::Auto, default_missing_value = "auto")]
    pub progress: ProgressArg,
    /// Interval of progress lines in the log or without a terminal (0: never)
    #[arg(long, value_name = "DURATION", value_parser = duration, num_args = 0..=1, require_equals = true,
        default_value = "60s", default_missing_value = "60s")]
    pub stats: u64,
    /// Print sizes as exact numbers of bytes
    #[arg(long, conflicts_with = "si")]
    pub bytes: bool,
    /// Print sizes in powers of 1000
    #[arg(long)]
    pub si: bool,
    /// Write each error to FILE when it occurs, one JSON object per line
    #[arg(long, value_name = "FILE")]
    pub errors_to: Option<OsString>,
    /// Write the log to FILE
    ///
    /// The log contains the command, a progress line at each --stats interval, each error and the
    /// summary.
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<OsString>,
    /// Format of log lines
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormatArg::Text)]
    pub log_format: LogFormatArg,
    /// Print the job specification as JSON and exit
    #[arg(long)]
    pub print_job: bool,
}

/// Options for directories that hold state.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Configuration and state")]
pub struct StateArgs {
    /// Directory for job records
    ///
    /// Default: $DMOVER_STATE_DIR, /var/lib/dmover for root, else $XDG_STATE_HOME/dmover.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<OsString>,
    /// Keep no state: do not record the job
    #[arg(long, conflicts_with = "state_dir")]
    pub no_state: bool,
    /// Do not lock DEST, and ignore the locks of other jobs
    ///
    /// Only if a lock belongs to no job. Two jobs that write to one place can delete each other's files.
    #[arg(long)]
    pub no_lock: bool,
    /// Directory for lists that exceed --memory (default: --state-dir)
    #[arg(long, value_name = "DIR")]
    pub spill_dir: Option<OsString>,
}

/// Options for running a job in the background.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job")]
pub struct JobArgs {
    /// Label of the job, to use as JOB with other verbs
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Run in the background; print the job id and return
    ///
    /// 'dmover wait' waits for the job.
    #[arg(long, conflicts_with_all = ["dry_run", "no_state"])]
    pub detach: bool,
    /// Run COMMAND with the shell when the job ends
    ///
    /// $DMOVER_JOB is the job id, $DMOVER_JOB_STATE is finished, stopped, cancelled or failed, and
    /// $DMOVER_JOB_EXIT is the exit code.
    #[arg(long, value_name = "COMMAND")]
    pub notify: Option<String>,
}

/// Options for configuration files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Configuration and state")]
pub struct DefaultsArgs {
    /// Read this configuration file instead of the default ones
    #[arg(long, value_name = "FILE")]
    pub config: Option<OsString>,
    /// Read no configuration file
    #[arg(long, conflicts_with = "config")]
    pub no_config: bool,
}

/// `auto`, `always`, `never`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum WhenArg {
    /// Where it helps.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How data is copied.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum EngineArg {
    /// Chosen by file size and by what both file systems support.
    Auto,
    /// In the kernel (copy_file_range), or else buffered.
    Kernel,
    /// Through the page cache.
    Buffered,
    /// Bypassing the page cache (O_DIRECT).
    Direct,
    /// Bypassing the page cache, with overlapping reads and writes (io_uring).
    Uring,
}

/// Which existing entries are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OverwriteArg {
    /// Entries that differ in type, size or time.
    Changed,
    /// All entries.
    Always,
    /// None.
    Never,
    /// Entries older than the source.
    Older,
}

/// Kinds of backups.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum BackupArg {
    /// One backup, named with --suffix.
    Simple,
    /// A numbered backup of each version.
    Numbered,
}

/// When progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProgressArg {
    /// On a terminal.
    Auto,
    /// Also without a terminal.
    Always,
    /// Never.
    Never,
    /// As JSON lines on standard error.
    Json,
}

/// Formats of the log.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum LogFormatArg {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}
