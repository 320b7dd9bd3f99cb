//! Bounds, full destinations, and errors that would meet every entry.

use std::time::Duration;

use dmover_testkit::image::{FileSystem, Image, ImageOptions};
use dmover_testkit::lanes::check::lying_files;
use dmover_testkit::skip;

use super::Bench;
use super::bench::{Undo, is_root, pattern};

/// A bench with a small file system mounted at `small`.
fn small(options: &str) -> Option<(Bench, Undo)> {
    if !is_root() {
        return None;
    }
    let bench = Bench::new();
    bench.sh(&format!("mkdir small; mount -t tmpfs -o {options} none small"));
    let undo = bench.undo("umount -l small");
    Some((bench, undo))
}

#[test]
fn max_errors_stops_the_job() {
    let bench = Bench::new();
    bench.sh(
        "mkdir -p s d; for i in $(seq 50); do echo $i > s/$i; mkdir d/$i; done; echo x > s/good",
    );
    let run = bench.copy("--max-errors 5 -j 1 -T s d").expect_code(5);
    let said = run.said().unwrap();
    let conflicts = said.errors.iter().filter(|e| e.text("class") == "type_conflict").count();
    assert!((5..50).contains(&conflicts), "{}", run.tell());
    assert_eq!(said.summary.unwrap().text("reason"), "max_errors");
    let run = bench.copy("-T s d").expect_code(3);
    assert_eq!(run.said().unwrap().errors.len(), 50);
}

#[test]
fn max_duration_stops_the_job_and_the_same_command_goes_on() {
    let bench = Bench::new();
    for number in 0..40 {
        bench.write(&format!("s/{number}"), pattern(100_000));
    }
    let run = bench.copy("--max-duration 1s --bwlimit 1M s d").expect_code(5);
    assert!(run.elapsed < Duration::from_secs(30), "{:?}", run.elapsed);
    let summary = run.said().unwrap().summary.unwrap();
    assert_eq!(summary.text("reason"), "max_duration");
    let copied = summary.number("files_copied").unwrap();
    assert!((1..40).contains(&copied), "{copied}");
    assert_eq!(lying_files(&bench.at("s"), &bench.at("d")).unwrap(), Vec::<String>::new());
    let summary = bench.copy("s d").expect_code(0).said().unwrap().summary.unwrap();
    assert_eq!(summary.number("files_copied"), Some(40 - copied));
    bench.assert_same("s", "d");
}

#[test]
fn bandwidth_and_operations_are_limited() {
    let bench = Bench::new();
    bench.write("s/large", pattern(1_500_000));
    let run = bench.copy("--bwlimit 1M s d").expect_code(0);
    assert!(run.elapsed > Duration::from_millis(900), "{:?}", run.elapsed);
    bench.sh("mkdir many; for i in $(seq 60); do : > many/$i; done");
    for limit in ["ops-limit", "open-limit", "create-limit"] {
        let run = bench.copy(&format!("--{limit} 40 -T many {limit}")).expect_code(0);
        assert!(run.elapsed > Duration::from_millis(900), "{limit}: {:?}", run.elapsed);
        bench.assert_same("many", limit);
    }
}

#[test]
fn a_full_destination_keeps_complete_files_and_names_every_other() {
    let Some((bench, _undo)) = small("size=2M") else { skip!("needs root to mount") };
    for number in 0..30 {
        bench.write(&format!("s/{number:02}"), pattern(200_000));
    }
    let run = bench.copy("s small/d").expect_code(3);
    let said = run.said().unwrap();
    assert!(said.errors.iter().any(|line| line.text("class") == "no_space"), "{}", run.tell());
    assert_eq!(lying_files(&bench.at("s"), &bench.at("small/d")).unwrap(), Vec::<String>::new());
    let arrived: usize = bench.sh("ls -A small/d | wc -l").trim().parse().unwrap();
    assert!(arrived >= 5, "{arrived} files fit");
    assert_eq!(bench.sh("ls -A small/d | grep -c dmover || true"), "0\n", "left over");
    for number in 0..30 {
        let name = format!("{number:02}");
        let there = bench.exists(&format!("small/d/{name}"));
        let named = said.errors.iter().any(|line| line.path().ends_with(&name));
        assert!(there != named, "{name}: there {there}, named {named}: {}", run.tell());
    }
    bench.sh("mount -o remount,size=20M small");
    bench.copy("s small/d").expect_code(0);
    bench.assert_same("s", "small/d");
}

