//! What can be typed: one definition, from which help, man pages and completions are made.
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;

#[macro_use]
mod texts;

mod about;
mod fleet;
mod front;
mod jobs;
mod manifest;
mod snapshot;
mod submit;
mod sum;
mod sync;
mod verify;

pub use about::{CompletionsArgs, ConfigAction, ConfigArgs, DoctorArgs, ManArgs, ShellArg};
pub use fleet::{BrokerArgs, ClassArg, FleetArgs, MoverArgs};
pub use front::{CpArgs, McpArgs, MsumArgs, MutilArgs};
pub use jobs::{
    CleanupArgs, ErrorsArgs, HistoryArgs, JobsArgs, PauseArgs, ResumeArgs, StandbyArgs, StatusArgs,
    TopArgs, WaitArgs,
};
pub use manifest::{
    DiffArgs, FilterManifestArgs, FormatArg, ManifestAction, ManifestArgs, PrintArgs,
};
pub use snapshot::{
    CreateArgs, KeptArgs, ListArgs, PruneArgs, ShareArg, SnapshotAction, SnapshotArgs,
};
pub use submit::{SubmitArgs, SystemArg};
pub use sum::SumArgs;
pub use sync::{DeleteArg, SyncArgs};
pub use verify::{LevelArg, VerifyArgs};

/// Moves file trees as fast as the hardware allows, and tells the truth about it.
#[derive(Debug, Parser)]
#[command(name = "dmover", version, about, after_long_help = exit_codes!(), max_term_width = 100)]
#[command(propagate_version = true, disable_help_subcommand = false, args_override_self = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

