//! A disk that cannot write what it was given: the kernel reports it once, to whoever asks first.
use super::Bench;
use super::bench::{PROGRAM, eventually, is_root, pattern};
use dmover_testkit::failing_disk::FailingDisk;
use dmover_testkit::skip;
use std::path::Path;

/// A source on the disk and in memory.
fn bench(disk: &FailingDisk) -> Bench {
    let bench = Bench::inside(&disk.path());
    bench.write("a/f", pattern(300_000));
    bench.sh("touch -d '2 days ago' a/f a; cp -a a other; sync -f .");
    bench
}

/// As if the last run had ended long ago: what the kernel has had so long is flushed when the next one begins.
fn age(bench: &Bench) {
    let state = bench.dmover.state_directory();
    let script = r"
import glob, json, os, sys
for path in glob.glob(sys.argv[1] + '/jobs/*/written*.json'):
    text = json.load(open(path))
    for key in ('updated_ms', 'at_ms'):
        if key in text:
            text[key] -= 61000
    json.dump(text, open(path, 'w'))
";
    bench.write("age.py", script);
    bench.sh(&format!("python3 age.py '{}'", state.display()));
}

/// What the device has, past the page cache.
#[track_caller]
fn on_device(disk: &FailingDisk, bench: &Bench, pairs: &[(&str, &str)]) {
    let name = Path::new(bench.root().file_name().unwrap());
    disk.remount().unwrap();
    let root = disk.path().join(name);
    for (one, other) in pairs {
        let read = |path: &str| std::fs::read(root.join(path)).unwrap();
        assert!(read(one) == read(other), "{other} is not {one}");
    }
}

fn compared(bench: &Bench, words: &str, code: i32) -> u64 {
    let run = bench.dmover(&format!("{words} --json")).expect_code(code);
    let summary = run.said().unwrap().summary.unwrap();
    summary.number("files_compared").unwrap()
}

macro_rules! disk {
    () => {{
        let Some(disk) = FailingDisk::create_or_skip("flushes", 64 << 20) else { return };
        disk
    }};
}

#[test]
fn what_could_not_be_flushed_when_a_run_begins_is_compared() {
    let disk = disk!();
    let bench = bench(&disk);
    bench.dmover("copy -T a b").expect_code(0);
    age(&bench);
    disk.fail_writes(1).unwrap();
    assert_eq!(compared(&bench, "copy -T a b", 0), 1);
    assert!(disk.heal().unwrap() > 0, "no write has failed");
    bench.sh("sync -f .");
    on_device(&disk, &bench, &[("a/f", "b/f")]);
}

/// The run before was killed when its flush had failed, and had heard of it or not.
#[test]
fn a_flush_that_nobody_has_waited_for_counts_as_failed() {
    let disk = disk!();
    let bench = bench(&disk);
    bench.dmover("copy -T a b").expect_code(0);
    disk.fail_writes(1).unwrap();
    // What a run that flushes puts on record first, and what it does then.
    let state = bench.dmover.state_directory();
    bench.sh(&format!(
        "sed -i 's/\"is_flushing\":false/\"is_flushing\":true/' '{}'/jobs/*/written.json; ! sync -f .",
        state.display()
    ));
    assert!(disk.heal().unwrap() > 0, "no write has failed");
    assert_eq!(compared(&bench, "copy -T a b", 0), 1);
    bench.sh("sync -f .");
    on_device(&disk, &bench, &[("a/f", "b/f")]);
}

/// A pass over the same tree finds everything equal, in memory. It flushes what its tasks have met, and the rest at its end.
#[test]
fn a_pass_reports_that_what_it_vouches_for_cannot_be_flushed() {
    let disk = disk!();
    let bench = bench(&disk);
    bench.dmover("copy -T a b").expect_code(0);
    disk.fail_writes(1).unwrap();
    let run = bench.dmover("sync a b");
    assert!(disk.heal().unwrap() > 0, "no write has failed");
    assert_eq!(run.code(), Some(3), "{}", run.tell());
    assert!(run.stderr.contains("sync"), "{}", run.tell());
    assert_ne!(compared(&bench, "sync a b", 0), 0);
    on_device(&disk, &bench, &[("a/f", "b/f")]);
}

