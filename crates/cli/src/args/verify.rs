//! Arguments of `verify`.
use clap::{Args, ValueEnum};
use std::ffi::OsString;

use super::{
    FilterArgs, FleetArgs, KeepArgs, LimitArgs, OutputArgs, RemoteArgs, StateArgs, buffer,
    percentage, size,
};

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Reference tree and tree to check (--manifest: DEST only)
    #[arg(value_name = "SOURCE DEST", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<OsString>,
    /// Compare each SOURCE with the entry of the same name in DIR
    #[arg(
        short = 't',
        long,
        value_name = "DIR",
        conflicts_with = "manifest",
        help_heading = "Destination"
    )]
    pub target_directory: Option<OsString>,
    /// Compare DEST with this manifest
    ///
    /// The default for DEST is the directory that the manifest names.
    #[arg(long, value_name = "FILE", help_heading = "Comparison")]
    pub manifest: Option<OsString>,
    /// How closely to compare
    ///
    /// Each level includes the ones before it.
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = LevelArg::Digest,
        help_heading = "Comparison")]
    pub level: LevelArg,
    /// Read the content of only PERCENT of the files
    ///
    /// Each run selects others. Metadata is compared for all files.
    #[arg(long, value_name = "PERCENT", value_parser = percentage, help_heading = "Comparison")]
    pub sample: Option<u32>,
    /// Trust entries of DEST whose ctime is older than TIME
    ///
    /// TIME is 2026-01-31, 2026-01-31T12:00:00Z, an age such as 7d, or 'job': the start of the job
    /// that wrote the manifest.
    #[arg(long, value_name = "TIME", help_heading = "Comparison")]
    pub since: Option<String>,
    /// Do not report entries that only DEST has
    #[arg(long, help_heading = "Comparison")]
    pub ignore_extra: bool,
    /// Read from storage instead of the page cache
    #[arg(long, help_heading = "Comparison")]
    pub direct_read: bool,
    /// Repair DEST: copy again only what differs
    ///
    /// These are bytes, attributes or whole entries. Extra entries stay.
    #[arg(long, help_heading = "Repair")]
    pub repair: bool,
    /// With --manifest: take repairs from this directory
    ///
    /// DIR has the same paths as DEST. Content that does not match the manifest is not used.
    #[arg(
        long,
        value_name = "DIR",
        requires = "manifest",
        requires = "repair",
        help_heading = "Repair"
    )]
    pub from: Option<OsString>,
    /// Split files larger than SIZE among movers (0: never)
    ///
    /// Each chunk has SIZE bytes. By default, the size of a file decides.
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Comparison")]
    pub split_size: Option<u64>,
    /// Bytes per read, 64K to 1G
    ///
    /// The limit is a share of --memory.
    #[arg(long, value_name = "SIZE", value_parser = buffer, help_heading = "Comparison")]
    pub buffer_size: Option<u64>,
    /// Which attributes are compared.
    #[command(flatten)]
    pub keep: KeepArgs,
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
    /// Directories for state.
    #[command(flatten)]
    pub state: StateArgs,
}

/// Values of `--level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LevelArg {
    /// Names and types
    Exists,
    /// Also file sizes, targets of symbolic links and device numbers
    Size,
    /// Also times, owners, modes and hard links
    Mtime,
    /// Also content, extended attributes, ACLs, flags and project ids
    Digest,
    /// The same, with content compared byte by byte
    Bytes,
}