const CANCELLED: &str = "The id of a job, the beginning of one, or a label; without it, the one that runs if no other does";
const RETRIED: &str =
    "The id of a job, the beginning of one, or a label; without it, the last one of 'sync'";

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Copy files and trees
    ///
    /// Copies SOURCE to DEST, or several SOURCEs into the directory DEST, as cp does: into DEST if it
    /// is a directory, else as DEST. Everything is kept: modes, owners, times, links, holes, extended
    /// attributes, ACLs, flags and project ids. What is equal already is skipped.
    #[command(after_help = copy_examples!())]
    #[command(after_long_help = concat!(copy_examples!(), "\n\n", patterns!(), "\n\n", exit_codes!()))]
    Copy(Box<CopyArgs>),
    /// Make DEST match SOURCE; delete only with --delete
    ///
    /// The contents of SOURCE go into DEST, which is made if it is not there; a slash at the end of either means nothing.
    /// Another pass costs a look at every entry. Attributes that alone differ are set, an entry of another type is
    /// replaced, and what only DEST has stays, unless --delete lets it go.
    #[command(after_help = sync_examples!())]
    #[command(after_long_help = concat!(sync_examples!(), "\n\n", patterns!(), "\n\n", exit_codes!()))]
    Sync(Box<SyncArgs>),
    /// Keep snapshots of a tree that share unchanged files
    Snapshot(Box<SnapshotArgs>),
    /// Compute or check digests of files and trees
    ///
    /// Prints a digest for each FILE, and for each file below each DIR, in the format of 'sha256sum' and
    /// 'b3sum'; with --check, reads such lists and compares. Several movers work on several files, and on the
    /// parts of large ones where the digest allows it, which BLAKE3 (the default) and CRCs do.
    #[command(after_help = sum_examples!())]
    #[command(after_long_help = concat!(sum_examples!(), "\n\n", patterns!(), "\n\n", exit_codes!()))]
    Sum(Box<SumArgs>),
    /// Compare two trees, or a tree with its manifest, and repair differences
    #[command(after_help = verify_examples!())]
    #[command(after_long_help = concat!(verify_examples!(), "\n\n", patterns!(), "\n\n", exit_codes!()))]
    Verify(Box<VerifyArgs>),
    /// Print, filter and compare manifests
    ///
    /// 'dmover copy --manifest' writes them: every entry with its metadata and digest.
    Manifest(Box<ManifestArgs>),
    /// Copy with the options of cp (GNU coreutils)
    #[command(infer_long_args = true)]
    Cp(Box<CpArgs>),
    /// Copy with the options of mcp (mutil); also when called as 'mcp'
    #[command(infer_long_args = true)]
    Mcp(Box<McpArgs>),
    /// Compute or check digests with the options of msum (mutil); also when called as 'msum'
    #[command(infer_long_args = true)]
    Msum(Box<MsumArgs>),
    /// List known jobs
    Jobs(JobsArgs),
    /// Show the state of a job
    Status(StatusArgs),
    /// Watch running jobs and their movers
    Top(TopArgs),
    /// Wait for jobs to end; the exit code is the worst of theirs
    Wait(WaitArgs),
    /// Pause a job; tasks in progress finish first
    Pause(PauseArgs),
    /// Resume a paused or interrupted job
    Resume(ResumeArgs),
    /// Wait beside a running job and take over when its process dies
    Standby(StandbyArgs),
    /// Cancel a job; running its command again starts over
    #[command(mut_arg("job", |job| job.help(CANCELLED)))]
    Cancel(PauseArgs),
    /// Retry only what failed in the last pass of a job
    #[command(mut_arg("job", |job| job.help(RETRIED)))]
    Retry(ResumeArgs),
    /// List what failed in the last pass of a job
    Errors(ErrorsArgs),
    /// List the passes of a job
    History(HistoryArgs),
    /// Remove records of jobs that do not run, and leftovers of interrupted runs
    Cleanup(CleanupArgs),
    /// Run a job with movers started here, over ssh, or by a batch system
    ///
    /// Starts a broker and movers, runs the job, and ends them. What follows '--' is a command of dmover (copy, sync, verify or
    /// sum), which gets --broker. Whatever dies on the way, the same command goes on where it stopped; batch jobs are
    /// requeued and go on by themselves.
    Submit(Box<SubmitArgs>),
    /// Start a broker, which connects jobs with movers on several hosts
    ///
    /// Starts the program nats-server (2.9 or later) with JetStream and a key of its own, and stays until a signal ends it.
    /// The file that it names lets coordinators and movers in: give it to them as --broker.
    Broker(BrokerArgs),
    /// Run a mover, which executes tasks from a broker
    ///
    /// Joins jobs of the same user whose trees are mounted here at the same paths, and leaves when it is told to (SIGTERM,
    /// SIGUSR2): what it has in hand is ended or handed back first.
    Mover(MoverArgs),
    /// Show what the file systems at PATHs can do
    ///
    /// Makes a few entries in a directory of its own inside each PATH, looks what the file system made
    /// of them, and removes them again. Where nothing can be made, it says so and shows the rest.
    Doctor(DoctorArgs),
    /// Show the configuration in force
    Config(ConfigArgs),
    /// Print the completion script of a shell
    #[command(after_help = completion_examples!())]
    Completions(CompletionsArgs),
    /// Show the man page of the program or of a verb
    ///
    /// On a terminal, man(1) shows the page. Otherwise its source (roff) goes to standard output.
    Man(ManArgs),
}

/// Arguments of `copy`.
#[derive(Debug, Args)]
pub struct CopyArgs {
    /// Sources, then the destination
    #[arg(value_name = "SOURCE… DEST", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<OsString>,
    /// Where entries go
    #[command(flatten)]
    pub target: TargetArgs,
    /// Which entries take part
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// What is kept
    #[command(flatten)]
    pub fidelity: FidelityArgs,
    /// What becomes of entries that exist
    #[command(flatten)]
    pub replace: ReplaceArgs,
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
    /// Defaults
    #[command(flatten)]
    pub defaults: DefaultsArgs,
}

/// Where entries go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Destination")]
pub struct TargetArgs {
    /// Copy all SOURCEs into this directory
    #[arg(short = 't', long, value_name = "DIR")]
    pub target_directory: Option<OsString>,
    /// Copy to exactly DEST, also if it is a directory
    #[arg(short = 'T', long, conflicts_with = "target_directory")]
    pub no_target_directory: bool,
}

