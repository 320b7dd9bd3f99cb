//! Arguments of `sum`.
use clap::Args;
use std::ffi::OsString;

use super::{
    FilterArgs, FleetArgs, LimitArgs, OutputArgs, WhenArg, buffer, hash_type, positive_size, size,
};

/// Arguments of `sum`.
#[derive(Debug, Args)]
pub struct SumArgs {
    /// Files, directories, or lists to check; '-' or nothing: standard input
    #[arg(value_name = "FILE|DIR", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<OsString>,
    /// What is made
    #[command(flatten)]
    pub digest: DigestArgs,
    /// What is compared
    #[command(flatten)]
    pub check: CheckArgs,
    /// How content is read
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// Which entries of trees take part
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Bounds
    #[command(flatten)]
    pub limits: LimitArgs,
    /// What is shown
    #[command(flatten)]
    pub output: OutputArgs,
    /// Who does it
    #[command(flatten)]
    pub fleet: FleetArgs,
}

/// What is made.
#[derive(Debug, Args)]
#[command(next_help_heading = "Digest")]
pub struct DigestArgs {
    /// The function: blake3, md5, sha1, sha224, sha256, sha384, sha512, crc32, crc32rfc1510, crc24rfc2440,
    /// crc32c or xxh3-128 (default: blake3; with --check, what each line says or its length tells)
    #[arg(short = 'a', long, value_name = "TYPE", visible_alias = "algorithm", value_parser = hash_type)]
    pub hash_type: Option<dmover_model::HashType>,
    /// Make the digest of a tree whose leaves have this size, so that several movers can work on one file;
    /// for --check-tree, also the size of a piece (BLAKE3 and CRCs: the digest stays the same)
    #[arg(long, value_name = "SIZE", value_parser = positive_size)]
    pub hash_leaf_size: Option<u64>,
    /// Print the digests of all pieces of a file as well, or (with --check) say which pieces differ
    #[arg(long)]
    pub check_tree: bool,
    /// Print digests, and read them, as mutil does, in pieces of this size (0: whole)
    #[arg(long, value_name = "SIZE", value_parser = size, hide = true)]
    pub mutil: Option<u64>,
    /// Let several movers work on files larger than this, in parts of this size (0: never; default: by size)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub split_size: Option<u64>,
    /// Only bytes from this offset on
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "check")]
    pub offset: Option<u64>,
    /// Only so many bytes
    #[arg(long, value_name = "SIZE", value_parser = positive_size, conflicts_with = "check")]
    pub length: Option<u64>,
    /// Hash what 'FILE [RANGES]' lines of standard input name: URI-escaped, ranges START-END, comma-separated
    #[arg(long, conflicts_with_all = ["check", "paths", "offset", "length"])]
    pub read_stdin: bool,
    /// Write 'TYPE (NAME) = DIGEST'
    #[arg(long, conflicts_with = "check")]
    pub tag: bool,
    /// End lines with NUL instead of a newline, and escape no names; with --check, lists are like that
    #[arg(short = 'z', long)]
    pub zero: bool,
    /// Write '*' before names
    #[arg(short, long, conflicts_with = "text")]
    pub binary: bool,
    /// Write a blank before names (this is the default)
    #[arg(short, long)]
    pub text: bool,
}

/// What is compared.
#[derive(Debug, Args)]
#[command(next_help_heading = "Check")]
pub struct CheckArgs {
    /// Read digests from lists, and compare
    #[arg(short, long)]
    pub check: bool,
    /// Pass over files that are not there
    #[arg(long, requires = "check")]
    pub ignore_missing: bool,
    /// Print nothing; the exit code tells
    #[arg(long, requires = "check")]
    pub status: bool,
    /// A line that cannot be read is a failure (this is always so here)
    #[arg(long, requires = "check")]
    pub strict: bool,
    /// Name lines that cannot be read (this is always so here)
    #[arg(short, long, requires = "check")]
    pub warn: bool,
}

/// How content is read.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reading")]
pub struct ReadingArgs {
    /// Bytes in one read, 64K to 1G and at most a share of --memory
    #[arg(long, value_name = "SIZE", value_parser = buffer)]
    pub buffer_size: Option<u64>,
    /// Read past the page cache (O_DIRECT); refusals are counted and go through it (auto: large files that are
    /// not in the cache)
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true,
        default_value_t = WhenArg::Auto, default_missing_value = "always")]
    pub direct_read: WhenArg,
    /// Drop what was read from the page cache
    #[arg(long)]
    pub fadvise_read: bool,
}
