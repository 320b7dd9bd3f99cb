//! Arguments of `verify`.
use clap::{Args, ValueEnum};
use std::ffi::OsString;

use super::{
    FilterArgs, FleetArgs, KeepArgs, LimitArgs, OutputArgs, StateArgs, buffer, percentage, size,
};

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The tree that is right and the one to compare with it; with --manifest only DEST
    #[arg(value_name = "SOURCE DEST", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<OsString>,
    /// Compare every SOURCE with what has its name in DIR
    #[arg(
        short = 't',
        long,
        value_name = "DIR",
        conflicts_with = "manifest",
        help_heading = "Destination"
    )]
    pub target_directory: Option<OsString>,
    /// Compare DEST with what this manifest says (default for DEST: the directory that the manifest names)
    #[arg(long, value_name = "FILE", help_heading = "Comparison")]
    pub manifest: Option<OsString>,
    /// How closely: exists (names and types), size, mtime (also owners, modes, hard links), digest (also content,
    /// extended attributes, ACLs, flags), bytes (content byte by byte)
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = LevelArg::Digest,
        help_heading = "Comparison")]
    pub level: LevelArg,
    /// Read the content of only so many of a hundred files, others each time
    #[arg(long, value_name = "PERCENT", value_parser = percentage, help_heading = "Comparison")]
    pub sample: Option<u32>,
    /// Take entries of DEST for right that were not changed since then (ctime): 2026-01-31, 2026-01-31T12:00:00Z,
    /// a duration ago such as 7d, or 'job': when the job that wrote the manifest began
    #[arg(long, value_name = "TIME", help_heading = "Comparison")]
    pub since: Option<String>,
    /// Say nothing of entries that only DEST has
    #[arg(long, help_heading = "Comparison")]
    pub ignore_extra: bool,
    /// Read what is on storage, not what the page cache has of it
    #[arg(long, help_heading = "Comparison")]
    pub direct_read: bool,
    /// Copy again only what differs: bytes, attributes or whole entries; extra entries stay
    #[arg(long, help_heading = "Repair")]
    pub repair: bool,
    /// Where repairs come from with --manifest: a directory that has the same paths; what is not as the manifest
    /// says there is not used
    #[arg(
        long,
        value_name = "DIR",
        requires = "manifest",
        requires = "repair",
        help_heading = "Repair"
    )]
    pub from: Option<OsString>,
    /// Let several movers work on files larger than this, in parts of this size (0: never; default: by size)
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Comparison")]
    pub split_size: Option<u64>,
    /// Bytes in one read, 64K to 1G and at most a share of --memory
    #[arg(long, value_name = "SIZE", value_parser = buffer, help_heading = "Comparison")]
    pub buffer_size: Option<u64>,
    /// Which attributes are compared
    #[command(flatten)]
    pub keep: KeepArgs,
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
    /// Where things are
    #[command(flatten)]
    pub state: StateArgs,
}

/// `--level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LevelArg {
    /// Names and types
    Exists,
    /// Also sizes, what symbolic links contain, device numbers
    Size,
    /// Also times, owners, modes, hard links
    Mtime,
    /// Also content, extended attributes, ACLs, flags
    Digest,
    /// The same, content byte by byte
    Bytes,
}
