//! `dmover jobs`, `wait` and `cleanup`: many jobs, of which one finds the one that matters.
use super::Bench;
use super::bench::{eventually, pattern};
use dmover_testkit::faultfs::{Action, Op, Rule};
use dmover_testkit::skip;
use rustix::process::Signal;
use serde_json::Value;

/// A state directory with jobs that have ended in several ways.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/{1..9}; mkdir -p bad/{1..9}");
    bench.dmover("copy -T --label good a b").expect_code(0);
    bench.dmover("sync --label pass a c").expect_code(0);
    bench.sh("touch bad/{1..9}/x");
    bench.dmover("copy -T a bad").expect_code(3);
    bench.write("big/f", pattern(8 << 20));
    let stopped =
        bench.dmover.start(["sync", "--bwlimit=1M", "--label", "cut", "big", "d"]).unwrap();
    eventually("the large job", || !bench.jobs("--label cut").is_empty());
    stopped.signal(Signal::TERM);
    assert_eq!(stopped.finish().unwrap().signal(), Some(15));
    bench
}

#[test]
fn jobs_are_listed_with_their_outcome_and_chosen_by_filters() {
    let bench = bench();
    let all = [
        "sync: stopped by SIGTERM",
        "copy: finished, 9 failed",
        "sync: finished",
        "copy: finished",
    ];
    assert_eq!(bench.outcomes(""), all);
    assert_eq!(bench.outcomes("--state stopped"), all[..1]);
    assert_eq!(bench.outcomes("--state stopped,running"), all[..1]);
    assert_eq!(
        bench.outcomes("--state finished --verb copy"),
        ["copy: finished, 9 failed", "copy: finished"]
    );
    assert_eq!(bench.outcomes("--label pass"), ["sync: finished"]);
    assert_eq!(bench.outcomes("--since 1h"), all);
    assert_eq!(bench.outcomes("--state cancelled"), [""; 0]);
    let unknown = bench.dmover("jobs --state asleep").expect_code(2);
    assert!(unknown.stderr.contains("running, watching, paused"), "{}", unknown.tell());
    let text = bench.dmover("jobs").expect_code(0).text();
    let lines: Vec<&str> = text.lines().collect();
    let head: Vec<&str> = lines[0].split_whitespace().collect();
    assert_eq!(head, ["JOB", "VERB", "STATE", "BEGUN", "LABEL", "SOURCE", "->", "DEST"], "{text}");
    let root = bench.root().display();
    assert!(lines[1].contains("stopped by SIGTERM  ") && lines[1].contains(" ago  "), "{text}");
    assert!(lines[1].ends_with(&format!("  cut    {root}/big -> {root}/d")), "{text}");
    assert!(lines[2].contains("finished, 9 failed") && lines[2].contains("  -  "), "{text}");
    let none = bench.dmover("jobs --label nobodys").expect_code(0);
    assert_eq!(none.text(), "");
    assert!(none.stderr.contains("no matching job"), "{}", none.tell());
}

#[test]
fn a_list_of_jobs_fits_a_terminal() {
    let bench = bench();
    let program = bench.dmover.program().display().to_string();
    let state = bench.dmover.state_directory().display().to_string();
    for columns in [40, 80, 100] {
        let shown = bench.sh(&format!(
            "script -qec 'stty cols {columns}; {program} jobs --state-dir {state}' /dev/null"
        ));
        let lines: Vec<&str> = shown.lines().map(|line| line.trim_end_matches('\r')).collect();
        assert_eq!(lines.len(), 5, "{shown}");
        assert!(lines.iter().all(|line| line.chars().count() <= columns), "{shown}");
        assert!(columns < 80 || lines[1].ends_with("/d"), "{shown}");
    }
}

