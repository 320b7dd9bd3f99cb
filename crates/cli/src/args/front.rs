//! Arguments of the verbs that stand in for other programs. Letters, words and units are theirs.
use clap::{ArgAction, Args};
use std::ffi::OsString;

use super::hash_type;

/// Arguments of `cp`.
#[derive(Debug, Args)]
pub struct CpArgs {
    /// What is copied, and where to
    #[arg(value_name = "SOURCE… DEST", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<OsString>,
    /// The same as -dR --preserve=all
    #[arg(short, long)]
    pub archive: bool,
    /// Keep what is replaced: none, simple, numbered or existing
    #[arg(long, value_name = "CONTROL", num_args = 0..=1, require_equals = true,
        default_missing_value = "")]
    pub backup: Option<String>,
    /// The same without a choice
    #[arg(short = 'b')]
    pub simple_backup: bool,
    /// What is appended to names of backups (default: ~)
    #[arg(short = 'S', long, value_name = "SUFFIX")]
    pub suffix: Option<OsString>,
    /// The same as --no-dereference --preserve=links
    #[arg(short = 'd')]
    pub no_dereference_links: bool,
    /// Replace what cannot be opened (this is always so here)
    #[arg(short, long)]
    pub force: bool,
    /// Follow symbolic links of the command line
    #[arg(short = 'H', overrides_with_all = ["dereference", "no_dereference"])]
    pub dereference_args: bool,
    /// Follow all symbolic links
    #[arg(short = 'L', long, overrides_with_all = ["dereference_args", "no_dereference"])]
    pub dereference: bool,
    /// Copy symbolic links as links
    #[arg(short = 'P', long, overrides_with_all = ["dereference_args", "dereference"])]
    pub no_dereference: bool,
    /// Leave what exists alone
    #[arg(short = 'n', long)]
    pub no_clobber: bool,
    /// The same as --preserve=mode,ownership,timestamps
    #[arg(short = 'p')]
    pub preserve_usual: bool,
    /// Keep mode, ownership, timestamps, links, xattr, context or all (default: the first three)
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0..=1, require_equals = true,
        default_missing_value = "mode,ownership,timestamps", action = ArgAction::Append)]
    pub preserve: Vec<String>,
    /// Do not keep these
    #[arg(long, value_name = "LIST", value_delimiter = ',', require_equals = true)]
    pub no_preserve: Vec<String>,
    /// Copy directories with what is in them
    #[arg(short = 'R', long, short_alias = 'r', visible_short_alias = 'r')]
    pub recursive: bool,
    /// Share blocks: always (the default without a word), auto or never
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true,
        default_missing_value = "always")]
    pub reflink: Option<String>,
    /// Remove what exists first (here it is replaced when the new one is complete)
    #[arg(long)]
    pub remove_destination: bool,
    /// Make holes: auto, always or never
    #[arg(long, value_name = "WHEN", require_equals = true)]
    pub sparse: Option<String>,
    /// Take slashes from the ends of sources
    #[arg(long)]
    pub strip_trailing_slashes: bool,
    /// Copy every source into this directory
    #[arg(short = 't', long, value_name = "DIRECTORY")]
    pub target_directory: Option<OsString>,
    /// Take DEST for the name of the copy
    #[arg(short = 'T', long, conflicts_with = "target_directory")]
    pub no_target_directory: bool,
    /// Replace only what is older
    #[arg(short, long)]
    pub update: bool,
    /// Name each entry
    #[arg(short, long)]
    pub verbose: bool,
    /// Stay on the file systems of the sources
    #[arg(short = 'x', long)]
    pub one_file_system: bool,
    /// Not possible here
    #[command(flatten)]
    pub impossible: ImpossibleCpArgs,
}

/// What cp can and this program does not do.
#[derive(Debug, Args)]
pub struct ImpossibleCpArgs {
    /// Not possible here: copy attributes only
    #[arg(long, hide = true)]
    pub attributes_only: bool,
    /// Not possible here: read special files
    #[arg(long, hide = true)]
    pub copy_contents: bool,
    /// Not possible here: ask before replacing
    #[arg(short, long, hide = true)]
    pub interactive: bool,
    /// Not possible here: make hard links
    #[arg(short, long, hide = true)]
    pub link: bool,
    /// Not possible here: make symbolic links
    #[arg(short, long, hide = true)]
    pub symbolic_link: bool,
    /// Not possible here: make the directories of the source's name
    #[arg(long, hide = true)]
    pub parents: bool,
    /// Not possible here: set a security context
    #[arg(short = 'Z', hide = true)]
    pub security_context: bool,
    /// Not possible here: set this security context
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub context: Option<String>,
}

