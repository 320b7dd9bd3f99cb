//! `--detach`, and `dmover logs`, which prints what a job says where nobody watches.
use super::bench::{eventually, pattern};
use super::{Bench, command};

#[test]
fn a_job_in_the_background_says_where_its_messages_go() {
    let bench = Bench::new();
    bench.write("big/f", pattern(3 << 20));
    bench.sh("mkdir -p b/f/x");
    let words = "sync --detach --bwlimit=1M --stats=100ms --label bg big c";
    let run = bench.dmover(words).expect_code(0);
    let id = run.text().trim().to_owned();
    assert_eq!((id.len(), run.text().lines().count()), (12, 1), "{}", run.tell());
    assert_eq!(command(&run, "wait for it:"), format!("dmover wait {id}"));
    let follow = command(&run, "follow it:").strip_prefix("dmover ").unwrap();
    assert_eq!(follow, format!("logs {id} -f"));
    let state = bench.dmover.state_directory();
    let output = state.join("jobs").join(&id).join("output");
    assert!(run.stderr.contains(&output.display().to_string()), "{}", run.tell());
    // It comes to its end with the job, and has all of its messages.
    let followed = bench.dmover(follow).expect_code(0).text();
    bench.dmover("wait -q bg").expect_code(0);
    assert_eq!(followed, std::fs::read_to_string(&output).unwrap());
    assert!(followed.contains("dmover: done"), "{followed}");
    assert_eq!(bench.dmover("logs bg").expect_code(0).text(), followed);
    assert_eq!(bench.dmover("logs").expect_code(0).text(), followed, "the last job");
    let last = bench.dmover("logs -n 1 bg").expect_code(0).text();
    assert_eq!(Some(last.trim_end()), followed.lines().last());
    let two = bench.dmover("logs bg -n2").expect_code(0).text();
    assert!(two.lines().count() == 2 && followed.ends_with(&two), "{two}");
    assert_eq!(bench.dmover("logs bg -n 0").expect_code(0).text(), "");
    assert_eq!(bench.dmover("logs bg -n 9999").expect_code(0).text(), followed);
    let quiet = bench.dmover("sync -q --detach --label bg big c").expect_code(0);
    assert_eq!((quiet.text().trim(), quiet.stderr.as_str()), (&id[..], ""));
    bench.dmover("wait -q bg").expect_code(0);
}

#[test]
fn the_last_lines_of_a_large_log_are_found() {
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/f");
    bench.dmover("copy --log-file log --label it a b").expect_code(0);
    bench.sh("seq 100000 > log");
    assert_eq!(
        bench.dmover("logs it -n 30000").expect_code(0).text(),
        bench.sh("seq 70001 100000")
    );
    bench.sh("printf 'a\\nno end' > log");
    assert_eq!(bench.dmover("logs it -n 1").expect_code(0).text(), "no end");
}

#[test]
fn a_job_without_messages_says_why() {
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/f");
    bench.dmover("sync --label it a b").expect_code(0);
    let refused = bench.dmover("logs it").expect_code(2);
    assert!(refused.stderr.contains("has no message file"), "{}", refused.tell());
    assert!(refused.stderr.contains("--detach or --log-file"), "{}", refused.tell());
    bench.dmover("sync --log-file log a b").expect_code(0);
    assert!(bench.dmover("logs it").expect_code(0).text().contains("command="));
    // Those of an earlier run are not taken for those of the last one.
    bench.dmover("sync a b").expect_code(0);
    bench.dmover("logs it").expect_code(2);
}

/// Whoever follows ends with a job that is killed, too.
#[test]
fn following_ends_when_the_process_is_gone() {
    let bench = Bench::new();
    bench.write("big/f", pattern(8 << 20));
    let words =
        ["copy", "--bwlimit=1M", "--stats=100ms", "--log-file", "log", "--label", "it", "big", "b"];
    let job = bench.dmover.start(words).unwrap();
    eventually("the job", || !bench.jobs("--label it").is_empty());
    let follower = bench.dmover.start(["logs", "-f", "it"]).unwrap();
    assert!(follower.wait_for_stdout("progress", 2));
    job.kill().unwrap();
    follower.finish().unwrap().expect_code(0);
}
