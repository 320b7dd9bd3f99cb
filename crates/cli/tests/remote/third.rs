//! Transfers between two other hosts: content goes from one to the other, and not through the host of the command. And
//! relays, which pass it on.
use serde_json::Value;

use super::bench::eventually;
use super::ends::{Ends, Way, ends};
use super::listening::left;
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

/// Bytes that a host has received or sent, as its kernel counts them.
pub fn passed(ends: &Ends, host: &str) -> u64 {
    passed_by_card(ends, host).iter().sum()
}

/// The same for each of its network cards.
fn passed_by_card(ends: &Ends, host: &str) -> Vec<u64> {
    let mut cat = ends.cluster.host(host).command("cat");
    let text = cat.arg("/proc/net/dev").output().unwrap().stdout;
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("lo:"));
    lines
        .filter_map(|line| {
            let numbers: Vec<u64> =
                line.split_once(':')?.1.split_whitespace().map(|n| n.parse().unwrap()).collect();
            Some(numbers[0] + numbers[8])
        })
        .collect()
}

#[track_caller]
pub fn summary(run: &Run) -> Value {
    let objects = run.text();
    let mut objects = objects.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects.rfind(|object| object["type"] == "summary").unwrap()
}

#[track_caller]
fn protection(run: &Run) -> String {
    summary(run)["connections"][0]["protection"].as_str().unwrap().to_owned()
}

#[track_caller]
pub fn assert_same(ends: &Ends) {
    ends.bench.sh("test -z \"$(rsync -naHAXc --delete -i s/ d/)\"");
}

