//! Deletes: what goes, what stays, and why.
use super::Bench;
use super::bench::{eventually, is_root, let_pass, wait_for_fault};
use dmover_testkit::faultfs::{Action, Op, Rule, When};
use dmover_testkit::skip;
use std::time::Duration;

/// Two equal trees, and things that only the second one has.
pub fn trees(bench: &Bench) {
    bench.sh("mkdir -p a/d/e; seq 3 > a/f; seq 4 > a/d/g; seq 5 > a/d/e/h; ln -s f a/l; cp -a a b");
    bench.sh("cd b; mkdir -p x/y/z d/more; touch x/1 x/y/2 x/y/z/3 d/e/4; ln -s / x/out; ln -s .. d/up; mkfifo p");
}

const EXTRA: u64 = 11;

#[test]
fn nothing_goes_unless_it_is_asked_for() {
    let bench = Bench::new();
    trees(&bench);
    let pass = bench.sync("a b", 0);
    assert_eq!(pass.number("entries_deleted"), 0);
    assert!(bench.exists("b/x/y/z/3") && bench.exists("b/d/up"));
}

#[test]
fn every_way_of_deleting_leaves_what_the_source_has() {
    for when in ["--delete", "--delete=delay", "--delete=after", "--delete=during"] {
        let bench = Bench::new();
        trees(&bench);
        let listed = bench.sync(&format!("-n {when} a b"), 0);
        assert!(bench.exists("b/x/y/z/3"), "{when}");
        let pass = bench.sync(&format!("{when} a b"), 0);
        assert_eq!(listed.done(), pass.done(), "{when}: a dry run lists exactly what goes");
        assert_eq!(pass.number("entries_deleted"), EXTRA, "{when}");
        assert_eq!(bench.rsync("a", "b"), "", "{when}");
        bench.assert_same("a", "b");
        assert!(bench.exists("/etc/passwd") && bench.exists("a/f"));
    }
}

/// rsync's own list of what it would delete, as an oracle.
#[test]
fn a_dry_run_lists_what_rsync_would_delete() {
    let bench = Bench::new();
    trees(&bench);
    let mut rsync: Vec<String> = bench
        .sh("rsync -an --delete -i a/ b/ | sed -n 's/^\\*deleting *//p'")
        .lines()
        .map(|line| format!("deleted b/{}", line.trim_end_matches('/')))
        .collect();
    rsync.sort();
    let pass = bench.sync("-n --delete a b", 0);
    let ours: Vec<String> =
        pass.done().into_iter().filter(|line| line.starts_with("deleted")).collect();
    assert_eq!(ours, rsync);
}

#[test]
fn rules_protect_what_they_leave_out() {
    for when in ["delay", "during", "after"] {
        let bench = Bench::new();
        trees(&bench);
        bench.sync(&format!("--delete={when} --exclude 3 --exclude /d/more a b"), 0);
        let left =
            "b\nb/d\nb/d/e\nb/d/e/h\nb/d/g\nb/d/more\nb/f\nb/l\nb/x\nb/x/y\nb/x/y/z\nb/x/y/z/3\n";
        assert_eq!(bench.sh("find b | LC_ALL=C sort"), left, "{when}");
    }
}

/// A rule keeps what it excludes also where the source has something of another type, and what cannot be brought for that is
/// named.
#[test]
fn what_is_excluded_stays_where_the_source_has_another_type() {
    for when in ["delay", "during", "after"] {
        for (make, rules, kept) in [
            ("touch a/foo; mkdir b/foo; touch b/foo/x", "--exclude foo/", "b/foo/x"),
            (
                "touch a/foo; mkdir b/foo; touch b/foo/x.keep b/foo/y",
                "--exclude *.keep",
                "b/foo/x.keep",
            ),
            ("ln -s q a/foo; mkdir -p b/foo/d/e; touch b/foo/d/e/x", "--exclude e/", "b/foo/d/e/x"),
            (
                "seq 3 > a/foo; ln a/foo a/goo; mkdir b/foo; touch b/foo/x.keep",
                "--exclude *.keep",
                "b/foo/x.keep",
            ),
            ("mkdir a/foo; touch a/foo/x b/foo", "--include foo/ --exclude foo", "b/foo"),
            ("mkdir a/foo; touch a/foo/x; ln -s q b/foo", "--include foo/ --exclude foo", "b/foo"),
        ] {
            let bench = Bench::new();
            bench.sh(&format!("mkdir a b; {make}; touch a/z"));
            let line = format!("--delete={when} {rules} a b");
            for line in [format!("-n {line}"), line.clone(), line] {
                let pass = bench.sync(&line, 3);
                let said = pass.0.said().unwrap();
                let named = said.errors.iter().any(|line| line.path().ends_with("b/foo"));
                assert!(named, "{line}: {make}: {}", pass.0.tell());
                assert!(bench.exists(kept), "{line}: {make}");
                assert!(
                    !pass.done().iter().any(|done| done.ends_with("/foo")),
                    "{line}: {:?}",
                    pass.done()
                );
            }
            assert!(bench.exists("b/z"), "the rest arrives");
        }
    }
}

