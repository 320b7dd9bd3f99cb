//! Arguments of `bench`.
use clap::Args;
use std::ffi::OsString;

use super::jobs::PlaceArgs;
use super::{RemoteArgs, positive_duration};

const EXAMPLES: &str = "Examples:
  dmover bench dtn7                       from memory to memory, in both directions
  dmover bench dtn7:/scratch              also to storage there, and from it
  dmover bench --streams 16 --time 30s --congestion bbr dtn7";

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    /// Host; with PATH also the file system of that directory
    #[arg(value_name = "[USER@]HOST[:PATH]", value_hint = clap::ValueHint::Hostname)]
    pub host: OsString,
    /// How long each measurement takes
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = positive_duration)]
    pub time: u64,
    /// Print one JSON object per measurement
    #[arg(long)]
    pub json: bool,
    /// How the host is reached.
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// Directory for job records.
    #[command(flatten)]
    pub place: PlaceArgs,
}
