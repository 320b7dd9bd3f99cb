//! Mounts the fault file system and stays until it is unmounted or told to stop.
//!
//! Signals: TERM and INT unmount, HUP reads the rules again, USR1 writes the counters.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use dmover_testkit::faultfs::{Config, FaultFs, Latency, Rule};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// Mirror a directory through FUSE with latency and faults.
#[derive(Parser)]
struct Args {
    /// Directory to mirror.
    backing: PathBuf,
    /// Where to mount.
    mountpoint: PathBuf,
    /// Whole configuration as JSON; the other options override it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Microseconds that every request takes.
    #[arg(long, value_name = "N")]
    latency_us: Option<u64>,
    /// List of rules as JSON.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Seed of the rules that draw.
    #[arg(long)]
    seed: Option<u64>,
    /// File for one line of JSON for each request.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// File for the counters, written at unmount and on SIGUSR1.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Requests served at one time.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Milliseconds for which the kernel may cache names and attributes.
    #[arg(long, value_name = "N")]
    ttl_ms: Option<u64>,
    /// Let the page cache come between reads, writes and requests.
    #[arg(long)]
    page_cache: bool,
    /// Refuse server-side copy.
    #[arg(long)]
    no_copy_file_range: bool,
}

impl Args {
    fn config(&self) -> Result<Config> {
        let mut config: Config =
            self.config.as_deref().map(read_json).transpose()?.unwrap_or_default();
        if let Some(us) = self.latency_us {
            config.latency = Latency::of_us(us);
        }
        if let Some(rules) = &self.rules {
            config.rules = read_json(rules)?;
        }
        config.seed = self.seed.unwrap_or(config.seed);
        config.threads = self.threads.unwrap_or(config.threads);
        config.ttl_ms = self.ttl_ms.unwrap_or(config.ttl_ms);
        config.log = self.log.clone().or(config.log);
        config.stats = self.stats.clone().or(config.stats);
        config.direct_io &= !self.page_cache;
        config.copy_file_range &= !self.no_copy_file_range;
        Ok(config)
    }
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("cannot understand {}", path.display()))
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    let handle = FaultFs::mount(&args.backing, &args.mountpoint, args.config()?)?;
    loop {
        if handle.is_finished() {
            return handle.unmount().map(|_| ());
        }
        for signal in signals.pending() {
            match signal {
                SIGUSR1 => handle.write_stats()?,
                SIGHUP => {
                    if let Some(rules) = &args.rules {
                        handle.set_rules(&read_json::<Vec<Rule>>(rules)?)?;
                    }
                }
                _ => return handle.unmount().map(|_| ()),
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
}