/// A dry run lists no directory that holds what a rule keeps.
#[test]
fn a_dry_run_lists_no_directory_that_stays() {
    let bench = Bench::new();
    bench.sh("mkdir -p a b/x/y b/q; touch a/1 b/x/y/k.keep b/x/y/f b/q/f");
    let line = "--delete --exclude *.keep a b";
    let listed = bench.sync(&format!("-n {line}"), 0).done();
    assert_eq!(listed, bench.sync(line, 0).done());
    assert!(bench.exists("b/x/y/k.keep") && !bench.exists("b/x/y/f") && !bench.exists("b/q"));
}

#[test]
fn too_many_deletes_are_no_deletes() {
    let bench = Bench::new();
    trees(&bench);
    let before = bench.sh("find b | sort");
    for line in
        ["--max-delete=10", "--max-delete=0", "--max-delete=10 --delete=after", "--max-delete=64%"]
    {
        let pass = bench.sync(&format!("--delete {line} a b"), 5);
        assert_eq!(pass.number("entries_deleted"), 0, "{line}");
        assert_eq!(pass.number("deletes_withheld"), EXTRA, "{line}");
        assert!(pass.withheld().unwrap().contains("--max-delete"), "{line}");
        assert_eq!(bench.sh("find b | sort"), before, "{line}");
    }
    bench.sync("--delete --max-delete=65% a b", 0);
    assert_eq!(bench.rsync("a", "b"), "");
    bench.dmover("sync --yes --delete=during --max-delete=5% a b").expect_code(2);
    bench.dmover("sync --max-delete=5 a b").expect_code(2);
}

/// What the pass brings does not make room for deletes: a percentage counts what DEST had before, in every way of deleting.
#[test]
fn a_percentage_counts_what_was_there_before_the_pass() {
    for when in ["delay", "after"] {
        let bench = Bench::new();
        let make = "mkdir a b b/old a/new; (cd b; touch old/{001..100}); (cd a; touch {0001..1000} new/{0001..1000}); \
                    seq 9 > a/x; ln a/x a/y; ln -s x a/l; cp -a a/l b";
        bench.sh(make);
        let line = format!("--delete={when} --max-delete=6% a b");
        let listed = bench.sync(&format!("-n {line}"), 5);
        assert_eq!(listed.number("deletes_withheld"), 101, "{when}");
        let pass = bench.sync(&line, 5);
        assert_eq!(pass.number("deletes_withheld"), 101, "{when}");
        assert_eq!(bench.sh("ls b/old | wc -l").trim(), "100", "{when}");
        // Now the destination has them all, 101 of 2,106: the same command does not mean that it may go.
        bench.sync(&format!("-n {line}"), 5);
        bench.sync("a b", 0);
        bench.sync(&line, 5);
        assert_eq!(bench.sh("ls b/old | wc -l").trim(), "100", "{when}");
        bench.sync(&format!("--delete={when} --max-delete=101 a b"), 0);
        bench.assert_same("a", "b");
        // A pass that has deleted ends it: the destination is what the job has made of it.
        bench.sh("rm a/0001");
        bench.sync(&line, 0);
        bench.assert_same("a", "b");
    }
}

