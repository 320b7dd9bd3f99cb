//! `cargo xtask simulate`: fleets that are too large to have, as rows of docs/performance.md.
use anyhow::{Result, ensure};
use clap::Args;
use dmover_simulator::{Scenario, TreeSize, simulate};
use std::time::Instant;

/// Arguments of `simulate`.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Small files
    #[arg(long, value_name = "N", default_value_t = 1_000_000_000)]
    files: u64,
    /// Large files
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    large: u64,
    /// GiB of each large file
    #[arg(long, value_name = "GIB", default_value_t = 100)]
    large_gib: u64,
    /// Processes with movers
    #[arg(long, value_name = "N", default_value_t = 1000)]
    movers: usize,
    /// Tasks that each has in hand
    #[arg(long, value_name = "N", default_value_t = 8)]
    places: usize,
    /// Entries that each task ends in a second
    #[arg(long, value_name = "N", default_value_t = 500)]
    entries_per_s: u64,
    /// MiB that each task moves in a second
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    mib_per_s: u64,
    /// Runs with trouble, each with a seed of its own
    #[arg(long, value_name = "N", default_value_t = 5)]
    seeds: u64,
    /// The first seed
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
}

/// Simulates a fleet without trouble and with it, and prints what it took.
pub fn run(args: &SimulateArgs) -> Result<()> {
    let calm = Scenario {
        tree: TreeSize { files: args.files, large: (args.large, args.large_gib << 30) },
        movers: args.movers,
        places: args.places,
        entries_per_s: args.entries_per_s,
        bytes_per_s: args.mib_per_s << 20,
        lease_ms: 30_000,
        latency_us: 2_000,
        lost_in: 0,
        slow_in: 0,
        crashes: 0,
        silences: 0,
        wipes: 0,
    };
    let part = |share: usize| (args.movers / share).max(1) as u32;
    let slow = Scenario { slow_in: 20, ..calm };
    let trouble =
        Scenario { lost_in: 10_000, crashes: part(50), silences: part(50), wipes: 5, ..slow };
    println!(
        "| fleet | seed | time | of the ideal | tasks/s | messages/s | deciding, of one processor | \
         pending at most | leases lost |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let row = |name: &str, scenario: Scenario, seed: u64| -> Result<()> {
        let begun = Instant::now();
        let result = simulate(scenario, seed);
        let (files, large) = (result.entries, result.large);
        ensure!(
            (files, large) == (args.files, args.large),
            "seed {seed}: {files} files and {large} large ones were ended"
        );
        let per_s = |count: u64| count as f64 / result.makespan_s;
        println!(
            "| {name} | {seed} | {:.0} s | {:.3} | {:.0} | {:.0} | {:.1} % | {} | {} |",
            result.makespan_s,
            result.makespan_s / result.ideal_s,
            per_s(result.tasks),
            per_s(result.messages),
            result.deciding.as_secs_f64() / result.makespan_s * 100.0,
            result.pending_max,
            result.expired,
        );
        eprintln!("took {:.0} s", begun.elapsed().as_secs_f64());
        Ok(())
    };
    row("no trouble", calm, args.seed)?;
    row("one in twenty at a tenth", slow, args.seed)?;
    for seed in args.seed..args.seed + args.seeds {
        row("the same, and deaths, silences, wipes, losses", trouble, seed)?;
    }
    let peak = dmover_host::memory::peak_bytes() >> 20;
    println!("\nMemory of the simulation at most: {peak} MiB.");
    Ok(())
}
