//! Coordinators that die, and others that stand by.
use dmover_testkit::cluster::{Piece, needs};
use dmover_testkit::lanes::run::Running;
use dmover_testkit::skip;
use rustix::process::Signal;
use std::time::{Duration, Instant};

use crate::Fleet;
use crate::bench::Bench;

impl Fleet {
    /// Waits until so many bytes have arrived.
    fn wait_for_bytes(&self, bytes: u64, job: &Running) {
        let until = Instant::now() + Duration::from_mins(1);
        loop {
            let said = self.bench.sh("du -s --block-size=1 far 2>/dev/null | cut -f1");
            if said.trim().parse().is_ok_and(|arrived: u64| arrived >= bytes) {
                return;
            }
            assert!(Instant::now() < until, "{}", job.stderr_so_far());
            // A poll: a file system tells nobody.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Kills the process that runs the job, as soon as it says who it is.
fn kill_run(bench: &Bench) {
    let place = bench.dmover.state_directory().join("jobs/*/status.json");
    let until = Instant::now() + Duration::from_mins(1);
    loop {
        let status = bench.sh(&format!("cat {}", place.display()));
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let killed = bench.sh(&format!("kill -9 {} 2>&1 || true", status["pid"]));
        if killed.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "{killed}");
        // A poll: until it has begun, the status is of the one before.
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn who_stands_by_goes_on_when_the_coordinator_is_gone_one_after_the_other() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::new(2);
    let bench = &fleet.bench;
    bench.sh("mkdir source; cd source; seq 300 | split -l 1 -a 4
              for i in $(seq 24); do head -c 1M /dev/urandom > large$i; done");
    let line =
        "sync --label it --bwlimit 3M --reflink=never --lease 2s source far --insecure --broker";
    let url = fleet.broker.url();
    let first = bench.dmover.start(line.split(' ').chain([url.as_str()])).unwrap();
    fleet.wait_for_bytes(2 << 20, &first);
    let stand_by = |words: &str| {
        let next = bench.dmover.start(["standby", "it"]).unwrap();
        assert!(next.wait_for_stderr(words, 1), "{}", next.stderr_so_far());
        next
    };
    let second = stand_by("waiting to take over");
    let third = stand_by("waiting behind");
    first.signal(Signal::KILL);
    first.finish().unwrap();
    assert!(second.wait_for_stderr("resuming the job", 1), "{}", second.stderr_so_far());
    fleet.wait_for_bytes(8 << 20, &second);
    // Its run alone: it begins another one.
    kill_run(bench);
    assert!(second.wait_for_stderr("resuming the job", 2), "{}", second.stderr_so_far());
    fleet.wait_for_bytes(14 << 20, &second);
    // Both: the next one has the turn.
    second.signal(Signal::KILL);
    kill_run(bench);
    second.finish().unwrap();
    let run = third.finish().unwrap().expect_code(0);
    assert!(run.stderr.contains("resuming the job"), "{}", run.tell());
    bench.assert_same("source", "far");
    // There is nothing to stand by for.
    let run = bench.dmover("standby it").expect_code(0);
    assert!(run.stderr.contains("has ended with exit code 0"), "{}", run.tell());
}

#[test]
fn a_coordinator_that_hangs_is_killed_by_who_stands_by_if_that_was_asked_for() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::new(1);
    let bench = &fleet.bench;
    bench.sh("mkdir source; cd source; for i in $(seq 9); do head -c 1M /dev/urandom > f$i; done");
    let line =
        "sync --label it --bwlimit 3M --reflink=never --lease 2s source far --insecure --broker";
    let url = fleet.broker.url();
    let first = bench.dmover.start(line.split(' ').chain([url.as_str()])).unwrap();
    fleet.wait_for_bytes(2 << 20, &first);
    let next = bench.dmover.start(["standby", "it", "--kill-after", "5s"]).unwrap();
    assert!(next.wait_for_stderr("waiting to take over", 1), "{}", next.stderr_so_far());
    first.signal(Signal::STOP);
    let run = next.finish().unwrap().expect_code(0);
    assert!(run.stderr.contains("killing it"), "{}", run.tell());
    assert_eq!(first.finish().unwrap().signal(), Some(9));
    bench.assert_same("source", "far");
}

#[test]
fn who_stands_by_tries_again_what_was_temporary_and_hands_a_signal_on_to_its_run() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(0);
    fleet
        .bench
        .sh("mkdir source; for i in $(seq 20); do head -c 1M /dev/urandom > source/$i; done");
    let line = "sync --label it --bwlimit 3M --reflink=never --lease 1s --mover-wait 1s source far";
    let run = fleet.dmover(line).expect_code(6);
    assert!(run.stderr.contains("no mover connected to"), "{}", run.tell());
    let next = fleet.bench.dmover.start(["standby", "it"]).unwrap();
    assert!(next.wait_for_stderr("no mover connected to", 1), "{}", next.stderr_so_far());
    fleet.call_mover("");
    fleet.wait_for_bytes(2 << 20, &next);
    next.signal(Signal::TERM);
    let run = next.finish().unwrap().expect_code(128 + 15);
    assert!(run.stderr.matches("resuming the job").count() >= 2, "{}", run.tell());
    // The run has stopped by itself, and left nothing behind.
    let status = fleet.bench.dmover("status it").expect_code(0).text();
    assert!(status.contains("stopped"), "{status}");
    assert_eq!(fleet.bench.sh("find far -name '.dmover*' | wc -l").trim(), "0");
    fleet.dmover("sync --label it --reflink=never --lease 1s source far").expect_code(0);
    fleet.bench.assert_same("source", "far");
}

#[test]
fn who_stands_by_ends_as_the_job_does_and_not_for_jobs_of_other_hosts() {
    let bench = Bench::new();
    bench.sh("mkdir source; head -c 9M /dev/urandom > source/large");
    let job = bench.dmover.start("sync --label it --bwlimit 3M source far".split(' ')).unwrap();
    let until = Instant::now() + Duration::from_mins(1);
    // A poll: the job has to be known first.
    while !bench.dmover("jobs").text().contains("running") {
        assert!(Instant::now() < until, "{}", job.stderr_so_far());
    }
    let next = bench.dmover.start(["standby", "it"]).unwrap();
    assert!(next.wait_for_stderr("waiting to take over", 1), "{}", next.stderr_so_far());
    job.finish().unwrap().expect_code(0);
    let run = next.finish().unwrap().expect_code(0);
    assert!(!run.stderr.contains("resuming the job"), "{}", run.tell());
    // Another host would derive another job from the same command.
    let status = bench.dmover.state_directory().join("jobs/*/status.json");
    let change = r#"s/"host": *"[^"]*"/"host":"elsewhere"/"#;
    bench.sh(&format!("sed -i '{change}' {}", status.display()));
    let run = bench.dmover("standby it").expect_code(2);
    assert!(run.stderr.contains("of host elsewhere"), "{}", run.tell());
}