/// Which entries take part.
#[derive(Debug, Args)]
#[command(next_help_heading = "Selection")]
pub struct SelectionArgs {
    /// Copy only the paths below SOURCE that FILE lists ('-': standard input)
    #[arg(long, value_name = "FILE", conflicts_with = "read_stdin")]
    pub files_from: Option<OsString>,
    /// Names in lists end with NUL instead of a newline
    #[arg(short = '0', long, visible_alias = "null")]
    pub from0: bool,
    /// Copy 'SOURCE DEST [RANGES]' lines from standard input, URI-escaped, ranges START-END
    #[arg(long, conflicts_with = "manifest")]
    pub read_stdin: bool,
    /// Copy only bytes from this offset of one file
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "manifest")]
    pub offset: Option<u64>,
    /// Copy only so many bytes of one file
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "manifest")]
    pub length: Option<u64>,
    /// Write them at this offset of the destination (default: the same as in the source)
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "manifest")]
    pub dst_offset: Option<u64>,
    /// Rules and sizes
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Follow symbolic links given as SOURCE
    #[arg(long)]
    pub dereference_args: bool,
    /// With --dereference: names that lead to one file become hard links
    #[arg(long, hide = true, requires = "dereference")]
    pub link_followed: bool,
}

/// Rules that entries of trees have to pass.
#[derive(Debug, Args)]
#[command(next_help_heading = "Selection")]
pub struct FilterArgs {
    /// Take part even if a later rule excludes it; the first rule that matches wins
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<OsString>,
    /// Leave out what matches
    ///
    /// A leading slash anchors at SOURCE, a trailing one means directories.
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<OsString>,
    /// Read include rules from a file, one a line
    #[arg(long, value_name = "FILE")]
    pub include_from: Vec<OsString>,
    /// Read exclude rules from a file, one a line
    #[arg(long, value_name = "FILE")]
    pub exclude_from: Vec<OsString>,
    /// Skip smaller files
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub min_size: Option<u64>,
    /// Skip larger files
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_size: Option<u64>,
    /// Skip files last written before this time ('2026-01-31T12:00:00Z', or '7d' ago)
    #[arg(long, value_name = "TIME")]
    pub newer: Option<String>,
    /// Skip files last written at or after this time
    #[arg(long, value_name = "TIME")]
    pub older: Option<String>,
    /// Do not enter other file systems
    #[arg(short = 'x', long)]
    pub one_file_system: bool,
    /// Follow all symbolic links of the source; hard links become files of their own
    #[arg(short = 'L', long)]
    pub dereference: bool,
}

/// Which attributes count, and how owners are mapped.
#[derive(Debug, Args)]
#[command(next_help_heading = "Fidelity")]
pub struct KeepArgs {
    /// Keep just these, and refuse a destination that cannot hold them: mode, owner, times, links,
    /// xattr, acl, flags, project, all
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub preserve: Vec<String>,
    /// Do not keep these
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub no_preserve: Vec<String>,
    /// Map owners: FROM:TO[:COUNT], comma-separated ids, first match wins
    #[arg(long, value_name = "MAP", value_delimiter = ',')]
    pub usermap: Vec<String>,
    /// Map groups: FROM:TO[:COUNT]
    #[arg(long, value_name = "MAP", value_delimiter = ',')]
    pub groupmap: Vec<String>,
}

/// What is kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "Fidelity")]
pub struct FidelityArgs {
    /// Which attributes count
    #[command(flatten)]
    pub keep: KeepArgs,
    /// Keep everything (this is the default)
    #[arg(short, long)]
    pub archive: bool,
    /// Copy directories with what is in them (this is the default)
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Keep hard links (this is the default)
    #[arg(short = 'H', long)]
    pub hard_links: bool,
    /// Keep ACLs (this is the default)
    #[arg(short = 'A', long)]
    pub acls: bool,
    /// Keep extended attributes (this is the default)
    #[arg(short = 'X', long)]
    pub xattrs: bool,
    /// Losses that do not count as failures: xattr, acl, capability, flags, project, times, mode,
    /// owner, links, all
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub allow_loss: Vec<String>,
    /// Whether runs of zeroes become holes (auto: where the source has holes)
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = WhenArg::Auto)]
    pub sparse: WhenArg,
    /// Whether blocks are shared with the source (auto: where the file system can)
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = WhenArg::Auto)]
    pub reflink: WhenArg,
    /// Leave the closed permissions of files that are being written
    #[arg(long)]
    pub skip_chmod: bool,
}

