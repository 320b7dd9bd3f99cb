//! Arguments of `manifest`.
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;

use super::FilterArgs;

/// Arguments of `manifest`.
#[derive(Debug, Args)]
pub struct ManifestArgs {
    /// The subverb.
    #[command(subcommand)]
    pub action: ManifestAction,
}

/// Subverbs of `manifest`.
#[derive(Debug, Subcommand)]
pub enum ManifestAction {
    /// Print the entries of a manifest
    ///
    /// Filter options select the entries. If the manifest is damaged or truncated, the exit code is
    /// 7: the entries before the damage are printed, and a message on standard error gives their
    /// number.
    Print(PrintArgs),
    /// Write the entries that filter options select to another manifest
    Filter(FilterManifestArgs),
    /// Compare two manifests
    ///
    /// Prints a line for each entry that differs or that only one manifest has. The exit code is 1
    /// if there is any. Each entry needs about 100 bytes of memory.
    Diff(DiffArgs),
}

/// Arguments of `manifest print`.
#[derive(Debug, Args)]
pub struct PrintArgs {
    /// Manifest to read ('-': standard input)
    #[arg(value_name = "MANIFEST")]
    pub manifest: OsString,
    /// Output format: text, json or sums
    ///
    /// text prints a line per entry, json an object per line. sums prints 'DIGEST NAME' for regular
    /// files, as 'sha256sum -c' and 'dmover sum -c' read it.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = FormatArg::Text)]
    pub format: FormatArg,
    /// With --format=sums: print 'TYPE (NAME) = DIGEST'
    #[arg(long)]
    pub tag: bool,
    /// With --format=sums: end lines with NUL and escape no names
    #[arg(short = 'z', long)]
    pub zero: bool,
    /// With --format=sums: print names below DIR
    #[arg(long, value_name = "DIR")]
    pub prefix: Option<OsString>,
    /// Which entries are printed.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// Arguments of `manifest filter`.
#[derive(Debug, Args)]
pub struct FilterManifestArgs {
    /// Manifest to read ('-': standard input)
    #[arg(value_name = "MANIFEST")]
    pub manifest: OsString,
    /// Manifest to write; FILE must not exist
    #[arg(short, long, value_name = "FILE")]
    pub output: OsString,
    /// Which entries are written.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// Arguments of `manifest diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The older manifest
    #[arg(value_name = "OLD")]
    pub old: OsString,
    /// The newer manifest
    #[arg(value_name = "NEW")]
    pub new: OsString,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Which entries are compared.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// Output formats of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// A line per entry, for people.
    Text,
    /// A JSON object per line.
    Json,
    /// Lists for 'sum --check' and similar tools.
    Sums,
}
