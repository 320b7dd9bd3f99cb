//! What changes places while a pass runs, and looks alike.
use super::{Bench, Pass};
use dmover_testkit::lanes::run::Running;
use std::time::{Duration, Instant};

/// Same names, sizes and times, other content.
const ALIKE: &str = "mkdir -p a/x a/y a/z; echo AAAA > a/x/f; echo BBBB > a/y/f; echo CCCC > a/z/c; echo DDDD > a/z/d;
    chmod 600 a/z/d; touch -d @1000000000 a/*/*; head -c 2M /dev/urandom > a/big";
const SLOWLY: [&str; 5] = ["sync", "-j1", "--bwlimit=1M", "a", "b"];

impl Bench {
    /// A pass that takes about two seconds for the large file.
    fn slow_pass(&self) -> Running {
        self.dmover.start(SLOWLY).unwrap()
    }

    pub(super) fn until(&self, running: &mut Running, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_mins(1);
        while !is_so() {
            assert!(!running.has_ended().unwrap(), "it has ended before {what}");
            assert!(Instant::now() < deadline, "{what} does not come");
            std::thread::yield_now();
        }
    }

    pub(super) fn is_large_file_in_hand(&self) -> bool {
        let known = self.root().join("b");
        std::fs::read_dir(known).is_ok_and(|names| {
            names.flatten().any(|name| name.file_name().as_encoded_bytes().starts_with(b".dmover-"))
        })
    }

    #[track_caller]
    fn heals(&self) {
        for _ in 0..2 {
            self.sync("a b", 0);
        }
        assert_eq!(self.sh("diff -r a b || :"), "");
        assert_eq!(self.rsync("a", "b"), "");
    }
}

#[test]
fn directories_that_change_places_while_the_first_pass_runs() {
    let bench = Bench::new();
    bench.sh(ALIKE);
    let mut running = bench.slow_pass();
    let both = || bench.exists("b/x/f") && bench.exists("b/y/f");
    bench.until(&mut running, "the directories are there", both);
    bench.sh("mv a/x a/t; mv a/y a/x; mv a/t a/y");
    running.finish().unwrap().expect_code(0);
    bench.heals();
}

#[test]
fn directories_that_change_places_before_a_killed_pass_goes_on() {
    // A pass that is killed before anything is on record begins anew: that is no case of this test.
    let goes_on = (0..20).any(|_| {
        let bench = Bench::new();
        bench.sh(ALIKE);
        let mut running = bench.slow_pass();
        let both = || bench.exists("b/x/f") && bench.exists("b/y/f");
        bench.until(&mut running, "the directories are there", both);
        running.kill().unwrap();
        bench.sh("mv a/x a/t; mv a/y a/x; mv a/t a/y");
        let pass: Pass = bench.sync("-j1 --bwlimit=1M a b", 0);
        assert_eq!(bench.sh("diff -r a b || :"), "", "{}", pass.0.tell());
        bench.heals();
        pass.summary().0["resumed"] == true
    });
    assert!(goes_on, "no killed pass went on");
}

/// What an interrupted pass has put on record, and is not so any more, is no error of the pass that goes on.
#[test]
fn what_was_found_before_a_kill_may_be_gone_or_another() {
    for edit in [
        "rm -r a/x a/y",
        "for d in x y z; do rm -r a/$d; mkdir a/$d; echo new > a/$d/f; done",
        "for d in x y z; do rm -r a/$d; echo new > a/$d; done",
        "mv a/x a/z/x2; mv a/y a/n",
        "rm -r b/x b/y b/old",
        "test ! -e b/old || { touch b/old/1 b/old/more b/x/old/2; chmod 600 b/old/1; }",
    ] {
        let bench = Bench::new();
        bench.sh(ALIKE);
        bench.sh("cp -a a b; mkdir b/old b/x/old; touch b/old/1 b/x/old/2; echo more >> a/big; echo 1 | tee a/x/new a/y/new > a/z/new");
        let words = ["sync", "-j1", "--bwlimit=1M", "--delete", "--yes", "a", "b"];
        let mut running = bench.dmover.start(words).unwrap();
        bench.until(&mut running, "the large file is in hand", || bench.is_large_file_in_hand());
        running.kill().unwrap();
        bench.sh(edit);
        let pass: Pass = bench.sync("-j1 --bwlimit=1M --delete a b", 0);
        assert_eq!(pass.summary().0["resumed"], true, "{edit}");
        assert_eq!(bench.sh("diff -r a b || :"), "", "{edit}: {}", pass.0.tell());
    }
}

#[test]
fn files_that_change_places_with_others_of_another_mode() {
    let bench = Bench::new();
    bench.sh(ALIKE);
    bench.sync("a b", 0);
    bench.sh("head -c 2M /dev/urandom > a/big");
    let mut running = bench.slow_pass();
    bench.until(&mut running, "the large file is in hand", || bench.is_large_file_in_hand());
    bench.sh("mv a/z/c a/z/t; mv a/z/d a/z/c; mv a/z/t a/z/d");
    running.finish().unwrap().expect_code(0);
    bench.heals();
}

/// Between the looks at names and the moment when a directory is entered, however long that takes.
#[test]
fn directories_that_change_places_before_they_are_entered() {
    for renamed in [false, true] {
        let bench = Bench::new();
        bench.sh(ALIKE);
        bench.sh("mkdir a/0; cp a/big a/0");
        bench.sync("a b", 0);
        bench.sync("a b", 0);
        if renamed {
            bench.sh("mv a/x a/w; mv a/w a/v");
        }
        let name = if renamed { "v" } else { "x" };
        bench.sh("head -c 2M /dev/urandom | tee a/big > a/0/big");
        let mut running = bench.slow_pass();
        bench.until(&mut running, "a large file is in hand", || bench.is_large_file_in_hand());
        bench.sh(&format!("mv a/{name} a/t; mv a/y a/{name}; mv a/t a/y"));
        running.finish().unwrap().expect_code(0);
        bench.heals();
    }
}

/// What goes in a run that is gone on with counts for the look at everything after it.
#[test]
fn a_pass_that_goes_on_has_one_limit_for_what_goes() {
    let bench = Bench::new();
    bench.sh("mkdir a b; head -c 2M /dev/urandom | tee a/big | tr a b > b/big; touch -d @1 b/big; touch a/{1..9} b/{m..r}");
    let words = ["sync", "-j1", "--bwlimit=1M", "--delete=during", "--max-delete=3", "a", "b"];
    let mut running = bench.dmover.start(words).unwrap();
    bench.until(&mut running, "the large file is in hand", || bench.is_large_file_in_hand());
    running.kill().unwrap();
    let before: usize = bench.sh("ls b | grep -c '[m-r]$'").trim().parse().unwrap();
    bench.sh("touch a/new");
    let pass = bench.sync(&words[1..].join(" "), 5);
    assert!(bench.exists("b/new"), "what was changed meanwhile is looked at all the same");
    assert!(pass.withheld().is_some(), "{}", pass.0.tell());
    let after: usize = bench.sh("ls b | grep -c '[m-r]$'").trim().parse().unwrap();
    assert!(before - after <= 3, "{before} were there, and {after} are: {}", pass.0.tell());
}

/// What was written under one name of a file is not forgotten with that name.
#[test]
fn a_file_with_several_names_that_somebody_writes_to() {
    for change in ["rm a/1", "mv a/1 a/9", "ln a/1 a/0"] {
        let bench = Bench::new();
        let sync = format!(
            "{} sync -q --yes --delete --state-dir {} a b",
            super::bench::PROGRAM,
            bench.dmover.state_directory().display()
        );
        bench.sh(&format!(
            "mkdir -p a/d; echo before > a/1; ln a/1 a/2; ln a/1 a/d/3; exec 3<>a/1; {sync}
             touch -r a/1 time; {change}; printf after >&3; touch -r time a/2; {sync}; exec 3>&-; {sync}"
        ));
        assert_eq!(bench.rsync("a", "b"), "", "{change}");
    }
}

/// Doubts about single entries end when those were looked into, also of files with several names.
#[test]
fn a_file_with_several_names_is_compared_once() {
    let bench = Bench::new();
    let sync = format!(
        "{} sync -q --exclude zz --state-dir {} a b",
        super::bench::PROGRAM,
        bench.dmover.state_directory().display()
    );
    bench.sh(&format!("mkdir a; seq 99 > a/1; ln a/1 a/2; ln a/1 a/3; exec 3<>a/1; {sync}"));
    let compared: Vec<u64> =
        (0..3).map(|_| bench.sync("--exclude zz a b", 0).number("files_compared")).collect();
    assert_eq!(compared, [1, 0, 0]);
}
