//! A SOURCE that several hosts share.
use super::bench::eventually;
use super::ends::{Ends, Way, ends};
use super::third::{assert_same, passed, summary};
use dmover_testkit::lanes::run::{Run, Running};

const WAY: Way = Way { source: "far,other,gate:", destination: "" };
const HOSTS: [&str; 3] = ["far", "other", "gate"];

fn tree(ends: &Ends) {
    // Cannot be compressed.
    ends.bench.sh(
        "mkdir -p s/d; head -c 60M /dev/urandom > s/large; ln -s d s/symbolic; touch -d 2001-02-03 s/large
        for i in $(seq 400); do head -c 20K /dev/urandom > s/d/$i; done; ln s/d/7 s/link; chmod 640 s/d/7",
    );
}

/// The names of the connections in the summary.
#[track_caller]
fn connections(run: &Run) -> Vec<String> {
    let summary = summary(run);
    let all = summary["connections"].as_array().unwrap();
    all.iter().map(|each| each["path"].as_str().unwrap().to_owned()).collect()
}

fn wait_for_begin(ends: &Ends, running: &mut Running) {
    let begun = || std::fs::read_dir(ends.bench.at("d")).is_ok_and(|names| names.count() > 0);
    eventually("the copy", || begun() || running.has_ended().unwrap());
}

#[test]
fn several_of_them_send_and_every_verb_finds_the_same() {
    let ends = ends!(with near host);
    tree(&ends);
    let before = HOSTS.map(|host| passed(&ends, host));
    let run = ends.job(WAY, "copy --json -T --bwlimit 20M", ("s", "d")).expect_code(0);
    assert_same(&ends);
    // At least a piece of the large file. Which hosts are asked for how much depends on how fast they are here.
    let sent = [0, 1, 2].map(|host| passed(&ends, HOSTS[host]) - before[host]);
    assert!(sent.iter().filter(|sent| **sent > 4_000_000).count() > 1, "{sent:?}: {}", run.tell());
    let at = |host: &str| format!("{host}:{}", ends.bench.at("s").display());
    assert_eq!(connections(&run), HOSTS.map(at));
    let run = ends.job(WAY, "sync --json", ("s", "d")).expect_code(0);
    super::ends::assert_idle(&run);
    ends.job(WAY, "verify", ("s", "d")).expect_code(0);
    ends.bench.sh("printf X | dd of=d/large bs=1 seek=9999999 conv=notrunc status=none");
    ends.job(WAY, "verify", ("s", "d")).expect_code(1);
    let run = ends.run("sum -a sha256", &[ends.at(WAY.source, "s/large")]).expect_code(0);
    let sums = ends.bench.sh("sha256sum < s/large");
    let sum = sums.split_whitespace().next().unwrap();
    assert!(run.text().contains(sum), "{} is not in {}", sum, run.tell());
}

#[test]
fn one_that_dies_is_not_needed() {
    let ends = ends!(with near host);
    tree(&ends);
    let line = "copy --json -T --bwlimit 6M --split-size 1M";
    let mut running = ends.start_job(WAY, line, ("s", "d"));
    wait_for_begin(&ends, &mut running);
    ends.cluster.host("far").kill_all().unwrap();
    let run = running.finish().unwrap().expect_code(0);
    assert_same(&ends);
    let lost = "the connection to the host 'far' was lost";
    assert!(
        run.stderr.contains(lost) && run.stderr.contains("the others continue"),
        "{}",
        run.tell()
    );
    // It is skipped from the begin as well.
    ends.bench.sh("rm -r d");
    let run = ends.job(WAY, "copy --json -T --bwlimit 20M", ("s", "d")).expect_code(0);
    assert_same(&ends);
    assert!(run.stderr.contains("is not used now: the host 'far'"), "{}", run.tell());
}