/// What becomes of entries that exist.
#[derive(Debug, Args)]
#[command(next_help_heading = "Writing")]
pub struct ReplaceArgs {
    /// What happens to existing entries that differ
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = OverwriteArg::Changed)]
    pub overwrite: OverwriteArg,
    /// Replace only what is older than the source (as --overwrite=older)
    #[arg(short = 'u', long, conflicts_with_all = ["overwrite", "no_clobber"])]
    pub update: bool,
    /// Leave everything that exists alone (as --overwrite=never)
    #[arg(long, conflicts_with = "overwrite")]
    pub no_clobber: bool,
    /// Keep what is replaced under a backup name: simple or numbered
    #[arg(long, value_name = "HOW", value_enum, num_args = 0..=1, require_equals = true,
        default_missing_value = "simple", conflicts_with_all = ["no_clobber", "inplace"])]
    pub backup: Option<BackupArg>,
    /// What simple backup names end with; typed without --backup, it means --backup=simple
    #[arg(long, value_name = "SUFFIX", default_value = "~")]
    pub suffix: OsString,
}

/// How it is written.
#[derive(Debug, Args)]
#[command(next_help_heading = "Writing")]
pub struct WritingArgs {
    /// Write into existing files instead of replacing them; those with several names are replaced all the same
    #[arg(long)]
    pub inplace: bool,
    /// Cut files larger than this into chunks of this size, or larger ones if a file would have very many (0: never;
    /// default: by size)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub split_size: Option<u64>,
    /// How bytes are moved; --direct-* and --fadvise-* win over it
    #[arg(long, value_name = "ENGINE", value_enum, default_value_t = EngineArg::Auto)]
    pub engine: EngineArg,
    /// Bytes in one read or write, 64K to 1G and at most a share of --memory (default: 1M, less with many movers)
    #[arg(long, value_name = "SIZE", value_parser = buffer)]
    pub buffer_size: Option<u64>,
    /// Read past the page cache (O_DIRECT); refusals are counted and go through it
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true,
        default_value_t = WhenArg::Auto, default_missing_value = "always")]
    pub direct_read: WhenArg,
    /// Write past the page cache
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true,
        default_value_t = WhenArg::Auto, default_missing_value = "always")]
    pub direct_write: WhenArg,
    /// Drop what was read from the page cache
    #[arg(long)]
    pub fadvise_read: bool,
    /// Drop what was written from the page cache, once it is on storage
    #[arg(long)]
    pub fadvise_write: bool,
    /// Flush every file before it gets its times
    #[arg(long)]
    pub fsync: bool,
    /// Say what would be done, change nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// Digests of what is copied.
#[derive(Debug, Args)]
#[command(next_help_heading = "Proof")]
pub struct ProofArgs {
    /// Print the digest of each file that is copied, made of the bytes as they were read, with the name of the copy:
    /// 'dmover sum -c' on it checks what was written
    #[arg(long, conflicts_with_all = ["dry_run", "itemize", "format"])]
    pub print_hash: bool,
    /// Print names of sources instead of those of the copies
    #[arg(long, requires = "print_hash")]
    pub print_src: bool,
    /// Write a manifest: every entry with its metadata and digest ('dmover manifest' prints it)
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub manifest: Option<OsString>,
    /// Read back what was written and compare it with the source: read-back, sample:PERCENT or none
    ///
    /// It is read from storage, not from the page cache.
    #[arg(long, value_name = "HOW", value_parser = read_back, default_value = "none",
        hide_default_value = true)]
    pub verify: ReadBackArg,
    /// The function that makes digests (see 'dmover sum --help')
    #[arg(long, value_name = "TYPE", value_parser = hash_type, default_value = "blake3")]
    pub hash_type: dmover_model::HashType,
    /// Digests of trees whose leaves have this size, for functions that are no trees by themselves
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub hash_leaf_size: Option<u64>,
    /// Print the digests of all pieces of a file as well
    #[arg(long, requires = "print_hash")]
    pub check_tree: bool,
    /// Print digests as mutil does, in pieces of this size (0: whole)
    #[arg(long, value_name = "SIZE", value_parser = size, hide = true)]
    pub mutil: Option<u64>,
}

