//! Verbs without JOB: the last one that the verb can work on, which is said.
use super::Bench;
use super::bench::{eventually, is_root, wait_for_fault};
use dmover_testkit::faultfs::{Action, Op, Rule};
use dmover_testkit::lanes::run::Run;
use dmover_testkit::skip;
use std::path::PathBuf;

/// The id of the job with a label.
fn id_of(bench: &Bench, label: &str) -> String {
    let status = bench.dmover(&format!("status --json {label}")).expect_code(0).text();
    serde_json::from_str::<serde_json::Value>(&status).unwrap()["job"].as_str().unwrap().to_owned()
}

/// The job that was chosen is said: id, label, verb and places.
#[track_caller]
fn assert_chosen(bench: &Bench, run: &Run, (label, verb): (&str, &str)) {
    let chosen = format!("dmover: job {} [{label}]: {verb} ", id_of(bench, label));
    let said = run.stderr.lines().find(|line| line.starts_with(&chosen));
    let said = said.unwrap_or_else(|| panic!("no '{chosen}': {}", run.tell()));
    assert!(said.contains(" -> "), "{said}");
}

#[test]
fn verbs_without_a_job_take_the_last_that_they_can_work_on() {
    let bench = Bench::new();
    for verb in ["status", "wait", "errors", "history", "retry", "resume", "pause", "cancel"] {
        let run = bench.dmover(verb).expect_code(2);
        assert!(run.stderr.contains("no job in "), "{verb}: {}", run.tell());
    }
    bench.sh("mkdir a; touch a/f");
    bench.dmover("sync --label one a x").expect_code(0);
    bench.dmover("sync --label two a y").expect_code(0);
    bench.dmover("copy --label three -T a z").expect_code(0);
    for (verb, chosen) in [
        ("status", ("three", "copy")),
        ("wait", ("three", "copy")),
        ("history", ("two", "sync")),
        ("errors", ("three", "copy")),
    ] {
        let run = bench.dmover(verb).expect_code(0);
        assert_chosen(&bench, &run, chosen);
        // Only what was asked for is on standard output.
        assert!(!run.text().contains("dmover: job"), "{}", run.tell());
    }
    let run = bench.dmover("retry").expect_code(2);
    assert!(run.stderr.contains("no 'sync' job has failed entries"), "{}", run.tell());
    // Again the first one is the last one to have run.
    bench.dmover("sync a x").expect_code(0);
    assert_chosen(&bench, &bench.dmover("history").expect_code(0), ("one", "sync"));
    // What is named is not chosen.
    let run = bench.dmover("history two").expect_code(0);
    assert!(!run.stderr.contains("dmover: job"), "{}", run.tell());
    let run = bench.dmover("resume").expect_code(2);
    assert!(run.stderr.contains("no job is paused or interrupted"), "{}", run.tell());
    for verb in ["pause", "cancel"] {
        let run = bench.dmover(verb).expect_code(2);
        assert!(run.stderr.contains("no job is running"), "{}", run.tell());
    }
}

/// A later job in which nothing failed does not hide it.
#[test]
fn retry_takes_the_last_job_in_which_something_failed() {
    let bench = Bench::new();
    let bench = if is_root() { bench.unprivileged() } else { bench };
    bench.sh("mkdir a; touch a/f a/g; chmod 0 a/f; test $(id -u) != 0 || chown -R --reference . a");
    bench.dmover("sync --label older a x").expect_code(3);
    bench.dmover("sync --label newer --exclude f a y").expect_code(0);
    bench.sh("chmod 644 a/f");
    let run = bench.dmover("retry").expect_code(0);
    assert_chosen(&bench, &run, ("older", "sync"));
    assert!(bench.exists("x/f"));
    let run = bench.dmover("retry").expect_code(2);
    assert!(run.stderr.contains("no 'sync' job has failed entries"), "{}", run.tell());
}

#[test]
fn verbs_for_running_jobs_find_the_one_that_runs() {
    let test = "verbs_for_running_jobs_find_the_one_that_runs";
    let Some((handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
    bench.sh("mkdir -p a/d; touch a/d/x{1..9} a/d/z9; mkdir faulty/p faulty/q");
    bench.dmover("sync --label idle a elsewhere").expect_code(0);
    let hang = Action::Hang { duration_ms: 60_000 };
    let rule = Rule::new(Op::Create, hang).name("z9").count(2);
    handle.set_rules(std::slice::from_ref(&rule)).unwrap();
    let start = |label: &str, place: &str| {
        let words = ["sync", "-j2", "--label", label, "a", place];
        bench.dmover.start(words).unwrap()
    };
    let one = start("one", "faulty/p");
    wait_for_fault(&handle);
    let last = |verb: &str, label: &str| {
        assert_chosen(&bench, &bench.dmover(verb).expect_code(0), (label, "sync"));
    };
    last("pause", "one");
    bench.wait_for("pause", |status| status["state"] == "paused");
    // It is paused already, and nothing else runs.
    bench.dmover("pause").expect_code(2);
    last("resume", "one");
    bench.wait_for("resume", |status| status["state"] == "running");
    last("status", "one");
    // Nobody knows which one of two is meant.
    let two = start("two", "faulty/q");
    let hangs = || handle.counters().rules_fired.iter().sum::<u64>();
    eventually("the other job at work", || hangs() > 1);
    let run = bench.dmover("cancel").expect_code(2);
    for words in ["2 jobs are running", "[one]", "[two]", "name one of them"] {
        assert!(run.stderr.contains(words), "{words}: {}", run.tell());
    }
    handle.set_rules(&[]).unwrap();
    handle.release_hangs();
    one.finish().unwrap().expect_code(0);
    two.finish().unwrap().expect_code(0);
    bench.assert_same("a", "backing/p");
    bench.assert_same("a", "backing/q");
    // One alone can be meant.
    bench.sh("rm -r backing/p/d");
    handle.set_rules(&[rule]).unwrap();
    let one = start("one", "faulty/p");
    wait_for_fault(&handle);
    last("cancel", "one");
    let ask = PathBuf::from(bench.state()).join("jobs").join(id_of(&bench, "one")).join("ask");
    bench.wait_for("hearing", |_| std::fs::symlink_metadata(&ask).is_err());
    handle.release_hangs();
    one.finish().unwrap();
    assert_eq!(bench.status()["state"], "cancelled");
}

#[test]
fn resume_without_a_job_runs_the_one_that_was_interrupted() {
    let test = "resume_without_a_job_runs_the_one_that_was_interrupted";
    let Some((handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
    bench.sh("mkdir -p a/d; touch a/d/x{1..9} a/d/z9");
    let rule = Rule::new(Op::Create, Action::Hang { duration_ms: 60_000 }).name("z9");
    handle.set_rules(&[rule]).unwrap();
    let running = bench.dmover.start(["sync", "--label", "broken", "a", "faulty"]).unwrap();
    wait_for_fault(&handle);
    running.signal(rustix::process::Signal::KILL);
    handle.set_rules(&[]).unwrap();
    handle.release_hangs();
    running.finish().unwrap();
    bench.dmover("sync --label whole a elsewhere").expect_code(0);
    let run = bench.dmover("resume").expect_code(0);
    assert_chosen(&bench, &run, ("broken", "sync"));
    bench.assert_same("a", "backing");
    bench.dmover("resume").expect_code(2);
}
