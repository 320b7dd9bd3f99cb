//! What the verbs for jobs promise while something else is going on.
use super::Bench;
use super::bench::{PROGRAM, is_root, pattern, wait_for_fault};
use dmover_testkit::faultfs::{Action, Op, Rule};
use dmover_testkit::image::{FileSystem, Image};
use dmover_testkit::skip;
use std::time::{Duration, Instant};

/// A job that begins while its leftovers are looked for would lose what it is writing.
#[test]
fn cleanup_holds_the_job_it_cleans_after() {
    let test = "cleanup_holds_the_job_it_cleans_after";
    let Some((handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
    bench.sh("mkdir -p a/d; touch a/d/f");
    bench.sync("a faulty", 0);
    let id = bench.status()["job"].as_str().unwrap().to_owned();
    handle.set_rules(&[Rule::new(Op::Opendir, Action::Hang { duration_ms: 60_000 })]).unwrap();
    let cleanup = bench.dmover.start(["cleanup", &id]).unwrap();
    wait_for_fault(&handle);
    bench.dmover("sync a faulty").expect_code(6);
    handle.set_rules(&[]).unwrap();
    handle.release_hangs();
    cleanup.finish().unwrap().expect_code(0);
    bench.sync("a faulty", 0);
}

#[test]
fn a_job_that_reads_back_is_cancelled() {
    let bench = Bench::new();
    bench.sh("mkdir a");
    bench.write("a/big", pattern(5 << 20));
    let words = ["sync", "--verify=read-back", "--bwlimit=1M", "a", "b"];
    let running = bench.dmover.start(words).unwrap();
    let deadline = Instant::now() + Duration::from_mins(1);
    while !bench.exists("b/big") {
        assert!(Instant::now() < deadline, "nothing is copied");
        std::thread::yield_now();
    }
    bench.wait_for("end of the copy", |status| status["tasks_left"] == 0);
    let id = bench.status()["job"].as_str().unwrap().to_owned();
    bench.dmover(&format!("cancel {id}")).expect_code(0);
    running.finish().unwrap().expect_code(3);
    assert_eq!(bench.status()["state"], "cancelled");
    let copied = bench.status()["counters"]["bytes_copied"].as_u64();
    assert_eq!(copied, Some(5 << 20), "what was done is what the job did");
}

/// A pass that ends for a while, and whoever hears of it has it go on.
#[test]
fn who_is_notified_may_run_the_job_again() {
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/{1..9}");
    bench.sh(&format!(
        "printf '#!/bin/sh\\ntest -e told && exit\\n>told\\n{PROGRAM} resume $DMOVER_JOB >said 2>&1\\necho $? >code\\n' >tell; \
         chmod +x tell"
    ));
    bench.sync("--notify ./tell a b", 0);
    assert_eq!(bench.read("code").trim(), "0", "{}", bench.read("said"));
    assert_eq!(bench.ask("SELECT count(*) FROM pass"), 2);
}

#[test]
fn output_that_is_lost_is_an_end_that_is_told() {
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/{1..9}; echo 'echo $DMOVER_JOB_STATE >told' >tell");
    let state = bench.state();
    let line = format!(
        "{PROGRAM} sync --json --state-dir {state} --notify '. ./tell' a b >/dev/full 2>/dev/null || echo $?"
    );
    assert_eq!(bench.sh(&line), "8\n");
    assert_eq!(
        (&bench.status()["state"], &bench.status()["exit_code"]),
        (&"stopped".into(), &8.into())
    );
    assert_eq!(bench.read("told"), "failed\n");
}

#[test]
fn what_was_given_up_is_not_retried() {
    let test = "what_was_given_up_is_not_retried";
    let Some((handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
    bench.sh("mkdir a; touch a/{1..9}");
    handle.set_rules(&[Rule::new(Op::Create, Action::Errno(5)).count(0).name("3")]).unwrap();
    bench.sync("a faulty", 3);
    handle.set_rules(&[]).unwrap();
    let id = bench.status()["job"].as_str().unwrap().to_owned();
    for state in ["cancelled", "given up", "stopped"] {
        bench.tell(&format!("UPDATE pass SET state = '{state}'"));
        let refused = bench.dmover(&format!("retry {id}")).expect_code(2);
        assert!(refused.stderr.contains("did not finish"), "{}", refused.tell());
    }
    bench.tell("UPDATE pass SET state = 'finished'");
    // One that was killed has taken nothing from what is to be tried again.
    bench.tell(
        "INSERT INTO pass (kind, spec, source, places, begun_ms, state) \
         SELECT 'listed', spec, source, places, begun_ms, 'running' FROM pass",
    );
    assert!(bench.dmover(&format!("errors {id}")).expect_code(0).text().contains("faulty/3"));
    bench.dmover(&format!("retry {id}")).expect_code(0);
    assert!(bench.exists("backing/3"));
}

/// The days that a rule counts back from now are others when a pass goes on.
#[test]
fn a_pass_over_newer_files_is_gone_on_with() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/{1..9} b; touch -d 2001-01-01 a/old; for d in a/?; do seq 9 > $d/f; done; head -c 2M /dev/urandom > a/big");
    bench.sh("tr a b < a/big > b/big; touch -d @1 b/big");
    let words = ["sync", "-j1", "--bwlimit=1M", "--newer=7d", "a", "b"];
    let mut running = bench.dmover.start(words).unwrap();
    bench.until(&mut running, "the large file is in hand", || bench.is_large_file_in_hand());
    running.kill().unwrap();
    let line = words[1..].join(" ");
    let pass = bench.sync(&line, 0);
    assert_eq!(pass.summary().0["resumed"], true);
    let pass = bench.sync(&line, 0);
    assert_eq!(pass.number("files_compared"), 0, "nothing is suspected any more");
    assert_eq!(bench.sh("ls b | tr -d '\\n'"), "123456789big");
    // What is typed is what counts.
    bench.sh("tr a c < a/big > b/big; touch -d @1 b/big");
    let words = ["sync", "-j1", "--bwlimit=1M", "--newer=2020-01-01T00:00:00", "a", "b"];
    let mut running = bench.dmover.start(words).unwrap();
    bench.until(&mut running, "the large file is in hand", || bench.is_large_file_in_hand());
    running.kill().unwrap();
    bench.sync("-j1 --bwlimit=1M --newer=2000-01-01T00:00:00 a b", 0);
    assert!(bench.exists("b/old"));
}

/// The destination may lie on a file system that is mounted below the source.
#[test]
fn what_fails_below_the_source_stays_in_doubt() {
    let test = "what_fails_below_the_source_stays_in_doubt";
    if !is_root() {
        return skip::skipped(test, "needs root");
    }
    let Some((handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
    bench.sh(
        "mkdir -p a/m; echo right > a/f; touch a/{1..9}; mkdir backing/to; mount --bind faulty a/m",
    );
    let _undo = bench.undo("umount a/m");
    bench.sync("-x a a/m/to", 0);
    bench.sh("cp --attributes-only -p backing/to/f time; head -c 6 /dev/zero | dd of=backing/to/f conv=notrunc status=none; touch -r time backing/to/f");
    bench.as_if_killed();
    handle.set_rules(&[Rule::new(Op::Write, Action::Errno(28)).count(0)]).unwrap();
    bench.sync("-x a a/m/to", 3);
    handle.set_rules(&[]).unwrap();
    bench.sync("-x a a/m/to", 0);
    assert_eq!(bench.sh("cat backing/to/f"), "right\n");
    // The same for what is to be tried again.
    handle.set_rules(&[Rule::new(Op::Create, Action::Errno(5)).count(0)]).unwrap();
    bench.sh("touch a/new");
    bench.sync("-x a a/m/to", 3);
    handle.set_rules(&[]).unwrap();
    let id = bench.status()["job"].as_str().unwrap().to_owned();
    bench.dmover(&format!("retry {id}")).expect_code(0);
    assert!(bench.exists("backing/to/new"));
}

/// Attributes that have no room at the destination are lost once, however many passes there are.
#[test]
fn losses_of_passes_do_not_add_up() {
    let Some(image) = Image::create_or_skip("losses", FileSystem::Ext4, 64 << 20) else { return };
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/f a/other; for n in 1 2 3; do setfattr -n user.$n -v $(head -c 2000 /dev/zero | tr '\\0' x) a/f; done");
    let to = image.path().join("b").display().to_string();
    for _ in 0..3 {
        let pass = bench.sync(&format!("a {to}"), 3);
        let summary = pass.summary().0;
        let lost = |field: &str| summary[field]["xattr"].as_u64().unwrap_or(0);
        let (now, earlier) = (lost("losses_by_kind"), lost("earlier_losses_by_kind"));
        assert!(now.max(earlier) <= 3, "{now} and {earlier}: {}", pass.0.tell());
    }
    bench.sh("for n in 1 2 3; do setfattr -x user.$n a/f; done");
    bench.sync(&format!("--checksum a {to}"), 0);
    bench.sync(&format!("a {to}"), 0);
}