#[test]
fn content_does_not_pass_the_host_of_the_command() {
    let ends = ends!(with near host);
    tree(&ends);
    for verb in ["copy -T", "sync"] {
        let before = passed(&ends, "near");
        let run = ends.job(WAY, &format!("{verb} --json"), ("s", "d")).expect_code(0);
        assert_same(&ends);
        let passed = passed(&ends, "near") - before;
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
    let before = passed(&ends, "near");
    let run = ends.job(WAY, &line, ("s", "d")).expect_code(0);
    assert_same(&ends);
    let passed = passed(&ends, "near") - before;
    assert!(passed > 60_000_000, "{passed} bytes passed by");
    let words = "no data streams to far, everything goes through the host of the command: to ";
    assert!(run.stderr.contains(words), "{}", run.tell());
    assert_eq!(protection(&run), "command");
    ends.bench.sh("rm -r d");
    let before = passed_by_card(&ends, "near")[0];
    let run = ends.job(WAY, "copy --json -T --streams 0", ("s", "d")).expect_code(0);
    assert_same(&ends);
    assert!(!run.stderr.contains("no data streams"), "{}", run.tell());
    assert!(passed_by_card(&ends, "near")[0] - before > 60_000_000);
    let run = ends.job(WAY, "copy -T --streams 0 --relay gate", ("s", "d")).expect_code(2);
    assert!(run.stderr.contains("--relay leads data streams"), "{}", run.tell());
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

#[test]
fn a_relay_passes_content_on_that_ends_would_exchange_directly() {
    let ends = ends!(with near host);
    tree(&ends);
    for way in
        [Way { source: "far:", destination: "" }, Way { source: "", destination: "far:" }, WAY]
    {
        let before = ["near", "gate"].map(|host| passed(&ends, host));
        let run = ends.job(way, "copy --json -T --relay gate", ("s", "d")).expect_code(0);
        assert_same(&ends);
        let after = ["near", "gate"].map(|host| passed(&ends, host));
        let [near, gate] = [0, 1].map(|at| after[at] - before[at]);
        assert!(gate > 60_000_000, "{way:?}: {gate} bytes passed the relay");
        assert_eq!(near < 2_000_000, way == WAY, "{way:?}: {near} bytes passed this host");
        assert_eq!(protection(&run), "tls");
        ends.bench.sh("rm -r d");
        eventually("the agents to end", || ends.agents().is_empty());
    }
}

#[test]
fn relays_may_follow_each_other_and_a_dead_one_is_not_needed() {
    let ends = ends!(with near host);
    tree(&ends);
    let way = Way { source: "far:", destination: "" };
    // From here to `gate`, from there to `other`, and then to `far`.
    let run = ends.job(way, "copy --json -T --relay gate,other", ("s", "d")).expect_code(0);
    assert_same(&ends);
    assert_eq!(protection(&run), "tls");
    for relay in ["gate", "other"] {
        assert!(passed(&ends, relay) > 60_000_000, "{relay}");
    }
    ends.bench.sh("rm -r d");
    let line = "copy --json -T --relay gate --relay other --bwlimit 4M --split-size 1M";
    let mut running = ends.start_job(way, line, ("s", "d"));
    let begun = || std::fs::read_dir(ends.bench.at("d")).is_ok_and(|names| names.count() > 0);
    eventually("the copy", || begun() || running.has_ended().unwrap());
    let before = passed(&ends, "gate");
    ends.cluster.host("other").kill_all().unwrap();
    let run = running.finish().unwrap().expect_code(0);
    assert_same(&ends);
    assert!(run.text().contains(r#""relays":["gate","other"]"#), "{}", run.tell());
    // What passes it counts twice. Without another way it would be half of that.
    let gate = passed(&ends, "gate") - before;
    assert!(gate > 45_000_000, "{gate} bytes passed gate after the other relay was dead");
    // The same command goes on with the relay that is there.
    ends.bench.sh("rm -r d");
    let run = ends.job(way, "copy --json -T --relay gate --relay other", ("s", "d")).expect_code(0);
    assert_same(&ends);
    assert!(run.stderr.contains("one relay of several is not used"), "{}", run.tell());
    assert!(run.text().contains(r#""relays":["gate"]"#), "{}", run.tell());
}

#[test]
fn a_host_that_cannot_be_a_relay_is_named() {
    let ends = ends!(with near host);
    tree(&ends);
    let way = Way { source: "far:", destination: "" };
    let run = ends.job(way, "copy -T --relay nowhere", ("s", "d")).expect_code(6);
    assert!(run.stderr.contains("cannot find the address of the host 'nowhere'"), "{}", run.tell());
    let run = ends.job(way, "copy -T --relay gate,", ("s", "d")).expect_code(2);
    assert!(run.stderr.contains("--relay"), "{}", run.tell());
    assert!(!ends.bench.exists("d"));
}

#[test]
fn streams_share_network_cards_and_outlive_one_of_them() {
    let ends = ends!(with two cards);
    tree(&ends);
    let way = Way { source: "far:", destination: "" };
    let to = ends.cluster.host("far").addresses();
    let from = ends.cluster.host("near").addresses();
    let line = |options: &str| {
        let by = |option: &str, addresses: &[std::net::Ipv4Addr]| -> String {
            let options = addresses.iter().map(|address| format!("--{option} {address}"));
            options.collect::<Vec<_>>().join(" ")
        };
        let (to, from) = (by("data-address", &to), by("data-from", &from));
        format!("copy --json -T --compress=never {to} {from} {options}")
    };
    let before = passed_by_card(&ends, "far");
    ends.job(way, &line(""), ("s", "d")).expect_code(0);
    assert_same(&ends);
    let cards = passed_by_card(&ends, "far");
    for (card, (after, before)) in cards.iter().zip(&before).enumerate() {
        assert!(after - before > 5_000_000, "card {card}: {before} {after}");
    }
    ends.bench.sh("rm -r d");
    let mut running = ends.start_job(way, &line("--bwlimit 4M --split-size 1M"), ("s", "d"));
    let begun = || std::fs::read_dir(ends.bench.at("d")).is_ok_and(|names| names.count() > 0);
    eventually("the copy", || begun() || running.has_ended().unwrap());
    ends.cluster.host("far").cut_link_of(1).unwrap();
    running.finish().unwrap().expect_code(0);
    assert_same(&ends);
}

#[test]
fn a_job_between_two_hosts_outlives_the_command() {
    let ends = ends!(with near host);
    tree(&ends);
    let places = [ends.at("far:", "s"), ends.at("other:", "d")];
    let run = ends.run("copy --detach --bwlimit=10M", &places).expect_code(0);
    let id = left(&run);
    // Nothing of the command is there any more, and content does not pass its host.
    let before = passed(&ends, "near");
    let there = |line: &str| ends.run(&format!("{line} {id} --at other"), &[]);
    there("wait").expect_code(0);
    assert_same(&ends);
    assert!(passed(&ends, "near") - before < 1 << 20, "the host of the command was needed");
    let status = there("status --json").expect_code(0).text();
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["state"], "finished");
    assert_eq!(status["connections"][0]["protection"], "tls");
    assert!(there("status").text().contains("   line: far:"), "{}", there("status").text());
    assert!(there("logs").expect_code(0).text().contains("dmover: done"));
}