/// Two jobs write to one disk, in different places, and one of them hears that something could not be written.
#[test]
fn what_one_job_hears_counts_for_all() {
    for other in ["sync other c", "copy -T other c"] {
        let disk = disk!();
        let bench = bench(&disk);
        bench.dmover("copy -T a b").expect_code(0);
        if other.starts_with("copy") {
            bench.dmover(other).expect_code(0);
            age(&bench);
        }
        disk.fail_writes(1).unwrap();
        let run = bench.dmover(other);
        assert!(disk.heal().unwrap() > 0, "no write has failed");
        assert_eq!(run.code() == Some(0), other.starts_with("copy"), "{}", run.tell());
        // The kernel does not report it any more.
        bench.sh("sync -f .");
        assert_eq!(compared(&bench, "copy -T a b", 0), 1, "{other}");
        bench.dmover(other).expect_code(0);
        bench.sh("sync -f .");
        on_device(&disk, &bench, &[("a/f", "b/f"), ("other/f", "c/f")]);
    }
}

/// Two jobs that run at the same time both hear of a failure, whoever flushes first. Takes as long as it takes until jobs flush
/// what they write.
#[test]
fn jobs_that_run_at_once_both_hear_of_a_failure() {
    let disk = disk!();
    let bench = bench(&disk);
    bench.write("slow/large", pattern(6_000_000));
    bench.sh("cp -a slow slow-2; touch -d '2 days ago' slow/large slow-2/large; sync -f .");
    let start = |from: &str, to: &str| {
        let line = format!("copy --bwlimit=128K --split-size=0 --progress=never -T {from} {to}");
        bench.dmover.start(line.split_whitespace()).unwrap()
    };
    let (mut one, mut other) = (start("slow", "x"), start("slow-2", "y"));
    let has_begun = |path: &str| std::fs::metadata(bench.at(path)).is_ok_and(|at| at.len() > 0);
    eventually("both to write", || has_begun("x/large") && has_begun("y/large"));
    disk.fail_writes(1).unwrap();
    // Somebody else may be the first to hear of it.
    let _ = bench.sh("sync -f . || true");
    eventually("both to end", || one.has_ended().unwrap() && other.has_ended().unwrap());
    assert!(disk.heal().unwrap() > 0, "no write has failed");
    for run in [one.finish().unwrap(), other.finish().unwrap()] {
        assert_eq!(run.code(), Some(3), "{}", run.tell());
    }
    bench.sh("sync -f .");
    for line in ["copy -T slow x", "copy -T slow-2 y"] {
        bench.dmover(line).expect_code(0);
    }
    bench.sh("sync -f .");
    on_device(&disk, &bench, &[("slow/large", "x/large"), ("slow-2/large", "y/large")]);
}

/// Storage below the file system is full, so that what is written into holes cannot be flushed. ext4 takes the pages in memory
/// for written then, also if the same content is written into them once more.
#[test]
fn what_was_written_in_place_and_not_flushed_reaches_storage_in_the_next_run() {
    if !is_root() {
        skip::skipped("what_was_written_in_place_and_not_flushed", "it needs root");
        return;
    }
    for line in ["", "--fsync", "--overwrite=always"] {
        let bench = Bench::new();
        bench.write("s/f", pattern(2 << 20));
        bench.sh("cp s/f s/g");
        let seen = bench.sh(&format!(
            r"exec 2> said; mkdir low top; mount -t tmpfs -o size=90M none low
            trap 'umount top; losetup -d $L; umount low' EXIT
            truncate -s 400M low/img; mkfs.ext4 -q -F -E nodiscard low/img
            L=$(losetup -f --show low/img); mount $L top
            mkdir top/t; truncate -s 2M top/t/f top/t/g; mkdir top/j; touch top/j/{{1..3000}}; sync -f top
            head -c 500M /dev/zero > low/fill || true
            run() {{ timeout 60 {PROGRAM} copy -q -T --inplace {line} s top/t && echo 0 || echo $?; }}
            run; rm low/fill; run
            umount top; mount $L top; cmp s/f top/t/f && cmp s/g top/t/g && echo same || echo other"
        ));
        assert_eq!(seen, "3\n0\nsame\n", "{line}: {}", bench.read("said"));
    }
}

/// A destination whose directory is on the device, so that the write that fails is one of content: a failed write of a directory
/// makes ext4 read-only.
fn with_empty_destination(disk: &FailingDisk) -> Bench {
    let bench = bench(disk);
    bench.sh("mkdir b");
    disk.remount().unwrap();
    bench
}

/// The files of a pass whose flush failed look complete afterwards, and the kernel takes them for clean.
#[test]
fn a_pass_writes_again_what_an_earlier_pass_could_not_flush() {
    let disk = disk!();
    let bench = with_empty_destination(&disk);
    disk.fail_writes(1).unwrap();
    let run = bench.dmover("sync a b");
    assert!(disk.heal().unwrap() > 0, "no write has failed");
    assert_ne!(run.code(), Some(0), "{}", run.tell());
    bench.dmover("sync a b").expect_code(0);
    on_device(&disk, &bench, &[("a/f", "b/f")]);
}
