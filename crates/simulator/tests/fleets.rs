//! Whatever goes wrong in a fleet, each entry and each large file is ended, and counted once.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests stop and print their seeds")]

use dmover_simulator::{Scenario, TreeSize, simulate};

const SMALL: Scenario = Scenario {
    tree: TreeSize { files: 2_000_000, large: (40, 20 << 30) },
    movers: 30,
    places: 4,
    entries_per_s: 500,
    bytes_per_s: 256 << 20,
    lease_ms: 30_000,
    latency_us: 2_000,
    lost_in: 0,
    slow_in: 0,
    crashes: 0,
    silences: 0,
    wipes: 0,
};

#[test]
fn a_fleet_without_trouble_is_hardly_slower_than_its_hardware() {
    let result = simulate(SMALL, 1);
    assert_eq!((result.entries, result.large, result.expired), (2_000_000, 40, 0));
    assert!(result.makespan_s <= 1.05 * result.ideal_s, "{result:?}");
}

#[test]
fn whatever_goes_wrong_everything_is_ended_once() {
    for seed in 0..30 {
        println!("seed {seed}");
        let scenario =
            Scenario { lost_in: 1000, slow_in: 10, crashes: 6, silences: 4, wipes: 5, ..SMALL };
        let result = simulate(scenario, seed);
        assert_eq!((result.entries, result.large), (2_000_000, 40), "seed {seed}: {result:?}");
        assert!(result.expired > 0, "seed {seed}: nothing was lost: {result:?}");
    }
}

#[test]
fn one_seed_is_one_run() {
    let scenario = Scenario { lost_in: 100, slow_in: 5, crashes: 3, wipes: 2, ..SMALL };
    let (one, other) = (simulate(scenario, 7), simulate(scenario, 7));
    assert_eq!((one.tasks, one.messages), (other.tasks, other.messages));
    assert!((one.makespan_s - other.makespan_s).abs() < f64::EPSILON);
}

#[test]
fn a_mover_at_a_tenth_costs_its_own_share_and_no_more() {
    let eight = Scenario {
        tree: TreeSize { files: 1000, large: (64, 8 << 30) },
        movers: 8,
        slow_in: 4,
        ..SMALL
    };
    for seed in 0..10 {
        let result = simulate(eight, seed);
        assert!(result.makespan_s <= 1.15 * result.ideal_s, "seed {seed}: {result:?}");
    }
}