#[test]
fn one_that_falls_silent_is_passed_over() {
    let ends = ends!(with near host);
    tree(&ends);
    // Without a limit all hosts are asked all the time.
    ends.bench.sh("head -c 400M /dev/urandom > s/larger");
    let before = passed(&ends, "other");
    let mut running = ends.start_job(WAY, "copy --json -T --split-size 8M", ("s", "d"));
    let has_sent = || passed(&ends, "other") - before > 8_000_000;
    eventually("it to send", || has_sent() || running.has_ended().unwrap());
    ends.cluster.host("other").cut_link().unwrap();
    let run = running.finish().unwrap().expect_code(0);
    assert_same(&ends);
    let silent = format!("'other:{}' does not answer; the others", ends.bench.at("s").display());
    assert!(run.stderr.contains(&silent), "{}", run.tell());
}

#[test]
fn two_other_hosts_may_send_to_a_third_one() {
    let ends = ends!(with near host);
    tree(&ends);
    let way = Way { source: "far,other:", destination: "gate:" };
    let before = ["near", "far", "other"].map(|host| passed(&ends, host));
    let run = ends.job(way, "copy --json -T --bwlimit 20M", ("s", "d")).expect_code(0);
    assert_same(&ends);
    let after = ["near", "far", "other"].map(|host| passed(&ends, host));
    let [near, far, other] = [0, 1, 2].map(|host| after[host] - before[host]);
    assert!(near < 2_000_000, "{near} bytes passed this host");
    assert!(far > 4_000_000 && other > 4_000_000, "{far} {other}: {}", run.tell());
}

/// What each of these hosts got and sent during a step.
fn passed_during<const N: usize>(ends: &Ends, hosts: [&str; N], step: impl FnOnce()) -> [u64; N] {
    let before = hosts.map(|host| passed(ends, host));
    step();
    let mut number = 0;
    hosts.map(|host| {
        number += 1;
        passed(ends, host) - before[number - 1]
    })
}

#[test]
fn several_hosts_of_dest_write_parts_of_large_files() {
    let ends = ends!(with near host);
    tree(&ends);
    let way = Way { source: "", destination: "far,other,gate:" };
    for verb in ["copy -T", "sync"] {
        let line = format!("{verb} --json --bwlimit 20M --split-size 1M");
        let passed = passed_during(&ends, HOSTS, || {
            let run = ends.job(way, &line, ("s", "d")).expect_code(0);
            assert_eq!(run.stderr, "", "{}", run.tell());
            let summary = summary(&run);
            let others = summary["other_hosts"].as_array().unwrap();
            let copied = |each: &serde_json::Value| each["bytes_copied"].as_u64().unwrap();
            let all: u64 = others.iter().map(copied).sum();
            assert!(others.len() == 2 && (4_000_000..62_914_560).contains(&all), "{others:?}");
        });
        assert_same(&ends);
        assert!(passed.iter().all(|passed| *passed > 4_000_000), "{verb}: {passed:?}");
        let all: u64 = passed.iter().sum();
        assert!(all < 100_000_000, "nothing is sent twice: {passed:?}");
        let run = ends.job(way, "sync --json", ("s", "d")).expect_code(0);
        super::ends::assert_idle(&run);
        ends.bench.sh("rm -r d");
    }
}

/// The agent of a host.
fn agent(ends: &Ends, host: &str) -> u32 {
    let is_agent = |pid: &u32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.ends_with(b"\0agent\0--stdio\0")
    };
    ends.cluster.host(host).pids().unwrap().into_iter().find(is_agent).unwrap()
}

const WRITERS: Way = Way { source: "", destination: "far,other,gate:" };

/// Starts a copy that takes some seconds, and waits until each of the hosts that write has written some of the large file.
fn start_writing(ends: &Ends) -> Running {
    let before = HOSTS.map(|host| passed(ends, host));
    let line = "copy --json -T --bwlimit 8M --split-size 2M";
    let mut running = ends.start_job(WRITERS, line, ("s", "d"));
    let have_written = || {
        let now = [0, 1, 2].map(|host| passed(ends, HOSTS[host]) - before[host]);
        // What has passed may still wait to be written.
        let kib = ends.bench.sh("du -k d/.dmover-* 2>/dev/null | cut -f1 || true");
        let written: u64 = kib.trim().parse().unwrap_or(0);
        written > 30_000 && now.iter().all(|passed| *passed > 4_000_000)
    };
    eventually("all hosts to write", || have_written() || running.has_ended().unwrap());
    running
}

