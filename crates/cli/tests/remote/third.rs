//! Transfers between two other hosts: content goes from one to the other, and not through the host of the command.
use serde_json::Value;

use super::bench::eventually;
use super::ends::{Ends, Way, ends};
use super::lost::kill;
use dmover_testkit::lanes::run::Run;

const WAY: Way = Way { source: "far:", destination: "other:" };

fn tree(ends: &Ends) {
    // Cannot be compressed.
    ends.bench.sh(
        "mkdir -p s/d; head -c 30M /dev/urandom > s/large; head -c 200K /dev/urandom > s/d/short
        ln s/d/short s/link; ln -s d s/symbolic; touch -d 2001-02-03 s/large; chmod 640 s/d/short",
    );
}

/// Bytes that the host of the command has received or sent, as its kernel counts them.
fn passed(ends: &Ends) -> u64 {
    let mut cat = ends.cluster.host("near").command("cat");
    let text = cat.arg("/proc/net/dev").output().unwrap().stdout;
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("lo:"));
    lines
        .filter_map(|line| {
            let numbers: Vec<u64> =
                line.split_once(':')?.1.split_whitespace().map(|n| n.parse().unwrap()).collect();
            Some(numbers[0] + numbers[8])
        })
        .sum()
}

#[track_caller]
fn protection(run: &Run) -> String {
    let objects = run.text();
    let mut objects = objects.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let summary = objects.rfind(|object| object["type"] == "summary").unwrap();
    summary["connections"][0]["protection"].as_str().unwrap().to_owned()
}

#[track_caller]
fn assert_same(ends: &Ends) {
    ends.bench.sh("test -z \"$(rsync -naHAXc --delete -i s/ d/)\"");
}

#[test]
fn content_does_not_pass_the_host_of_the_command() {
    let ends = ends!(with near host);
    tree(&ends);
    for verb in ["copy -T", "sync"] {
        let before = passed(&ends);
        let run = ends.job(WAY, &format!("{verb} --json"), ("s", "d")).expect_code(0);
        assert_same(&ends);
        let passed = passed(&ends) - before;
        assert!(passed < 2_000_000, "{verb}: {passed} bytes passed by");
        assert_eq!(protection(&run), "tls");
        ends.bench.sh("rm -r d");
    }
    ends.bench.sh("cp -a s d; printf X | dd of=d/large bs=1 seek=9999 conv=notrunc status=none");
    let run = ends.job(WAY, "verify --json", ("s", "d")).expect_code(1);
    assert!(run.text().contains("\"content\""), "{}", run.tell());
}

#[test]
fn without_an_open_port_content_goes_through_the_host_of_the_command_and_it_says_so() {
    let ends = ends!(with near host);
    tree(&ends);
    // Nobody listens there.
    let closed = ends.cluster.host("near").address();
    let line = format!("copy --json -T --bwlimit 2M --data-address {closed}");
    let before = passed(&ends);
    let run = ends.job(WAY, &line, ("s", "d")).expect_code(0);
    assert_same(&ends);
    let passed = passed(&ends) - before;
    assert!(passed > 60_000_000, "{passed} bytes passed by");
    let words = "no data streams to far, everything goes through the host of the command: port";
    assert!(run.stderr.contains(words), "{}", run.tell());
    assert_eq!(protection(&run), "command");
    ends.bench.sh("rm -r d");
    let run = ends.job(WAY, "copy --json -T --streams 0", ("s", "d")).expect_code(0);
    assert_same(&ends);
    assert!(!run.stderr.contains("no data streams"), "{}", run.tell());
}

#[test]
fn a_source_that_is_killed_is_named_and_the_same_command_completes() {
    let ends = ends!(with near host);
    tree(&ends);
    let mut running =
        ends.start_job(WAY, "copy --json -T --bwlimit 3M --split-size 1M", ("s", "d"));
    let begun = || std::fs::read_dir(ends.bench.at("d")).is_ok_and(|names| names.count() > 0);
    eventually("the copy", || begun() || running.has_ended().unwrap());
    let at_source = ends.cluster.host("far").pids().unwrap();
    let agents: Vec<u32> =
        ends.agents().into_iter().filter(|agent| at_source.contains(agent)).collect();
    assert_eq!(agents.len(), 1);
    kill(agents[0]);
    let run = running.finish().unwrap().expect_code(6);
    let text = format!("{}{}", run.stderr, run.text());
    assert!(text.contains("the connection to the host 'far' was lost"), "{}", run.tell());
    ends.job(WAY, "copy --json -T", ("s", "d")).expect_code(0);
    assert_same(&ends);
}
