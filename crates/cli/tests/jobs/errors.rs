//! Errors by the thousand: a few are shown, all are listed.
use super::bench::{eventually, is_root, pattern};
use super::{Bench, command, count, json_lines};
use dmover_testkit::image::{FileSystem, Image};
use serde_json::Value;
use std::collections::BTreeSet;

/// A tree `s` with so many files that its owner may not read, and one that he may.
fn unreadable(files: usize) -> Bench {
    let bench = Bench::new();
    let bench = if is_root() { bench.unprivileged() } else { bench };
    bench.sh(&format!(
        "mkdir s; cd s; for n in $(seq {files}); do echo $n > f$n; done; chmod 0 f*; echo fine > g; cd ..
         test $(id -u) != 0 || chown -R --reference . s"
    ));
    bench
}

fn paths(text: &str) -> BTreeSet<String> {
    json_lines(text).iter().map(|error| error["path"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn of_ten_thousand_failures_twenty_are_shown_and_all_are_listed() {
    let bench = unreadable(10_000);
    let all: BTreeSet<String> = bench.sh("find s -name 'f*'").lines().map(str::to_owned).collect();
    assert_eq!(all.len(), 10_000);
    for verb in ["copy", "sync"] {
        let words = format!("{verb} --errors-to {verb}.jsonl --log-file {verb}.log s d-{verb}");
        let run = bench.dmover(&words).expect_code(3);
        assert_eq!(count(&run, "dmover: error:"), 20, "{}", run.tell());
        assert_eq!(count(&run, "further denied errors are not shown"), 1, "{}", run.tell());
        assert_eq!(count(&run, "denied      10,000:"), 1, "{}", run.tell());
        let listing = command(&run, "full list: dmover");
        let listed = bench.dmover(&format!("{listing} --json")).expect_code(0).text();
        assert_eq!((listed.lines().count(), paths(&listed)), (10_000, all.clone()));
        let written = bench.read(&format!("{verb}.jsonl"));
        assert_eq!((written.lines().count(), paths(&written)), (10_000, all.clone()));
        let log = bench.read(&format!("{verb}.log"));
        let logged = log.lines().filter(|line| line.contains("entry failed")).count();
        assert_eq!(logged, 10_000);
        let text = bench.dmover(listing).expect_code(0).text();
        assert!(text.contains("s/f7: open: Permission denied (os error 13) [denied]\n"), "{text}");
        let nul = bench.dmover(&format!("{listing} -0 --class denied")).expect_code(0);
        assert_eq!(nul.stdout.split(|byte| *byte == 0).count(), 10_001, "nothing after the last");
        let other = bench.dmover(&format!("{listing} --class io")).expect_code(0);
        assert_eq!(other.text(), "");
    }
    assert_eq!(bench.sh("diff d-copy d-sync && cat d-sync/g"), "fine\n");
}

/// What is written while a job runs is what is listed afterwards.
#[test]
fn both_lists_have_the_same_fields() {
    let bench = unreadable(3);
    let fields = |text: &str| -> Vec<BTreeSet<String>> {
        let keys = |error: &Value| error.as_object().unwrap().keys().cloned().collect();
        json_lines(text).iter().map(keys).collect()
    };
    for verb in ["copy", "sync"] {
        let run = bench.dmover(&format!("{verb} --errors-to e s d-{verb}")).expect_code(3);
        let listing = command(&run, "full list: dmover");
        let listed = bench.dmover(&format!("{listing} --json")).expect_code(0).text();
        assert_eq!(fields(&bench.read("e")), fields(&listed), "{verb}");
        assert_eq!(fields(&listed).len(), 3);
    }
}

#[test]
fn v_shows_all_errors_and_names_what_is_done() {
    let bench = unreadable(30);
    let run = bench.dmover("copy -v s d").expect_code(3);
    assert_eq!(count(&run, "dmover: error:"), 30, "{}", run.tell());
    assert_eq!(count(&run, "not shown"), 0, "{}", run.tell());
    assert_eq!(count(&run, "dmover: created d/g"), 1, "{}", run.tell());
    assert_eq!(run.text(), "", "names are no data");
    bench.sh("chmod 644 s/f*; rm s/g");
    let run = bench.dmover("sync -v -n --delete --yes s d").expect_code(0);
    assert_eq!(count(&run, "dmover: would create d/f"), 30, "{}", run.tell());
    assert_eq!(count(&run, "dmover: would delete d/g"), 1, "{}", run.tell());
    bench.dmover("sync --delete --yes s d").expect_code(0);
    let run = bench.dmover("sync -v s d").expect_code(0);
    assert_eq!(count(&run, "dmover: created"), 0, "what is equal is not named: {}", run.tell());
    let run = bench.dmover("copy s other").expect_code(0);
    assert_eq!(count(&run, "created"), 0, "{}", run.tell());
}

#[test]
fn the_list_of_a_copy_is_that_of_its_last_run() {
    let bench = unreadable(4);
    let run = bench.dmover("copy -T s d").expect_code(3);
    let listing = command(&run, "full list: dmover").to_owned();
    assert_eq!(bench.dmover(&listing).expect_code(0).text().lines().count(), 4);
    bench.sh("chmod 644 s/f1");
    bench.dmover("copy -T s d").expect_code(3);
    assert_eq!(bench.dmover(&listing).expect_code(0).text().lines().count(), 3);
    // A dry run is no run.
    bench.sh("chmod 644 s/f*");
    bench.dmover("copy -n -T s d").expect_code(0);
    assert_eq!(bench.dmover(&listing).expect_code(0).text().lines().count(), 3);
    let run = bench.dmover("copy -T s d").expect_code(0);
    assert_eq!(count(&run, "full list"), 0, "{}", run.tell());
    assert_eq!(bench.dmover(&listing).expect_code(0).text(), "");
    let left =
        bench.sh(&format!("find {} -name 'errors*'", bench.dmover.state_directory().display()));
    assert_eq!(left, "", "a run without errors has no list");
}

/// A command that names its state directory is repeated with it.
#[test]
fn the_full_list_is_found_by_the_command_that_is_shown() {
    let bench = unreadable(2);
    for verb in ["copy", "sync"] {
        let run = bench.dmover(&format!("{verb} --state-dir elsewhere s d-{verb}")).expect_code(3);
        let listing = command(&run, "full list: dmover");
        assert!(listing.contains("--state-dir /"), "{listing}");
        assert_eq!(bench.dmover(listing).expect_code(0).text().lines().count(), 2);
    }
}

#[test]
fn what_keeps_no_state_says_how_to_keep_a_list() {
    let bench = unreadable(25);
    bench.sh("mkdir d; for n in $(seq 25); do echo $n > d/f$n; done");
    for words in ["copy --no-state -T s other", "verify --level digest s d"] {
        let run = bench.dmover(words);
        assert_eq!(run.code(), Some(3), "{}", run.tell());
        assert!(command(&run, "full list:").contains("--errors-to FILE"), "{}", run.tell());
    }
    let run = bench.dmover("sum s");
    assert_eq!(count(&run, "dmover: error:"), 20, "{}", run.tell());
    assert_eq!(count(&run, "further denied errors are not shown"), 1, "{}", run.tell());
}

#[test]
fn every_verb_writes_errors_to_a_file() {
    let bench = unreadable(3);
    bench.sh("mkdir d; cp s/g d; for n in 1 2 3; do echo $n > d/f$n; done");
    let refused = bench.dmover("copy --errors-to nowhere/e s d2").expect_code(2);
    assert!(refused.stderr.contains("list of errors nowhere/e"), "{}", refused.tell());
    assert!(!bench.exists("d2"));
    for words in ["verify --level digest s d", "sum s", "copy --no-state -T s d3", "sync s d4"] {
        bench.sh("rm -f e");
        let run = bench.dmover(&format!("{words} --errors-to e"));
        assert_eq!(run.code(), Some(3), "{}", run.tell());
        let listed = bench.read("e");
        let expected = ["s/f1", "s/f2", "s/f3"].map(str::to_owned);
        assert_eq!(paths(&listed), BTreeSet::from(expected), "{words}: {listed}");
        assert!(json_lines(&listed).iter().all(|error| error["type"] == "error"), "{listed}");
    }
    // A run without errors leaves an empty list, not an old one.
    bench.dmover("sum s/g --errors-to e").expect_code(0);
    assert_eq!(bench.read("e"), "");
}

/// The same command may be started again by mistake, and a dry run has no lock.
#[test]
fn a_list_that_a_running_job_writes_is_not_emptied() {
    let bench = unreadable(5);
    // In a directory of its own, so that it does not come before the others.
    bench.write("s/sub/z", pattern(6 << 20));
    bench.sh("echo old > e; chown --reference . e");
    let words = ["sync", "--errors-to", "e", "--bwlimit=1M", "-j4", "s", "d"];
    let running = bench.dmover.start(words).unwrap();
    eventually("five errors", || bench.read("e").lines().count() == 5);
    let refused = bench.dmover(&words.join(" ")).expect_code(6);
    assert_eq!(bench.read("e").lines().count(), 5, "{}", refused.tell());
    let dry = bench.dmover("sync -n --errors-to e s d");
    assert_eq!(count(&dry, "another job writes the list of errors e"), 1, "{}", dry.tell());
    let added = bench.read("e").lines().count();
    assert!(added >= 5);
    // An error after that goes to the end.
    bench.sh("echo more >> e");
    running.finish().unwrap().expect_code(3);
    let listed = bench.read("e");
    assert!(!listed.contains('\0') && listed.lines().count() == added + 1, "{listed:?}");
    // The next run has a list of its own.
    bench.dmover("sync --errors-to e s d").expect_code(3);
    assert_eq!(paths(&bench.read("e")).len(), 5);
}

#[test]
fn a_list_that_cannot_be_written_is_said_to_be_incomplete() {
    let bench = unreadable(25);
    let run = bench.dmover("copy -T --errors-to /dev/full s d").expect_code(3);
    assert_eq!(count(&run, "cannot write the list of errors"), 1, "{}", run.tell());
    let listing = command(&run, "full list: dmover").to_owned();
    assert_eq!(bench.dmover(&listing).expect_code(0).text().lines().count(), 25);
    let state = bench.dmover.state_directory().display().to_string();
    // Something else stands in its way.
    bench.sh(&format!("cd {state}/jobs/*/; rm errors.jsonl; mkdir errors.jsonl"));
    let run = bench.dmover("copy -T s d").expect_code(3);
    assert!(command(&run, "full list:").starts_with("incomplete:"), "{}", run.tell());
}

/// Attributes that have no room at the destination.
#[test]
fn losses_of_a_kind_are_cut_alike() {
    let Some(image) = Image::create_or_skip("many-losses", FileSystem::Ext4, 64 << 20) else {
        return;
    };
    let bench = Bench::new();
    bench.sh("mkdir a; touch a/{1..30}; for f in a/*; do for n in 1 2 3; do setfattr -n user.$n -v $(head -c 2000 /dev/zero | tr '\\0' x) $f; done; done");
    let to = image.path().join("b").display().to_string();
    let run = bench.dmover(&format!("copy a {to}")).expect_code(3);
    assert_eq!(count(&run, "dmover: lost:"), 20, "{}", run.tell());
    assert_eq!(count(&run, "further xattr losses are not shown"), 1, "{}", run.tell());
}

/// Files of `s` whose places in `d` are directories that are not empty.
fn in_the_way(bench: &Bench, files: usize) {
    bench.sh(&format!(
        "mkdir s d; cd s; touch $(seq {files}); cd ../d; mkdir $(seq {files}); for n in *; do touch $n/x; done"
    ));
}

/// The list has less space than it needs, from the start or after some errors.
#[test]
fn a_list_without_space_is_not_shown_as_complete() {
    for (name, left) in [("list-short-of-space", 64), ("list-without-space", 0)] {
        let Some(image) = Image::create_or_skip(name, FileSystem::Tmpfs, 1 << 20) else { return };
        let bench = Bench::new();
        in_the_way(&bench, 400);
        let state = image.path().display().to_string();
        if left == 0 {
            // What a run leaves but its list.
            bench.dmover(&format!("copy --state-dir {state} --exclude=* -T s d")).expect_code(0);
        }
        let size = (1024 - left) << 10;
        bench.sh(&format!("head -c {size} /dev/zero > {state}/full || true"));
        let run = bench.dmover(&format!("copy --state-dir {state} -T s d")).expect_code(3);
        assert!(command(&run, "full list:").starts_with("incomplete:"), "{}", run.tell());
        let listing = bench.dmover(&format!("errors --json --state-dir {state}")).expect_code(3);
        let lines = json_lines(&listing.text()).len();
        assert!(lines < 400 && (lines > 0 || left == 0), "{lines}");
        let remark = format!("error: {lines} of 400 errors are listed");
        assert_eq!(count(&listing, &remark), 1, "{}", listing.tell());
        assert_eq!(count(&listing, "No space left"), 1, "{}", listing.tell());
        assert_eq!(count(&listing, "journal"), 0, "{}", listing.tell());
    }
}

/// Space that comes back in the middle of a run.
#[test]
fn errors_after_a_full_file_system_are_listed() {
    let name = "list-with-space-again";
    let Some(image) = Image::create_or_skip(name, FileSystem::Tmpfs, 1 << 20) else { return };
    let bench = Bench::new();
    in_the_way(&bench, 600);
    let state = image.path().display().to_string();
    let words = "copy --log-file log --ops-limit=60 -T --state-dir";
    let running = bench.dmover.start(words.split(' ').chain([&*state, "s", "d"])).unwrap();
    let lines = || {
        let text = bench.sh(&format!("cat {state}/jobs/*/errors.jsonl 2>/dev/null || true"));
        text.lines().count()
    };
    eventually("the first errors", || lines() > 5);
    bench.sh(&format!("dd if=/dev/zero of={state}/full bs=4k || true"));
    eventually("no space for an error", || {
        bench.exists("log") && bench.read("log").contains("errors are missing from the list")
    });
    let full = lines();
    bench.sh(&format!("rm {state}/full"));
    eventually("more errors", || lines() > full + 5);
    running.finish().unwrap().expect_code(3);
    let listing = bench.dmover(&format!("errors --json --state-dir {state}")).expect_code(3);
    let listed = json_lines(&listing.text()).len();
    assert!(full < listed && listed < 600, "{full} {listed}");
    let remark = format!("error: {listed} of 600 errors are listed: cannot write");
    assert_eq!(count(&listing, &remark), 1, "{}", listing.tell());
}

#[test]
fn a_damaged_line_hides_no_other() {
    let bench = unreadable(40);
    bench.dmover("copy -T s d").expect_code(3);
    let list = format!("{}/jobs/*/errors.jsonl", bench.dmover.state_directory().display());
    // The twentieth line has lost its second half and its end.
    bench.sh(&format!(
        "f=$(echo {list}); (head -n 19 $f; sed -n 20p $f | head -c 50; tail -n +21 $f) > t; cat t > $f"
    ));
    let listing = bench.dmover("errors").expect_code(3);
    assert_eq!(listing.text().lines().count(), 38);
    let remark = "38 of 40 errors are listed; 1 line is damaged";
    assert_eq!(count(&listing, remark), 1, "{}", listing.tell());
    // A script that wants one class must know it, too.
    bench.dmover("errors --class io").expect_code(3);
    // The next run has a list of its own.
    bench.dmover("copy -T s d").expect_code(3);
    assert_eq!(bench.dmover("errors").expect_code(0).text().lines().count(), 40);
}

#[test]
fn a_copy_that_cannot_start_keeps_the_list_of_the_run_before() {
    let bench = unreadable(4);
    let run = bench.dmover("copy -T s d").expect_code(3);
    let listing = command(&run, "full list: dmover").to_owned();
    bench.dmover("copy -T --exclude=[ s d").expect_code(2);
    assert_eq!(bench.dmover(&listing).expect_code(0).text().lines().count(), 4);
}

/// A list longer than what is read at once, with one path that failed on both sides.
#[test]
fn a_retry_attempts_each_failed_entry_once() {
    let bench = Bench::new();
    in_the_way(&bench, 2500);
    bench.sh("touch s/fine");
    bench.dmover("sync s d").expect_code(3);
    assert_eq!(bench.dmover("errors").expect_code(0).text().lines().count(), 2500);
    let run = bench.dmover("retry").expect_code(3);
    assert_eq!(count(&run, "type_conflict 2,500:"), 1, "{}", run.tell());
    bench.sh("rm -r d; mkdir d; rm s/7");
    let run = bench.dmover("retry").expect_code(0);
    assert_eq!(count(&run, "2,499 files"), 1, "{}", run.tell());
    assert_eq!(bench.sh("ls s | wc -l; ls d | wc -l"), "2500\n2499\n", "what had not failed");
}
