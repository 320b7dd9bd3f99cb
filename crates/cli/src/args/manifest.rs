//! Arguments of `manifest`.
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;

use super::FilterArgs;

/// Arguments of `manifest`.
#[derive(Debug, Args)]
pub struct ManifestArgs {
    /// What to do with it
    #[command(subcommand)]
    pub action: ManifestAction,
}

/// What `manifest` can do.
#[derive(Debug, Subcommand)]
pub enum ManifestAction {
    /// Print what a manifest says, for eyes or for other programs
    ///
    /// Prints every entry that the rules admit. Exit code 7 if the manifest is damaged or was cut off: what came
    /// before is printed all the same, and standard error says how much that is.
    Print(PrintArgs),
    /// Write those entries of a manifest that rules admit to another one
    Filter(FilterManifestArgs),
    /// Compare two manifests
    ///
    /// Prints a line for every entry that only one has, or that differs, and ends with 1 if there is any. Takes
    /// about 100 bytes of memory for an entry.
    Diff(DiffArgs),
}

/// Arguments of `manifest print`.
#[derive(Debug, Args)]
pub struct PrintArgs {
    /// The manifest; '-' is standard input
    #[arg(value_name = "MANIFEST")]
    pub manifest: OsString,
    /// text: a line an entry; json: an object a line; sums: 'DIGEST  NAME' as 'sha256sum -c' and 'dmover sum -c'
    /// read it, of regular files only
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = FormatArg::Text)]
    pub format: FormatArg,
    /// With --format=sums: 'TYPE (NAME) = DIGEST'
    #[arg(long)]
    pub tag: bool,
    /// With --format=sums: end lines with NUL and escape no names
    #[arg(short = 'z', long)]
    pub zero: bool,
    /// With --format=sums: write names below this directory
    #[arg(long, value_name = "DIR")]
    pub prefix: Option<OsString>,
    /// Which entries
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// Arguments of `manifest filter`.
#[derive(Debug, Args)]
pub struct FilterManifestArgs {
    /// The manifest; '-' is standard input
    #[arg(value_name = "MANIFEST")]
    pub manifest: OsString,
    /// Where to write; it must not exist
    #[arg(short, long, value_name = "FILE")]
    pub output: OsString,
    /// Which entries
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// Arguments of `manifest diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The older one
    #[arg(value_name = "OLD")]
    pub old: OsString,
    /// The newer one
    #[arg(value_name = "NEW")]
    pub new: OsString,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Which entries
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// How a manifest is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// For eyes.
    Text,
    /// JSON lines.
    Json,
    /// Check lists.
    Sums,
}
