//! Arguments of `sum`.
use clap::Args;
use std::ffi::OsString;

use super::{
    FilterArgs, FleetArgs, LimitArgs, OutputArgs, RemoteArgs, WhenArg, buffer, hash_type,
    positive_size, size,
};

/// Arguments of `sum`.
#[derive(Debug, Args)]
pub struct SumArgs {
    /// Files and directories; with --check, lists
    ///
    /// Without any, or as '-', standard input is read.
    #[arg(value_name = "FILE|DIR", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<OsString>,
    /// Which digests are made.
    #[command(flatten)]
    pub digest: DigestArgs,
    /// How lists are checked.
    #[command(flatten)]
    pub check: CheckArgs,
    /// How content is read.
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// Which entries are included.
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Limits.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Output of the job.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Movers on other hosts.
    #[command(flatten)]
    pub fleet: FleetArgs,
    /// Hosts that ssh reaches.
    #[command(flatten)]
    pub remote: RemoteArgs,
}

/// Options for which digests are made.
#[derive(Debug, Args)]
#[command(next_help_heading = "Digest")]
pub struct DigestArgs {
    /// Digest function (default: blake3)
    ///
    /// One of blake3, md5, sha1, sha224, sha256, sha384, sha512, crc32, crc32rfc1510, crc24rfc2440,
    /// crc32c and xxh3-128. With --check, the default is the function that each line names, or that
    /// the length of its digest indicates.
    #[arg(short = 'a', long, value_name = "TYPE", visible_alias = "algorithm", value_parser = hash_type)]
    pub hash_type: Option<dmover_model::HashType>,
    /// Make tree digests with leaves of SIZE
    ///
    /// Several movers can then work on one file with functions such as MD5 and SHA-256 as well.
    /// BLAKE3 digests and CRCs stay the same. With --check-tree, SIZE is also the size of a piece.
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub hash_leaf_size: Option<u64>,
    /// Also print digests of pieces; with --check, name pieces that differ
    #[arg(long)]
    pub check_tree: bool,
    /// Print and read digests as mutil does, in pieces of SIZE (0: whole files)
    #[arg(long, value_name = "SIZE", value_parser = size, hide = true)]
    pub mutil: Option<u64>,
    /// Split files larger than SIZE among movers (0: never)
    ///
    /// Each chunk has SIZE bytes. By default, the size of a file decides.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub split_size: Option<u64>,
    /// Read from this offset on
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "check")]
    pub offset: Option<u64>,
    /// Read this many bytes
    #[arg(long, value_name = "SIZE", value_parser = positive_size, conflicts_with = "check")]
    pub length: Option<u64>,
    /// Process the files listed on standard input as 'FILE [RANGES]'
    ///
    /// Each line is one file, with a URI-escaped name. RANGES are byte ranges START-END, separated
    /// by commas.
    #[arg(long, conflicts_with_all = ["check", "paths", "offset", "length"])]
    pub read_stdin: bool,
    /// Print 'TYPE (NAME) = DIGEST'
    #[arg(long, conflicts_with = "check")]
    pub tag: bool,
    /// End lines with NUL and escape no names; with --check, read such lists
    #[arg(short = 'z', long)]
    pub zero: bool,
    /// Print '*' before names
    #[arg(short, long, conflicts_with = "text")]
    pub binary: bool,
    /// Print a blank before names (the default)
    #[arg(short, long)]
    pub text: bool,
}

/// Options for how lists are checked.
#[derive(Debug, Args)]
#[command(next_help_heading = "Check")]
pub struct CheckArgs {
    /// Read digests from lists and compare
    #[arg(short, long)]
    pub check: bool,
    /// Skip files that do not exist
    #[arg(long, requires = "check")]
    pub ignore_missing: bool,
    /// Print nothing; only set the exit code
    #[arg(long, requires = "check")]
    pub status: bool,
    /// Fail on lines that cannot be parsed (always on)
    #[arg(long, requires = "check")]
    pub strict: bool,
    /// Report lines that cannot be parsed (always on)
    #[arg(short, long, requires = "check")]
    pub warn: bool,
}

/// Options for how content is read.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reading")]
pub struct ReadingArgs {
    /// Bytes per read, 64K to 1G
    ///
    /// The limit is a share of --memory.
    #[arg(long, value_name = "SIZE", value_parser = buffer)]
    pub buffer_size: Option<u64>,
    /// Read with O_DIRECT, bypassing the page cache
    ///
    /// 'auto' does this for large files that are not in the cache. Where the file system refuses
    /// O_DIRECT, dmover reads through the page cache and counts this.
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true,
        default_value_t = WhenArg::Auto, default_missing_value = "always")]
    pub direct_read: WhenArg,
    /// Drop read data from the page cache
    #[arg(long)]
    pub fadvise_read: bool,
}