/// A run that goes on with an interrupted pass looks at everything once more, and finds what the pass itself has brought.
#[test]
fn what_an_interrupted_pass_has_brought_makes_no_room_for_deletes() {
    for (limit, code) in [("--max-delete=6%", 5), ("", 2)] {
        let bench = Bench::new();
        bench.sh("mkdir a b; (cd a; touch {001..300})");
        bench.sync("a b", 0);
        bench.sync("--delete a b", 0);
        bench.sh("rm a/*; cd a; touch new-{0001..2000}");
        let line = format!("--delete {limit} a b");
        let slow = format!("sync --ops-limit 1000 {line}");
        let running = bench.dmover.start(slow.split_whitespace()).unwrap();
        eventually("some new files", || bench.sh("ls b | grep -c new- || true").trim() != "0");
        running.kill().unwrap();
        for _ in 0..2 {
            bench.dmover(&format!("sync {line}")).expect_code(code);
            assert_eq!(bench.sh("ls b | grep -vc new-").trim(), "300", "{limit}");
        }
        bench.sync(&format!("--yes {line} --max-delete=300"), 0);
        bench.assert_same("a", "b");
    }
}

/// Of 300 entries that both sides have, ten of the destination alone are 3 %, whoever brings something beside them.
#[test]
fn a_percentage_counts_all_kinds_of_entries_that_both_sides_have() {
    for when in ["delay", "after"] {
        let bench = Bench::new();
        bench.sh("mkdir -p a/d/e; (cd a/d; touch {001..200}; for i in {001..040}; do ln $i e/l$i; done); \
                  (cd a; ln -s x s1; for i in {01..57}; do mkdir e$i; done); cp -a a b; touch b/{0..9}");
        for line in ["-n --max-delete=3%", "--max-delete=3%"] {
            bench.sync(&format!("--delete={when} {line} a b"), 5);
        }
        bench.sync(&format!("--delete={when} --max-delete=3.3% a b"), 0);
        bench.assert_same("a", "b");
    }
}

#[test]
fn deletes_on_the_way_stop_at_the_limit() {
    let bench = Bench::new();
    bench.sh("mkdir a b; touch a/keep b/1 b/2 b/3 b/4 b/5");
    let pass = bench.sync("--delete=during --max-delete=3 a b", 5);
    assert_eq!((pass.number("entries_deleted"), pass.number("deletes_withheld")), (3, 2));
    assert_eq!(bench.sh("ls b | wc -l").trim(), "3");
}

#[test]
fn an_empty_source_deletes_nothing() {
    for when in ["delay", "during", "after"] {
        let bench = Bench::new();
        trees(&bench);
        bench.sh("mkdir empty");
        let before = bench.sh("find b | sort");
        let pass = bench.sync(&format!("--delete={when} empty b"), 3);
        assert_eq!(pass.withheld().unwrap(), "the source is empty", "{when}");
        assert_eq!(bench.sh("find b | sort"), before, "{when}");
        bench.sync(&format!("--delete={when} --allow-empty-source empty b"), 0);
        assert_eq!(bench.sh("find b"), "b\n", "{when}");
    }
}

#[test]
fn what_cannot_be_read_at_the_source_withholds_all_deletes() {
    let when = ["delay", "during", "after"];
    for when in when {
        let Some((handle, bench)) = Bench::faulty() else {
            return skip::skipped(
                "what_cannot_be_read_at_the_source_withholds_all_deletes",
                "no FUSE",
            );
        };
        bench.sh("mkdir -p backing/d/e; touch backing/d/f backing/z; cp -a backing b; touch b/d/more b/q");
        handle
            .set_rules(&[Rule::new(Op::Opendir, Action::Errno(5)).name("e").count(1000)])
            .unwrap();
        let pass = bench.sync(&format!("--delete={when} faulty b"), 3);
        // On the way, what lies before the error may have gone already.
        if when != "during" {
            let reason = pass.withheld().unwrap_or_else(|| panic!("{}", pass.0.tell()));
            assert!(reason.contains("could not be read"), "{when}: {reason}");
            assert!(bench.exists("b/d/more") && bench.exists("b/q"), "{when}");
        }
        assert!(bench.exists("b/d/e"), "{when}");
        handle.set_rules(&[]).unwrap();
        bench.sync(&format!("--delete={when} faulty b"), 0);
        assert_eq!(bench.rsync("backing", "b"), "", "{when}");
    }
}