/// Bounds.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Operations in flight, 1 to 1024
    ///
    /// Default: as many as pay, found out while running.
    #[arg(short = 'j', long, value_name = "N", value_parser = threads)]
    pub threads: Option<u16>,
    /// Memory for buffers and queues, at least 8M
    #[arg(long, value_name = "SIZE", value_parser = memory, default_value = "64M")]
    pub memory: u64,
    /// Bytes of content per second, with a unit: 500M, 1G, 64K
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub bwlimit: Option<u64>,
    /// Entries per second
    #[arg(long, value_name = "N", value_parser = count)]
    pub ops_limit: Option<u64>,
    /// Source files opened per second
    #[arg(long, value_name = "N", value_parser = count)]
    pub open_limit: Option<u64>,
    /// Files, directories and other entries made per second at the destination
    #[arg(long, value_name = "N", value_parser = count)]
    pub create_limit: Option<u64>,
    /// Stop after so many failed entries
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_errors: Option<u64>,
    /// Stop after this time ('90s', '1h30m'); entries in hand have 7 seconds more
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub max_duration: Option<u64>,
}

/// What is shown of single entries.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct ItemArgs {
    /// Print each change in rsync's 11 columns; with -v what is equal as well
    #[arg(short, long, conflicts_with = "json")]
    pub itemize: bool,
    /// Print each entry by a template: %i itemized, %n name, %d name of the copy, %a action, %t type, %l bytes, %e seconds,
    /// %0 NUL, %% percent; a newline follows unless it ends with %0
    #[arg(long, value_name = "TEMPLATE", value_parser = template,
        conflicts_with_all = ["itemize", "json"])]
    pub format: Option<String>,
    /// Print the time and rate of each file on standard error
    #[arg(long, hide = true)]
    pub print_stats: bool,
}

/// What is shown.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Print one JSON object a line; the last one is the summary
    #[arg(long)]
    pub json: bool,
    /// Say more (repeat for more)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// No progress and no summary (twice: no messages either)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub quiet: u8,
    /// When progress is shown
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true,
        default_value_t = ProgressArg::Auto, default_missing_value = "auto")]
    pub progress: ProgressArg,
    /// Without a terminal, print a progress line this often (0: never)
    #[arg(long, value_name = "DURATION", value_parser = duration, num_args = 0..=1, require_equals = true,
        default_value = "60s", default_missing_value = "60s")]
    pub stats: u64,
    /// Sizes as exact numbers of bytes
    #[arg(long, conflicts_with = "si")]
    pub bytes: bool,
    /// Sizes in powers of 1000
    #[arg(long)]
    pub si: bool,
    /// Write the log to this file
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<OsString>,
    /// How log lines look
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormatArg::Text)]
    pub log_format: LogFormatArg,
    /// Print the job that these arguments make, as JSON, and do nothing
    #[arg(long)]
    pub print_job: bool,
}

/// Where things are kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "Configuration and state")]
pub struct StateArgs {
    /// Where jobs are remembered (default: $DMOVER_STATE_DIR, /var/lib/dmover for root, else
    /// $XDG_STATE_HOME/dmover)
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<OsString>,
    /// Keep no state: the job is neither remembered nor locked
    #[arg(long, conflicts_with = "state_dir")]
    pub no_state: bool,
    /// Where lists that exceed the memory go (default: the state directory)
    #[arg(long, value_name = "DIR")]
    pub spill_dir: Option<OsString>,
}

/// How the job goes on when nobody watches.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job")]
pub struct JobArgs {
    /// A name for the job, for 'dmover jobs' and its like
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Go on in the background, print the id of the job and return; 'dmover wait' waits for it
    #[arg(long, conflicts_with_all = ["dry_run", "no_state"])]
    pub detach: bool,
    /// Run this command by the shell when the job ends: $DMOVER_JOB, $DMOVER_JOB_STATE and $DMOVER_JOB_EXIT say
    /// which, how (finished, stopped, cancelled, failed), and with what exit code
    #[arg(long, value_name = "COMMAND")]
    pub notify: Option<String>,
}

/// Which defaults are read.
#[derive(Debug, Args)]
#[command(next_help_heading = "Configuration and state")]
pub struct DefaultsArgs {
    /// Read this configuration file instead of the usual ones
    #[arg(long, value_name = "FILE")]
    pub config: Option<OsString>,
    /// Read no configuration file
    #[arg(long, conflicts_with = "config")]
    pub no_config: bool,
}