#[test]
fn a_label_that_another_job_has_is_refused() {
    let bench = bench();
    for words in [
        "copy -T --label good a other",
        "sync --label good a other",
        "copy -n -T --label good a other",
    ] {
        let refused = bench.dmover(words).expect_code(2);
        let id = bench.jobs("--label good")[0]["job"].as_str().unwrap().to_owned();
        assert!(
            refused.stderr.contains(&format!("the label good belongs to job {id}")),
            "{}",
            refused.tell()
        );
        assert!(refused.stderr.contains(&format!("dmover cleanup {id}")), "{}", refused.tell());
    }
    assert!(!bench.exists("other"));
    let refused = bench.dmover("copy -T --detach --label good a other").expect_code(2);
    assert!(refused.stderr.contains("the label good belongs to job"), "{}", refused.tell());
    // Its own job may say it again, and whoever frees it may have it.
    bench.dmover("copy -T --label good a b").expect_code(0);
    bench
        .dmover(&format!("copy -T --label good {root}/a {root}/b", root = bench.root().display()))
        .expect_code(0);
    bench.dmover("cleanup good").expect_code(0);
    bench.dmover("sync --label good a other").expect_code(0);
}

#[test]
fn a_label_that_is_the_beginning_of_an_id_means_the_label() {
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/{1..9}");
    bench.dmover("copy -T --label one a b").expect_code(0);
    let id = bench.jobs("--label one")[0]["job"].as_str().unwrap().to_owned();
    let label = &id[..3];
    bench.dmover(&format!("copy -T --label {label} a c")).expect_code(0);
    let status = bench.dmover(&format!("status --json {label}")).expect_code(0);
    let said: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(said["label"], label);
    // A whole id is always the job itself.
    let refused = bench.dmover(&format!("copy -T --label {id} a d")).expect_code(2);
    assert!(refused.stderr.contains("is the id of a job"), "{}", refused.tell());
    assert!(!bench.exists("d"));
}

#[test]
fn a_cancelled_job_is_not_resumed_before_its_end() {
    let Some((handle, bench)) = Bench::faulty() else { skip!("no faultfs") };
    bench.write("a/f", pattern(8 << 20));
    handle.set_rules(&[Rule::new(Op::Write, Action::Hang { duration_ms: 60_000 })]).unwrap();
    let line = ["sync", "--label", "cut", "a", "faulty/b"];
    let running = bench.dmover.start(line).unwrap();
    eventually("the job", || !bench.jobs("--label cut").is_empty());
    eventually("a write", || handle.counters().rules_fired == [1]);
    // It does not hear of anything for now.
    running.signal(Signal::STOP);
    bench.dmover("cancel cut").expect_code(0);
    let refuses = || {
        for verb in ["resume", "pause"] {
            let refused = bench.dmover(&format!("{verb} cut")).expect_code(6);
            assert!(refused.stderr.contains("is being cancelled"), "{}", refused.tell());
        }
    };
    refuses();
    // Also when it has heard: a write that hangs keeps it.
    let state = bench.dmover.state_directory();
    let heard = format!("ls '{}'/jobs/*/ask.heard 2>/dev/null || true", state.display());
    running.signal(Signal::CONT);
    eventually("hearing", || !bench.sh(&heard).is_empty());
    refuses();
    handle.release_hangs();
    assert_eq!(running.finish().unwrap().code(), Some(3));
    handle.set_rules(&[]).unwrap();
    assert_eq!(bench.jobs("--label cut")[0]["state"], "cancelled");
    bench.dmover("resume cut").expect_code(0);
    bench.sh("cmp a/f faulty/b/f");
}

/// Another list makes another job of the same command.
#[test]
fn a_label_stays_with_its_command() {
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/{1..9}; echo 1 > one; echo 2 > two");
    bench.dmover("copy --label some --files-from one a b").expect_code(0);
    bench.dmover("copy --label some --files-from two a b").expect_code(0);
    assert_eq!(bench.jobs("--label some").len(), 2);
}

/// Sets back when a job was last heard of.
fn age(bench: &Bench, label: &str, days: i64) {
    let id = bench.jobs(&format!("--label {label}"))[0]["job"].as_str().unwrap().to_owned();
    let path = bench.dmover.state_directory().join("jobs").join(id).join("status.json");
    let mut status: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for field in ["begun_ms", "updated_ms"] {
        status[field] = (status[field].as_i64().unwrap() - days * 86_400_000).into();
    }
    std::fs::write(&path, status.to_string()).unwrap();
}

