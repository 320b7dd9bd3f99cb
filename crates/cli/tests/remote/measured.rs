//! `bench`: how fast bytes move to another host.
use super::bench::{Bench, PROGRAM};
use dmover_testkit::cluster::{FarHost, LineOptions};
use serde_json::Value;
use std::num::NonZeroU64;
use std::path::Path;
use std::time::Duration;

/// Bytes a second of the line.
const RATE: u64 = 16_000_000;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn no_measurement_is_faster_than_the_line_and_nothing_is_left() {
    if let Some(why) = FarHost::missing() {
        dmover_testkit::skip!("{why}");
    }
    let line = LineOptions::wan(Duration::from_millis(20), NonZeroU64::new(RATE).unwrap());
    let far = FarHost::start(Path::new(PROGRAM), &line).unwrap();
    let words = far.line.near().words();
    let bench = Bench::new().with(|dmover| dmover.wrapped(words));
    bench.sh("mkdir place");
    let place = bench.at("place");
    let named = format!("far:{}", place.display());
    let options = ["bench", "--time", "1s", "--ssh-command", far.ssh_command(), &named];
    let run = bench.dmover.run(options.iter().chain(&["--json"])).unwrap().expect_code(0);
    let results = lines(&run.text());
    let ends: Vec<_> = results.iter().map(|r| (r["from"].clone(), r["to"].clone())).collect();
    let wanted = [
        ("memory there", "memory here"),
        ("memory here", "memory there"),
        ("memory here", "storage there"),
        ("storage there", "memory here"),
    ];
    assert_eq!(ends, wanted.map(|(from, to)| (from.into(), to.into())));
    for result in &results {
        let moved = result["bytes"].as_u64().unwrap();
        assert!(moved > 1_000_000, "{result}");
        // Content cannot be compressed, so no more of it than the line carries. What fills windows first is within a second.
        let most = RATE as f64 * (result["elapsed_s"].as_f64().unwrap() + 1.0);
        assert!((moved as f64) < most, "{result}");
    }
    // Compressed it would be faster than the line.
    let carried: u64 = far.line.counts().iter().map(|counts| counts.bytes).sum();
    let moved: u64 = results.iter().map(|result| result["bytes"].as_u64().unwrap()).sum();
    assert!(carried >= moved, "{carried} carried, {moved} moved");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    // The next one knows the last one.
    let run = bench.dmover.run(options).unwrap().expect_code(0);
    let today = results[0]["time"].as_str().unwrap()[..10].to_owned();
    assert!(run.text().contains(&format!("/s on {today}")), "{}", run.tell());
    assert!(run.text().contains("data streams, TLS 1.3"), "{}", run.tell());
}

#[test]
fn a_path_that_cannot_be_measured_is_named() {
    if let Some(why) = FarHost::missing() {
        dmover_testkit::skip!("{why}");
    }
    let line = LineOptions::round_trip(Duration::from_millis(1));
    let far = FarHost::start(Path::new(PROGRAM), &line).unwrap();
    let words = far.line.near().words();
    let bench = Bench::new().with(|dmover| dmover.wrapped(words));
    let named = format!("far:{}", bench.at("none").display());
    let options = ["bench", "--time", "200ms", "--ssh-command", far.ssh_command(), &named];
    let run = bench.dmover.run(options).unwrap().expect_code(2);
    assert!(run.stderr.contains("/none' on far is no directory"), "{}", run.tell());
    assert_eq!(run.text(), "");
    let run = bench.dmover.run(["bench", "/tmp"]).unwrap().expect_code(2);
    assert!(run.stderr.contains("is a path of this host"), "{}", run.tell());
}
