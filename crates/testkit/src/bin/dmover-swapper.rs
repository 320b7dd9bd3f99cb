//! Exchanges two names as fast as it can until it is told to stop, then prints how often it did.

use std::io::Write as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Parser, ValueEnum};
use dmover_testkit::swap::{SwapKind, Swapper};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exchange two names over and over.
#[derive(Parser)]
struct Args {
    /// Name that the program under test looks at.
    victim: PathBuf,
    /// Name that takes its place; on the same file system.
    alternate: PathBuf,
    /// How the names are exchanged.
    #[arg(long, value_enum, default_value = "exchange")]
    kind: Kind,
    /// Stop after so many seconds; else on TERM or INT.
    #[arg(long, value_name = "N")]
    seconds: Option<f64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Exchange,
    Rotate,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let kind = match args.kind {
        Kind::Exchange => SwapKind::Exchange,
        Kind::Rotate => SwapKind::Rotate,
    };
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let deadline = args.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let swapper = Swapper::start(&args.victim, &args.alternate, kind)?;
    while signals.pending().next().is_none() && deadline.is_none_or(|end| Instant::now() < end) {
        thread::sleep(Duration::from_millis(10));
    }
    writeln!(std::io::stdout(), "{}", swapper.stop()?)?;
    Ok(())
}