/// A mount namespace in which another fstab(5) stands for that of the machine.
#[test]
fn what_fstab_has_mounted_and_is_not_there() {
    let test = "what_fstab_has_mounted_and_is_not_there";
    let script = "mount --make-rprivate / && mount --bind fstab /etc/fstab && exec \"$@\"";
    let enters = ["unshare", "-m", "sh", "-c", script, "sh"];
    if !is_root() {
        return skip::skipped(test, "needs root");
    }
    let bench = Bench::new();
    let bench = bench.with(|dmover| dmover.wrapped(enters));
    trees(&bench);
    let at = bench.root().display().to_string();
    bench.write("fstab", "# nothing\n");
    bench.sync("a b", 0);
    bench.write("fstab", format!("server:/home {at}/b nfs rw 0 0\n"));
    for line in [
        "sync a b",
        "sync -n a b",
        "sync a b/below",
        "sync --yes --delete a b",
        "copy a b",
        "copy -T a b/below",
        "copy a/f b",
    ] {
        let refused = bench.dmover(line).expect_code(2);
        assert!(refused.stderr.contains("is in fstab but not mounted"), "{}", refused.tell());
    }
    assert!(!bench.exists("b/below") && !bench.exists("b/a"));
    bench.sync("a beside", 0);
    bench.write("fstab", format!("server:/home {at}/a nfs rw 0 0\n"));
    bench.sh("touch b/extra");
    let pass = bench.sync("--delete a b", 3);
    assert!(pass.withheld().is_some_and(|why| why.contains("is in fstab but not mounted")));
    assert!(bench.exists("b/extra"));
}

