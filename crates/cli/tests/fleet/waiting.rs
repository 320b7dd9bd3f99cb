//! A broker that is away for a while, and jobs that are in each other's way.
use dmover_testkit::cluster::{Piece, needs};
use dmover_testkit::skip;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

use crate::Fleet;
use crate::bench::{eventually, is_root};
use crate::large::written_by;

#[test]
fn a_job_that_begins_while_the_broker_starts_waits_for_it() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(1);
    fleet.bench.sh("mkdir source; seq 50 | (cd source; xargs touch)");
    let url = fleet.broker.url();
    fleet.broker.kill();
    let words = ["copy", "-vv", "-T", "source", "far", "--insecure", "--broker", &url];
    let job = fleet.bench.dmover.start(words).unwrap();
    assert!(job.wait_for_stderr("trying again", 1), "{}", job.stderr_so_far());
    fleet.broker.restart().unwrap();
    job.finish().unwrap().expect_code(0);
    fleet.bench.assert_same("source", "far");
    // Whoever has less patience is told sooner.
    fleet.broker.kill();
    let begun = Instant::now();
    let run = fleet.dmover("copy -T --mover-wait 200ms source far").expect_code(6);
    assert!(run.stderr.contains("cannot be reached"), "{}", run.tell());
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

/// What is reserved for one job is missing for all others, used or not.
#[test]
fn a_job_needs_hardly_any_storage_at_its_broker() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut fleet = Fleet::with(1, "jetstream { max_file_store: 16MB }");
    fleet.bench.sh("mkdir source; seq 2000 | (cd source; xargs touch)");
    fleet.dmover("copy -T source far").expect_code(0);
    fleet.bench.assert_same("source", "far");
    // Several at a time.
    let url = fleet.broker.url();
    let line = |to: &str| format!("copy -T --bwlimit 1M large {to} --insecure --broker {url}");
    fleet.bench.sh("mkdir large; head -c 3M /dev/urandom > large/f");
    let start = |to: &str| fleet.bench.dmover.start(line(to).split(' ')).unwrap();
    let jobs: Vec<_> = ["one", "two", "three"].map(start).into();
    for job in jobs {
        job.finish().unwrap().expect_code(0);
    }
    fleet.movers.clear();
}

#[test]
fn a_watch_waits_for_a_broker_that_is_away_when_something_changes() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    if !is_root() {
        skip!("a watch needs root");
    }
    for comes_back in [true, false] {
        let mut fleet = Fleet::new(1);
        fleet.bench.sh("mkdir source; seq 50 | (cd source; xargs touch)");
        let url = fleet.broker.url();
        let words = ["sync", "--watch", "source", "far", "--insecure", "--broker", &url];
        let watch = fleet.bench.dmover.start(words).unwrap();
        assert!(watch.wait_for_stderr("waiting for changes", 1), "{}", watch.stderr_so_far());
        fleet.broker.kill();
        fleet.bench.sh("echo new >source/new");
        assert!(watch.wait_for_stderr("waiting for up to 3600 s", 1), "{}", watch.stderr_so_far());
        if comes_back {
            fleet.broker.restart().unwrap();
            let until = Instant::now() + Duration::from_mins(1);
            while !fleet.bench.exists("far/new") {
                assert!(Instant::now() < until, "{}", watch.stderr_so_far());
                // What is waited for is made by another process: poll.
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        // It ends also while it waits.
        watch.signal(Signal::TERM);
        let run = watch.finish().unwrap();
        assert_eq!(run.signal(), Some(15), "{}", run.tell());
    }
}

/// Their state directories do not know of each other, and the broker does.
#[test]
fn two_jobs_that_fill_one_place_are_kept_apart_whatever_their_state_directories() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(0);
    fleet.bench.sh("mkdir -p source/sub far; seq 9 | (cd source; xargs touch)");
    let url = fleet.broker.url();
    let line = |verb: &str, state: &str| {
        format!("{verb} --state-dir {state} --lease 2s --insecure --broker {url}")
    };
    let first = line("sync source far", "one");
    let first = fleet.bench.dmover.start(first.split(' ')).unwrap();
    assert!(first.wait_for_stderr("there is no mover", 1), "{}", first.stderr_so_far());
    for verb in ["sync source far", "copy -T source/sub far/sub", "sync source far/deep"] {
        let run = fleet.bench.dmover(&line(verb, "two")).expect_code(6);
        let words = "writes to the same place";
        assert!(run.stderr.contains(words), "{verb}: {}", run.tell());
    }
    // Its client may take longer to find its way back than another one takes to begin.
    fleet.broker.kill();
    let second = line("sync -vv source far", "two");
    let second = fleet.bench.dmover.start(second.split(' ')).unwrap();
    assert!(second.wait_for_stderr("trying again", 1), "{}", second.stderr_so_far());
    fleet.broker.restart().unwrap();
    let run = second.finish().unwrap().expect_code(6);
    assert!(run.stderr.contains("writes to the same place"), "{}", run.tell());
    fleet.call_mover("");
    first.finish().unwrap().expect_code(0);
    fleet.bench.dmover(&line("sync source far", "two")).expect_code(0);
    fleet.bench.assert_same("source", "far");
}