/// What mcp and msum have in common.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of mutil (defaults in brackets)")]
pub struct MutilArgs {
    /// Bytes of one read or write, in MiB [4]
    #[arg(long, value_name = "MBYTES", default_value_t = 4, hide_default_value = true)]
    pub buffer_size: u64,
    /// Print, or check, digests of parts of --split-size, so that corruption is located
    #[arg(long)]
    pub check_tree: bool,
    /// Read past the page cache
    #[arg(long)]
    pub direct_read: bool,
    /// Accepted: reads and writes of several files overlap in any case
    #[arg(long)]
    pub double_buffer: bool,
    /// Drop what was read from the page cache
    #[arg(long)]
    pub fadvise_read: bool,
    /// Size of a leaf of trees of digests, in KiB, rounded down to a power of two [1048576]
    #[arg(long, value_name = "KBYTES", default_value_t = 1 << 20, hide_default_value = true)]
    pub hash_leaf_size: u64,
    /// The function: md5, sha1, sha224, sha256, sha384, sha512, crc32, crc32rfc1510 or crc24rfc2440, or another of
    /// 'dmover sum' [MD5]
    #[arg(long, value_name = "TYPE", value_parser = any_case, default_value = "md5",
        hide_default_value = true)]
    pub hash_type: dmover_model::HashType,
    /// Only so many bytes from --offset on
    #[arg(long, value_name = "LEN")]
    pub length: Option<String>,
    /// Only bytes from here on
    #[arg(long, value_name = "POS")]
    pub offset: Option<String>,
    /// Work off lines of standard input: names URI-escaped, then comma-separated ranges START-END
    #[arg(long)]
    pub read_stdin: bool,
    /// Work on files in parts of this size, in MiB, rounded down to a power of two; 0: whole [mcp 1024, msum 0]
    #[arg(long, value_name = "MBYTES")]
    pub split_size: Option<u64>,
    /// Files and parts at one time [4]
    #[arg(long, value_name = "NUMBER", default_value_t = 4, hide_default_value = true)]
    pub threads: u16,
    /// Not possible before there are movers on several hosts
    #[command(flatten)]
    pub hosts: HostArgs,
}

/// Several hosts.
#[derive(Debug, Args)]
pub struct HostArgs {
    /// Not possible yet: several hosts by MPI
    #[arg(long)]
    pub mpi: bool,
    /// Not possible yet: the host of the manager
    #[arg(long, value_name = "HOST")]
    pub manager_host: Option<String>,
    /// Not possible yet: the port of the manager
    #[arg(long, value_name = "PORT")]
    pub manager_port: Option<String>,
    /// Not possible yet: a port to listen on
    #[arg(long, value_name = "PORT")]
    pub listen_port: Option<String>,
    /// Not possible yet: passwords of hosts
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<OsString>,
}

/// Arguments of `mcp`.
#[derive(Debug, Args)]
pub struct McpArgs {
    /// Those of cp
    #[command(flatten)]
    pub cp: CpArgs,
    /// Those that msum has as well
    #[command(flatten)]
    pub mutil: MutilArgs,
    /// Write past the page cache
    #[arg(long)]
    pub direct_write: bool,
    /// Write to the destination from here on
    #[arg(long, value_name = "POS")]
    pub dst_offset: Option<String>,
    /// Drop what was written from the page cache
    #[arg(long)]
    pub fadvise_write: bool,
    /// Print the digest of each file as it was read, with the name of the copy
    #[arg(long)]
    pub print_hash: bool,
    /// Print names of sources instead, with --print-hash and --print-stats
    #[arg(long)]
    pub print_src: bool,
    /// Print time and rate of each file on standard error
    #[arg(long)]
    pub print_stats: bool,
    /// Needs Lustre: tell which layouts were chosen
    #[arg(long)]
    pub print_stripe: bool,
    /// Needs Lustre: the number of stripes
    #[arg(long, value_name = "COUNT")]
    pub stripe_count: Option<String>,
    /// Keep the closed permission bits that files have while they are written
    #[arg(long)]
    pub skip_chmod: bool,
}

/// Arguments of `msum`.
#[derive(Debug, Args)]
pub struct MsumArgs {
    /// Files, or lists to check; '-' or nothing: standard input
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<OsString>,
    /// Those that mcp has as well
    #[command(flatten)]
    pub mutil: MutilArgs,
    /// Write '*' before names
    #[arg(short, long)]
    pub binary: bool,
    /// Write a blank before names (this is the default)
    #[arg(short, long)]
    pub text: bool,
    /// Read digests from lists, and compare
    #[arg(short, long)]
    pub check: bool,
    /// Say nothing of files that are as they should be
    #[arg(long, requires = "check")]
    pub quiet: bool,
    /// Say nothing; the exit code tells
    #[arg(long, requires = "check")]
    pub status: bool,
    /// Name lines that cannot be read
    #[arg(short, long, requires = "check")]
    pub warn: bool,
}

fn any_case(text: &str) -> Result<dmover_model::HashType, String> {
    hash_type(&text.to_lowercase())
}
