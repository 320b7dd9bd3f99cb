//! Arguments of the verbs that replace other programs. Options and units are those of the other programs.
use clap::{ArgAction, Args};
use std::ffi::OsString;

use super::hash_type;

/// Arguments of `cp`.
#[derive(Debug, Args)]
pub struct CpArgs {
    /// One or more sources, then the destination
    #[arg(value_name = "SOURCE… DEST", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<OsString>,
    /// Same as -dR --preserve=all
    #[arg(short, long)]
    pub archive: bool,
    /// Back up replaced files: none, simple, numbered or existing
    #[arg(long, value_name = "CONTROL", num_args = 0..=1, require_equals = true,
        default_missing_value = "")]
    pub backup: Option<String>,
    /// Like --backup, without an argument
    #[arg(short = 'b')]
    pub simple_backup: bool,
    /// Suffix of simple backup names (default: ~)
    #[arg(short = 'S', long, value_name = "SUFFIX")]
    pub suffix: Option<OsString>,
    /// Same as --no-dereference --preserve=links
    #[arg(short = 'd')]
    pub no_dereference_links: bool,
    /// Replace files that cannot be opened (always on)
    #[arg(short, long)]
    pub force: bool,
    /// Follow symbolic links given on the command line
    #[arg(short = 'H', overrides_with_all = ["dereference", "no_dereference"])]
    pub dereference_args: bool,
    /// Follow all symbolic links
    #[arg(short = 'L', long, overrides_with_all = ["dereference_args", "no_dereference"])]
    pub dereference: bool,
    /// Copy symbolic links as links
    #[arg(short = 'P', long, overrides_with_all = ["dereference_args", "dereference"])]
    pub no_dereference: bool,
    /// Do not replace existing files
    #[arg(short = 'n', long)]
    pub no_clobber: bool,
    /// Same as --preserve=mode,ownership,timestamps
    #[arg(short = 'p')]
    pub preserve_usual: bool,
    /// Preserve these attributes (default: mode,ownership,timestamps)
    ///
    /// LIST is one or more of mode, ownership, timestamps, links, xattr, context and all, separated
    /// by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0..=1, require_equals = true,
        default_missing_value = "mode,ownership,timestamps", action = ArgAction::Append)]
    pub preserve: Vec<String>,
    /// Do not preserve these attributes
    #[arg(long, value_name = "LIST", value_delimiter = ',', require_equals = true)]
    pub no_preserve: Vec<String>,
    /// Copy directories with their contents
    #[arg(short = 'R', long, short_alias = 'r', visible_short_alias = 'r')]
    pub recursive: bool,
    /// Share blocks: always (if WHEN is omitted), auto or never
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true,
        default_missing_value = "always")]
    pub reflink: Option<String>,
    /// Remove existing files first
    ///
    /// Here, a file is replaced when its copy is complete.
    #[arg(long)]
    pub remove_destination: bool,
    /// Create holes: auto, always or never
    #[arg(long, value_name = "WHEN", require_equals = true)]
    pub sparse: Option<String>,
    /// Remove trailing slashes from sources
    #[arg(long)]
    pub strip_trailing_slashes: bool,
    /// Copy all sources into DIRECTORY
    #[arg(short = 't', long, value_name = "DIRECTORY")]
    pub target_directory: Option<OsString>,
    /// Copy to DEST itself, never into DEST
    #[arg(short = 'T', long, conflicts_with = "target_directory")]
    pub no_target_directory: bool,
    /// Replace only files older than the source
    #[arg(short, long)]
    pub update: bool,
    /// Print each copied entry
    #[arg(short, long)]
    pub verbose: bool,
    /// Do not cross file system boundaries
    #[arg(short = 'x', long)]
    pub one_file_system: bool,
    /// Options that are refused.
    #[command(flatten)]
    pub impossible: ImpossibleCpArgs,
}

/// Options of cp that dmover refuses.
#[derive(Debug, Args)]
pub struct ImpossibleCpArgs {
    /// Not supported: copy only attributes
    #[arg(long, hide = true)]
    pub attributes_only: bool,
    /// Not supported: read special files
    #[arg(long, hide = true)]
    pub copy_contents: bool,
    /// Not supported: ask before replacing
    #[arg(short, long, hide = true)]
    pub interactive: bool,
    /// Not supported: make hard links
    #[arg(short, long, hide = true)]
    pub link: bool,
    /// Not supported: make symbolic links
    #[arg(short, long, hide = true)]
    pub symbolic_link: bool,
    /// Not supported: create the source's parent directories
    #[arg(long, hide = true)]
    pub parents: bool,
    /// Not supported: set a security context
    #[arg(short = 'Z', hide = true)]
    pub security_context: bool,
    /// Not supported: set this security context
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub context: Option<String>,
}

