//! The same results as in one process.
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use dmover_testkit::cluster::{Cutter, Piece, needs};
use dmover_testkit::compare::rsync_check;
use dmover_testkit::lanes::run::Run;
use dmover_testkit::skip;
use dmover_testkit::tree::{Features, HardTree, TreeOptions};

use super::Fleet;
use crate::bench::{append, is_root, pattern};

/// The tree with everything that a tree can have, as `source`.
fn hard_tree(fleet: &Fleet, seed: u64) {
    let features = Features::probe(fleet.bench.root()).unwrap();
    // rsync refuses paths as long as that.
    let without = ["huge", "long-path"].map(str::to_owned).into_iter().collect();
    let options = TreeOptions { entries: 300, features, without };
    HardTree::generate(&fleet.bench.at("source"), seed, &options).unwrap();
    fleet.bench.sh("mkdir -p source/large");
    fleet.bench.write("source/large/one", pattern(5 << 20));
    fleet.bench.sh("ln source/large/one source/large/other; touch -d @1000000 source/large");
}

/// Counters of a summary that do not depend on who did what when.
fn counters(run: &Run) -> Vec<(String, u64)> {
    let names = [
        "files_copied",
        "directories_created",
        "symlinks_copied",
        "specials_copied",
        "hard_links_created",
        "entries_found",
        "bytes_found",
        "entries_deleted",
        "errors",
        "losses",
        "entries_skipped",
        "entries_renamed",
        "files_hashed",
        "entries_differing",
    ];
    let summary = run.said().unwrap().summary.expect("a summary");
    names.iter().map(|name| ((*name).to_owned(), summary.number(name).unwrap())).collect()
}

fn sorted_lines(run: &Run) -> BTreeSet<String> {
    run.text().lines().map(str::to_owned).collect()
}

#[test]
fn a_copy_through_a_broker_is_the_copy_that_one_process_makes() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::new(2);
    hard_tree(&fleet, 7);
    let far = fleet.dmover("copy --json --split-size=1M source far").expect_code(0);
    let near = fleet.bench.dmover("copy --json --split-size=1M source near").expect_code(0);
    assert_eq!(counters(&far), counters(&near));
    fleet.bench.assert_same("source", "far");
    // Every entry is told of, as if it had been done here.
    let items = |run: &Run| run.said().unwrap().items.len();
    assert_eq!(items(&far), items(&near));
    // Once more: everything is equal.
    let again = fleet.dmover("copy --json -T source far").expect_code(0);
    assert_eq!(again.said().unwrap().summary.unwrap().number("files_copied"), Some(0));
}

/// What was on its way when a connection ended may be lost, or come twice.
#[test]
fn connections_that_are_cut_in_the_middle_of_a_word_lose_nothing() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    for seed in 1..=1 {
        println!("seed {seed}");
        let mut fleet = Fleet::new(0);
        let port = fleet.broker.address().port();
        let cutter =
            |of: u64, most| Cutter::start(port, 10 * seed + of, most, 6_000..60_000).unwrap();
        let (own, movers) = (cutter(0, 6), [cutter(1, 4), cutter(2, 4)]);
        for mover in &movers {
            // The greeting alone may take more than one connection.
            fleet.call_mover_by(&mover.url(), "");
        }
        let bench = &fleet.bench;
        bench.sh("mkdir -p source/many; cd source/many; seq 3000 | split -l 1 -a 4");
        for number in 0..6 {
            bench.write(&format!("source/large{number}"), pattern((9 << 20) + number));
        }
        // Small chunks, which hungry movers have cut, so that much is told in the middle of tasks.
        let words = "--json --split-size=1M --hash-type=sha256 --manifest=manifest source far";
        bench.dmover(&format!("copy {words} --insecure --broker {}", own.url())).expect_code(0);
        bench.assert_same("source", "far");
        let cuts = own.cuts() + movers.iter().map(Cutter::cuts).sum::<u64>();
        assert!(cuts >= 4, "{cuts} connections were cut, which proves little");
    }
}

#[test]
fn passes_through_a_broker_delete_link_and_rename() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::new(2);
    hard_tree(&fleet, 8);
    let bench = &fleet.bench;
    bench.sh("mkdir -p source/was/below source/goes/away; seq 100 >source/was/below/f
              echo x >source/goes/away/f; ln source/was/below/f source/second");
    for when in ["delay", "during", "after"] {
        let pass = format!("sync --json --yes --split-size=1M --delete={when} source far");
        fleet.dmover(&pass).expect_code(0);
        bench.assert_same("source", "far");
        bench.sh(&format!(
            "mv source/was source/now-{when}; mkdir source/was; mkdir -p source/goes/away
             rm -r source/goes; mkdir -p source/goes/{when}; echo {when} >source/goes/{when}/f
             rm -f source/third; ln source/second source/third"
        ));
        append(&bench.at("source/large/one"), when);
        let run = fleet.dmover(&pass).expect_code(0);
        bench.assert_same("source", "far");
        let differences = rsync_check(&bench.at("source"), &bench.at("far")).unwrap();
        assert_eq!(differences, Vec::<String>::new());
        let summary = run.said().unwrap().summary.unwrap();
        assert!(summary.number("entries_deleted") > Some(0), "{}", run.tell());
    }
    // Nothing to do, and nothing done.
    let run = fleet.dmover("sync --json --yes --delete source far").expect_code(0);
    let summary = run.said().unwrap().summary.unwrap();
    assert_eq!(summary.number("files_copied"), Some(0), "{}", run.tell());
    assert_eq!(summary.number("entries_deleted"), Some(0), "{}", run.tell());
}

