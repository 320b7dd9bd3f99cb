//! A mover on whose host everything fails: others do its work, and nothing of it is taken for the entries' fault.
use dmover_testkit::cluster::{Piece, needs};
use dmover_testkit::lanes::run::{Dmover, Run};
use dmover_testkit::skip;

use crate::Fleet;
use crate::bench::{PROGRAM, eventually, is_root};

const EIO: i32 = 5;
/// Whatever writes content.
const WRITING: &[&str] = &["pwrite64", "pwritev2", "copy_file_range", "io_uring_setup", "splice"];

impl Fleet {
    /// Starts a mover whose writing of content fails.
    fn call_sick_mover(&mut self, words: &str) {
        self.call_mover_without(WRITING, words);
    }

    /// Starts a mover to which these system calls answer with an error.
    fn call_mover_without(&mut self, denied: &[&'static str], words: &str) {
        let program = Dmover::new(PROGRAM).unwrap().in_directory(self.bench.root());
        let program = program.with_state(self.bench.dmover.state_directory());
        let url = self.broker.url();
        let words =
            ["mover", "--insecure", "--broker", &url].into_iter().chain(words.split_whitespace());
        let mover = program.denied(denied, EIO).start(words).unwrap();
        assert!(mover.wait_for_stderr("waiting for jobs", 1), "{}", mover.stderr_so_far());
        self.movers.push(mover);
    }

    fn fill_source(&self) {
        self.bench.sh("mkdir source; cd source; for d in $(seq 60); do mkdir $d
                       for f in $(seq 20); do echo $d $f > $d/$f; done; done
                       ln 1/1 60/linked; head -c 9M /dev/urandom > large");
    }
}

#[test]
fn what_fails_on_one_host_is_done_by_another() {
    if let Err(why) = needs(&[Piece::Nats]).and(unless_root()) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(0);
    // It has not much to do with, so that the other one gets enough.
    fleet.call_mover("-j1 --bwlimit 20M");
    fleet.call_sick_mover("-j2");
    fleet.fill_source();
    for verb in ["copy -T source far", "sync source near"] {
        let line = format!("{verb} --json --split-size=1M --reflink=never");
        let run = fleet.dmover(&line).expect_code(0);
        assert_eq!(number(&run, "errors"), 0, "{}", run.tell());
        assert!(number(&run, "retries") > 0, "the sick one had nothing: {}", run.tell());
    }
    fleet.bench.assert_same("source", "far");
    fleet.bench.assert_same("source", "near");
}

#[test]
fn a_mover_at_which_everything_fails_gets_no_more_tasks() {
    if let Err(why) = needs(&[Piece::Nats]).and(unless_root()) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(0);
    fleet.call_mover("-j1 --bwlimit 10K");
    fleet.call_sick_mover("-j4");
    fleet
        .bench
        .sh("mkdir source; cd source; for f in $(seq 400); do head -c 200 /dev/urandom > $f; done");
    let run = fleet.dmover("copy -T source far").expect_code(0);
    assert!(run.stderr.contains("gets no tasks for 60 s"), "{}", run.tell());
    fleet.bench.assert_same("source", "far");
}

/// It was left out while there was another one.
#[test]
fn a_mover_that_was_left_out_is_asked_when_nobody_else_is_left() {
    if let Err(why) = needs(&[Piece::Nats]).and(unless_root()) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(0);
    fleet.call_mover("-j1 --bwlimit 1K");
    fleet.call_sick_mover("-j4");
    fleet
        .bench
        // No report of a task has as many errors as pause a job: those of several tasks count.
        .sh("mkdir source; cd source; for d in $(seq 20); do mkdir $d
             for f in $(seq 20); do head -c 200 /dev/urandom > $d/$f; done; done");
    let words = [
        "copy",
        "-T",
        "--lease",
        "1s",
        "source",
        "far",
        "--insecure",
        "--broker",
        &fleet.broker.url(),
    ];
    let job = fleet.bench.dmover.start(words).unwrap();
    assert!(job.wait_for_stderr("gets no tasks for 60 s", 1), "{}", job.stderr_so_far());
    // Bytes that were copied before must not count as progress for ever.
    eventually("bytes that the coordinator has counted", || {
        let status = fleet.bench.dmover("status --json").text();
        status.contains("\"bytes_copied\":") && !status.contains("\"bytes_copied\":0")
    });
    fleet.movers.remove(0).kill().unwrap();
    let run = job.finish().unwrap().expect_code(3);
    assert!(run.stderr.contains("every entry fails with the same error (io)"), "{}", run.tell());
}

/// The kernel tells once that what was written did not reach storage: nobody else finds that out.
#[test]
fn what_did_not_reach_storage_is_named_although_others_find_it_equal() {
    if let Err(why) = needs(&[Piece::Nats]).and(unless_root()) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(0);
    fleet.call_mover("-j1 --bwlimit 1K");
    fleet.call_mover_without(&["syncfs", "fsync", "fdatasync"], "-j2");
    fleet
        .bench
        .sh("mkdir source; cd source; for f in $(seq 400); do head -c 200 /dev/urandom > $f; done");
    let run = fleet.dmover("sync --json source far").expect_code(3);
    assert!(run.text().contains(r#""operation":"sync""#), "{}", run.tell());
}

/// A file that is not the host's fault is told once, whoever tries the task again.
#[test]
fn what_fails_beside_it_is_told_once() {
    if let Err(why) = needs(&[Piece::Nats]).and(unless_root()) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(0);
    (0..3).for_each(|_| fleet.call_sick_mover("-j1"));
    fleet
        .bench
        .sh("mkdir -p source far/conflict; cd source; for f in $(seq 9); do echo $f > $f; done
                    echo x > conflict");
    let run = fleet.dmover("copy -T --json source far").expect_code(3);
    assert_eq!(number(&run, "errors"), 10, "{}", run.tell());
    assert_eq!(run.text().matches("type_conflict").count(), 2, "{}", run.tell());
}

#[test]
fn what_fails_everywhere_is_named_once_and_ends_the_job() {
    if let Err(why) = needs(&[Piece::Nats]).and(unless_root()) {
        skip!("{why}");
    }
    for movers in [1, 2, 4] {
        let mut fleet = Fleet::new(0);
        (0..movers).for_each(|_| fleet.call_sick_mover("-j1"));
        fleet
            .bench
            .sh("mkdir source; cd source; for f in $(seq 20); do echo $f > $f; done; mkdir d");
        let run = fleet.dmover("copy -T --json source far").expect_code(3);
        assert_eq!(number(&run, "errors"), 20, "{movers}: {}", run.tell());
        assert!(run.text().contains(r#""class":"io""#), "{movers}: {}", run.tell());
        assert!(fleet.bench.exists("far/d"));
    }
}

fn number(run: &Run, counter: &str) -> u64 {
    run.said().unwrap().summary.unwrap().number(counter).unwrap()
}

fn unless_root() -> Result<(), String> {
    // Without privilege the filter would forbid more than it should.
    if is_root() { Ok(()) } else { Err("needs root".into()) }
}
