//! `cargo xtask soak`: the bars of the program, with as many seeds as wanted.
use anyhow::{Context, Result, bail};
use clap::Args;
use dmover_testkit::lanes::{LANES, LaneOptions};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// Arguments of `soak`.
#[derive(Debug, Args)]
pub struct SoakArgs {
    /// Which lane: one of those that --list shows, or 'all'
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// Show the lanes
    #[arg(long)]
    list: bool,
    /// How many seeds (default: what a full run of the lane has)
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// The first seed; alone, just this one: it repeats a failure
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Size of what is measured, relative to the full bar
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    scale: f64,
    /// A line for each seed
    #[arg(short, long)]
    verbose: bool,
}

/// The lane that needs a program of its own, in which threads, time and disks are simulated.
const JOBS: &str = "jobs";
const JOBS_SEEDS: u64 = 20_000;

/// Runs simulated jobs and prints what they found.
fn jobs(args: &SoakArgs) -> Result<()> {
    let seeds = args.seeds.unwrap_or(if args.seed.is_some() { 1 } else { JOBS_SEEDS });
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let numbers = [args.seed.unwrap_or(1), seeds].map(|number| number.to_string());
    let started = Instant::now();
    let run = Command::new(cargo)
        .args(["run", "--release", "--quiet", "--package", "dmover-simulator"])
        .args(["--features", "jobs", "--bin", "dmover-simulate-jobs", "--"])
        .args(numbers)
        .status()
        .context("cannot run cargo")?;
    println!("{JOBS}: {} s, with the time to build", started.elapsed().as_secs());
    if !run.success() {
        bail!("simulated jobs failed; each is named above, and repeated by --seed");
    }
    Ok(())
}

/// Runs lanes and prints what each found as a row of `docs/testing.md`.
pub fn run(args: &SoakArgs) -> Result<()> {
    if args.list {
        for (name, about, seeds, _) in LANES {
            println!("{name:<10} {about} ({seeds} seeds)");
        }
        println!(
            "{JOBS:<10} whole jobs, simulated: kills, power cuts, errors ({JOBS_SEEDS} seeds)"
        );
        return Ok(());
    }
    let wanted = args.name.as_deref().unwrap_or("all");
    let chosen: Vec<_> = LANES.iter().filter(|lane| wanted == "all" || lane.0 == wanted).collect();
    let has_jobs = wanted == "all" || wanted == JOBS;
    if chosen.is_empty() && !has_jobs {
        bail!("no lane is named '{wanted}'; 'cargo xtask soak --list' shows them");
    }
    if wanted == JOBS {
        return jobs(args);
    }
    let program = program()?;
    let mut failures = 0;
    println!("| lane | seeds | time | counts | failures |");
    println!("|---|---|---|---|---|");
    for (name, _, full, lane) in chosen {
        let seeds = args.seeds.unwrap_or(if args.seed.is_some() { 1 } else { *full });
        let options = LaneOptions {
            program: program.clone(),
            seed: args.seed.unwrap_or(1),
            seeds,
            scale: args.scale,
            verbose: args.verbose,
        };
        let started = Instant::now();
        let report = lane(&options).with_context(|| format!("lane {name}"))?;
        let counts: Vec<String> =
            report.counts.iter().map(|(count, n)| format!("{count} {n}")).collect();
        let seconds = started.elapsed().as_secs();
        failures += report.failures.len();
        let found = report.failures.len();
        println!("| {name} | {seeds} | {seconds} s | {} | {found} |", counts.join(", "));
    }
    if has_jobs {
        jobs(args)?;
    }
    if failures > 0 {
        bail!("{failures} seeds failed; each is named above with the command that repeats it");
    }
    Ok(())
}

/// The program under test: `DMOVER_BIN`, or a release build of this workspace.
pub(crate) fn program() -> Result<PathBuf> {
    match std::env::var_os("DMOVER_BIN") {
        Some(path) => Ok(path.into()),
        None => release_build("dmover-cli", "dmover"),
    }
}

/// Builds a program of this workspace for release and answers where it lies.
pub(crate) fn release_build(package: &str, program: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--package", package, "--bin", program])
        .status()
        .context("cannot run cargo")?;
    if !built.success() {
        bail!("{program} does not build");
    }
    let own = std::env::current_exe()?;
    let profile = own.parent().and_then(|directory| directory.parent());
    Ok(profile.context("this program lies nowhere")?.join("release").join(program))
}