#[test]
fn only_finished_jobs_grow_too_old() {
    let bench = bench();
    for label in ["good", "cut"] {
        age(&bench, label, 40);
    }
    assert_eq!(bench.outcomes("--since 30d"), ["copy: finished, 9 failed", "sync: finished"]);
    let text = bench.dmover("jobs").expect_code(0).text();
    assert!(text.contains("40 days ago"), "{text}");
    let none = bench.dmover("cleanup --older-than 60d").expect_code(0);
    assert!(none.stderr.contains("no finished or cancelled job is older"), "{}", none.tell());
    let dry = bench.dmover("cleanup -n --older-than 30d").expect_code(0);
    assert_eq!(dry.stderr.matches("would remove the record").count(), 1, "{}", dry.tell());
    assert_eq!(bench.jobs("").len(), 4);
    bench.dmover("cleanup --older-than 30d").expect_code(0);
    let left = ["sync: stopped by SIGTERM", "copy: finished, 9 failed", "sync: finished"];
    let mut told = bench.outcomes("");
    told.sort_unstable_by_key(|outcome| left.iter().position(|one| one == outcome));
    assert_eq!(told, left, "what can be resumed stays");
    bench.dmover("cleanup --older-than 30d cut").expect_code(2);
    bench.dmover("cleanup cut").expect_code(0);
    assert!(bench.jobs("--label cut").is_empty());
}

#[test]
fn a_wait_says_how_the_job_stands_and_how_it_ended() {
    let bench = Bench::new();
    bench.write("big/f", pattern(3 << 20));
    let job = bench.dmover.start(["copy", "--bwlimit=1M", "--label", "it", "big", "b"]).unwrap();
    eventually("the job", || !bench.jobs("--label it").is_empty());
    let quiet = bench.dmover.start(["wait", "-q", "--stats=100ms", "it"]).unwrap();
    let waited = bench.dmover("wait --stats=100ms it").expect_code(0);
    assert!(waited.stderr.contains(": running; "), "{}", waited.tell());
    let id = bench.jobs("")[0]["job"].as_str().unwrap().to_owned();
    assert!(waited.stderr.ends_with(&format!("dmover: job {id}: finished\n")), "{}", waited.tell());
    assert_eq!(waited.text(), "");
    let quiet = quiet.finish().unwrap().expect_code(0);
    assert_eq!(quiet.stderr, "");
    job.finish().unwrap().expect_code(0);
}

/// The time in which results are read back counts.
#[test]
fn a_job_is_as_old_as_its_end() {
    let bench = Bench::new();
    bench.write("a/big", pattern(4 << 20));
    // Reading back takes some seconds as well.
    bench.dmover("copy -T --verify=read-back --bwlimit=1M a b").expect_code(0);
    let updated = bench.jobs("")[0]["updated"].as_str().unwrap().to_owned();
    let seconds = |script: &str| bench.sh(script).trim().parse::<i64>().unwrap();
    let [ended, written] =
        [seconds(&format!("date -d {updated} +%s")), seconds("stat -c %Z b/big")];
    assert!(ended > written, "ended at {ended}, and the file had its name at {written}");
}

#[test]
fn of_jobs_that_start_together_one_takes_a_label() {
    let bench = Bench::new();
    bench.sh("mkdir a; echo x > a/f");
    for round in 0..6 {
        let start = |n| {
            let to = format!("to-{round}-{n}");
            let label = format!("label-{round}");
            bench.dmover.start(["copy", "-T", "--label", &*label, "a", &*to]).unwrap()
        };
        let running: Vec<_> = (0..8).map(start).collect();
        let runs: Vec<_> = running.into_iter().map(|run| run.finish().unwrap()).collect();
        let codes: Vec<_> = runs.iter().map(dmover_testkit::lanes::run::Run::code).collect();
        let took = codes.iter().filter(|code| **code == Some(0)).count();
        let refused = codes.iter().filter(|code| **code == Some(2)).count();
        assert_eq!((took, refused), (1, 7), "round {round}: {codes:?}");
        assert!(runs.iter().filter(|run| run.code() == Some(2)).all(|run| {
            run.stderr.contains("the label") && run.stderr.contains("belongs to job")
        }));
    }
    // A job that failed before it was recorded has no label.
    bench.dmover("copy -T --label late --exclude=[ a b").expect_code(2);
    bench.dmover("copy -T --label late a c").expect_code(0);
}