#[test]
fn a_full_destination_pauses_a_large_job_instead_of_trying_every_entry() {
    let Some((bench, _undo)) = small("size=64K") else { skip!("needs root to mount") };
    bench.sh(
        "mkdir s; head -c 8000 /dev/urandom > block; for i in $(seq 1000); do cp block s/$i; done",
    );
    let run = bench.copy("-j 2 s small/d").expect_code(3);
    let said = run.said().unwrap();
    assert_eq!(said.paused.len(), 1, "{}", run.tell());
    assert!(said.paused[0].text("reason").contains("no_space"), "{:?}", said.paused);
    let tried = said.errors.iter().filter(|line| line.text("class") == "no_space").count();
    assert!((10..500).contains(&tried), "{tried} entries were tried");
    let summary = said.summary.unwrap();
    assert!(summary.number("not_attempted").unwrap() > 0);
    assert_eq!(summary.text("state"), "paused");
}

#[test]
fn no_more_inodes_is_no_space_too() {
    let Some((bench, _undo)) = small("nr_inodes=20") else { skip!("needs root to mount") };
    bench.sh("mkdir s; for i in $(seq 40); do : > s/$i; done");
    let run = bench.copy("s small/d").expect_code(3);
    let said = run.said().unwrap();
    let named = said.errors.iter().filter(|line| line.text("class") == "no_space").count();
    let there: usize = bench.sh("ls -A small/d | wc -l").trim().parse().unwrap();
    assert_eq!(named + there, 40, "{}", run.tell());
}

#[test]
fn a_quota_is_told_as_quota() {
    let options = ImageOptions {
        size_bytes: 64 << 20,
        mount_options: vec!["usrquota".into()],
        ..ImageOptions::default()
    };
    let image = match Image::create_with(FileSystem::Xfs, &options) {
        Ok(image) => image,
        Err(why) => skip!("no quota here: {why}"),
    };
    let bench = Bench::new();
    let limit = "xfs_quota -x -c 'limit bhard=1m 4242'";
    let set = format!("{limit} {} 2>&1 || echo FAILED", image.path().display());
    if bench.sh(&set).contains("FAILED") {
        skip!("xfs_quota does not work here");
    }
    for number in 0..20 {
        bench.write(&format!("s/{number}"), pattern(200_000));
    }
    bench.sh("chown -R 4242 s");
    let words = ["s".into(), image.path().join("d").into_os_string()];
    let run = bench.copy_words(&words);
    let said = run.said().unwrap();
    // Root is not bound by quotas while it writes; then nothing may fail either.
    if run.code() == Some(0) {
        skip!("root is not bound by this quota");
    }
    assert!(said.errors.iter().all(|line| line.text("class") == "quota"), "{}", run.tell());
    assert_eq!(run.code(), Some(3));
}

#[test]
fn names_that_are_too_long_are_named_and_the_rest_arrives() {
    let Some(image) = Image::create_or_skip("long names", FileSystem::Xfs, 0) else { return };
    let bench = Bench::new();
    bench.sh("mkdir s; echo 1 > s/a; ln -s $(printf 'x%.0s' $(seq 2000)) s/long; echo 2 > s/z");
    let words = ["s".into(), image.path().join("d").into_os_string()];
    let run = bench.copy_words(&words).expect_code(3);
    let said = run.said().unwrap();
    assert_eq!(said.errors.len(), 1, "{}", run.tell());
    assert_eq!(said.errors[0].text("class"), "name_too_long");
    assert!(said.errors[0].path().ends_with("d/long"));
    assert!(image.path().join("d/z").exists());
}

#[test]
fn names_that_differ_in_case_only_clash_where_case_is_ignored() {
    let Some((_handle, bench)) = Bench::folding() else { skip!("no FUSE") };
    bench.sh("mkdir s; echo upper > s/NAME; echo lower > s/name; echo other > s/other");
    let words = ["-T", "s", "faulty"];
    let run = bench.copy_words(&words).expect_code(3);
    let said = run.said().unwrap();
    assert_eq!(said.errors.len(), 1, "{}", run.tell());
    assert_eq!(said.errors[0].text("class"), "name_clash");
    assert_eq!(bench.sh("ls backing | wc -l"), "2\n");
    let run = bench.copy_words(&words).expect_code(3);
    assert_eq!(run.said().unwrap().errors[0].text("class"), "name_clash", "{}", run.tell());
}

#[test]
fn little_memory_is_enough() {
    let bench = Bench::new();
    bench.sh("mkdir -p s/d; for i in $(seq 3000); do echo $i > s/d/$i; ln s/d/$i s/l$i; done");
    let run = bench.copy("--memory 8M -j 8 s d").expect_code(0);
    let peak = run.said().unwrap().summary.unwrap().number("peak_memory_bytes").unwrap();
    assert!(peak < 64 << 20, "{peak}");
    bench.assert_same("s", "d");
}