/// Mounts are looked at again before anything goes.
#[test]
fn what_is_unmounted_while_the_pass_runs_deletes_nothing() {
    let test = "what_is_unmounted_while_the_pass_runs_deletes_nothing";
    if !is_root() {
        return skip::skipped(test, "needs root");
    }
    for when in ["delay", "after"] {
        let Some((handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
        let script = "mount --make-rprivate / && mount --bind fstab /etc/fstab && exec \"$@\"";
        let enters = ["unshare", "-m", "sh", "-c", script, "sh"];
        let bench = bench.with(|dmover| dmover.wrapped(enters));
        bench.sh("mkdir -p a/m backing/m; touch a/last backing/m/{1..9}");
        bench.write("fstab", "# nothing\n");
        let hang = Rule::new(Op::Create, Action::Hang { duration_ms: 60_000 }).name("last");
        handle.set_rules(&[hang]).unwrap();
        let delete = format!("--delete={when}");
        let running =
            bench.dmover.start(["sync", "--json", "--yes", &delete, "a", "faulty"]).unwrap();
        wait_for_fault(&handle);
        bench.write("fstab", format!("server:/m {}/a/m nfs rw 0 0\n", bench.root().display()));
        handle.release_hangs();
        let pass = crate::Pass(running.finish().unwrap().expect_code(3));
        assert!(
            pass.withheld().is_some_and(|why| why.contains("is in fstab but not mounted")),
            "{when}"
        );
        assert!(bench.exists("backing/m/1"), "{when}");
    }
}

/// What cannot be looked into before the pass may be removed by it, so it needs the same confirmation.
#[test]
fn a_directory_that_cannot_be_looked_into_does_not_go_unasked() {
    for nth in 1..=3 {
        let Some((served, bench)) = Bench::faulty() else { skip!("no faultfs") };
        bench.sh("mkdir -p a backing/b/own; echo 1 > a/1; echo 2 > backing/b/own/2");
        let rule = Rule::new(Op::Opendir, Action::Errno(5)).name("own").when(When::Nth(nth));
        served.set_rules(&[rule]).unwrap();
        let run = bench.dmover("sync --delete a faulty/b").expect_code(2);
        assert!(bench.exists("backing/b/own/2"), "{nth}: {}", run.tell());
    }
}

/// Two paths lead to one place.
#[test]
fn one_place_is_not_synchronised_with_two_sources_at_once() {
    let test = "one_place_is_not_synchronised_with_two_sources_at_once";
    if !is_root() {
        return skip::skipped(test, "needs root");
    }
    let Some((handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
    bench.sh("mkdir a a2 backing/d bound; touch a/f a2/g; mount --bind faulty bound");
    let _undo = bench.undo("umount bound");
    let hang = Rule::new(Op::Create, Action::Hang { duration_ms: 60_000 }).name("f");
    handle.set_rules(&[hang]).unwrap();
    let running = bench.dmover.start(["sync", "a", "faulty"]).unwrap();
    wait_for_fault(&handle);
    bench.dmover("sync --yes --delete a2 bound").expect_code(6);
    handle.release_hangs();
    running.finish().unwrap().expect_code(0);
    assert!(bench.exists("backing/f"));
    bench.sync("a2 bound/d", 0);
}

#[test]
fn a_file_system_that_is_mounted_in_the_destination_stays() {
    if !is_root() {
        return skip::skipped(
            "a_file_system_that_is_mounted_in_the_destination_stays",
            "needs root",
        );
    }
    let bench = Bench::new();
    bench.sh("mkdir -p a b/x/m; touch a/f b/x/1; mount -t tmpfs none b/x/m; touch b/x/m/precious");
    let _undo = bench.undo("umount b/x/m");
    for when in ["delay", "during", "after"] {
        bench.sync(&format!("--delete={when} a b"), 3);
        assert!(bench.exists("b/x/m/precious"), "{when}");
    }
    assert!(!bench.exists("b/x/1"));
}

/// A bind mount has the device number of what it lies in.
#[test]
fn what_is_bound_into_the_destination_stays() {
    let test = "what_is_bound_into_the_destination_stays";
    if !is_root() {
        return skip::skipped(test, "needs root");
    }
    for when in ["delay", "after", "during"] {
        let bench = Bench::new();
        bench.sh("mkdir -p a precious b/view b/deep/er b/self; touch a/f precious/{1,2}; mkdir precious/d
            mount --bind precious b/view; mount --bind precious b/deep/er; mount --bind a b/self");
        let _undo = bench.undo("umount b/view b/deep/er b/self");
        let pass = bench.sync(&format!("--delete={when} a b"), 3);
        assert!(pass.0.text().contains("mounted here"), "{when}: {}", pass.0.tell());
        assert_eq!(bench.sh("ls precious a"), "a:\nf\n\nprecious:\n1\n2\nd\n", "{when}");
    }
}

/// A run that was killed may have left something in a directory that the source does not have any more.
#[test]
fn what_a_killed_run_left_goes_with_its_directory() {
    for when in ["--delete", "--delete=delay", "--delete=after", "--delete=during"] {
        let bench = Bench::new();
        trees(&bench);
        bench.sync("a b", 0);
        let job = bench.status()["job"].as_str().unwrap().to_owned();
        bench.sh(&format!(
            "touch b/x/y/.dmover-{job}-0000000000000001-0123456789abcdef b/d/.dmover-{job}-0000000000000001-0123456789abcdef"
        ));
        let listed = bench.sync(&format!("-n {when} a b"), 0);
        let pass = bench.sync(&format!("{when} a b"), 0);
        assert_eq!(listed.done(), pass.done(), "{when}: a dry run lists exactly what goes");
        assert_eq!(bench.rsync("a", "b"), "", "{when}");
        // What somebody else is writing stays, and the directory that it is in.
        let other = "0123456789ab";
        assert_ne!(job, other);
        bench.sh(&format!(
            "mkdir b/z; touch b/z/1 b/z/.dmover-{other}-0000000000000001-0123456789abcdef"
        ));
        let pass = bench.sync(&format!("{when} a b"), 3);
        assert!(pass.0.text().contains("temporaries of another job"), "{}", pass.0.tell());
        assert_eq!(bench.sh("ls -A b/z | wc -l").trim(), "1", "{when}");
    }
}

#[test]
fn an_immutable_copy_goes_with_its_source() {
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/keep a/locked a/other");
    if !is_root() || bench.dmover.command().arg("--version").output().is_err() {
        return skip::skipped("an_immutable_copy_goes_with_its_source", "needs root");
    }
    bench.sh("chattr +i a/locked a/other 2>/dev/null || touch unsupported");
    if bench.exists("unsupported") {
        return skip::skipped("an_immutable_copy_goes_with_its_source", "no inode flags here");
    }
    let _undo = bench.undo("chattr -R -i a b");
    bench.sync("a b", 0);
    bench.sh("chattr -i a/locked; rm a/locked");
    bench.sync("--delete a b", 0);
    assert!(!bench.exists("b/locked"));
    bench.sh("chattr -i a/other; rm a/other");
    bench.sync("--delete --trash trash a b", 0);
    assert!(!bench.exists("b/other") && bench.sh("ls trash/*") == "other\n");
    // Locked by somebody at the destination only: that is not dmover's to lift, but to name.
    bench.sh("chattr +i b/keep; echo more > a/keep");
    let refused = bench.dmover("sync a b").expect_code(3);
    assert!(refused.stderr.contains("lsattr"), "{}", refused.tell());
    assert_eq!(bench.sh("cat b/keep"), "");
}

/// What was found to be too much is looked at again right before it goes, on both sides.
#[test]
fn what_comes_back_or_changes_before_it_goes_stays() {
    let test = "what_comes_back_or_changes_before_it_goes_stays";
    let Some((handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
    bench.sh("mkdir -p a/d; touch a/keep; cp -a a/. backing; touch backing/d/{1..9} backing/{1..9}; mkdir backing/e; touch backing/e/x");
    handle.set_rules(&[Rule::new(Op::Unlink, Action::Hang { duration_ms: 60_000 })]).unwrap();
    let words = ["sync", "--json", "--yes", "-j1", "--delete", "a", "faulty"];
    let running = bench.dmover.start(words).unwrap();
    wait_for_fault(&handle);
    // One is being removed; the source gets some of the others back, and some are written to at the destination.
    bench.sh("touch a/d/{1..3} a/{1..3}; mkdir a/e; echo more | tee -a backing/d/{4..6} backing/{4..6} > /dev/null");
    handle.release_hangs();
    let run = running.finish().unwrap().expect_code(3);
    let left = bench.sh("cd backing; ls -d d/* ? | sort | tr '\\n' ' '");
    // The one that hung was looked at before.
    let lost: Vec<&str> =
        ["d/1", "d/2", "d/3", "d/4", "d/5", "d/6", "1", "2", "3", "4", "5", "6", "e/x"]
            .into_iter()
            .filter(|name| !bench.exists(&format!("backing/{name}")))
            .collect();
    assert!(lost.len() <= 1, "{lost:?} of {left}: {}", run.tell());
    for name in ["d/7", "d/8", "d/9", "7", "8", "9"] {
        assert!(!bench.exists(&format!("backing/{name}")), "{name} is too much: {}", run.tell());
    }
    let said = run.said().unwrap();
    assert!(said.errors.iter().all(|error| error.0["class"] == "changed"), "{}", run.tell());
    handle.set_rules(&[]).unwrap();
    bench.sync("--delete a faulty", 0);
    assert_eq!(bench.rsync("a", "backing"), "");
}

/// A delete that takes its time may not let the others go by what was there before.
#[test]
fn names_of_an_exchanged_directory_stay() {
    for (when, names) in [("delay", "d"), ("delay", "d/z"), ("during", "d/z"), ("after", "d")] {
        let test = "names_of_an_exchanged_directory_stay";
        let Some((handle, bench)) = Bench::faulty() else { return skip::skipped(test, "no FUSE") };
        bench.sh(&format!("mkdir -p a/d; touch a/keep; cp -a a/. backing; mkdir -p backing/{names}; touch backing/{names}/{{1..9}}"));
        handle.set_rules(&[Rule::new(Op::Unlink, Action::Hang { duration_ms: 60_000 })]).unwrap();
        let delete = format!("--delete={when}");
        let words = ["sync", "--json", "--yes", "-j1", &delete, "a", "faulty"];
        let running = bench.dmover.start(words).unwrap();
        wait_for_fault(&handle);
        bench.sh(&format!("mv a/d old; mkdir -p a/{names}; touch a/{names}/{{1..9}}"));
        let_pass(Duration::from_millis(1100));
        handle.release_hangs();
        let run = running.finish().unwrap();
        let left = bench.sh(&format!("ls backing/{names} | wc -l"));
        assert_eq!(left.trim(), "8", "{when} {names}: {}", run.tell());
    }
}

#[test]
fn a_state_directory_inside_the_destination_stays() {
    let bench = Bench::new();
    bench.sh("mkdir -p a b/x; touch a/f b/x/y");
    for when in ["delay", "during", "after"] {
        bench.sync(&format!("--state-dir b/.state --delete={when} a b"), 0);
        assert!(bench.sh("ls b/.state/jobs/*/journal.sqlite").contains("journal"), "{when}");
        assert!(!bench.exists("b/x"), "{when}");
    }
}

/// Nothing is moved with a directory that is exchanged for another one.
#[test]
fn a_state_directory_stays_where_directories_are_exchanged() {
    let bench = Bench::new();
    bench.sh("mkdir -p a/x a/y b/y; echo x > a/x/f; echo y > a/y/f");
    let line = "--state-dir b/y/.state --delete a b";
    bench.sync(line, 0);
    bench.sync(line, 0);
    bench.sh("mv a/y a/t; mv a/x a/y; mv a/t a/x");
    for _ in 0..2 {
        bench.sync(line, 0);
        assert!(bench.exists("b/y/.state/jobs"));
    }
    assert_eq!(bench.sh("rsync -nrlptgoDHAXic --exclude .state --delete a/ b/"), "");
}

/// Where the source has a directory, what is mounted is a part of the destination, unless it has another name.
#[test]
fn what_is_mounted_where_the_source_has_a_directory() {
    let test = "what_is_mounted_where_the_source_has_a_directory";
    if !is_root() {
        return skip::skipped(test, "needs root");
    }
    for when in ["delay", "after", "during"] {
        let bench = Bench::new();
        bench.sh("mkdir -p a/other a/bound a/self b/other b/bound b/self precious; touch a/{other,bound,self}/f precious/p
            mount -t tmpfs none b/other; touch b/other/extra; mount --bind precious b/bound; mount --bind a b/self");
        let _undo = bench.undo("umount b/other b/bound b/self");
        let line = format!("--delete={when} --exclude /bound --exclude /self a b");
        bench.sync(&line, 0);
        assert_eq!(bench.sh("ls b/other"), "f\n", "{when}");
        let pass = bench.sync(&format!("--delete={when} a b"), 3);
        assert!(pass.0.text().contains("bind mount"), "{when}: {}", pass.0.tell());
        assert_eq!(
            bench.sh("ls -x precious a"),
            "a:\nbound  other  self\n\nprecious:\np\n",
            "{when}"
        );
    }
}

#[test]
fn names_of_one_file_where_directories_were() {
    for (before, line) in [
        ("mkdir a/e; echo x > a/e/x; seq 9 > a/d", "rm -r a/e; ln a/d a/e"),
        ("mkdir a/d; echo x > a/d/x; seq 9 > a/e", "rm -r a/d; ln a/e a/d"),
    ] {
        for when in ["delay", "after", "during"] {
            let bench = Bench::new();
            bench.sh(&format!("mkdir a; {before}"));
            bench.sync("a b", 0);
            bench.sh(line);
            let gone = |pass: super::Pass| {
                let done = pass.done();
                done.into_iter().filter(|line| line.starts_with("deleted")).collect::<Vec<_>>()
            };
            let listed = gone(bench.sync(&format!("-n --delete={when} a b"), 0));
            let pass = gone(bench.sync(&format!("--delete={when} a b"), 0));
            assert_eq!(listed, pass, "{when}: a dry run lists exactly what goes");
            assert_eq!(bench.rsync("a", "b"), "", "{when}");
            assert_eq!(bench.inode("b/d"), bench.inode("b/e"), "{when}");
        }
    }
}

/// Beside a manifest nothing is looked at twice, and what is not in order is told.
#[test]
fn names_of_one_file_where_directories_were_beside_a_manifest() {
    let bench = Bench::new();
    bench.sh("mkdir a; mkdir a/d; echo x > a/d/x; seq 9 > a/e");
    bench.sync("a b", 0);
    bench.sh("rm -r a/d; ln a/e a/d");
    let pass = bench.sync("--delete --manifest m a b", 3);
    assert_eq!(pass.summary().0["exit_code"], 3, "{}", pass.0.tell());
    assert!(
        pass.0.stderr.contains("run the same command again")
            || bench.inode("b/d") != bench.inode("b/e")
    );
    bench.sync("--delete --manifest m2 a b", 0);
    assert_eq!(bench.inode("b/d"), bench.inode("b/e"));
}