/// Options that mcp and msum share.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of mutil (defaults in brackets)")]
pub struct MutilArgs {
    /// Size of a read or write in MiB [4]
    #[arg(long, value_name = "MBYTES", default_value_t = 4, hide_default_value = true)]
    pub buffer_size: u64,
    /// Print or check a digest for each part of --split-size
    ///
    /// With --check, this locates the corrupted part.
    #[arg(long)]
    pub check_tree: bool,
    /// Read with O_DIRECT, bypassing the page cache
    #[arg(long)]
    pub direct_read: bool,
    /// Accepted without effect: reads and writes overlap anyway
    #[arg(long)]
    pub double_buffer: bool,
    /// Drop read data from the page cache
    #[arg(long)]
    pub fadvise_read: bool,
    /// Leaf size of tree digests in KiB [1048576]
    ///
    /// It is rounded down to a power of two.
    #[arg(long, value_name = "KBYTES", default_value_t = 1 << 20, hide_default_value = true)]
    pub hash_leaf_size: u64,
    /// Digest function [MD5]
    ///
    /// One of md5, sha1, sha224, sha256, sha384, sha512, crc32, crc32rfc1510 and crc24rfc2440, or
    /// another one of 'dmover sum'.
    #[arg(long, value_name = "TYPE", value_parser = any_case, default_value = "md5",
        hide_default_value = true)]
    pub hash_type: dmover_model::HashType,
    /// Process only this many bytes from --offset on
    #[arg(long, value_name = "LEN")]
    pub length: Option<String>,
    /// Process only bytes from this offset on
    #[arg(long, value_name = "POS")]
    pub offset: Option<String>,
    /// Process the files listed on standard input
    ///
    /// Each line has URI-escaped names and then byte ranges START-END, separated by commas.
    #[arg(long)]
    pub read_stdin: bool,
    /// Part size for large files in MiB (0: whole files) [mcp 1024, msum 0]
    ///
    /// It is rounded down to a power of two.
    #[arg(long, value_name = "MBYTES")]
    pub split_size: Option<u64>,
    /// Files and parts processed at a time [4]
    #[arg(long, value_name = "NUMBER", default_value_t = 4, hide_default_value = true)]
    pub threads: u16,
    /// Options for several hosts, which are refused.
    #[command(flatten)]
    pub hosts: HostArgs,
}

/// Options of mutil for several hosts, which dmover refuses.
#[derive(Debug, Args)]
pub struct HostArgs {
    /// Not supported: several hosts by MPI
    #[arg(long)]
    pub mpi: bool,
    /// Not supported: host of the manager
    #[arg(long, value_name = "HOST")]
    pub manager_host: Option<String>,
    /// Not supported: port of the manager
    #[arg(long, value_name = "PORT")]
    pub manager_port: Option<String>,
    /// Not supported: port to listen on
    #[arg(long, value_name = "PORT")]
    pub listen_port: Option<String>,
    /// Not supported: passwords of hosts
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<OsString>,
}

/// Arguments of `mcp`.
#[derive(Debug, Args)]
pub struct McpArgs {
    /// Options of cp.
    #[command(flatten)]
    pub cp: CpArgs,
    /// Options that mcp and msum share.
    #[command(flatten)]
    pub mutil: MutilArgs,
    /// Write with O_DIRECT, bypassing the page cache
    #[arg(long)]
    pub direct_write: bool,
    /// Write at this offset of the destination
    #[arg(long, value_name = "POS")]
    pub dst_offset: Option<String>,
    /// Drop written data from the page cache
    #[arg(long)]
    pub fadvise_write: bool,
    /// Print the digest and the name of each copied file
    ///
    /// The digest is that of the bytes read from the source, the name that of the copy.
    #[arg(long)]
    pub print_hash: bool,
    /// With --print-hash or --print-stats: print names of sources
    #[arg(long)]
    pub print_src: bool,
    /// Print the time and rate of each file on standard error
    #[arg(long)]
    pub print_stats: bool,
    /// Accepted without effect: print Lustre layouts
    #[arg(long)]
    pub print_stripe: bool,
    /// Accepted without effect: number of Lustre stripes
    #[arg(long, value_name = "COUNT")]
    pub stripe_count: Option<String>,
    /// Do not set final modes: new files stay closed to group and others
    #[arg(long)]
    pub skip_chmod: bool,
}

/// Arguments of `msum`.
#[derive(Debug, Args)]
pub struct MsumArgs {
    /// Files; with --check, lists
    ///
    /// Without any, or as '-', standard input is read.
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<OsString>,
    /// Options that mcp and msum share.
    #[command(flatten)]
    pub mutil: MutilArgs,
    /// Print '*' before names
    #[arg(short, long)]
    pub binary: bool,
    /// Print a blank before names (the default)
    #[arg(short, long)]
    pub text: bool,
    /// Read digests from lists and compare
    #[arg(short, long)]
    pub check: bool,
    /// Do not print files whose digest matches
    #[arg(long, requires = "check")]
    pub quiet: bool,
    /// Print nothing; only set the exit code
    #[arg(long, requires = "check")]
    pub status: bool,
    /// Report lines that cannot be parsed
    #[arg(short, long, requires = "check")]
    pub warn: bool,
}

fn any_case(text: &str) -> Result<dmover_model::HashType, String> {
    hash_type(&text.to_lowercase())
}