/// Movers of a run that was killed may be at work, whatever becomes of a run after it.
#[test]
fn a_run_that_cannot_begin_leaves_what_is_known_of_movers_of_the_one_before() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::new(1);
    fleet.bench.sh("mkdir source; head -c 20M /dev/urandom > source/f");
    let url = fleet.broker.url();
    let words = "sync --state-dir state --lease 500ms --bwlimit 1M --split-size 1M --reflink never";
    let line = format!("{words} --mover-wait 1s source far --insecure --broker {url}");
    let job = fleet.bench.dmover.start(line.split(' ')).unwrap();
    let until = Instant::now() + Duration::from_mins(1);
    while fleet.bench.sh("find far -name '.dmover-*' 2>/dev/null || true").is_empty() {
        assert!(Instant::now() < until, "{}", job.stderr_so_far());
        // What is waited for is made by another process: poll.
        std::thread::sleep(Duration::from_millis(10));
    }
    job.kill().unwrap();
    let other =
        format!("sync --state-dir other --only-movers x=y source far --insecure --broker {url}");
    let other = fleet.bench.dmover.start(other.split(' ')).unwrap();
    assert!(other.wait_for_stderr("there is no mover", 1), "{}", other.stderr_so_far());
    let note = || fleet.bench.sh("find state -name movers-elsewhere");
    assert!(!note().is_empty());
    let run = fleet.bench.dmover(&line).expect_code(6);
    assert!(run.stderr.contains("writes to the same place"), "{}", run.tell());
    assert!(!note().is_empty(), "the next run would write where they may write");
    other.signal(Signal::TERM);
    other.finish().unwrap();
    let line = line.replace("--bwlimit 1M", "--bwlimit 100M").replace("1s source", "1m source");
    let run = fleet.bench.dmover(&line).expect_code(0);
    assert!(run.stderr.contains("until movers of the run"), "{}", run.tell());
    assert!(note().is_empty());
    fleet.bench.assert_same("source", "far");
}

/// What is begun while movers of a killed run may be at work could be written by both.
#[test]
fn a_job_that_is_stopped_while_it_waits_for_lost_movers_ends_and_leaves_the_wait_to_the_next() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::new(0);
    fleet.bench.sh("mkdir source; echo data >source/f");
    let url = fleet.broker.url();
    let line = |more: &str| {
        let words = "sync --state-dir state --lease 20s";
        format!("{words} {more} source far --insecure --broker {url}")
    };
    let start = |more: &str| fleet.bench.dmover.start(line(more).split_whitespace()).unwrap();
    let job = start("");
    assert!(job.wait_for_stderr("there is no mover", 1), "{}", job.stderr_so_far());
    job.kill().unwrap();
    let note = || fleet.bench.sh("cat state/jobs/*/movers-elsewhere");
    let before = note();
    for (more, code, words) in [
        ("", None, "stopped by SIGTERM"),
        ("--max-duration 1s", Some(0), "stopped by --max-duration"),
        ("", Some(0), "cancelled"),
    ] {
        let job = start(&format!("--lease 40s {more}"));
        let waiting = "waiting 24 s until movers of the run";
        assert!(job.wait_for_stderr(waiting, 1), "{words}: {}", job.stderr_so_far());
        match words {
            "cancelled" => {
                let id = fleet.bench.sh("ls state/jobs");
                let line = format!("cancel --state-dir state {}", id.trim());
                fleet.bench.dmover(&line).expect_code(0);
            }
            _ if code.is_none() => job.signal(Signal::TERM),
            _ => {}
        }
        let run = job.finish().unwrap();
        assert_eq!(run.signal(), code.is_none().then_some(15), "{words}: {}", run.tell());
        assert!(run.stderr.contains(words), "{words}: {}", run.tell());
        assert_eq!(note(), before, "{words}: {}", run.tell());
        assert!(!fleet.bench.exists("far/f"));
    }
}

