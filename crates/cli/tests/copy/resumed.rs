//! A large file that takes longer than a run may last: the next run of the job continues it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use dmover_testkit::faultfs::{FaultFsHandle, Op};
use dmover_testkit::lanes::check::leftovers;
use dmover_testkit::lanes::run::Running;
use dmover_testkit::skip;
use rustix::process::Signal;

use super::Bench;
use super::bench::{append, pattern};

const SIZE: usize = 24 << 20;

/// A bench with a large file, and a destination that counts what is written to it.
fn bench() -> Option<(FaultFsHandle, Bench)> {
    let (served, bench) = Bench::faulty()?;
    bench.write("s/large", pattern(SIZE));
    Some((served, bench))
}

macro_rules! bench {
    () => {{
        let Some(made) = bench() else { skip!("no faultfs") };
        made
    }};
}

fn written(served: &FaultFsHandle) -> usize {
    served.counters().of(Op::Write).bytes as usize
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        // Between two looks: poll.
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn trees(line: &str) -> &'static str {
    if line.starts_with("sync") { "s faulty/d" } else { "-T s faulty/d" }
}

/// Starts a slow copy and waits until so many bytes are at the destination, and some of them on record.
fn in_the_middle(bench: &Bench, served: &FaultFsHandle, line: &str) -> Running {
    let before = written(served);
    let words = format!("{line} --bwlimit=3M --split-size=8M -j2 --progress=never {}", trees(line));
    let running = bench.dmover.start(words.split_whitespace()).unwrap();
    let state = bench.dmover.state_directory();
    let found = format!("grep -c flushed '{}'/jobs/*/large-files 2>&1 || true", state.display());
    let is_recorded = || bench.sh(&found).trim().parse::<u32>().is_ok();
    until("half of it", || written(served) - before > SIZE / 2);
    until("a record", is_recorded);
    running
}

fn again(bench: &Bench, line: &str) {
    let options = "--split-size=8M --progress=never";
    bench.dmover(&format!("{line} {options} {}", trees(line))).expect_code(0);
    bench.sh("sha256sum < s/large > a; sha256sum < faulty/d/large > b; cmp a b");
    bench.assert_same("s", "faulty/d");
    let (state, none) = (bench.dmover.state_directory(), Vec::<PathBuf>::new());
    assert_eq!(leftovers(&bench.at("backing")).unwrap(), none);
    let record = bench.sh(&format!("ls '{}'/jobs/*", state.display()));
    assert!(!record.contains("large-files"), "nothing is under way any more: {record}");
}

#[test]
fn a_large_file_whose_copy_was_killed_is_continued() {
    for verb in ["copy", "sync", "copy --manifest=m"] {
        let (served, bench) = bench!();
        in_the_middle(&bench, &served, verb).kill().unwrap();
        again(&bench, verb);
        // What was not flushed yet is written again: three seconds at most.
        let written = written(&served);
        assert!((SIZE..SIZE * 3 / 2).contains(&written), "{verb}: {written} bytes of {SIZE}");
        if verb.contains("manifest") {
            bench.dmover("verify --manifest=m faulty/d").expect_code(0);
        }
    }
}

#[test]
fn a_large_file_whose_copy_was_stopped_is_continued_where_it_was() {
    for verb in ["copy", "sync"] {
        let (served, bench) = bench!();
        let running = in_the_middle(&bench, &served, verb);
        running.signal(Signal::TERM);
        assert_eq!(running.finish().unwrap().signal(), Some(15));
        again(&bench, verb);
        let written = written(&served);
        assert!((SIZE..SIZE * 11 / 10).contains(&written), "{verb}: {written} bytes of {SIZE}");
    }
}

/// The bar of batch jobs: what needs three times as long as a run may take ends complete.
#[test]
fn a_third_of_the_time_that_a_file_needs_is_enough() {
    for verb in ["copy", "sync"] {
        let (served, bench) = bench!();
        let line = format!(
            "{verb} --bwlimit=4M --split-size=8M -j2 --max-duration=2s --progress=never {}",
            trees(verb)
        );
        let mut runs = 1;
        while bench.dmover(&line).code() != Some(0) {
            runs += 1;
            assert!(runs < 9, "{verb}: {} bytes were written so far", written(&served));
        }
        assert!(runs > 2, "it was to take longer");
        again(&bench, verb);
        let written = written(&served);
        assert!((SIZE..SIZE * 6 / 5).contains(&written), "{verb}: {written} bytes of {SIZE}");
    }
}

#[test]
fn a_source_that_has_changed_is_begun_anew() {
    let (served, bench) = bench!();
    in_the_middle(&bench, &served, "copy").kill().unwrap();
    // The same size and time of the last write, other bytes.
    bench.sh("touch -r s/large t; tr '\\001-\\377' '\\002-\\377\\001' < s/large > n; cat n > s/large; touch -r t s/large");
    again(&bench, "copy");
    assert!(written(&served) >= SIZE * 3 / 2, "nothing of the old version may stay");
    in_the_middle(&bench, &served, "copy --overwrite=always").kill().unwrap();
    append(&bench.at("s/large"), "more");
    again(&bench, "copy");
}

#[test]
fn what_is_left_of_a_file_that_has_gone_goes_as_well() {
    let (served, bench) = bench!();
    bench.write("s/other", "x");
    in_the_middle(&bench, &served, "copy").kill().unwrap();
    assert_eq!(leftovers(&bench.at("backing")).unwrap().len(), 1);
    bench.sh("mv s/large s/renamed; cp s/other s/large");
    again(&bench, "copy");
}

/// Somebody has put something else in the place of what an interrupted run has left.
#[test]
fn what_stands_in_the_place_of_a_temporary_is_no_part_of_the_file() {
    let (served, bench) = bench!();
    in_the_middle(&bench, &served, "copy").kill().unwrap();
    bench.sh("cd backing/d; f=$(ls -A | grep ^.dmover); cp $f x; dd if=/dev/zero of=x bs=1M count=9 conv=notrunc; mv x $f");
    again(&bench, "copy");
}

#[test]
fn a_job_that_gets_nowhere_says_so() {
    let bench = Bench::new();
    bench.write("s/large", pattern(4 << 20));
    bench.sh("mkdir d");
    let line = "copy --bwlimit=300K --split-size=0 --progress=never -T s d";
    let mut said = Vec::new();
    for _ in 0..4 {
        let running = bench.dmover.start(line.split_whitespace()).unwrap();
        until("a file", || bench.exists("d/large"));
        let run = running.kill().unwrap();
        said.push(run.stderr.contains("the last 3 runs of this job ended before anything"));
        bench.sh("rm -rf d/large");
    }
    assert_eq!(said, [false, false, false, true]);
    bench.copy("-T s d").expect_code(0);
    assert!(!bench.dmover("copy -T s d").expect_code(0).stderr.contains("the last"));
}