/// `auto`, `always`, `never`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum WhenArg {
    /// Where it gains something.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How bytes are moved.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum EngineArg {
    /// By the size of a file and by what both file systems can do.
    Auto,
    /// Inside the kernel (copy_file_range), else buffered.
    Kernel,
    /// Through the page cache.
    Buffered,
    /// Past the page cache (O_DIRECT).
    Direct,
    /// Past the page cache, reads and writes overlapping (io_uring).
    Uring,
}

/// What is overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OverwriteArg {
    /// What differs in type, size or time.
    Changed,
    /// Everything.
    Always,
    /// Nothing.
    Never,
    /// What is older than the source.
    Older,
}

/// Kinds of backups.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum BackupArg {
    /// One, named by the suffix.
    Simple,
    /// As many as there are versions.
    Numbered,
}

/// When progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProgressArg {
    /// On a terminal.
    Auto,
    /// Also without one.
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
    /// One JSON object a line.
    Json,
}

fn threads(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(number @ 1..=1024) => Ok(number),
        _ => Err("has to be a number from 1 to 1024".into()),
    }
}

fn count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("has to be a number of at least 1".into()),
        Ok(number) => Ok(number),
    }
}

/// Letters that may follow '%' in a template.
const TEMPLATE_LETTERS: &str = "indatle0%";

fn template(text: &str) -> Result<String, String> {
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '%' {
            let letter = chars.next();
            if !letter.is_some_and(|letter| TEMPLATE_LETTERS.contains(letter)) {
                let shown = letter.map(String::from).unwrap_or_default();
                return Err(format!(
                    "%{shown} means nothing; there are %i %n %d %a %t %l %e %0 %%"
                ));
            }
        }
    }
    Ok(text.to_owned())
}

fn size(text: &str) -> Result<u64, String> {
    dmover_model::units::parse_size(text)
}

fn positive_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("has to be more than 0".into()),
        bytes => Ok(bytes),
    }
}

/// rsync and scp count in KiB and Kbit, other programs in bytes: a number alone is not clear.
fn rate(text: &str) -> Result<u64, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "has no unit: {text}K is KiB per second, as in rsync; {text}B is bytes per second"
        ));
    }
    positive_size(text)
}

fn buffer(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes @ 0x1_0000..=0x4000_0000 => Ok(bytes),
        _ => Err("has to be from 64K to 1G".into()),
    }
}

fn memory(text: &str) -> Result<u64, String> {
    match size(text)? {
        0..0x80_0000 => Err("has to be at least 8M".into()),
        bytes => Ok(bytes),
    }
}

fn positive_duration(text: &str) -> Result<u64, String> {
    match duration(text)? {
        0 => Err("has to be more than 0".into()),
        time => Ok(time),
    }
}

fn duration(text: &str) -> Result<u64, String> {
    dmover_model::units::parse_duration_ms(text)
}

fn hash_type(text: &str) -> Result<dmover_model::HashType, String> {
    dmover_model::HashType::parse(text).ok_or_else(|| {
        let all: Vec<_> = dmover_model::HashType::ALL.iter().map(|hash| hash.word()).collect();
        format!("there are {}", all.join(", "))
    })
}

/// `--verify` of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadBackArg {
    /// Nothing is read back.
    None,
    /// Everything that was written.
    All,
    /// So many millionths of the files.
    Sample(u32),
}

fn read_back(text: &str) -> Result<ReadBackArg, String> {
    match (text, text.strip_prefix("sample:")) {
        ("none", _) => Ok(ReadBackArg::None),
        ("read-back", _) => Ok(ReadBackArg::All),
        (_, Some(share)) => Ok(ReadBackArg::Sample(percentage(share)?)),
        _ => Err("has to be none, read-back or sample:PERCENT".into()),
    }
}

/// A share of a hundred, in millionths of all.
fn percentage(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>();
    match number {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => {
            Ok(((percent * 10_000.0).round() as u32).max(1))
        }
        _ => Err("has to be more than 0 and at most 100, such as 5 or 0.1%".into()),
    }
}
