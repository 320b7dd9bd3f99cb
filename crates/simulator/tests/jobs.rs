//! Whole jobs, simulated. `cargo xtask soak jobs` runs more seeds, and one alone with `--seed`.
#![cfg(feature = "jobs")]

use dmover_simulator::jobs::{Plan, check, simulate};

/// Seeds of a sample.
const SEEDS: u64 = 300;

#[test]
fn the_same_command_completes_what_was_interrupted() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let checked = check(1, SEEDS, threads);
    for (seed, what) in &checked.broken {
        println!(
            "seed {seed} (repeat by: cargo xtask soak jobs --seed {seed}):\n  {}",
            what.join("\n  ")
        );
    }
    assert!(checked.broken.is_empty(), "{:?}", checked.broken.keys());
    assert_eq!(checked.seeds, SEEDS);
}

#[test]
fn one_seed_is_one_run() {
    for seed in 1..=40 {
        let plan = Plan::of(seed);
        let (once, again) = (simulate(&plan), simulate(&plan));
        assert_eq!((&once.story, once.trace), (&again.story, again.trace), "seed {seed}");
    }
}