#[test]
fn a_writer_that_is_killed_comes_back_and_costs_only_its_parts() {
    let ends = ends!(with near host);
    tree(&ends);
    let running = start_writing(&ends);
    let temporary = ends.bench.sh("stat -c %i d/.dmover-*");
    super::lost::kill(agent(&ends, "other"));
    let run = running.finish().unwrap().expect_code(0);
    assert_same(&ends);
    assert!(run.stderr.contains("'other' is not used now: "), "{}", run.tell());
    assert_eq!(ends.bench.sh("stat -c %i d/large"), temporary, "the file began again");
}

#[test]
fn a_writer_that_hangs_writes_nothing_after_it_has_lost_its_parts() {
    let ends = ends!(with near host);
    tree(&ends);
    let running = start_writing(&ends);
    let hanging = agent(&ends, "gate");
    let signal = |signal| {
        let pid = rustix::process::Pid::from_raw(hanging as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    signal(rustix::process::Signal::STOP);
    running.finish().unwrap().expect_code(0);
    assert_same(&ends);
    let before = ends.bench.sh("stat -c %z%i d/large; ls -a d");
    signal(rustix::process::Signal::CONT);
    eventually("the agent to end", || !ends.agents().contains(&hanging));
    assert_same(&ends);
    assert_eq!(ends.bench.sh("stat -c %z%i d/large; ls -a d"), before);
}

#[test]
fn without_the_host_that_runs_it_a_job_ends_and_the_same_command_continues_it() {
    let ends = ends!(with near host);
    tree(&ends);
    let running = start_writing(&ends);
    let temporary = ends.bench.sh("stat -c %i d/.dmover-*");
    super::lost::kill(agent(&ends, "far"));
    let run = running.finish().unwrap().expect_code(6);
    assert!(run.stderr.contains("the host 'far'"), "{}", run.tell());
    eventually("the agents to end", || ends.agents().is_empty());
    let again = "copy --json -T --split-size 2M";
    let run = ends.job(WRITERS, again, ("s", "d")).expect_code(0);
    assert_same(&ends);
    // The others have said that those of the first run are gone, so its parts are continued.
    assert_eq!(ends.bench.sh("stat -c %i d/large"), temporary, "{}", run.tell());
}

#[test]
fn if_the_first_host_is_down_the_next_one_runs_the_job() {
    let ends = ends!(with near host);
    tree(&ends);
    ends.cluster.host("far").kill_all().unwrap();
    // It cannot know whether DEST was there before, or what is at the first host.
    let run = ends.job(WRITERS, "copy", ("s", "d")).expect_code(6);
    assert!(run.stderr.contains("with -T the next host runs the job"), "{}", run.tell());
    let there = Way { source: "far:", destination: "far,other:" };
    let run = ends.job(there, "sync", ("s", "d")).expect_code(6);
    assert!(run.stderr.contains("SOURCE is on that host"), "{}", run.tell());
    assert!(!ends.bench.exists("d"));
    let run = ends.job(WRITERS, "sync --json", ("s", "d")).expect_code(0);
    assert_same(&ends);
    assert!(run.stderr.contains("'far' is not used now: "), "{}", run.tell());
}

#[test]
fn what_cannot_be_on_several_hosts_is_refused() {
    let ends = ends!(with near host);
    tree(&ends);
    let way = Way { source: "", destination: "far,other:" };
    let run = ends.job(way, "copy -T --inplace", ("s", "d")).expect_code(2);
    assert!(
        run.stderr.contains("--inplace does not work with a DEST on several"),
        "{}",
        run.tell()
    );
    let address = ends.cluster.host("far").address();
    let line = format!("copy -T --data-address {address}");
    let run = ends.job(WAY, &line, ("s", "d")).expect_code(2);
    assert!(run.stderr.contains("--data-address"), "{}", run.tell());
    let run = ends.job(Way { source: "far,far:", destination: "" }, "copy -T", ("s", "d"));
    assert!(run.expect_code(2).stderr.contains("a host twice"));
    assert!(!ends.bench.exists("d"));
    let none = Way { source: "nowhere,nobody:", destination: "" };
    let run = ends.job(none, "copy -T", ("s", "d")).expect_code(6);
    assert!(run.stderr.contains("'nowhere'"), "{}", run.tell());
}