#[test]
fn deletes_are_withheld_and_bounded_as_in_one_process() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::new(2);
    let bench = &fleet.bench;
    bench.sh(
        "mkdir -p source far; seq 9 | (cd source; xargs touch); seq 1 60 | (cd far; xargs touch)",
    );
    for when in ["delay", "during"] {
        let run = fleet.dmover(&format!("sync --json --delete={when} --max-delete=5 source far"));
        run.expect_code(5);
        let left = bench.sh("ls far | wc -l").trim().parse::<u64>().unwrap();
        assert!(left >= 55, "{when}: {left} are left");
    }
    bench.sh("mkdir trash");
    fleet.dmover("sync --yes --delete --trash trash source far").expect_code(0);
    bench.assert_same("source", "far");
    let kept = bench.sh("ls trash/* | wc -l").trim().parse::<u64>().unwrap();
    assert_eq!(kept, 46);
}

#[test]
fn digests_and_comparisons_through_a_broker_say_the_same() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::new(2);
    hard_tree(&fleet, 9);
    let bench = &fleet.bench;
    let near = bench.dmover("sum --check-tree source");
    let far = fleet.dmover("sum --check-tree source");
    assert_eq!((near.code(), sorted_lines(&near)), (far.code(), sorted_lines(&far)));
    bench.write("list", far.stdout.clone());
    fleet.dmover("sum -c list").expect_code(0);
    fleet.dmover("copy --manifest far.dm -T source far").expect_code(0);
    bench.dmover("copy --manifest near.dm -T source near").expect_code(0);
    for manifest in ["near.dm", "far.dm"] {
        fleet.dmover(&format!("verify --manifest {manifest} far")).expect_code(0);
        bench.dmover(&format!("verify --manifest {manifest} far")).expect_code(0);
    }
    bench.sh(
        "printf X | dd of=far/large/one bs=1 seek=3000000 conv=notrunc 2>/dev/null; touch far/more",
    );
    let told = |run: Run| {
        let lines = run.text().lines().map(str::to_owned).collect::<BTreeSet<_>>();
        (run.code(), lines)
    };
    for line in ["verify source far", "verify --manifest near.dm far"] {
        let (near, far) = (told(bench.dmover(line)), told(fleet.dmover(line)));
        assert_eq!(near, far);
        assert!(near.0 != Some(0) && near.1.iter().any(|line| line.contains("large/one")));
    }
    bench.sh("rm far/more");
    fleet.dmover("verify --repair source far");
    bench.dmover("verify source far").expect_code(0);
}

#[test]
fn a_watch_goes_on_through_a_broker() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    if !is_root() {
        skip!("a watch needs root");
    }
    let fleet = Fleet::new(1);
    let bench = &fleet.bench;
    bench.sh("mkdir source; seq 50 | (cd source; xargs touch)");
    let url = fleet.broker.url();
    let words = [
        "sync",
        "--watch",
        "--json",
        "--yes",
        "--delete",
        "source",
        "far",
        "--insecure",
        "--broker",
        &url,
    ];
    let watch = bench.dmover.start(words).unwrap();
    assert!(watch.wait_for_stdout("\"type\":\"summary\"", 1), "{}", watch.stderr_so_far());
    bench.sh("rm source/7; echo new >source/new; mkdir source/d; echo x >source/d/f");
    let until = Instant::now() + Duration::from_mins(1);
    while !(bench.exists("far/d/f") && bench.exists("far/new") && !bench.exists("far/7")) {
        assert!(Instant::now() < until, "{}", watch.stderr_so_far());
        // What is waited for is made by another process: poll.
        std::thread::sleep(Duration::from_millis(10));
    }
    // The other names of a file have to be looked for.
    bench.sh("ln source/new source/other");
    while !(bench.exists("far/other") && bench.inode("far/other") == bench.inode("far/new")) {
        assert!(Instant::now() < until, "{}", watch.stderr_so_far());
        // As above: poll.
        std::thread::sleep(Duration::from_millis(10));
    }
    watch.signal(rustix::process::Signal::TERM);
    let run = watch.finish().unwrap();
    assert_eq!(run.signal(), Some(15), "{}", run.tell());
    fleet.dmover("sync --yes --delete source far").expect_code(0);
    bench.assert_same("source", "far");
}

