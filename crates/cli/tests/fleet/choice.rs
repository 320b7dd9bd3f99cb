//! Which movers work for a job, and on what.
use dmover_testkit::cluster::{Piece, needs};
use dmover_testkit::faultfs::{Action, Config, FaultFs, Op, Rule, When, errno_by_name};
use dmover_testkit::skip;
use std::time::{Duration, Instant};

use crate::Fleet;

#[test]
fn a_job_for_labels_is_done_by_movers_that_have_all_of_them() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(1);
    fleet.call_mover("--label rack=a7 --label site=east");
    fleet.bench.sh("mkdir source; cd source; seq 200 | split -l 1 -a 4");
    let copy = "copy -T source far --only-movers rack=a7 --only-movers site=west --mover-wait 2s";
    let run = fleet.dmover(copy).expect_code(6);
    assert!(
        run.stderr.contains("dmover mover --label rack=a7 --label site=west"),
        "{}",
        run.tell()
    );
    assert_eq!(fleet.bench.sh("find . -path './far/*'"), "");
    fleet.call_mover("--label site=west --label rack=a7");
    fleet.dmover(copy).expect_code(0);
    fleet.bench.assert_same("source", "far");
}

/// Nobody else is there: it does the other class as well.
#[test]
fn movers_for_one_class_do_the_other_when_they_are_idle() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    for class in ["small", "large"] {
        let mut fleet = Fleet::new(0);
        fleet.call_mover(&format!("--class {class}"));
        fleet.bench.sh("mkdir source; cd source; seq 200 | split -l 1 -a 4
                        head -c 9M /dev/urandom > large");
        fleet.dmover("copy -T --split-size=1M --reflink=never source far").expect_code(0);
        fleet.bench.assert_same("source", "far");
    }
}

/// Each mover alone would take half as long.
#[test]
fn all_movers_together_keep_the_limits_of_a_job() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::new(2);
    fleet.bench.sh("mkdir source; cd source; mkdir $(seq 20)
                    for d in *; do for f in $(seq 10); do echo $f > $d/$f; done; done");
    let run = fleet.dmover("copy -T --create-limit 40 source far").expect_code(0);
    // 220 entries; what a tenth of a second allows goes at once.
    assert!(run.elapsed > Duration::from_millis(4400), "{:?}", run.elapsed);
    fleet.bench.assert_same("source", "far");
}

/// Each job alone would take half as long.
#[test]
fn jobs_of_one_pool_share_their_limits() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::new(2);
    for source in ["one", "two"] {
        fleet.bench.sh(&format!("mkdir {source}; seq 200 | (cd {source}; xargs touch)"));
    }
    let start = |source: &str| {
        let (url, limits) = (fleet.broker.url(), "--limit-pool far_fs --create-limit 50");
        let line = format!("copy -T {limits} {source} far-{source} --insecure --broker {url}");
        fleet.bench.dmover.start(line.split(' ')).unwrap()
    };
    let begun = Instant::now();
    let jobs = [start("one"), start("two")];
    for job in jobs {
        job.finish().unwrap().expect_code(0);
    }
    // 402 entries. What a tenth of a second allows goes at once, and more for as long as the jobs do not know of each other.
    assert!(begun.elapsed() > Duration::from_millis(6500), "{:?}", begun.elapsed());
    fleet.bench.assert_same("one", "far-one");
    fleet.bench.assert_same("two", "far-two");
    let run = fleet.dmover("copy -T --limit-pool far.fs one other").expect_code(2);
    assert!(run.stderr.contains("letters, digits"), "{}", run.tell());
    let run = fleet.bench.dmover("copy -T --limit-pool far one other").expect_code(2);
    assert!(run.stderr.contains("--broker"), "{}", run.tell());
}

/// A client of a network file system may remember for a while that a name is absent, although another client has made it.
#[test]
fn what_another_mover_has_made_is_looked_for_again() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::new(1);
    fleet.bench.sh("mkdir -p source/deep backing far; head -c 9M /dev/urandom > source/deep/large");
    let absent = Action::Errno(errno_by_name("ENOENT").unwrap());
    let rule = |name, nth| Rule::new(Op::Lookup, absent).name(name).when(When::Nth(nth)).count(6);
    let rules = vec![rule("deep", 4), rule(".dmover-*", 3)];
    let config = Config { rules, keep_records: true, ..Config::default() };
    let place = fleet.bench.at("far");
    let slow = FaultFs::mount(&fleet.bench.at("backing"), &place, config).unwrap();
    fleet.dmover("copy -T --split-size=1M --reflink=never source far/copy").expect_code(0);
    fleet.bench.assert_same("source", "backing/copy");
    let counters = slow.unmount().unwrap();
    assert_eq!(counters.rules_fired, [6, 6], "names were not looked up so often");
}
