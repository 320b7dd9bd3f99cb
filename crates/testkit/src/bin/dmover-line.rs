//! Runs a command beside a host that is far away: behind a line with delay, rate and loss, with a server for ssh there.
//!
//! The command runs in the namespace of the near host, with `SSH` (a command that reaches the host `far`), `FAR` (its address)
//! and `AT_FAR` (words that run a command in its namespace) in its environment.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use dmover_testkit::cluster::{FarHost, Host, LineOptions};

/// Run a command in front of a long line.
#[derive(Parser)]
struct Args {
    /// Round trip in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 50)]
    round_trip: u64,
    /// Rate in Mbit a second; 0: none. Several: more hosts, `far2` and so on, each behind a line of its own with this rate.
    #[arg(long, value_name = "MBIT", value_delimiter = ',', default_value = "1000")]
    rate: Vec<u64>,
    /// Share of packets that are lost.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    loss: f64,
    /// Decides which packets are lost.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Congestion control of all connections over the line, unless they choose another one.
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// dmover, as the far host has it.
    #[arg(long, value_name = "PATH")]
    program: PathBuf,
    /// The command, for a shell.
    command: String,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if let Some(why) = FarHost::missing() {
        bail!("there can be no line here: {why}");
    }
    let round_trip = Duration::from_millis(args.round_trip);
    let line = |(number, rate): (u64, &u64)| {
        let line = match NonZeroU64::new(rate * 125_000) {
            Some(rate) => LineOptions::wan(round_trip, rate),
            None => LineOptions::round_trip(round_trip),
        };
        LineOptions { loss: args.loss, seed: args.seed + number, ..line }
    };
    let lines: Vec<LineOptions> = (0..).zip(&args.rate).map(line).collect();
    let far = FarHost::start_several(&args.program, &lines)?;
    if let Some(name) = &args.congestion {
        for line in std::iter::once(&far.line).chain(&far.more_lines) {
            let device = line.device();
            for (host, other) in
                [(line.near(), line.far_address()), (line.far(), line.near_address())]
            {
                let route = format!("route replace {other} dev {device} congctl {name}");
                run(host, "ip", route.split(' '))?;
            }
        }
    }
    let at_far = format!("nsenter --net=/run/netns/{}", far.host().namespace());
    let status = far
        .line
        .near()
        .command("bash")
        .args(["-c", &args.command])
        .env("SSH", far.ssh_command())
        .env("FAR", far.line.far_address().to_string())
        .env("AT_FAR", at_far)
        .status()
        .context("start the command")?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(255)).unwrap_or(255)))
}

fn run<'a>(host: &Host, program: &str, words: impl Iterator<Item = &'a str>) -> Result<()> {
    let output = host.command(program).args(words).output().context("start a tool")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {}", said.trim());
    Ok(())
}