/// What a killed run has left at the broker is waited for as well, whatever this run has in its state directory.
#[test]
fn a_job_that_waits_for_leases_at_the_broker_can_be_stopped() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::new(0);
    fleet.bench.sh("mkdir source; echo data >source/f");
    let url = fleet.broker.url();
    let start = |state: &str| {
        let words = "--lease 25s source far --insecure --broker";
        let line = format!("sync --state-dir {state} {words} {url}");
        fleet.bench.dmover.start(line.split(' ')).unwrap()
    };
    let job = start("one");
    assert!(job.wait_for_stderr("there is no mover", 1), "{}", job.stderr_so_far());
    job.kill().unwrap();
    let job = start("two");
    let waiting = "was at work in the same place";
    assert!(job.wait_for_stderr(waiting, 1), "{}", job.stderr_so_far());
    job.signal(Signal::TERM);
    let asked = Instant::now();
    let run = job.finish().unwrap();
    let taken = asked.elapsed();
    assert_eq!(run.signal(), Some(Signal::TERM.as_raw()), "{}", run.tell());
    assert!(run.stderr.contains("stopped by SIGTERM"), "{}", run.tell());
    // Half of what is left to wait.
    assert!(taken < Duration::from_secs(14), "{taken:?}");
    assert!(!fleet.bench.exists("far/f"));
}

#[test]
fn what_fills_another_place_or_none_runs_beside_a_job() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(0);
    fleet.call_mover("");
    fleet.bench.sh("mkdir -p source far farther; seq 9 | (cd source; xargs touch)");
    let url = fleet.broker.url();
    let first = format!("sync source far --only-movers x=y --insecure --broker {url}");
    let first = fleet.bench.dmover.start(first.split(' ')).unwrap();
    let missing = "there is no mover with all labels that are asked for";
    assert!(first.wait_for_stderr(missing, 1), "{}", first.stderr_so_far());
    fleet.dmover("sync source farther").expect_code(0);
    fleet.dmover("verify source farther").expect_code(0);
    fleet.dmover("sync -n source far").expect_code(0);
    first.signal(Signal::TERM);
    assert_eq!(first.finish().unwrap().signal(), Some(15));
}

/// A batch system and an init system kill what does not end in time.
#[test]
fn a_job_ends_in_time_though_its_broker_hangs() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(1);
    fleet.bench.sh("mkdir s; head -c 30M /dev/urandom > s/f");
    let url = fleet.broker.url();
    let line = format!("copy -T s d --bwlimit 1M --insecure --broker {url}");
    let job = fleet.bench.dmover.start(line.split(' ')).unwrap();
    let written = || written_by(fleet.movers[0].pid());
    eventually("a part of the file", || written() > 1 << 20);
    let broker = Pid::from_raw(fleet.broker.pid().unwrap().try_into().unwrap()).unwrap();
    kill_process(broker, Signal::STOP).unwrap();
    job.signal(Signal::TERM);
    let asked = Instant::now();
    let run = job.finish().unwrap();
    let taken = asked.elapsed();
    kill_process(broker, Signal::CONT).unwrap();
    assert_eq!(run.signal(), Some(Signal::TERM.as_raw()), "{}", run.tell());
    // Ten seconds are promised; the rest is for a busy machine.
    assert!(taken < Duration::from_secs(14), "{taken:?}");
    fleet.movers.clear();
}
