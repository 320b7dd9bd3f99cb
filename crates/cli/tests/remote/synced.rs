//! `sync` between hosts does what it does on one host.
use super::bench::{PROGRAM, eventually, let_pass, wait_for_fault};
use super::ends::{Ends, LOCAL, WAYS, assert_idle, assert_lines, count, done, ends};
use dmover_testkit::compare::{CompareOptions, compare, rsync_check};
use dmover_testkit::faultfs::{Action, Config, FaultFs, Op, Rule};
use dmover_testkit::skip;
use std::process::{Command, Stdio};
use std::time::Duration;

const MUTATE: &str = include_str!("../../../testkit/python/mutate_tree.py");

/// Changes a tree at random.
fn mutate(ends: &Ends, root: &str, seed: u64, words: &[&str]) {
    let mut python = Command::new("python3");
    python.args(["-c", MUTATE]).arg(ends.bench.at(root)).arg(seed.to_string()).arg("nomap");
    let output = python.args(words).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Changes that a random walk seldom makes, each of another file.
const CHANGES: &str = r"cd s/fixed
    printf 12345 > same; touch -d 2001-01-01 same
    printf 12345 > newer; touch -d 2035-01-01 newer
    mv old new; mv dir moved; rm gone; chmod 4711 mode; chown 5:6 owner; touch -d 1950-01-01 time
    rm -r emptied; echo file > emptied; rm becomes; mkdir -p becomes/d; echo 1 > becomes/d/f
    ln -sfn elsewhere link; setfattr -n user.a -v 2 attribute; setfattr -x user.b attribute
    ln hard1 hard3; rm hard2; truncate -s 2M hole; printf x >> appended";

const FIRST: &str = r"mkdir -p s/random s/fixed/dir/e s/fixed/emptied/x; cd s/fixed
    for f in same newer old gone mode owner time becomes attribute hard1 appended; do printf abcde > $f; done
    for n in 1 2 3; do echo $n > dir/$n; echo $n > emptied/x/$n; done; ln hard1 hard2
    ln -s somewhere link; setfattr -n user.a -v 1 attribute; setfattr -n user.b -v 1 attribute
    truncate -s 1M hole; touch -d 2010-01-01 same newer";

#[test]
fn a_pass_after_random_changes_does_what_a_local_one_does() {
    let ends = ends!("a_pass_after_random_changes_does_what_a_local_one_does");
    let bench = &ends.bench;
    for (number, way) in WAYS.into_iter().enumerate() {
        for seed in [1_000, 2_000].map(|seed| seed + number as u64) {
            println!("{way:?} seed {seed}");
            // dmover knows the trees of an earlier job again.
            let [s, d, l] = ["s", "d", "l"].map(|tree| format!("{tree}{seed}"));
            bench.sh(&FIRST.replace("s/", &format!("{s}/")));
            mutate(&ends, &format!("{s}/random"), seed, &["steps=150"]);
            let line = "sync --json --yes --delete --max-delete=1000000";
            ends.let_age(&s);
            for (way, destination) in [(way, &d), (LOCAL, &l)] {
                ends.job(way, line, (&s, destination)).expect_code(0);
            }
            bench.assert_same(&s, &d);
            mutate(&ends, &format!("{s}/random"), seed + 100, &["attributes", "steps=120"]);
            bench.sh(&CHANGES.replace("s/", &format!("{s}/")));
            // Both destinations are changed in the same way, too.
            bench.sh(&format!("for d in {d} {l}; do echo more > $d/more; rm $d/fixed/mode; done"));
            ends.let_age(&s);
            let ran = ends.job(way, line, (&s, &d)).expect_code(0);
            let local = ends.job(LOCAL, line, (&s, &l)).expect_code(0);
            assert_lines(&done(&ran, bench.root()), &done(&local, bench.root()), "the second pass");
            let counters = [
                "entries_renamed",
                "entries_deleted",
                "files_copied",
                "bytes_copied",
                "entries_replaced",
            ];
            for counter in counters {
                assert_eq!(count(&ran, counter), count(&local, counter), "{counter}");
            }
            let options = CompareOptions::default();
            assert_eq!(compare(&bench.at(&s), &bench.at(&d), &options).unwrap(), []);
            let rsync = rsync_check(&bench.at(&s), &bench.at(&d)).unwrap();
            assert_eq!(rsync, Vec::<String>::new());
            assert_idle(&ends.job(way, line, (&s, &d)).expect_code(0));
            for tree in [&s, &d, &l] {
                dmover_testkit::tree::remove(&bench.at(tree)).unwrap();
            }
        }
    }
}

#[test]
fn without_delete_extra_entries_stay_and_with_a_limit_they_stay_too() {
    let ends = ends!();
    let bench = &ends.bench;
    for (number, way) in WAYS.into_iter().chain([LOCAL]).enumerate() {
        let (s, d) = (format!("s{number}"), format!("d{number}"));
        bench.sh(&format!("mkdir {s}; for n in 1 2 3 4; do echo $n > {s}/$n; done"));
        ends.job(way, "sync --json", (&s, &d)).expect_code(0);
        bench.sh(&format!("rm {s}/[123]; echo 5 > {s}/5"));
        ends.job(way, "sync --json", (&s, &d)).expect_code(0);
        let list = format!("ls {d} | xargs");
        assert_eq!(bench.sh(&list), "1 2 3 4 5\n", "{way:?}");
        ends.job(way, "sync --json --delete --max-delete=1", (&s, &d)).expect_code(5);
        assert_eq!(bench.sh(&list), "1 2 3 4 5\n", "{way:?}");
        ends.job(way, "sync --json --delete --yes", (&s, &d)).expect_code(0);
        assert_eq!(bench.sh(&list), "4 5\n", "{way:?}");
    }
}

#[test]
fn rules_and_dry_runs_are_as_locally() {
    let ends = ends!();
    let bench = &ends.bench;
    bench.sh("mkdir -p s/a/b s/tmp; echo 1 > s/a/x.o; echo 2 > s/a/x.c; echo 3 > s/a/b/y.o; echo 4 > s/tmp/z
        printf -- '- *.o\n' > s/a/b/.rules");
    for options in
        ["--exclude=*.o --exclude=tmp/", "--include=*/ --include=*.c --exclude=*", "--dry-run"]
    {
        let line = format!("sync --json {options}");
        let local = bench.dmover(&format!("{line} s l")).expect_code(0);
        for way in WAYS {
            let run = ends.job(way, &line, ("s", "d")).expect_code(0);
            assert_eq!(done(&run, bench.root()), done(&local, bench.root()), "{way:?} {options}");
            if bench.exists("l") {
                bench.assert_same("l", "d");
            } else {
                assert!(!bench.exists("d"), "{way:?} {options}");
            }
            bench.sh("rm -rf d");
        }
        bench.sh("rm -rf l");
    }
}

/// Each look is a round trip. That deletes are refused, or not asked for, may not take one for each name in DEST.
#[test]
fn a_first_pass_does_not_look_for_each_name_of_dest() {
    let ends = ends!();
    let bench = &ends.bench;
    bench.sh(
        "mkdir -p s d; for n in {100..299}; do echo $n > s/$n; done; cp -a s/. d; mkdir d/extra",
    );
    for (line, code) in [("sync", 0), ("sync --delete", 2)] {
        let ssh = ends.ssh();
        let source = ends.at("far:", "s/").into_string().unwrap();
        bench.sh(&format!(
            "export DMOVER_STATE_DIR=$PWD/state-$RANDOM DMOVER_LOG=dmover_remote=trace; \
            {PROGRAM} {line} --log-file log --ssh-command '{ssh}' {source} d/ < /dev/null > out 2>&1 && code=0 || code=$?; \
            [[ $code == {code} ]] || {{ cat out >&2; exit 1; }}"
        ));
        let requests =
            bench.sh("grep -c 'asks request' log; rm log").trim().parse::<u64>().unwrap();
        assert!((2..50).contains(&requests), "{line}: {requests} requests");
        assert!(bench.exists("d/extra"));
    }
}

/// Before each delete the source is asked whether it still lacks the name, but not with a round trip for each.
#[test]
fn deletes_ask_a_far_source_about_many_names_at_once() {
    let ends = ends!();
    let bench = &ends.bench;
    for (number, when) in ["", "=during"].into_iter().enumerate() {
        let [s, d] = ["s", "d"].map(|tree| format!("{tree}{number}"));
        bench.sh(&format!(
            "mkdir -p {s}/files {s}/stays; cd {s}; for n in {{100..399}}; do echo $n > files/$n; done
            for n in {{100..139}}; do mkdir -p trees/$n/below; touch trees/$n/{{a,b}} trees/$n/below/c; done"
        ));
        let (ssh, source) = (ends.ssh(), ends.at("far:", &format!("{s}/")).into_string().unwrap());
        let pass = |more: &str| {
            bench.sh(&format!(
                "export DMOVER_STATE_DIR=$PWD/state{number} DMOVER_LOG=dmover_remote=trace; \
                {PROGRAM} sync -q {more} --log-file log --ssh-command '{ssh}' {source} {d}/ < /dev/null >&2"
            ));
            bench.sh("grep -c 'asks request' log; rm log").trim().parse::<u64>().unwrap()
        };
        pass("");
        bench.assert_same(&s, &d);
        bench.sh(&format!("rm {s}/files/[123]?[0-8]; rm -r {s}/trees/*"));
        let requests = pass(&format!("--yes --delete{when}"));
        bench.assert_same(&s, &d);
        // 270 files, and 40 trees of five entries.
        assert!((2..60).contains(&requests), "{when}: {requests} requests");
    }
}

/// What comes back at the source between the search for extra names and the deletes is not extra any more.
#[test]
fn a_name_that_is_back_at_a_far_source_is_not_deleted() {
    let ends = ends!();
    let bench = &ends.bench;
    bench.sh("mkdir -p s/{d,e} d/{d,e}; head -c 4M /dev/urandom > s/d/large
        touch d/{d,e}/{back,gone,other}");
    let line = "sync --json --yes --delete=delay --split-size=1M --bwlimit=1M";
    let running = ends.start_job(WAYS[0], line, ("s/", "d/"));
    // Names are deleted when all content is there, and looked for before.
    eventually("the large file to begin", || !bench.sh("find d -name '.dmover-*'").is_empty());
    bench.sh("touch s/d/back s/e/other");
    running.finish().unwrap().expect_code(0);
    assert_eq!(bench.sh("ls d/d d/e"), "d/d:\nback\nlarge\n\nd/e:\nother\n");
}

/// Names that are asked about at once are not counted at once.
#[test]
fn deletes_on_the_way_stop_at_the_limit() {
    let ends = ends!();
    let bench = &ends.bench;
    bench.sh("mkdir s d; touch s/keep d/{101..160}");
    let line = "sync --json --delete=during --max-delete=50";
    let run = ends.job(WAYS[0], line, ("s/", "d/")).expect_code(5);
    assert_eq!(count(&run, "entries_deleted"), 50);
    assert_eq!(bench.sh("ls d | wc -l").trim(), "11");
}

/// Answers about many names at once do not outlive what they were about.
#[test]
fn deletes_look_at_a_far_source_again_after_a_second() {
    for when in ["delay", "during", "after"] {
        let ends = ends!();
        let bench = &ends.bench;
        bench.sh("mkdir -p s/{d,e} backing/{d,e} faulty; touch backing/{d,e}/{1..9}");
        let config = Config { threads: 8, ..Config::default() };
        let Ok(handle) = FaultFs::mount(&bench.at("backing"), &bench.at("faulty"), config) else {
            skip!("no FUSE");
        };
        handle.set_rules(&[Rule::new(Op::Unlink, Action::Hang { duration_ms: 60_000 })]).unwrap();
        let line = format!("sync --json --yes -j1 --delete={when}");
        let running = ends.start_job(WAYS[0], &line, ("s/", "faulty/"));
        wait_for_fault(&handle);
        // One of the directories is another one by now, and what the other one lacked is there.
        bench.sh("mv s/d old; mkdir s/d; touch s/d/{1..9} s/e/{1..9}");
        let_pass(Duration::from_millis(1100));
        handle.release_hangs();
        let run = running.finish().unwrap();
        let left = bench.sh("ls backing/d backing/e | grep -c '^[0-9]'");
        assert_eq!(left.trim(), "17", "{when}: {}", run.tell());
    }
}

/// Only a young change can be one that the last pass has not seen: the clocks of both hosts were compared in both passes.
#[test]
fn attributes_of_files_are_not_read_again_soon_after_they_were_copied() {
    let ends = ends!();
    let bench = &ends.bench;
    bench.sh("mkdir s; for n in {1000..1999}; do echo $n > s/$n; done");
    let (ssh, source) = (ends.ssh(), ends.at("far:", "s/").into_string().unwrap());
    let pass = || {
        bench.sh(&format!(
            "export DMOVER_STATE_DIR=$PWD/state DMOVER_LOG=dmover_remote=trace; \
            {PROGRAM} sync -q --log-file log --ssh-command '{ssh}' {source} d/ < /dev/null >&2"
        ));
        bench
            .sh("grep -cE 'asks (ahead )?request=Heads' log || true; rm log")
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    let first = pass();
    assert!(first > 20, "{first} requests copied 1000 files");
    // A pass that comes within two seconds has to look again: poll.
    eventually("a pass that trusts the times", || pass() == 0);
    bench.sh("setfattr -n user.late -v 1 s/1234; chmod 600 s/1235");
    assert!((1..4).contains(&pass()), "what has changed is looked at, and nothing else");
    bench.assert_same("s", "d");
}

/// What changed between the copy and the last pass, which had no reason to read it.
#[test]
fn a_comparison_of_change_times_finds_what_an_earlier_pass_did_not_read() {
    let ends = ends!();
    let bench = &ends.bench;
    let way = WAYS[0];
    bench.sh("mkdir -p s/d; for n in {100..199}; do echo $n > s/d/$n; done");
    // What changed at the time of the copy is compared by the next pass.
    ends.let_age("s");
    ends.job(way, "sync --json", ("s/", "d/")).expect_code(0);
    let is_old = |what: &str| bench.sh(&format!("find {what} -newerct '3 seconds ago'")).is_empty();
    // Further from the copy than clocks may differ: poll.
    eventually("an old copy", || is_old("d/d/123 d/d/150"));
    // The same size and modification time: a pass looks at its attributes only.
    bench.sh("touch -r s/d/123 t; echo ABC > s/d/123; touch -r t s/d/123; rm t");
    // Made before the next pass begins, and put in place after it.
    bench.sh("cp -a s/d n; setfattr -n user.n -v 1 n/150");
    eventually("old changes", || is_old("s/d/123 n/150"));
    ends.job(way, "sync --json", ("s/", "d/")).expect_code(0);
    assert_eq!(bench.sh("cat d/d/123"), "123\n");
    bench.sh("rm -r s/d; mv n s/d");
    ends.job(way, "sync --json", ("s/", "d/")).expect_code(0);
    assert_eq!(bench.sh("getfattr --only-values -n user.n d/d/150"), "1");
    ends.job(way, "sync --json --ctime", ("s/", "d/")).expect_code(0);
    bench.assert_same("s", "d");
}
