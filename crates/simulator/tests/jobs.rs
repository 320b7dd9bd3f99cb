//! Whole jobs, simulated: seeds one after the other.
#![cfg(feature = "jobs")]

use dmover_simulator::jobs::{Plan, simulate};

/// Numbers from the environment, for longer runs and for one seed.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn the_same_command_completes_what_was_interrupted() {
    let (first, seeds) = (number("DMOVER_SEED", 1), number("DMOVER_SEEDS", 100));
    let mut failures = Vec::new();
    for seed in first..first + seeds {
        let plan = Plan::of(seed);
        let run = simulate(&plan);
        if seeds == 1 {
            println!("{plan:#?}\n{}\n{:?}", run.story.join("\n"), run.trace);
        }
        if !run.broken.is_empty() {
            println!("seed {seed}:\n  {}\n  {}", run.story.join("\n  "), run.broken.join("\n  "));
            failures.push(seed);
        }
    }
    assert!(failures.is_empty(), "{} of {seeds} seeds from {first}: {failures:?}", failures.len());
}
