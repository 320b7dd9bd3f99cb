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
    let line = "copy --json -T --bwlimit 6M --split-size 1M";
    let mut running = ends.start_job(WAY, line, ("s", "d"));
    wait_for_begin(&ends, &mut running);
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

#[test]
fn what_cannot_be_on_several_hosts_is_refused() {
    let ends = ends!(with near host);
    tree(&ends);
    let way = Way { source: "", destination: "far,other:" };
    let run = ends.job(way, "copy -T", ("s", "d")).expect_code(2);
    assert!(run.stderr.contains("only SOURCE may be on several"), "{}", run.tell());
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