#[test]
fn a_mover_that_is_to_leave_hands_back_what_it_has() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(1);
    for number in 0..40 {
        fleet.bench.write(&format!("source/{number}"), pattern(500_000));
    }
    let url = fleet.broker.url();
    // Half a minute for one that nobody relieves; the lease is longer than the test may take.
    let line =
        ["copy", "--lease=10m", "--bwlimit=1M", "source", "far", "--insecure", "--broker", &url];
    let copy = fleet.bench.dmover.start(line).unwrap();
    let until = Instant::now() + Duration::from_mins(1);
    while !fleet.bench.exists("far/0") && fleet.bench.sh("ls far 2>/dev/null | wc -l").trim() == "0"
    {
        assert!(Instant::now() < until, "{}", copy.stderr_so_far());
        // What is waited for is made by another process: poll.
        std::thread::sleep(Duration::from_millis(10));
    }
    let first = fleet.movers.remove(0);
    first.signal(rustix::process::Signal::TERM);
    let left = first.finish().unwrap();
    assert_eq!(left.code(), Some(0), "{}", left.tell());
    fleet.call_mover("");
    let run = copy.finish().unwrap();
    assert_eq!(run.code(), Some(0), "{}", run.tell());
    fleet.bench.assert_same("source", "far");
}

/// What it held on to could not be unmounted.
#[test]
fn a_mover_that_has_left_a_job_holds_on_to_nothing() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let fleet = Fleet::new(1);
    fleet.bench.sh("mkdir -p source/some; echo x > source/some/file");
    let open = format!("/proc/{}/fd", fleet.movers[0].pid().as_raw_nonzero());
    let open = || std::fs::read_dir(&open).unwrap().count();
    let before = open();
    for number in 0..3 {
        fleet.dmover(&format!("copy -T source far{number}")).expect_code(0);
    }
    let until = Instant::now() + Duration::from_secs(30);
    while open() > before {
        assert!(Instant::now() < until, "{} descriptors, and {before} before", open());
        // A poll: it ends its part by itself, a moment after the job.
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A mover that is lost has told of entries that somebody else does again.
#[test]
fn each_line_is_told_once_whoever_is_lost() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(2);
    fleet
        .bench
        .sh("mkdir a b; cd a; seq 600 | split -l 1 -a 3; for f in *; do truncate -s 20K $f; done");
    fleet.bench.sh("cp -a a/. b; cd b; for f in *; do printf x >> $f; done");
    let url = fleet.broker.url();
    for line in ["sum --bwlimit=2M a", "verify --bwlimit=4M --level=digest a b"] {
        let words = format!("{line} --lease=2s --progress=never --insecure --broker {url}");
        let job = fleet.bench.dmover.start(words.split_whitespace()).unwrap();
        for told in [20, 120, 220, 320] {
            assert!(job.wait_for_stdout("\n", told), "{}", job.stderr_so_far());
            fleet.call_mover("");
            drop(fleet.movers.remove(0).kill().unwrap());
        }
        let run = job.finish().unwrap();
        let text = run.text();
        let lines = text.lines().filter(|line| line.contains('x'));
        let told = sorted_lines(&run).into_iter().filter(|line| line.contains('x')).count();
        assert_eq!((lines.count(), told), (600, 600), "{line}: {}", run.stderr);
    }
}

/// What a lost mover has repaired is not found again, and what it could not repair is.
#[test]
fn each_line_of_a_repair_is_told_once_whoever_is_lost() {
    if let Err(why) = needs(&[Piece::Nats]) {
        skip!("{why}");
    }
    let mut fleet = Fleet::new(2);
    // Every other name is a directory at the destination, which a repair leaves.
    fleet.bench.sh(
        "mkdir a b; cd a; seq 600 | split -l 1 -a 3; for f in *; do truncate -s 20K $f; done; cp -a . ../b; cd ../b
        n=0; for f in *; do if ((n++ % 2)); then rm $f; mkdir $f; else printf 2 | dd of=$f conv=notrunc status=none; fi; done",
    );
    let url = fleet.broker.url();
    let words = format!(
        "verify --repair --direct-read --bwlimit=4M --lease=2s --progress=never --insecure --broker {url} a b"
    );
    let job = fleet.bench.dmover.start(words.split_whitespace()).unwrap();
    for told in (20..420).step_by(40) {
        assert!(job.wait_for_stdout("\n", told), "{}", job.stderr_so_far());
        fleet.call_mover("");
        drop(fleet.movers.remove(0).kill().unwrap());
    }
    let run = job.finish().unwrap();
    let text = run.text();
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    let told = lines.len();
    lines.dedup_by(|one, other| one.split(':').next() == other.split(':').next());
    assert_eq!(lines.len(), told, "{}", run.stderr);
    let kept = lines.iter().filter(|line| line.ends_with("[NOT repaired]")).count();
    assert_eq!(kept, 300, "{}", run.stderr);
    let left = fleet
        .bench
        .sh("cd a; for f in *; do [ -d ../b/$f ] || cmp $f ../b/$f; done; ls -A ../b | wc -l");
    assert_eq!(left.trim(), "600");
}
